"""Rows of numbers: what every estimator of this room takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from simnets.errors import SimNetsError

_CHUNK = 1 << 20


def as_rows(x: ArrayLike | Tensor, *, width: int | None = None) -> Tensor:
    """A finite tensor (N, m): float32 and float64 stay as they are, everything else becomes float64."""
    rows = x.detach() if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
    if rows.ndim != 2 or 0 in rows.shape:
        raise SimNetsError(
            f"X has shape {tuple(rows.shape)}; expected rows and columns, (N, m), none of them 0"
        )
    if width is not None and rows.shape[1] != width:
        raise SimNetsError(f"X has {rows.shape[1]} columns; expected {width}, as in fit")
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.to(torch.float64)
    # One NaN or infinity makes the sum NaN or infinite, at a tenth of the price of looking at each number
    if not torch.isfinite(rows.sum()) and not torch.isfinite(rows).all():
        bad = int((~torch.isfinite(rows)).any(1).sum())
        raise SimNetsError(f"X has NaN or infinite values in {bad} of {len(rows)} rows; remove or fill them")
    return rows


def chunks(rows: Tensor, numbers_per_row: int) -> Iterator[Tensor]:
    """Consecutive parts of `rows` whose intermediate results hold about a million numbers."""
    return iter(torch.split(rows, max(64, _CHUNK // numbers_per_row)))
