"""The ℓp similarity and its gradients in plain PyTorch, a cache-sized block at a time.

This is what `method="fused"` runs where the compiled kernel cannot: without a C compiler, and on devices
other than the CPU. Like the kernel it never holds rows × n × d numbers, forward or backward.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Differences held at a time. On the CPU a handful of such blocks stay in the second-level cache; an
# accelerator wants enough of them to be busy.
CPU_BLOCK = 2**17
DEVICE_BLOCK = 2**24


def forward(x: Tensor, z: Tensor, u: Tensor | None, p: float, omit_nan: bool) -> Tensor:
    """x (rows, d), z and u (n, d) → (rows, n)."""
    out = x.new_empty(x.shape[0], z.shape[0])
    for rows, templates in _blocks(x, z):
        value = _difference(x[rows], z[templates], omit_nan).abs_().pow_(p)
        if u is not None:
            value.mul_(u[templates])
        out[rows, templates] = value.sum(-1).neg_()
    return out


def backward(
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
    """Gradients of x, z, u and p; those that are not needed are zero."""
    by_x, by_z, by_u, by_p = torch.zeros_like(x), torch.zeros_like(z), torch.zeros_like(z), x.new_zeros(())
    tiny = torch.finfo(x.dtype).tiny
    for rows, templates in _blocks(x, z):
        difference = _difference(x[rows], z[templates], omit_nan)
        distance = difference.abs()
        upstream = grad[rows, templates].unsqueeze(-1)
        weights = 1.0 if u is None else u[templates]
        if need_zu or need_p:
            value = distance.pow(p)
            if need_zu:
                by_u[templates] -= (value * upstream).sum(0)
            if need_p:
                # xlogy: |0|^p·log|0| counts as 0
                by_p -= torch.xlogy(value, distance).mul_(weights).mul_(upstream).sum()
        if need_x or need_zu:
            # sign(0) = 0 makes the slope at zero distance 0; the clamp keeps 0^(p−1) from being ∞ there.
            slope = distance.clamp_min_(tiny).pow_(p - 1).mul_(difference.sign_()).mul_(upstream)
            if need_zu:
                by_z[templates] += slope.sum(0).mul_(weights).mul_(p)
            if need_x:
                by_x[rows] -= slope.mul_(weights).sum(1).mul_(p)
    return by_x, by_z, by_u, by_p


def _difference(x: Tensor, z: Tensor, omit_nan: bool) -> Tensor:
    difference = x.unsqueeze(1) - z
    # A coordinate that is left out is one at distance zero: it adds nothing, to the value or to any gradient.
    return difference.masked_fill_(x.isnan().unsqueeze(1), 0.0) if omit_nan else difference


def _blocks(x: Tensor, z: Tensor) -> Iterator[tuple[slice, slice]]:
    limit = CPU_BLOCK if x.device.type == "cpu" else DEVICE_BLOCK
    n, d = z.shape
    columns = max(1, min(n, limit // max(d, 1)))
    rows = max(1, limit // max(columns * d, 1))
    for first in range(0, n, columns):
        for row in range(0, x.shape[0], rows):
            yield slice(row, row + rows), slice(first, first + columns)
