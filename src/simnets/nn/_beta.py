"""The β of MEX (section 2, equation 1), held in the same way by every layer that has one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from simnets.nn._parameters import EXTENDED, REAL, Layer, Mode


class BetaLayer(Layer):
    """A layer with one β: any real number, and when frozen also 0 (mean), inf (maximum) or -inf (minimum)."""

    def _declare_beta(
        self,
        beta: float,
        mode: Mode,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._declare_number("beta", mode, beta, REAL, frozen_domain=EXTENDED, device=device, dtype=dtype)

    @property
    def beta(self) -> Tensor:
        """β as a 0-dim tensor; assign a number to change it."""
        return self._number_tensor("beta")

    @beta.setter
    def beta(self, value: Any) -> None:
        self._assign("beta", value)
