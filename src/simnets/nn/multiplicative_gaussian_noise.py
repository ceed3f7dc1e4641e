"""`MultiplicativeGaussianNoise`: the regulariser of the three-layer network, section 6.4."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from simnets.errors import SimNetsError


class MultiplicativeGaussianNoise(nn.Module):
    """x·(1 + σ·ε) with ε ~ N(0, 1) for each element while training; the identity in evaluation. Section 6.3.

    Instead of dropout, since a coordinate that is set to 0 still counts in an ℓp similarity (footnote there).

    Args:
        sigma: σ ≥ 0.

    Example:
        >>> noise = MultiplicativeGaussianNoise(0.1).eval()
        >>> noise(torch.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """

    def __init__(self, sigma: float) -> None:
        super().__init__()
        if not (sigma >= 0 and math.isfinite(sigma)):
            raise SimNetsError(f"sigma={sigma!r}: expected a finite number >= 0")
        self.sigma = float(sigma)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.sigma == 0:
            return x
        return x * (1 + self.sigma * torch.randn_like(x))

    def extra_repr(self) -> str:
        return f"sigma={self.sigma:g}"
