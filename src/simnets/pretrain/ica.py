"""ICA: the rotation that makes whitened coordinates as independent as possible (sections 4.2 and 5).

`fastica` is scikit-learn's FastICA on a sample; docs/decisions/0003-ica.md has the measurement that
chose it. `OnlineRotation` is its stochastic counterpart for streams.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from simnets.pretrain.distributed import all_sum, broadcast, world

_AVERAGED_STEPS = 100


def orthogonalize(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, (M·Mᵀ)^−½·M: FastICA's symmetric decorrelation."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    nearest: Tensor = left @ right
    return nearest


def fastica(white: Tensor, *, max_iter: int = 200, tol: float = 1e-4, seed: int = 0) -> tuple[Tensor, bool]:
    """R (d, d), orthogonal, such that the coordinates of R·y are as independent as possible.

    `white` (N, d) has identity covariance. Returns R in float64 and whether FastICA converged. Where it does
    not (sources that are nearly Gaussian, few rows) it wanders, and rounding decides where it stops; then R
    is that of the averaged iteration of `OnlineRotation` on the same rows, which settles.
    Under `torch.distributed`, `white` is the same on all processes and process 0 runs FastICA.
    """
    d = white.shape[1]
    # An explicit start: scikit-learn's own depends on the dtype of the data
    start = np.random.default_rng(seed).standard_normal((d, d))
    rotation = torch.eye(d, dtype=torch.float64, device=white.device)
    converged = torch.ones(1, dtype=torch.float64)
    if d > 1 and world()[0] == 0:
        ica = FastICA(whiten=False, max_iter=max_iter, tol=tol, w_init=start)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            ica.fit(white.cpu().numpy())
        converged[0] = float(not any(issubclass(w.category, ConvergenceWarning) for w in caught))
        # float32 iterations leave R orthogonal to 1e-4 only
        rotation = orthogonalize(torch.as_tensor(ica.components_, dtype=torch.float64, device=white.device))
    broadcast(rotation)
    broadcast(converged)
    if not converged:
        averaged = OnlineRotation(torch.as_tensor(start, device=white.device))
        for _ in range(_AVERAGED_STEPS):
            averaged.step(white)
        rotation = averaged.rotation
    return rotation, bool(converged)


class OnlineRotation:
    """FastICA's fixed point on moments that are averaged over a stream of whitened batches.

    FastICA maps the rows w of R to E[y·g(w·y)] − E[g'(w·y)]·w with g = tanh, then orthogonalises. Here
    the expectation of each batch enters a running average with step ρ_t = (t + 1)^−0.6. At a solution the
    map returns κ·w with κ of either sign (negative for heavy tails), so rows are turned by the sign of κ:
    otherwise successive terms of the average would cancel.
    """

    def __init__(self, start: Tensor) -> None:
        self.rotation = orthogonalize(start)
        self._moments = torch.zeros_like(self.rotation)
        self._steps = 0

    def step(self, white: Tensor) -> None:
        """Takes one whitened batch (N, d); its sums are added over all processes."""
        rotation = self.rotation.to(white.dtype)
        g = torch.tanh(white @ rotation.T)
        cross, slope = (g.T @ white).double(), (1 - g.square()).sum(0, dtype=torch.float64)
        count = torch.tensor([float(len(white))], dtype=torch.float64, device=white.device)
        all_sum(cross, slope, count)
        moments = (cross - slope.unsqueeze(1) * self.rotation) / count
        kappa = (moments * self.rotation).sum(1, keepdim=True)
        self._steps += 1
        rho = (self._steps + 1) ** -0.6
        self._moments += rho * (torch.where(kappa < 0, -moments, moments) - self._moments)
        self.rotation = orthogonalize(self._moments)
