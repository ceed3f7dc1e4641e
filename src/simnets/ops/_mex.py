"""`mex`: what it accepts, and which of its forms computes the result."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.ops import _mex_formula as formula
from simnets.ops import _mex_kernels as kernels
from simnets.ops import reference

METHODS = ("auto", "reference")
APPROXIMATIONS = (None, "fast")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def mex(
    x: Tensor,
    beta: float | Tensor = 1.0,
    offsets: Tensor | None = None,
    *,
    dim: int | tuple[int, ...] = -1,
    method: str = "auto",
    approximation: str | None = None,
) -> Tensor:
    """Section 2, equation 1: MEX_β{c_i} = (1/β)·log((1/n)·Σ_i exp(β·c_i)).

    Without offsets c = x, and `dim` (one dimension or several) is reduced. With offsets b (k, n), the paper's
    MEX operator, c_ri = x_i + b_ri, and `dim`, of size n, becomes k.

    >>> x = torch.tensor([0.0, 1.0, 2.0])
    >>> float(mex(x, 0.0)), float(mex(x, math.inf)), round(float(mex(x, 1.0)), 4)
    (1.0, 2.0, 1.309)

    Args:
        x: floating-point tensor. float16 and bfloat16 are computed in float32.
        beta: any real number, ±inf, or a tensor with one element, which may require grad. 0 is the mean,
            inf the maximum, −inf the minimum. In a compiled or exported graph a NaN is not noticed, and
            an exported one assumes that a tensor is finite.
        offsets: (k, n), of the dtype and device of x (under autocast, of any dtype).
        dim: the dimension of c; several are possible without offsets.
        method: "auto", or "reference" for the formula as it stands in `simnets.ops.reference`.
        approximation: None, or "fast": exp and log of at most ten operations (section 6.2, footnote) from
            `simnets.ops.approximations`, an error of at most 5e-6/|β|. The gradient has the weights that
            belong to these exponentials. An exported graph is exact all the same.

    Differentiable in x, offsets and β, twice (the second time in memory batch × k × n). At β = 0 the
    derivative for β is half the variance of c; at β = ±∞ it is 0, and the gradient for x and offsets is
    shared among ties.

    Where exp(β·c_i) is 0, the entry has probability zero but still counts in n: −∞ for β > 0, +∞ for β < 0.
    −∞ gives −∞ for β ≤ 0, and +∞ gives +∞ for β ≥ 0, as the formula has it. Where the result is infinite
    the gradient is 0. NaN propagates.

    For every β the result is within 1e-6 of exact arithmetic, relative to the largest |x| + |b|, and so is
    each gradient, relative to its largest entry. Most of the work is in float32; rows where that would not
    do, and the derivative for β, are computed in float64.

    With offsets the work is one matrix product of exponentials. Where the largest x and the largest b sit at
    different indices it may underflow; such rows are computed again in float64, and if |β| times the distance
    exceeds about 650, as sums over k × n, a few rows at a time. An exported graph, which cannot look at
    values, is exact up to distances of 80/|β|, and too large beyond; for a number |β| ≥ 0.1 its
    absolute error is a few 1e-7/|β|.
    """
    dims = _checked(x, beta, offsets, dim, method, approximation)
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    c = x.to(work)
    b = None if offsets is None else offsets.to(work)
    if not isinstance(beta, Tensor):
        beta = _representable(float(beta), work)
    with _no_autocast(x):
        if method == "reference":
            y = _reference(c, beta, b, dims)
        elif b is None:
            y = _pooled(c, beta, dims, approximation)
        else:
            y = _with_offsets(c, beta, b, dims[0], approximation)
    return y.to(x.dtype)


def _checked(
    x: Tensor,
    beta: float | Tensor,
    offsets: Tensor | None,
    dim: int | tuple[int, ...],
    method: str,
    approximation: str | None,
) -> tuple[int, ...]:
    """The dimensions, counted from the front; SimNetsError for anything that cannot be computed."""
    if method not in METHODS:
        raise SimNetsError(f'mex: method must be "auto" or "reference", not {method!r}')
    if approximation not in APPROXIMATIONS:
        raise SimNetsError(f'mex: approximation must be None or "fast", not {approximation!r}')
    if approximation is not None and method == "reference":
        raise SimNetsError('mex: approximation has no effect with method="reference"; leave one of them out')
    if not isinstance(x, Tensor) or x.dtype not in _FLOATS:
        given = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise SimNetsError(f"mex: x must be a floating-point tensor, not {given}; convert it first")
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if not dims or any(not -x.dim() <= d < x.dim() for d in dims):
        raise SimNetsError(f"mex: dim {dim} does not exist in x of shape {tuple(x.shape)}")
    dims = tuple(d % x.dim() for d in dims)
    if len(set(dims)) < len(dims):
        raise SimNetsError(f"mex: dim {dim} names a dimension of x {tuple(x.shape)} twice")
    if any(x.shape[d] == 0 for d in dims):
        raise SimNetsError(f"mex: x has no entries along dim {dim}: shape {tuple(x.shape)}; MEX needs one")
    _check_beta(beta)
    if offsets is not None:
        _check_offsets(offsets, x, dims)
    return dims


def _check_beta(beta: float | Tensor) -> None:
    if isinstance(beta, Tensor):
        if beta.numel() != 1 or not beta.is_floating_point():
            raise SimNetsError(
                f"mex: beta must be a number or a floating-point tensor with one element, "
                f"not {beta.dtype} of shape {tuple(beta.shape)}"
            )
        if torch.compiler.is_compiling():
            return  # its value is not known while a graph is made
        value = float(beta.detach())
    else:
        try:
            value = float(beta)
        except (TypeError, ValueError):
            raise SimNetsError(
                f"mex: beta must be a number or a tensor with one element, not {beta!r}"
            ) from None
    if value != value:  # NaN; math.isnan would break a compiled graph in which β is symbolic
        raise SimNetsError("mex: beta is NaN; give a real number, inf or -inf")


def _check_offsets(offsets: Tensor, x: Tensor, dims: tuple[int, ...]) -> None:
    if not isinstance(offsets, Tensor) or offsets.dtype not in _FLOATS:
        given = offsets.dtype if isinstance(offsets, Tensor) else type(offsets).__name__
        raise SimNetsError(f"mex: offsets must be a floating-point tensor, not {given}")
    if len(dims) != 1:
        raise SimNetsError(f"mex: offsets need a single dim, not {dims}")
    n = x.shape[dims[0]]
    if offsets.dim() != 2 or offsets.shape[1] != n or offsets.shape[0] == 0:
        raise SimNetsError(
            f"mex: offsets must have the shape (k, {n}) for x {tuple(x.shape)} along dim {dims[0]}, "
            f"not {tuple(offsets.shape)}"
        )
    if offsets.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        raise SimNetsError(f"mex: offsets are {offsets.dtype} and x is {x.dtype}; give both the same dtype")
    if offsets.device != x.device:
        raise SimNetsError(f"mex: offsets are on {offsets.device} and x on {x.device}; move one of them")


def _representable(beta: float, work: torch.dtype) -> float:
    """β beyond float32's range is ±∞: its weights differ from the maximum's only for gaps under 1e-30."""
    if work == torch.float32 and abs(beta) > 1e30:
        return math.inf if beta > 0 else -math.inf
    return beta


def _no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Exponentials in bfloat16 would lose what float32 was chosen for."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _reference(x: Tensor, beta: float | Tensor, b: Tensor | None, dims: tuple[int, ...]) -> Tensor:
    if len(dims) == 1:
        return reference.mex(x, beta, b, dim=dims[0])
    kept = [d for d in range(x.dim()) if d not in dims]
    return reference.mex(x.permute(*kept, *dims).flatten(len(kept)), beta)


def _pooled(x: Tensor, beta: float | Tensor, dims: tuple[int, ...], approximation: str | None) -> Tensor:
    if not isinstance(beta, Tensor) and (beta == 0 or abs(beta) == math.inf):
        return _finite_gradient(x.mean(dims) if beta == 0 else kernels.extreme(x, beta, dims).squeeze(dims))
    if torch.compiler.is_exporting():
        return formula.pooled(x, beta, dims)
    return _apply(x, beta, None, dims, approximation)


def _finite_gradient(y: Tensor) -> Tensor:
    """An infinite result has no gradient; an exported graph has none at all."""
    if torch.compiler.is_exporting() or not y.requires_grad:
        return y
    return torch.where(y.isinf(), y.detach(), y)


def _with_offsets(x: Tensor, beta: float | Tensor, b: Tensor, dim: int, approximation: str | None) -> Tensor:
    n, k = b.shape[1], b.shape[0]
    last = x.movedim(dim, -1)
    # (A, n, B) as it lies in memory: a contiguous image. A small B would make many tiny matrix products.
    inner = math.prod(x.shape[dim + 1 :])
    if x.is_contiguous() and not last.is_contiguous() and inner >= 8:
        c = x.reshape(math.prod(x.shape[:dim]), n, inner)
        return _offset_form(c, beta, b, approximation).reshape(*x.shape[:dim], k, *x.shape[dim + 1 :])
    rows = last.reshape(math.prod(last.shape[:-1]), n)  # channels-last images without a copy
    return _offset_form(rows, beta, b, approximation).reshape(*last.shape[:-1], k).movedim(-1, dim)


def _offset_form(x: Tensor, beta: float | Tensor, b: Tensor, approximation: str | None) -> Tensor:
    if not isinstance(beta, Tensor) and beta == 0:
        return _finite_gradient(kernels.mean_plus(x, b))
    if torch.compiler.is_exporting():
        infinite = not isinstance(beta, Tensor) and abs(beta) == math.inf
        return formula.max_plus(x, b, float(beta)) if infinite else formula.product(x, b, beta)
    return _apply(x, beta, b, (1,), approximation)


def _apply(
    x: Tensor, beta: float | Tensor, b: Tensor | None, dims: tuple[int, ...], approximation: str | None
) -> Tensor:
    name = approximation or "exact"
    if torch.compiler.is_compiling():
        if not isinstance(beta, Tensor):
            beta = torch.full((), beta, dtype=torch.float64)
        compiled: tuple[Tensor, Tensor, Tensor] = _mex_op(x, beta, b, list(dims), name)
        return compiled[0]
    learned = beta if isinstance(beta, Tensor) else None
    value = _representable(float(beta if learned is None else learned.detach()), x.dtype)
    result: Tensor = _Mex.apply(x, learned, b, value, dims, name)  # type: ignore[no-untyped-call]
    return result


# Forward and backward for any value of β, shared by the autograd function and the compiled operator.


def _forward(
    x: Tensor, beta: float, b: Tensor | None, dims: tuple[int, ...], name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and the shift and the total that the gradient is made of."""
    f = kernels.FUNCTIONS[name]
    special = beta == 0 or math.isinf(beta)
    if b is None:
        if not special:
            return kernels.pool(x, beta, dims, f)
        y = x.mean(dims, keepdim=True) if beta == 0 else kernels.extreme(x, beta, dims)
        return y.squeeze(dims), torch.zeros_like(y), torch.zeros_like(y)
    if not special:
        return kernels.product(x, b, beta, f)
    y = kernels.mean_plus(x, b) if beta == 0 else kernels.max_plus(x, b, beta)
    return y, torch.zeros_like(x[:, :1]), torch.zeros_like(y)


