"""The paper's generalized Gaussian mixture as a density (section 5, first displayed equation)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simnets.ops import similarity


@dataclass(frozen=True)
class MixtureDensity:
    """P(y) = Σ_l λ_l Π_t β/(2·α_lt·Γ(1/β)) · exp(−(|y_t − μ_lt|/α_lt)^β).

    weights λ (n,), means μ (n, d), scales α (n, d), all float64, and the shape β that all share.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> normal = MixtureDensity(one[0], 0 * one, math.sqrt(2) * one, 2.0)
    >>> round(normal.log_joint(0 * one).item(), 6) == round(-0.5 * math.log(2 * math.pi), 6)
    True
    """

    weights: Tensor
    means: Tensor
    scales: Tensor
    shape: float

    @property
    def similarity_weights(self) -> Tensor:
        """u = α^−β, so that the similarity to z = μ with order p = β is log P(y ∧ l) − c_l."""
        return self.scales**-self.shape

    @property
    def constants(self) -> Tensor:
        """c_l = log(λ_l·Π_t β/(2·α_lt·Γ(1/β))), (n,)."""
        d = self.means.shape[1]
        return self.weights.log() + d * log_peak(self.shape) - self.scales.log().sum(1)

    def log_joint(self, y: Tensor) -> Tensor:
        """log P(y ∧ component l) for rows y (N, d) → (N, n), in the dtype of y."""
        dtype = y.dtype
        similarities = similarity(y, self.means.to(dtype), self.similarity_weights.to(dtype), self.shape)
        return similarities + self.constants.to(dtype)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` rows drawn from P and the component of each: y = μ ± α·G^(1/β) with G ~ Gamma(1/β)."""
        component = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        size = (count, self.means.shape[1])
        # torch's own Gamma sampler takes no generator; a seed drawn from ours gives numpy one
        seed = int(torch.randint(2**62, (), generator=generator))
        gamma = torch.as_tensor(np.random.default_rng(seed).gamma(1 / self.shape, size=size))
        sign = torch.randint(2, size, generator=generator) * 2 - 1
        return self.means[component] + sign * self.scales[component] * gamma ** (1 / self.shape), component


def log_peak(shape: float) -> float:
    """log(β/(2·Γ(1/β))): the log density at the mean, for scale 1."""
    return math.log(shape / 2) - math.lgamma(1 / shape)
