"""The offsets b of the MEX operator (section 2), held in the same way by `Mex` and `Mex2d`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from simnets.nn._beta import BetaLayer
from simnets.nn._parameters import LOG_WEIGHT, Mode
from simnets.ops import mex

# Equal offsets are a saddle: all outputs are the same, and no gradient tells them apart.
INITIAL_STD = 0.1


class OffsetsLayer(BetaLayer):
    """A layer with β and offsets b (..., k, n)."""

    offsets: Tensor
    normalized: bool

    def _declare_offsets(
        self,
        mode: Mode,
        shape: tuple[int, ...],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._declare("offsets", mode, shape, LOG_WEIGHT, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """b ~ N(0, 0.1²): small, and different in every output. β keeps its value."""
        if self._owns("offsets"):
            nn.init.normal_(self.offsets, std=INITIAL_STD)

    @property
    def effective_offsets(self) -> Tensor:
        """What is added to x: b, or where `normalized` b_r − MEX_β{b_rl}_l.

        The latter makes (1/n)·Σ_l exp(β·b_rl) = 1: each output's weights exp(β·b_rl)/n sum to one, so that
        with β = 1 and x_l = log P(x | l) an output is log Σ_l P(l | r)·P(x | l). At β = 0 it is the offsets'
        mean that becomes 0, at β = ∞ their maximum.
        """
        if not self.normalized:
            return self.offsets
        return self.offsets - mex(self.offsets, self._number("beta"), dim=-1).unsqueeze(-1)