def _backward(
    grad: Tensor,
    x: Tensor,
    beta: float,
    b: Tensor | None,
    dims: tuple[int, ...],
    name: str,
    y: Tensor,
    shift: Tensor,
    total: Tensor,
    learned: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients for x, b, and β if it is learned."""
    f = kernels.FUNCTIONS[name]
    grad = torch.where(y.isinf(), 0.0, grad)
    grad_b: Tensor | None = None
    if b is None:
        grad = grad.reshape(shift.shape)
        if beta == 0:
            grad_x = (grad / math.prod(x.shape[d] for d in dims)).expand_as(x)
        elif math.isinf(beta):
            ties = x == y.reshape(shift.shape)
            grad_x = ties * (grad / ties.sum(dims, keepdim=True))
        else:
            grad_x = kernels.pool_gradient(grad, x, beta, dims, shift, total, f)
    elif beta == 0:
        grad_x = (grad.sum(1, keepdim=True) / x.shape[1]).expand_as(x)
        per_class = grad.sum(0) if x.dim() == 2 else grad.sum((0, 2))
        grad_b = (per_class[:, None] / x.shape[1]).expand_as(b)
    elif math.isinf(beta):
        grad_x, grad_b = kernels.max_plus_gradient(grad, x, b, y)
    else:
        grad_x, grad_b = kernels.product_gradient(grad, x, b, beta, shift, total, f)
    grad_beta: Tensor | None = None
    if learned:
        if math.isinf(beta):
            grad_beta = grad.new_zeros(())
        elif b is None:
            grad_beta = kernels.pool_beta_gradient(grad, x, beta, dims)
        else:
            grad_beta = kernels.product_beta_gradient(grad, x, b, beta)
    return grad_x, grad_b, grad_beta


class _Mex(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        learned: Tensor | None,
        b: Tensor | None,
        beta: float,
        dims: tuple[int, ...],
        name: str,
    ) -> Tensor:
        y, shift, total = _forward(x, beta, b, dims, name)
        ctx.save_for_backward(x, learned, b, y, shift, total)
        ctx.beta, ctx.dims, ctx.name = beta, dims, name
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, learned, b, y, shift, total = ctx.saved_tensors
        grad = grads[0]
        needs_beta = learned is not None and ctx.needs_input_grad[1]
        with _no_autocast(x):
            if torch.is_grad_enabled():
                grad_x, grad_beta, grad_b = _differentiable_gradients(ctx, grad, x, learned, b)
            else:
                grad_x, grad_b, grad_beta = _backward(
                    grad, x, ctx.beta, b, ctx.dims, ctx.name, y, shift, total, needs_beta
                )
                if grad_beta is not None:
                    grad_beta = grad_beta.to(learned.device, learned.dtype).reshape(learned.shape)
        return grad_x, grad_beta, grad_b, None, None, None


def _differentiable_gradients(
    ctx: Any, grad: Tensor, x: Tensor, learned: Tensor | None, b: Tensor | None
) -> list[Tensor | None]:
    """For second derivatives: the gradient of the plain formula on c = x + b, itself with a graph."""
    beta = ctx.beta if learned is None or math.isinf(ctx.beta) else learned
    dims = ctx.dims
    c = x
    if b is not None:
        c = x.unsqueeze(1) + (b if x.dim() == 2 else b.unsqueeze(-1))
        dims = (2,)
    if math.isinf(ctx.beta):
        y = kernels.extreme(c, ctx.beta, dims).squeeze(dims)
    else:
        y = formula.pooled(c, beta, dims)
    wanted = [
        v
        for v, needed in zip((x, learned, b), ctx.needs_input_grad, strict=False)
        if needed and v is not None
    ]
    found = torch.autograd.grad(y, wanted, grad, create_graph=True, allow_unused=True)
    gradients = iter(found)
    return [next(gradients) if needed else None for needed in ctx.needs_input_grad[:3]]


# Compiled graphs see one operator, inside of which the values may decide what is done.


@torch.library.custom_op("simnets::mex", mutates_args=())
def _mex_op(
    x: Tensor, beta: Tensor, b: Tensor | None, dims: list[int], name: str
) -> tuple[Tensor, Tensor, Tensor]:
    with _no_autocast(x):
        y, shift, total = _forward(x, _representable(float(beta), x.dtype), b, tuple(dims), name)
    return y.contiguous(), shift.contiguous(), total.contiguous()


@_mex_op.register_fake
def _(x: Tensor, beta: Tensor, b: Tensor | None, dims: list[int], name: str) -> tuple[Tensor, Tensor, Tensor]:
    if b is None:
        kept = [1 if d in dims else size for d, size in enumerate(x.shape)]
        reduced = [size for d, size in enumerate(x.shape) if d not in dims]
        return x.new_empty(reduced), x.new_empty(kept), x.new_empty(kept)
    shape = (x.shape[0], b.shape[0], *x.shape[2:])
    return x.new_empty(shape), x.new_empty((x.shape[0], 1, *x.shape[2:])), x.new_empty(shape)


@torch.library.custom_op("simnets::mex_backward", mutates_args=())
def _mex_backward_op(
    grad: Tensor,
    x: Tensor,
    beta: Tensor,
    b: Tensor | None,
    dims: list[int],
    name: str,
    y: Tensor,
    shift: Tensor,
    total: Tensor,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    value = _representable(float(beta), x.dtype)
    with _no_autocast(x):
        grad_x, grad_b, grad_beta = _backward(grad, x, value, b, tuple(dims), name, y, shift, total, learned)
    return (
        grad_x.contiguous(),
        x.new_empty(0) if grad_b is None else grad_b.contiguous(),
        torch.zeros_like(beta) if grad_beta is None else grad_beta.to(beta).reshape(beta.shape),
    )


@_mex_backward_op.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    beta: Tensor,
    b: Tensor | None,
    dims: list[int],
    name: str,
    y: Tensor,
    shift: Tensor,
    total: Tensor,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    contiguous = torch.contiguous_format
    return (
        torch.empty_like(x, memory_format=contiguous),
        x.new_empty(0) if b is None else torch.empty_like(b, memory_format=contiguous),
        torch.empty_like(beta, memory_format=contiguous),
    )


def _op_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, beta, b, ctx.dims, ctx.name = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, beta, b, *output)


def _op_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    x, beta, b, y, shift, total = ctx.saved_tensors
    if grads[0] is None:
        return None, None, None, None, None
    learned = ctx.needs_input_grad[1]
    grad_x, grad_b, grad_beta = _mex_backward_op(
        grads[0], x, beta, b, ctx.dims, ctx.name, y, shift, total, learned
    )
    return grad_x, grad_beta if learned else None, None if b is None else grad_b, None, None


_mex_op.register_autograd(_op_backward, setup_context=_op_setup)
