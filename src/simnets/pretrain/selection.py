"""How many whitened channels and how many templates: criteria on unlabelled data (section 5, end).

The number of whitened channels d is the effective dimension of the patches, read from the spectrum of their
covariance. The number of templates n is the number of components of the mixture.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.pretrain.mixture import GeneralizedGaussianMixture, normalised_entropy
from simnets.pretrain.rows import as_rows

EXPLAINED = 0.99
RIDGE = 0.1
# Criteria that leave more than this share of the dimensions have found no noise floor
NO_FLOOR = 0.9


@dataclass(frozen=True)
class DimensionChoice:
    """The chosen dimension, what chose it, what each criterion says, and their curves.

    Entry k − 1 of a curve belongs to dimension k. Of "minka" and "bic" the largest is best; "explained" is
    the share of the variance in the first k dimensions.
    """

    dimension: int
    criterion: str
    votes: dict[str, int]
    curves: dict[str, list[float]] = field(repr=False)


def effective_dimension(
    eigenvalues: ArrayLike | Tensor, count: int, criterion: str | float = "auto"
) -> DimensionChoice:
    """The number of dimensions that `count` rows, whose covariance has these eigenvalues, really have.

    criterion:
        "minka": Minka's evidence, Laplace's approximation of the probability of the data under
            probabilistic PCA; the choice of scikit-learn's `PCA(n_components="mle")`.
        "bic": the Bayesian information criterion of the same model, whose penalty is that of the Bayesian
            criterion the paper refers to, k·(m − (k − 1)/2) + 1 parameters.
        a fraction: the first k that explain this share of the variance.
        "ridge": those whose variance is above 0.1 of the mean, the ridge that whitening damps with; it leaves
            more than half of these.
        "auto": "minka"; but where that finds no floor of noise and keeps more than 90 % of the dimensions, as
            on patches of natural images whose spectrum falls without end, "ridge". There no number is the
            right one, so it becomes the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, …

    >>> effective_dimension([9.0, 4.0, 1.1, 1.03, 0.97, 0.9], count=1000, criterion="minka").dimension
    2
    """
    values = np.sort(np.asarray(eigenvalues, dtype=np.float64))[::-1]
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or values[0] <= 0:
        raise SimNetsError("eigenvalues: expected a list of finite numbers, at least one of them above 0")
    if isinstance(criterion, float) and not 0 < criterion <= 1:
        raise SimNetsError(f"criterion={criterion}; expected a share of the variance, above 0 and up to 1")
    if isinstance(criterion, str) and criterion not in ("auto", "minka", "bic", "ridge"):
        raise SimNetsError(
            f"criterion={criterion!r}; expected auto, minka, bic, ridge or a share of the variance"
        )
    values = np.maximum(values, values[0] * 1e-12)
    share = criterion if isinstance(criterion, float) else EXPLAINED
    explained = np.cumsum(values) / values.sum()
    curves = {"minka": minka_evidence(values, count), "bic": ppca_bic(values, count), "explained": explained}
    votes = {
        # dimension m has no noise left to compare with, so neither criterion is defined there
        name: int(np.argmax(curve[:-1])) + 1 if len(values) > 1 else 1
        for name, curve in curves.items()
        if name != "explained"
    }
    votes["explained"] = int(np.searchsorted(explained, share - 1e-12)) + 1
    votes["ridge"] = int((values > RIDGE * values.mean()).sum())
    lists = {name: curve.tolist() for name, curve in curves.items()}
    if criterion == "auto" and votes["minka"] > NO_FLOOR * len(values):
        enough = [k for k in _grid(len(values)) if k >= votes["ridge"]]
        return DimensionChoice(min(enough, default=len(values)), "ridge", votes, lists)
    chosen = "minka" if criterion == "auto" else "explained" if isinstance(criterion, float) else criterion
    return DimensionChoice(votes[chosen], chosen, votes, lists)


def _grid(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, … up to `most`."""
    return [k for k in sorted({2**e for e in range(32)} | {3 * 2**e for e in range(32)}) if k <= most]


