"""Similarity maps by convolution, for the linear form and for p = 2: no patches, no rows, no copies."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from simnets.nn._autocast import full_precision
from simnets.nn.similarity import Similarity

_ROWS = 2048  # of 32 float32: 256 KB


def convolves(layer: Similarity) -> bool:
    """Whether the layer's similarities to patches are sums of convolutions."""
    p = layer.order
    return (
        (layer.kind == "linear" or (isinstance(p, float) and p == 2.0))
        and layer.nan_policy == "propagate"
        and layer.method in ("auto", "expanded")
    )


@full_precision
def similarity_maps(
    layer: Similarity,
    x: Tensor,
    center: Tensor | None = None,
    kernel_size: tuple[int, int] = (1, 1),
    stride: tuple[int, int] = (1, 1),
) -> Tensor:
    """s_l of every patch of x + center, (N, C, H, W) → (N, n, H', W'), section 2; keeps x's memory format.

    Linear: one convolution with u·z. p = 2: −Σ u (x − z)² = Σ 2uz·x − Σ u·x² − Σ u·z², two convolutions, of x
    and of x². The three terms cancel when x and z are large beside their difference, so the caller takes
    `center` (C,) away from x first, and it is taken away from the templates here.
    """
    shape = (layer.out_features, -1, *kernel_size)
    filters = layer.templates.reshape(shape)
    weights = layer.weights
    if weights is not None:
        weights = weights.reshape(shape)
    constants = layer.constants()
    if layer.kind == "linear":
        return F.conv2d(x, filters if weights is None else weights * filters, constants, stride)
    # nothing is gained, and the cancellation cannot be afforded, below float32
    dtype = torch.promote_types(x.dtype, torch.float32)
    result_dtype, x, filters = x.dtype, x.to(dtype), filters.to(dtype)
    if center is not None:
        filters = filters - center.to(dtype).view(-1, 1, 1)
    # without weights every template has the same Σ x²: one output channel, broadcast
    weights = torch.ones_like(filters[:1]) if weights is None else weights.to(dtype)
    cross = 2 * weights * filters
    bias = -0.5 * (cross * filters).sum((1, 2, 3))
    if constants is not None:
        bias = bias + constants
    return (F.conv2d(x, cross, bias, stride) - F.conv2d(x * x, weights, None, stride)).to(result_dtype)


def natural_maps(layer: Similarity, y: Tensor) -> Tensor:
    """Σ v·y − Σ u·y² (+ b), where `templates` are v = 2u∘z: `ConvSimilarity2d.to_natural`.

    Nothing cancels here, as Σ u·z² is left out; so, unlike other similarities, these stay in bfloat16 under
    `torch.autocast` when the convolution hands that on.
    """
    if y.dtype == torch.bfloat16 and torch.is_autocast_enabled(y.device.type):
        with torch.autocast(y.device.type, enabled=False):
            rows = y.permute(0, 2, 3, 1)
            s: Tensor = _NaturalRows.apply(  # type: ignore[no-untyped-call]
                rows.flatten(0, 2), layer.templates, layer.weights, layer.bias
            )
            return s.view(*rows.shape[:-1], s.shape[1]).permute(0, 3, 1, 2)
    return _natural_maps(layer, y)


@full_precision
def _natural_maps(layer: Similarity, y: Tensor) -> Tensor:
    assert layer.weights is not None
    # a compiler sees the formula as it stands, which it can fuse by itself
    if y.device.type == "cpu" and y.dtype == torch.float32 and not torch.compiler.is_compiling():
        rows = y.permute(0, 2, 3, 1)
        s: Tensor = _NaturalParts.apply(  # type: ignore[no-untyped-call]
            rows.flatten(0, 2), layer.templates, layer.weights, layer.bias
        )
        return s.view(*rows.shape[:-1], s.shape[1]).permute(0, 3, 1, 2)
    v, u = layer.templates[:, :, None, None], layer.weights[:, :, None, None]
    return F.conv2d(y, v, layer.bias) - F.conv2d(y * y, u)


class _NaturalParts(torch.autograd.Function):
    """y·vᵀ − y²·uᵀ + b, some rows y after another, whose squares and products then stay in the cache.

    With two convolutions a dozen maps are written to memory and read again, which takes as long as the
    products do (`benchmarks/natural.py`).
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, v: Tensor, u: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(y, v, u)
        s = y.new_empty(len(y), len(v))
        for some, of in zip(torch.split(s, _ROWS), torch.split(y, _ROWS), strict=True):
            torch.mm(of, v.T, out=some)
            some.addmm_(of * of, u.T, alpha=-1)
            if b is not None:
                some += b
        return s

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, v, u = ctx.saved_tensors
        by_y, by_v, by_u = torch.empty_like(y), torch.zeros_like(v), torch.zeros_like(u)
        parts = (torch.split(value, _ROWS) for value in (by_y, y, grad))
        for some, of, by in zip(*parts, strict=True):
            torch.addcmul(by @ v, of, by @ u, value=-2, out=some)
            by_v.addmm_(by.T, of)
            by_u.addmm_(by.T, of * of, alpha=-1)
        return by_y, by_v, by_u, grad.sum(0) if ctx.needs_input_grad[3] else None


class _NaturalRows(torch.autograd.Function):
    """[y, y²]·[v, −u]ᵀ + b for rows y in low precision, v, u and b in their own: one product each way.

    Derived by autograd, y would be read and written several times more, which takes longer than the products.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, v: Tensor, u: Tensor, b: Tensor | None) -> Tensor:
        powers = torch.cat([y, y * y], 1)
        factors = torch.cat([v, -u], 1).to(y.dtype)
        ctx.save_for_backward(y, powers, factors)
        ctx.parameter_dtype = v.dtype
        return F.linear(powers, factors, None if b is None else b.to(y.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, powers, factors = ctx.saved_tensors
        d = y.shape[1]
        # two products: halves of one are no whole rows, and addcmul is slow on those where d is small
        by_first, by_square = (grad @ half.contiguous() for half in factors.split(d, 1))
        by_y = torch.addcmul(by_first, y, by_square, value=2)
        by_factors = (grad.T @ powers).to(ctx.parameter_dtype)
        by_b = grad.sum(0).to(ctx.parameter_dtype) if ctx.needs_input_grad[3] else None
        return by_y, by_factors[:, :d], -by_factors[:, d:], by_b
