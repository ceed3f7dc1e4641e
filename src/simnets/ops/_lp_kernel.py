"""`method="fused"`: the ℓp similarity for every p, without an intermediate of size rows × n × d.

Two operators that PyTorch knows by name, `simnets::lp_similarity` and its backward, so that autograd,
torch.compile and torch.export see one opaque operation each. On the CPU they call the compiled
kernel (`lp_kernel.c`); elsewhere, or without a compiler, `_chunked.py` does the same in plain PyTorch.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from simnets.ops import _chunked
from simnets.ops._compiler import kernel

SMALL = 2**18  # terms; fewer than that in one thread take less time than waking another


@torch.library.custom_op("simnets::lp_similarity", mutates_args=())
def lp_similarity(x: Tensor, z: Tensor, u: Tensor | None, p: Tensor, omit_nan: bool) -> Tensor:
    """−Σ_i u_i·|x_i − z_i|^p. x (..., d), z and u (n, d), all float32 or all float64; p with no dimension."""
    flat, z, u = _rows(x), z.contiguous(), None if u is None else u.contiguous()
    library = kernel(x.dtype) if x.device.type == "cpu" else None
    if library is None:
        out = _chunked.forward(flat, z, u, p.item(), omit_nan)
    else:
        out = _kernel_forward(library, flat, z, u, p.item(), omit_nan)
    return out.view(*x.shape[:-1], z.shape[0])


@lp_similarity.register_fake
def _(x: Tensor, z: Tensor, u: Tensor | None, p: Tensor, omit_nan: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], z.shape[0]))


@torch.library.custom_op("simnets::lp_similarity_backward", mutates_args=())
def lp_similarity_backward(
    grad: Tensor,
    x: Tensor,
    z: Tensor,
    u: Tensor | None,
    p: Tensor,
    omit_nan: bool,
    need_x: bool,
    need_zu: bool,
    need_p: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, z, u and p. Those that are not needed are not computed and have no elements."""
    flat, z, u = _rows(x), z.contiguous(), None if u is None else u.contiguous()
    arguments = (_rows(grad), flat, z, u, p.item(), omit_nan, need_x, need_zu, need_p)
    library = kernel(x.dtype) if x.device.type == "cpu" else None
    if library is None:
        by_x, by_z, by_u, by_p = _chunked.backward(*arguments)
    else:
        by_x, by_z, by_u, by_p = _kernel_backward(library, *arguments)
    return (
        by_x.view(x.shape) if need_x else x.new_empty(0),
        by_z if need_zu else x.new_empty(0),
        by_u if need_zu else x.new_empty(0),
        by_p.to(p) if need_p else p.new_empty(0),
    )


@lp_similarity_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    z: Tensor,
    u: Tensor | None,
    p: Tensor,
    omit_nan: bool,
    need_x: bool,
    need_zu: bool,
    need_p: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if need_x else 0),
        z.new_empty(z.shape if need_zu else 0),
        z.new_empty(z.shape if need_zu else 0),
        p.new_empty(() if need_p else 0),
    )


def _setup_context(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor, bool], output: Tensor
) -> None:
    x, z, u, p, ctx.omit_nan = inputs
    ctx.save_for_backward(x, z, u, p)