def minka_evidence(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """log p(data | k) for k = 1 … m (Minka, "Automatic choice of dimensionality for PCA", equation 77)."""
    m = len(values)
    # Eigenvalues that differ by less than the error of their estimate count as that far apart
    least = values[:, None] / count
    i = np.arange(1, m + 1)
    stiefel = np.cumsum(gammaln((m - i + 1) / 2) - (m - i + 1) / 2 * math.log(math.pi) - math.log(2))
    # log det of the Hessian: pairs i < j of log((λ_i − λ_j)·(1/λ̂_j − 1/λ̂_i)), λ̂_j the noise where j > k
    gaps = np.triu(np.log(np.maximum(values[:, None] - values[None, :], least)), 1).sum(1).cumsum()
    inverse = np.maximum(1 / values[None, :] - 1 / values[:, None], 1 / (count * values[:, None]))
    inner = np.triu(np.log(inverse), 1).sum(0).cumsum()
    logs = np.log(values).cumsum()
    evidence = np.full(m, -np.inf)
    for k in range(1, m):
        noise = values[k:].mean()
        outer = (m - k) * np.log(np.maximum(1 / noise - 1 / values[:k], 1 / (count * values[:k]))).sum()
        free = m * k - k * (k + 1) / 2
        hessian = gaps[k - 1] + inner[k - 1] + outer + free * math.log(count)
        evidence[k - 1] = (
            stiefel[k - 1]
            - count / 2 * (logs[k - 1] + (m - k) * math.log(noise))
            + (free + k) / 2 * math.log(2 * math.pi)
            - hessian / 2
            - k / 2 * math.log(count)
        )
    return evidence


def ppca_bic(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """log-likelihood of probabilistic PCA with k dimensions − ½·parameters·log N, for k = 1 … m."""
    m = len(values)
    k = np.arange(1, m + 1)
    kept = np.cumsum(np.log(values))
    rest = values.sum() - np.cumsum(values)
    noise = np.maximum(rest[:-1], np.finfo(np.float64).tiny) / (m - k[:-1])
    left = np.append((m - k[:-1]) * np.log(noise), 0.0)
    parameters = m * k - k * (k - 1) / 2 + 1
    return np.asarray(-count / 2 * (kept + left) - parameters / 2 * math.log(count))


@dataclass(frozen=True)
class ComponentChoice:
    """The chosen number of components, what NEC and BIC say, and their values at the numbers tried."""

    components: int
    criterion: str
    votes: dict[str, int]
    tried: list[int]
    curves: dict[str, list[float]] = field(repr=False)


def select_components(
    X: ArrayLike | Tensor,
    shape: float | None = 2.0,
    *,
    criterion: str = "auto",
    most: int = 128,
    rows: int = 20_000,
    max_iter: int = 50,
    random_state: int = 0,
) -> ComponentChoice:
    """The number of components of a generalized Gaussian mixture of the given shape for rows X (N, d).

    Mixtures of 1, 2, 3, 4, 6, 8, 12, … up to `most` components are fitted to (at most) `rows` of the rows,
    then those between the best and its neighbours.

    criterion:
        "nec": the least normalised entropy, E(K)/(L(K) − L(1)), with NEC(1) = 1; of those within 1e-4 of
            it, the largest: where clusters lie far apart, any union of them has no entropy either.
        "bic": the least Bayesian information criterion.
        "auto": "nec", but "bic" where that asks for more than twice as many. Then the components are not
            clusters which entropy could count (on patches of natural images NEC sees two, flat and
            textured) but parts of a density.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(3000, 2)) + 9 * np.array([[0, 0], [1, 0], [0, 1]])[rng.integers(0, 3, 3000)]
    >>> select_components(x, most=6).components
    3
    """
    if criterion not in ("auto", "nec", "bic"):
        raise SimNetsError(f"criterion={criterion!r}; expected 'auto', 'nec' or 'bic'")
    if most < 1:
        raise SimNetsError(f"most={most}; expected at least one component")
    data = as_rows(X)
    if len(data) > rows:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(random_state))
        data = data[order[:rows].to(data.device)]
    found: dict[int, tuple[float, float]] = {}
    likelihood_of_one = 0.0

    def fit(k: int) -> None:
        nonlocal likelihood_of_one
        # EM ends in a local optimum; among few components another start often finds a better one
        mixture = GeneralizedGaussianMixture(
            k, shape, max_iter=max_iter, n_init=3 if 1 < k <= 8 else 1, random_state=random_state
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            mixture.fit(data)
        likelihood = mixture.lower_bound_ * len(data)
        if k == 1:
            likelihood_of_one = likelihood
        nec = 1.0 if k == 1 else normalised_entropy(mixture.entropy(data), likelihood, likelihood_of_one)
        found[k] = nec, mixture.bic(data)

    def nec_vote() -> int:
        least = min(nec for nec, _ in found.values())
        return max(k for k, (nec, _) in found.items() if nec <= least + 1e-4)

    def bic_vote() -> int:
        return min(found, key=lambda k: found[k][1])

    largest = min(most, len(data))
    for k in _grid(largest):
        fit(k)
    for vote in (nec_vote, bic_vote):
        # Above 8 the curves are too flat for the numbers in between to matter
        while (peak := vote()) <= 8:
            between = [
                (peak + other) // 2 if other > peak else (peak + other + 1) // 2
                for other in _neighbours(peak, sorted(found))
            ]
            missing = [k for k in between if k not in found]
            if not missing:
                break
            for k in missing:
                fit(k)
    votes = {"nec": nec_vote(), "bic": bic_vote()}
    chosen = criterion
    if chosen == "auto":
        chosen = "bic" if votes["bic"] > 2 * votes["nec"] else "nec"
    tried = sorted(found)
    curves = {"nec": [found[k][0] for k in tried], "bic": [found[k][1] for k in tried]}
    return ComponentChoice(votes[chosen], chosen, votes, tried, curves)


def _neighbours(k: int, tried: Sequence[int]) -> list[int]:
    at = tried.index(k)
    return [tried[i] for i in (at - 1, at + 1) if 0 <= i < len(tried)]
