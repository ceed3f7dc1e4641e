"""`Mex2d`: classification MEX, a MEX over the channels of every location."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.nn._images import check_images, pair
from simnets.nn._offsets import OffsetsLayer
from simnets.nn._parameters import Mode
from simnets.ops import mex


class Mex2d(OffsetsLayer):
    """h_rij = MEX_β{x_lij + b_rl}_l at every location ij, the classification MEX of section 4.3.

    (N, in_channels, H, W) → (N, out_channels, H, W).

    The offsets are shared over the image, or each cell of a grid of `regions` has its own: row i belongs to
    the grid's row ⌊i·rows/H⌋, and columns alike. Where the grid is as large as the map, a cell is a location.

    Args:
        in_channels, out_channels: n and k.
        beta, beta_mode, offsets_mode, normalized, approximation: as in `Mex`.
        regions: (rows, columns) of the grid, or None.

    Attributes, which can be assigned: `offsets` b (k, n), or (rows, columns, k, n) with regions; `beta`.
    `effective_offsets` is what is added to x.

    Example:
        >>> Mex2d(64, 10)(torch.zeros(2, 64, 9, 9)).shape
        torch.Size([2, 10, 9, 9])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        beta: float = 1.0,
        beta_mode: Mode = "frozen",
        offsets_mode: Mode = "learned",
        normalized: bool = False,
        approximation: str | None = None,
        regions: tuple[int, int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not isinstance(size, int) or size < 1:
                raise SimNetsError(f"{name}={size!r}: expected a positive int")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.normalized = normalized
        self.approximation = approximation
        self.regions = None if regions is None else pair("regions", regions, 1)
        self._declare_beta(beta, beta_mode, device, dtype)
        shape = (*(self.regions or ()), out_channels, in_channels)
        self._declare_offsets(offsets_mode, shape, device, dtype)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        check_images(x, self.in_channels)
        offsets = self.effective_offsets
        if self.regions is None:
            return self._mex(x, offsets)
        rows = _bounds("rows", x.shape[2], self.regions[0])
        columns = _bounds("columns", x.shape[3], self.regions[1])
        return torch.cat(
            [
                torch.cat(
                    [
                        self._mex(x[:, :, top:bottom, left:right], offsets[i, j])
                        for j, (left, right) in enumerate(columns)
                    ],
                    dim=3,
                )
                for i, (top, bottom) in enumerate(rows)
            ],
            dim=2,
        )

    def _mex(self, x: Tensor, offsets: Tensor) -> Tensor:
        return mex(x, self._number("beta"), offsets, dim=1, approximation=self.approximation)

    def extra_repr(self) -> str:
        words = [f"{self.in_channels}, {self.out_channels}", self._describe("beta", "offsets")]
        if self.regions is not None:
            words.append(f"regions={self.regions}")
        if self.normalized:
            words.append("normalized")
        if self.approximation is not None:
            words.append(f"approximation={self.approximation}")
        return ", ".join(words)


def _bounds(name: str, size: int, parts: int) -> list[tuple[int, int]]:
    """Where each part begins and ends when location i belongs to part ⌊i·parts/size⌋."""
    if parts > size:
        raise SimNetsError(f"regions: {parts} {name} of regions do not fit a map with {size} {name}")
    starts = [-(-part * size // parts) for part in range(parts + 1)]
    return list(itertools.pairwise(starts))
