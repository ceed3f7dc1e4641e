"""Whitening of patches: mean, PCA with optional reduction, ICA rotation (sections 4.2 and 5)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.pretrain.distributed import all_sum, gather_first, random_keys
from simnets.pretrain.ica import OnlineRotation, fastica, orthogonalize
from simnets.pretrain.rows import as_rows, chunks
from simnets.pretrain.selection import effective_dimension

MODES = ("ica", "pca", "zca")


class Moments:
    """Count, mean and scatter matrix of rows that come in parts, in float64.

    The scatter is taken about a centre near the mean (the mean of the first part), so that no
    E[x²] − E[x]² of large numbers occurs. Products are in float64 up to 256 features, where they cost little
    and small eigenvalues matter most, beyond that in the rows' own dtype, a chunk at a time.
    """

    def __init__(self) -> None:
        self.count = 0.0
        self.precision = 0.0  # eigenvalues below this share of the largest are rounding
        self._centre: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Takes rows (N, m); their sums are added over all processes."""
        m = rows.shape[1]
        first = torch.cat([rows.sum(0, dtype=torch.float64), rows.new_tensor([len(rows)]).double()])
        all_sum(first)
        if self._centre is None:
            self._centre = (first[:m] / first[m].clamp_min(1)).to(rows.dtype)
            self._sum = first.new_zeros(m)
            self._scatter = first.new_zeros(m, m)
            self.precision = 10 * torch.finfo(torch.float64 if m <= 256 else rows.dtype).eps
        elif len(self._centre) != m:
            raise SimNetsError(
                f"rows of {m} features were given after rows of {len(self._centre)}; expected one width"
            )
        part, scatter = torch.zeros_like(self._sum), torch.zeros_like(self._scatter)
        for chunk in chunks(rows, m):
            centred = chunk - self._centre
            if m <= 256:
                centred = centred.double()
            part += centred.sum(0, dtype=torch.float64)
            scatter += centred.T @ centred
        all_sum(part, scatter)
        self.count += float(first[m])
        self._sum += part
        self._scatter += scatter

    @property
    def mean(self) -> Tensor:
        assert self._centre is not None
        return self._centre + self._sum / self.count

    @property
    def covariance(self) -> Tensor:
        """Divided by the count, as the maximum-likelihood estimate is."""
        shift = self._sum / self.count
        return self._scatter / self.count - torch.outer(shift, shift)


