"""Mixture of generalized Gaussians with a shared shape, by EM, in scikit-learn's manner (section 5)."""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.pretrain import em
from simnets.pretrain.density import MixtureDensity
from simnets.pretrain.distributed import all_sum, gather, gather_first, random_keys
from simnets.pretrain.medians import SortedColumns
from simnets.pretrain.rows import as_rows


class GeneralizedGaussianMixture(DensityMixin, BaseEstimator):  # type: ignore[misc]
    """P(y) = Σ_l λ_l Π_t β/(2·α_lt·Γ(1/β)) · exp(−(|y_t − μ_lt|/α_lt)^β), fitted by EM.

    shape: β, or None to estimate it by maximum likelihood between 0.2 and 20.
    max_iter: rounds of EM, at most; 0 keeps the start from k-means, whose components share one scale.
    n_init: starts, of which the one with the largest likelihood is kept.
    scale_floor: no scale falls below this share of the coordinate's standard deviation.
    min_usage: a component with less than this share of a fair weight, 1/n, is dead. It is placed anew among
        the rows that are explained worst, unless that would lower the likelihood.
    weights_init, means_init, scales_init: the start; what is missing comes from k-means (k-means++ seeds,
        at most `init_samples` rows).

    Means: the weighted mean at shape 2 and the weighted median at shape 1, else one safeguarded step an
    iteration towards the root of the likelihood equation, which a converged fit reaches. Below shape 1 that
    equation has many roots (the likelihood has a peak at every row): the step minimises a quadratic bound
    about the present mean and is taken only where the likelihood does not fall, so a mean settles on a
    local optimum near its start.

    Sums are accumulated in float64; products are in the dtype of X, so float64 data is fitted in float64.
    Under `torch.distributed` each process gives its own rows, and all end with the same mixture.

    `fit` is full-batch EM: `lower_bounds_`, the mean log-likelihood before each iteration and after the
    last, never decreases. `partial_fit` is stochastic EM on the batches of a stream.

    >>> x = np.random.default_rng(0).laplace(size=(4000, 1)) + np.repeat([[-9.0], [9.0]], 2000, axis=0)
    >>> mixture = GeneralizedGaussianMixture(2, shape=1.0).fit(x)
    >>> np.sort(mixture.means_.ravel()).round().tolist()
    [-9.0, 9.0]
    """

    def __init__(
        self,
        n_components: int = 1,
        shape: float | None = None,
        *,
        max_iter: int = 100,
        tol: float = 1e-3,
        n_init: int = 1,
        scale_floor: float = 1e-3,
        min_usage: float = 0.01,
        init_samples: int = 20_000,
        weights_init: ArrayLike | None = None,
        means_init: ArrayLike | None = None,
        scales_init: ArrayLike | None = None,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.shape = shape
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.scale_floor = scale_floor
        self.min_usage = min_usage
        self.init_samples = init_samples
        self.weights_init = weights_init
        self.means_init = means_init
        self.scales_init = scales_init
        self.random_state = random_state

    # ------------------------------------------------------------------ estimation

    def fit(self, X: ArrayLike | Tensor, y: object = None, *, keys: Tensor | None = None) -> Self:
        """Full-batch EM on rows X (N, d) until the mean log-likelihood gains less than `tol`.

        `keys`, one random number a row, choose the rows that seed the components; they matter only where
        rows are spread over processes.
        """
        self._check()
        rows = as_rows(X)
        if keys is None:
            keys = random_keys(len(rows), self.random_state, rows.device)
        self._measure(rows)
        best = max(
            (self._maximise(rows, keys, self.random_state + start) for start in range(self.n_init)),
            key=lambda run: run[1][-1],
        )
        density, self.lower_bounds_, self.converged_ = best
        self.n_iter_ = len(self.lower_bounds_) - 1
        if not self.converged_ and self.max_iter > 1:
            warnings.warn(
                f"EM did not reach tol={self.tol} in max_iter={self.max_iter} iterations",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self._set(density)

    def _maximise(self, rows: Tensor, keys: Tensor, seed: int) -> tuple[MixtureDensity, list[float], bool]:
        """EM from one start: the mixture, the mean log-likelihood at each iteration, whether it converged."""
        density = self._start(rows, keys, seed)
        gaussian = self.shape == 2
        columns = SortedColumns(rows, keys) if self.shape == 1 else None
        bounds: list[float] = []
        reseed, kept = True, density
        while True:
            bound, row_bounds, sums = self._expect(rows, density, gaussian)
            if kept is not density and bound < bounds[-1]:
                # The new places of dead components explain the data worse: back to where they were
                density, reseed = kept, False
                bound, row_bounds, sums = self._expect(rows, density, gaussian)
            bounds.append(bound)
            if len(bounds) > 1 and bound - bounds[-2] < self.tol:
                return density, bounds, True
            if len(bounds) > self.max_iter:
                return density, bounds, False
            if isinstance(sums, em.GaussianSums):
                density = sums.density(self._centre, self._floor)
            else:
                density = em.general_step(
                    rows, sums, density, self._floor, learn_shape=self.shape is None, columns=columns
                )
            kept = density
            if reseed:
                density = self._revived(rows, keys, row_bounds, density)

    def partial_fit(self, X: ArrayLike | Tensor, y: object = None, *, keys: Tensor | None = None) -> Self:
        """Stochastic EM: one batch of a stream (the first starts the components, so it needs enough rows).

        The sums of a batch enter running averages with step ρ_t = (t + 1)^−0.6. At shape 2 these are
        sufficient statistics; at other shapes they are those of the reweighted least-squares step about the
        means of their time, which old batches leave as the averages forget them.
        """
        self._check()
        rows = as_rows(X, width=getattr(self, "n_features_in_", None))
        if not hasattr(self, "_running"):
            self._measure(rows)
            if keys is None:
                keys = random_keys(len(rows), self.random_state, rows.device)
            density = self._start(rows, keys, self.random_state)
            self._running: dict[str, Tensor] = {}
            self._steps, self.lower_bounds_ = 0, []
        else:
            density = self.density_
        bound, _, sums = self._expect(rows, density, self.shape == 2)
        self.lower_bounds_.append(bound)
        self._steps += 1
        rho = 1.0 if self._steps == 1 else (self._steps + 1) ** -0.6
        if isinstance(sums, em.GaussianSums):
            average = em.GaussianSums(**self._averaged(vars(sums), rho))
            density = average.density(self._centre, self._floor)
        else:
            density = self._stochastic_step(rows, sums, density, rho)
        self.n_iter_, self.converged_ = self._steps, True
        return self._set(density)

    def _stochastic_step(
        self, rows: Tensor, r: Tensor, density: MixtureDensity, rho: float
    ) -> MixtureDensity:
        shape, means = density.shape, density.means
        count = r.sum(0, dtype=torch.float64)
        all_sum(count)
        wanted = em.ALL_SUMS if self.shape is None else em.MEAN_SUMS
        sums = em.power_sums(rows, r, means, shape, 1e-2 * density.scales, wanted)
        # Kept about zero, since the means move between batches
        sums["pull"] = sums["pull"] + sums["curvature"] * means
        average = self._averaged(sums | {"count": count}, rho)
        count, power = average["count"], average["power"]
        average["pull"] = average["pull"] - average["curvature"] * means
        moved = em.moved_means(means, average, shape)
        if self.shape is None:
            proposal = em.shape_step(average, count, shape)
            change = shape * (proposal / shape) ** rho - shape
            # What the averages would have been at the new shape, to second order
            power.add_(change * average["log1"] + change**2 / 2 * average["log2"])
            average["log1"].add_(change * average["log2"])
            shape += change
        scales = em.profiled_scales(power, count, shape, self._floor)
        return MixtureDensity(count / count.sum(), moved, scales, shape)

    def _averaged(self, sums: dict[str, Tensor], rho: float) -> dict[str, Tensor]:
        """Running averages of sums, per row of a batch."""
        total = float(sums["count"].sum())
        for name, value in sums.items():
            old = self._running.get(name, torch.zeros_like(value))
            self._running[name] = old + rho * (value / total - old)
        return dict(self._running)

    def _expect(
        self, rows: Tensor, density: MixtureDensity, gaussian: bool
    ) -> tuple[float, Tensor, em.GaussianSums | Tensor]:
        """Mean log-likelihood, that of each row, and what the M-step needs: sums or responsibilities."""
        sums: em.GaussianSums | Tensor
        if gaussian:
            row_bounds, sums = em.gaussian_pass(rows, density, self._centre)
        else:
            row_bounds, sums = em.responsibilities(rows, density)
        total = torch.stack([row_bounds.sum(), row_bounds.new_tensor(float(len(rows)))])
        all_sum(total)
        return float(total[0] / total[1]), row_bounds, sums

    # ------------------------------------------------------------------ start

    def _check(self) -> None:
        if not isinstance(self.n_components, int | np.integer) or self.n_components < 1:
            raise SimNetsError(f"n_components={self.n_components!r}; expected a whole number ≥ 1")
        if self.shape is not None and not 0 < self.shape < math.inf:
            raise SimNetsError(f"shape={self.shape}; expected a number > 0, or None to estimate it")
        for name, least in (("max_iter", 0), ("n_init", 1), ("tol", 0), ("scale_floor", 0), ("min_usage", 0)):
            if not getattr(self, name) >= least:
                raise SimNetsError(f"{name}={getattr(self, name)}; expected a number ≥ {least}")

    def _measure(self, rows: Tensor) -> None:
        """Centre, spread and scale floor of the data, over all processes."""
        n, d = self.n_components, rows.shape[1]
        sums = torch.cat([rows.sum(0, dtype=torch.float64), rows.new_tensor([len(rows)]).double()])
        all_sum(sums)
        total = int(sums[d])
        if total < n:
            raise SimNetsError(
                f"X has {total} rows, fewer than n_components={n}; give more rows or ask for fewer"
            )
        self.n_features_in_ = d
        self._centre = sums[:d] / total
        scatter = (rows - self._centre.to(rows.dtype)).square().sum(0, dtype=torch.float64)
        all_sum(scatter)
        deviation = (scatter / total).sqrt()
        overall = deviation.square().mean().sqrt()
        if not overall > 1e-12 * (1 + self._centre.abs().max()):
            raise SimNetsError("the rows of X are all the same; a mixture needs rows that differ")
        # A coordinate that never varies takes its floor from the others
        self._floor = self.scale_floor * torch.maximum(deviation, 0.01 * overall)

    def _start(self, rows: Tensor, keys: Tensor, seed: int) -> MixtureDensity:
        n, d = self.n_components, rows.shape[1]
        sample = gather_first(rows, keys, self.init_samples)
        shape = 2.0 if self.shape is None else float(self.shape)
        means = self._given("means_init", (n, d), rows.device)
        label = torch.zeros(len(sample), dtype=torch.int64)
        if means is None:
            means, label = self._cluster(sample, seed)
        elif n > 1:
            label = torch.cdist(sample.double(), means).argmin(1)
        weights = self._given("weights_init", (n,), rows.device)
        if weights is None:
            weights = torch.bincount(label, minlength=n).to(sample.device).double() + 1
        scales = self._given("scales_init", (n, d), rows.device)
        if scales is None:
            # One scale for all components: a cluster of a few rows says nothing of its own
            near = (sample - means.to(sample.dtype)[label]).abs().double().pow(shape).mean(0)
            scales = (shape * near).pow(1 / shape).expand(n, d)
        scales = torch.maximum(scales, self._floor)
        return MixtureDensity(weights / weights.sum(), means, scales, shape)

    def _given(self, name: str, size: tuple[int, ...], device: torch.device) -> Tensor | None:
        value = getattr(self, name)
        if value is None:
            return None
        tensor = torch.as_tensor(np.asarray(value), dtype=torch.float64, device=device)
        if tensor.shape != size or not tensor.isfinite().all() or (name != "means_init" and tensor.min() < 0):
            raise SimNetsError(
                f"{name} has shape {tuple(tensor.shape)}; expected finite numbers of shape {size}"
            )
        return tensor

    def _cluster(self, sample: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """k-means from k-means++ seeds: means (n, d) and the cluster of each row."""
        kmeans = KMeans(self.n_components, n_init=1, max_iter=20, random_state=seed)
        with warnings.catch_warnings():
            # Fewer distinct rows than components: the surplus components are revived or stay dead
            warnings.simplefilter("ignore", ConvergenceWarning)
            kmeans.fit(sample.cpu().numpy())
        means = torch.as_tensor(kmeans.cluster_centers_, dtype=torch.float64, device=sample.device)
        return means, torch.as_tensor(kmeans.labels_, dtype=torch.int64, device=sample.device)

    def _revived(
        self, rows: Tensor, keys: Tensor, row_bounds: Tensor, density: MixtureDensity
    ) -> MixtureDensity:
        """The density with each dead component at a random row among the tenth that is explained worst."""
        n = self.n_components
        dead = density.weights < self.min_usage / n
        k = int(dead.sum())
        if k == 0:
            return density
        threshold = gather(row_bounds).quantile(0.1) if len(rows) < 1 << 20 else row_bounds.quantile(0.1)
        seeds = gather_first(rows, torch.where(row_bounds <= threshold, keys, keys + 1), k)
        means, scales, weights = density.means.clone(), density.scales.clone(), density.weights.clone()
        means[dead] = seeds.double()
        scales[dead] = density.weights @ density.scales
        weights[dead] = 1 / n
        return MixtureDensity(weights / weights.sum(), means, scales, density.shape)

    # ------------------------------------------------------------------ use

    def _set(self, density: MixtureDensity) -> Self:
        self.density_ = density
        self.weights_: NDArray[np.float64] = density.weights.cpu().numpy()
        self.means_: NDArray[np.float64] = density.means.cpu().numpy()
        self.scales_: NDArray[np.float64] = density.scales.cpu().numpy()
        self.shape_ = float(density.shape)
        self.lower_bound_ = self.lower_bounds_[-1]
        return self

    def _posterior(self, X: ArrayLike | Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(self, "density_"):
            raise NotFittedError("This GeneralizedGaussianMixture is not fitted yet; call fit first.")
        return em.responsibilities(as_rows(X, width=self.n_features_in_), self.density_)

    def score_samples(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """log P(y) of each row."""
        return self._posterior(X)[0].cpu().numpy()

    def score(self, X: ArrayLike | Tensor, y: object = None) -> float:
        """Mean log-likelihood of the rows."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X: ArrayLike | Tensor) -> NDArray[Any]:
        """P(component | y), (N, n)."""
        return self._posterior(X)[1].cpu().numpy()

    def predict(self, X: ArrayLike | Tensor) -> NDArray[np.int64]:
        """The most probable component of each row."""
        return np.asarray(self.predict_proba(X).argmax(1))

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Rows drawn from the mixture and the component of each."""
        if not hasattr(self, "density_"):
            raise NotFittedError("This GeneralizedGaussianMixture is not fitted yet; call fit first.")
        generator = torch.Generator().manual_seed(self.random_state)
        rows, component = self.density_.sample(n_samples, generator)
        return rows.numpy(), component.numpy()

    def _parameters(self) -> int:
        n, d = self.means_.shape
        return int(n - 1 + 2 * n * d + (self.shape is None))

    def bic(self, X: ArrayLike | Tensor) -> float:
        """Bayesian information criterion, −2·log-likelihood + parameters·log N; least is best."""
        bounds = self.score_samples(X)
        return float(-2 * bounds.sum() + self._parameters() * math.log(len(bounds)))

    def aic(self, X: ArrayLike | Tensor) -> float:
        """Akaike information criterion, −2·log-likelihood + 2·parameters; least is best."""
        return float(-2 * self.score_samples(X).sum() + 2 * self._parameters())

    def entropy(self, X: ArrayLike | Tensor) -> float:
        """E(K) = −Σ r·log r ≥ 0, the entropy of the assignments, summed over rows."""
        r = self._posterior(X)[1].double()
        return float(-torch.special.xlogy(r, r).sum())

    def nec(self, X: ArrayLike | Tensor) -> float:
        """Normalised entropy criterion, E(K)/(L(K) − L(1)); 1 for one component, least is best.

        L(1) is the log-likelihood of one component fitted to the same rows. Where K components explain
        them no better than one, the criterion is infinite.
        """
        if self.n_components == 1:
            return 1.0
        one = GeneralizedGaussianMixture(1, self.shape, max_iter=self.max_iter, tol=self.tol)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            one.fit(X)
        return normalised_entropy(
            self.entropy(X), float(self.score_samples(X).sum()), float(one.score_samples(X).sum())
        )


def normalised_entropy(entropy: float, likelihood: float, likelihood_of_one: float) -> float:
    """NEC(K) = E(K)/(L(K) − L(1)) of Celeux and Soromenho, infinite where L(K) ≤ L(1)."""
    gain = likelihood - likelihood_of_one
    return entropy / gain if gain > 0 else math.inf
