"""The ℓp similarity for export: plain operators that every back end can translate, in bounded memory.

The broadcast formula is five operators, but each makes batch × n × d numbers, which for one 32×32 image and
64 templates of 64 channels is already 16 MB and falls out of every cache. Here the sum over coordinates is
a loop, unrolled in the exported graph, whose every step has the size of the output. Beyond MAX_STEPS
coordinates a step takes several of them, so that the graph does not grow without limit.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_STEPS = 128


def unrolled(
    x: Tensor, templates: Tensor, weights: Tensor | None, p: float | Tensor, omit_nan: bool
) -> Tensor:
    """−Σ_i u_i·|x_i − z_i|^p, one coordinate (or a few) after the other."""
    d = templates.shape[1]
    width = max(1, -(-d // MAX_STEPS))
    total = x.new_zeros((*x.shape[:-1], templates.shape[0]))
    for start in range(0, d, width):
        step = slice(start, min(start + width, d))
        x_i = x[..., None, step]
        difference = x_i - templates[:, step]
        if omit_nan:
            difference = torch.where(x_i.isnan(), 0.0, difference)
        value = _power(difference.abs(), p)
        if weights is not None:
            value = weights[:, step] * value
        total = total - (value.squeeze(-1) if width == 1 else value.sum(-1))
    return total


def _power(distance: Tensor, p: float | Tensor) -> Tensor:
    if not isinstance(p, Tensor):
        # Where a few multiplications and a square root do, they are much faster than Pow.
        if p == 1:
            return distance
        if p == 1.5:
            return distance * distance.sqrt()
        if p > 1:
            return distance**p
    # The derivative at zero distance must be 0 also where that of the power is infinite.
    away = distance > 0
    return torch.where(away, torch.where(away, distance, 1.0) ** p, distance)