def spectrum(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues L, largest first, and eigenvectors (columns of E) whose largest entries are positive."""
    values, vectors = torch.linalg.eigh(covariance.double())
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    return values, vectors * _signs(vectors.T).unsqueeze(0)


def preconditioner(covariance: Tensor, ridge: float = 0.1) -> Tensor:
    """A = E·diag((L + ridge·mean L)^−½)·Eᵀ, symmetric (m, m), for a covariance E·diag(L)·Eᵀ.

    With W = V·A the learned V sees inputs of nearly equal variance in all directions; `ridge` bounds how
    much directions of little variance are amplified.

    >>> preconditioner(torch.diag(torch.tensor([4.0, 1.0])), ridge=0.0).diagonal().tolist()
    [0.5, 1.0]
    """
    values, vectors = spectrum(covariance)
    return (vectors * _inverse_roots(values, ridge, len(values))) @ vectors.T


class Projection:
    """y = W·(x − mean), and back: `components_` is W (d, m), `mixing_` its inverse (m, d)."""

    components_: NDArray[Any]
    mixing_: NDArray[Any]
    mean_: NDArray[Any]
    covariance_: NDArray[Any]
    eigenvalues_: NDArray[Any]
    explained_variance_ratio_: float
    kurtosis_: NDArray[np.float64]
    converged_: bool

    def transform(self, X: ArrayLike | Tensor) -> NDArray[Any]:
        """W·(x − mean) for rows X (N, m) → (N, d)."""
        return self.project(as_rows(X, width=len(self.mean_))).cpu().numpy()

    def inverse_transform(self, Y: ArrayLike | Tensor) -> NDArray[Any]:
        """The x nearest to the mean that W maps to y: W⁺·y + mean."""
        rows = as_rows(Y, width=len(self.components_))
        inverse = torch.as_tensor(self.mixing_, dtype=rows.dtype, device=rows.device)
        mean = torch.as_tensor(self.mean_, dtype=rows.dtype, device=rows.device)
        return (rows @ inverse.T + mean).cpu().numpy()

    def project(self, rows: Tensor) -> Tensor:
        """`transform` for a tensor, without checks: (N, m) → (N, d) in its own dtype."""
        filters = torch.as_tensor(self.components_, dtype=rows.dtype, device=rows.device)
        mean = torch.as_tensor(self.mean_, dtype=rows.dtype, device=rows.device)
        return torch.cat([(part - mean) @ filters.T for part in chunks(rows, rows.shape[1])])


class Whitening(Projection, BaseEstimator):  # type: ignore[misc]
    """y = W·(x − mean) with cov(y) = I, reduced to d dimensions, in scikit-learn's manner (section 4.2).

    W = R·diag((L + ridge·mean L)^−½)·E_dᵀ, where L and E are eigenvalues and eigenvectors of cov(x) and E_d
    has the d largest. R is ICA's rotation ("ica"), the identity ("pca"), or E_d itself ("zca": y lies in the
    coordinates of x and is as near to x as a white y can be; no reduction).

    With ridge = 0 cov(y) = I up to rounding (1e-3 in float32, 1e-8 in float64 as long as L_d/L_1 is above
    1e-6); with ridge > 0 the variances are L_i/(L_i + ridge·mean L) ≤ 1 before R is applied: noise directions
    are damped instead of amplified. ICA sees exactly white coordinates in either case.

    n_components: a number; "auto", "minka", "bic", "ridge" or a fraction of the variance (see
    `effective_dimension`); None keeps every dimension. `fit` runs FastICA on up to `ica_samples` rows;
    `partial_fit` takes batches of a stream, whose covariance is exact and whose rotation is stochastic.

    >>> x = np.random.default_rng(0).laplace(size=(500, 3)) @ np.array([[2, 1, 0], [0, 1, 0], [0, 3, 1.0]])
    >>> y = Whitening(mode="pca").fit(x).transform(x)
    >>> bool(np.allclose(np.cov(y.T, bias=True), np.eye(3)))
    True
    """

    _online: OnlineRotation
    _exact: Tensor

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        mode: str = "ica",
        ridge: float = 0.0,
        ica_samples: int = 30_000,
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.mode = mode
        self.ridge = ridge
        self.ica_samples = ica_samples
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: ArrayLike | Tensor, y: object = None, *, keys: Tensor | None = None) -> Self:
        """Estimates mean and W from rows X (N, m).

        `keys`, one random number a row, choose the sample that ICA sees; they matter only where rows are
        spread over processes.
        """
        self._check()
        rows = as_rows(X)
        self._moments = Moments()
        self._moments.add(rows)
        self._decompose()
        if self.mode == "ica":
            if keys is None:
                keys = random_keys(len(rows), self.random_state, rows.device)
            sample = gather_first(rows, keys, self.ica_samples)
            white = self._white(sample)
            rotation, self.converged_ = fastica(
                white, max_iter=self.max_iter, tol=self.tol, seed=self.random_state
            )
            self._set(self._ordered(rotation, white))
            self.kurtosis_ = kurtosis(white @ self._rotation.T.to(white.dtype))
        else:
            self.converged_ = True
            self._set(self._plain_rotation())
            self.kurtosis_ = kurtosis(self.project(rows))
        return self

    def partial_fit(self, X: ArrayLike | Tensor, y: object = None) -> Self:
        """Takes one batch of a stream; the dimension is that of the first batch where it is chosen from data.

        The rotation is kept in the coordinates of x and re-expressed in the principal axes, which move
        while the covariance settles.
        """
        self._check()
        rows = as_rows(X)
        started = hasattr(self, "components_")
        if not started:
            self._moments = Moments()
        self._moments.add(rows)
        self._decompose(None if not started else len(self.components_))
        if self.mode != "ica":
            self._set(self._plain_rotation())
        else:
            if started:
                # R·diag(L^−½)·Eᵀ = W before, so R = W·E·diag(L^½) in the new axes
                self._online.rotation = orthogonalize(self._exact @ (self._axes * self._values.sqrt()))
            else:
                d = len(self._values)
                generator = torch.Generator().manual_seed(self.random_state)
                start = torch.randn(d, d, generator=generator, dtype=torch.float64)
                self._online = OnlineRotation(start.to(rows.device))
            self._online.step(self._white(rows))
            self._set(self._online.rotation)
            self._exact = self._online.rotation @ (self._axes * self._values.rsqrt()).T
        self.kurtosis_ = kurtosis(self.project(rows))
        self.converged_ = True
        return self

    def _check(self) -> None:
        if self.mode not in MODES:
            raise SimNetsError(f"mode={self.mode!r}; expected one of {', '.join(MODES)}")
        if not self.ridge >= 0:
            raise SimNetsError(f"ridge={self.ridge}; expected a number ≥ 0")
        if not self.tol > 0:
            raise SimNetsError(f"tol={self.tol}; expected a number > 0: ICA never reaches it")

    def _decompose(self, d: int | None = None) -> None:
        """Mean, spectrum and the first d principal axes, from the moments."""
        moments = self._moments
        values, vectors = spectrum(moments.covariance)
        m = len(values)
        if not values[0] > 1e-12 * (1 + moments.mean.square().max()):
            raise SimNetsError("the rows are all the same (zero variance); whitening needs rows that differ")
        if d is None:
            d = self._dimension(values, int(moments.count))
        if self.mode == "zca" and d != m:
            raise SimNetsError(f"mode='zca' keeps all {m} dimensions, but n_components={self.n_components}")
        count = int(moments.count)
        rank = min(int((values > values[0] * moments.precision).sum()), count - 1)
        if d >= count or (d > rank and self.ridge == 0):
            raise SimNetsError(
                f"{d} whitened dimensions were asked for, but {count} rows of {m} features have rank {rank}; "
                f"ask for at most {rank}, give more rows" + ("" if d >= count else " or a ridge > 0")
            )
        self.mean_ = moments.mean.cpu().numpy()
        self.covariance_ = moments.covariance.cpu().numpy()
        self.eigenvalues_ = values.cpu().numpy()
        self.explained_variance_ratio_ = float(values[:d].sum() / values.sum())
        # Directions without any variance have no scale to be made white by; the ridge gives them one.
        self._values = values[:d].clamp_min(float(values[0]) * 1e-10)
        self._damped = _inverse_roots(values, self.ridge, d)
        self._axes = vectors[:, :d]

    def _dimension(self, values: Tensor, count: int) -> int:
        m, wanted = len(values), self.n_components
        if wanted is None:
            return m
        if isinstance(wanted, str | float):
            return effective_dimension(values, count, wanted).dimension
        if not 1 <= wanted <= m:
            raise SimNetsError(
                f"{wanted} whitened dimensions were asked for of rows that have {m}; expected 1 to {m}"
            )
        return int(wanted)

    def _white(self, rows: Tensor) -> Tensor:
        """Exactly white principal coordinates, which ICA is defined on."""
        mean = self._moments.mean.to(rows.dtype)
        return (rows - mean) @ (self._axes * self._values.rsqrt()).to(rows.dtype)

    def _plain_rotation(self) -> Tensor:
        if self.mode == "zca":
            return self._axes
        return torch.eye(len(self._values), dtype=torch.float64, device=self._values.device)

    def _ordered(self, rotation: Tensor, white: Tensor) -> Tensor:
        """Sources by kurtosis, heaviest tails first, each filter with its largest entry positive."""
        order = torch.as_tensor(kurtosis(white @ rotation.T.to(white.dtype)).argsort()[::-1].copy())
        rotation = rotation[order.to(rotation.device)]
        return rotation * _signs(rotation @ (self._axes * self._damped).T).unsqueeze(1)

    def _set(self, rotation: Tensor) -> None:
        self._rotation = rotation
        self.components_ = (rotation @ (self._axes * self._damped).T).cpu().numpy()
        self.mixing_ = ((self._axes / self._damped) @ rotation.T).cpu().numpy()


class Standardization(Projection):
    """What stands for whitening where each channel is filtered by itself: y_c is the centre of channel c's
    patch, with mean 0 and variance 1. Rows of W are 0 but in their own channel.
    """

    def __init__(self, channels: int, *, ridge: float = 0.0) -> None:
        self.channels = channels
        self.ridge = ridge

    def fit(self, rows: Tensor) -> Self:
        """Estimates mean and W from rows (N, m) of patches, whose m/channels coordinates lie together."""
        m = rows.shape[1]
        size = m // self.channels
        centres = torch.arange(self.channels) * size + size // 2
        moments = Moments()
        moments.add(rows[:, centres.to(rows.device)])
        self.covariance_ = moments.covariance.cpu().numpy()
        self.eigenvalues_ = self.covariance_.diagonal().copy()
        variances = torch.as_tensor(self.eigenvalues_)
        if not variances.max() > 1e-12 * (1 + moments.mean.square().max().cpu()):
            raise SimNetsError("the rows are all the same (zero variance); whitening needs rows that differ")
        scales = (variances + self.ridge * variances.mean()).clamp_min(1e-10 * float(variances.max())).rsqrt()
        filters = torch.zeros(self.channels, m, dtype=torch.float64)
        filters[range(self.channels), centres] = scales
        self.components_ = filters.numpy()
        self.mixing_ = (filters > 0).double().mul(1 / scales[:, None]).T.numpy()
        self.mean_ = moments.mean.cpu().repeat_interleave(size).numpy()  # a channel's, wherever in the patch
        self.explained_variance_ratio_ = 1 / size  # a coordinate of each channel
        self.converged_ = True
        self.kurtosis_ = kurtosis(self.project(rows))
        return self


def _inverse_roots(values: Tensor, ridge: float, d: int) -> Tensor:
    damped = values + ridge * values.mean()
    return damped[:d].clamp_min(float(values[0]) * 1e-10).rsqrt()


def _signs(filters: Tensor) -> Tensor:
    """±1 a row, the sign of its largest entry."""
    largest = filters.abs().argmax(1, keepdim=True)
    return torch.where(filters.gather(1, largest).squeeze(1) < 0, -1.0, 1.0).to(filters.dtype)


def kurtosis(rows: Tensor) -> NDArray[np.float64]:
    """Excess kurtosis of each column: 0 for a Gaussian, 3 for a Laplacian; sums over all processes."""
    centred = rows.double()
    sums = torch.stack([torch.ones_like(centred).sum(0), centred.sum(0)])
    all_sum(sums)
    centred = centred - sums[1] / sums[0]
    powers = torch.stack([centred.square().sum(0), centred.pow(4).sum(0)])
    all_sum(powers)
    variance, fourth = powers / sums[0]
    return np.asarray((fourth / variance.square().clamp_min(1e-300) - 3).cpu())