def _autograd(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, z, u, p = ctx.saved_tensors
    need_x, need_z, need_u, need_p, _ = ctx.needs_input_grad
    by_x, by_z, by_u, by_p = lp_similarity_backward(
        grad, x, z, u, p, ctx.omit_nan, need_x, need_z or need_u, need_p
    )
    return (
        by_x if need_x else None,
        by_z if need_z else None,
        by_u if need_u else None,
        by_p if need_p else None,
        None,
    )


lp_similarity.register_autograd(_autograd, setup_context=_setup_context)


def _rows(tensor: Tensor) -> Tensor:
    """(..., m) as a contiguous matrix, whichever sizes are zero."""
    return tensor.unsqueeze(0).flatten(0, -2).contiguous()


# ---- calling the kernel from several threads ---------------------------------------------------------


def _kernel_forward(
    library: ctypes.CDLL, x: Tensor, z: Tensor, u: Tensor | None, p: float, omit_nan: bool
) -> Tensor:
    (rows, d), n, size = x.shape, z.shape[0], x.element_size()
    out = x.new_empty(rows, n)
    threads = _threads(rows * n * d)
    row_cuts = _cut(rows, threads, 16)
    # With few rows, the remaining threads take a share of the templates.
    tasks = [
        (
            x.data_ptr() + start * d * size,
            z.data_ptr(),
            _pointer(u),
            *(stop - start, n, d, first, last, p, omit_nan),
            out.data_ptr() + start * n * size,
        )
        for start, stop in row_cuts
        for first, last in _cut(n, threads // max(len(row_cuts), 1), 16)
    ]
    _run(library.lp_forward, tasks)
    return out


def _kernel_backward(
    library: ctypes.CDLL,
    grad: Tensor,
    x: Tensor,
    z: Tensor,
    u: Tensor | None,
    p: float,
    omit_nan: bool,
    need_x: bool,
    need_zu: bool,
    need_p: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (rows, d), n, size = x.shape, z.shape[0], x.element_size()
    threads = _threads(rows * n * d)
    # Ranges of coordinates share no gradient. Ranges of rows share those of z, u and p, so each has its
    # own, to be added in order afterwards; there are so few that these take less memory than x.
    column_cuts = _cut(d, threads, library.lp_lanes())
    row_cuts = _cut(rows, threads // max(len(column_cuts), 1), 4 * n + 1)
    by_x = torch.empty_like(x) if need_x else None
    by_z = z.new_zeros(len(row_cuts), n, d) if need_zu else None
    by_u = torch.zeros_like(by_z) if by_z is not None else None
    by_p = torch.zeros(len(row_cuts), d, dtype=torch.float64) if need_p else None
    tasks = [
        (
            x.data_ptr() + start * d * size,
            z.data_ptr(),
            _pointer(u),
            grad.data_ptr() + start * n * size,
            *(stop - start, n, d, first, last, p, omit_nan),
            *(
                _pointer(by_x, start * d),
                _pointer(by_z, i * n * d),
                _pointer(by_u, i * n * d),
                _pointer(by_p, i * d),
            ),
        )
        for i, (start, stop) in enumerate(row_cuts)
        for first, last in column_cuts
    ]
    _run(library.lp_backward, tasks)
    none = x.new_empty(0)
    return (
        none if by_x is None else by_x,
        none if by_z is None else _total(by_z),
        none if by_u is None else _total(by_u),
        none if by_p is None else by_p.sum(),
    )


def _total(parts: Tensor) -> Tensor:
    return parts[0] if len(parts) == 1 else parts.sum(0)


def _pointer(tensor: Tensor | None, offset: int = 0) -> int | None:
    return None if tensor is None else tensor.data_ptr() + offset * tensor.element_size()


def _threads(terms: int) -> int:
    return max(1, min(torch.get_num_threads(), terms // SMALL))


def _cut(total: int, parts: int, unit: int) -> list[tuple[int, int]]:
    """[0, total) in at most `parts` ranges of whole units (the last may have less), as equal as can be."""
    units = -(-total // unit)
    parts = max(1, min(parts, units))
    edges = [min(total, units * k // parts * unit) for k in range(parts + 1)]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


_pool: tuple[int, int, ThreadPoolExecutor] | None = None


def _run(function: Callable[..., int], tasks: list[tuple[Any, ...]]) -> None:
    """Calls the C function for every task at the same time: ctypes lets go of the interpreter's lock."""
    global _pool
    if len(tasks) <= 1:
        codes = [function(*task) for task in tasks]
    else:
        owner = (os.getpid(), torch.get_num_threads())  # threads do not survive a fork
        if _pool is None or _pool[:2] != owner:
            _pool = (*owner, ThreadPoolExecutor(owner[1], thread_name_prefix="simnets"))
        futures = [_pool[2].submit(function, *task) for task in tasks[1:]]
        codes = [function(*tasks[0]), *(future.result() for future in futures)]
    if any(codes):
        raise MemoryError("the fused similarity found no memory for its working set")
