"""The ℓp similarity for export: a handful of plain operators that every back end can translate.

This is the reference formula without what only training needs. Its intermediate of size batch × n × d
is accepted here: in ONNX Runtime a loop over the coordinates, unrolled in the graph, took 1.5 to 3.5 times as
long as this for one image, and its export most of a minute; only with large batches does it save memory.
"""

from __future__ import annotations

import torch
from torch import Tensor


def broadcast(
    x: Tensor, templates: Tensor, weights: Tensor | None, p: float | Tensor, omit_nan: bool
) -> Tensor:
    """−Σ_i u_i·|x_i − z_i|^p."""
    x = x.unsqueeze(-2)
    difference = x - templates
    if omit_nan:
        difference = torch.where(x.isnan(), 0.0, difference)
    value = _power(difference.abs(), p)
    return -value.sum(-1) if weights is None else (-weights * value).sum(-1)


def _power(distance: Tensor, p: float | Tensor) -> Tensor:
    # An exported program can be trained, so here too the derivative at zero distance must be 0, not ∞ or NaN.
    if not isinstance(p, Tensor):
        if p == 1:
            return distance
        if p == 1.5:  # far cheaper than a power
            return distance * distance.clamp_min(torch.finfo(distance.dtype).tiny).sqrt()
        if p > 1:
            return distance**p
    away = distance > 0
    return torch.where(away, torch.where(away, distance, 1.0) ** p, distance)
