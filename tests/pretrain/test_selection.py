"""Numbers of channels: known dimensions and components come back, criteria agree with scikit-learn."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from simnets.errors import SimNetsError
from simnets.pretrain import Whitening, effective_dimension, select_components


def random_rows(count: int, m: int) -> np.ndarray:
    return np.random.default_rng(0).random((count, m))


def low_dimensional(d: int, m: int, count: int, noise: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(count, d)) * np.linspace(2, 1, d) @ rng.normal(size=(d, m))
    return signal + noise * rng.normal(size=(count, m))


def clusters(n: int, d: int, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = 9 * np.stack(np.unravel_index(rng.permutation(3**d)[:n], (3,) * d), 1)
    return centres[rng.integers(0, n, count)] + rng.normal(size=(count, d))


def eigenvalues(x: np.ndarray) -> np.ndarray:
    return np.linalg.eigvalsh(np.cov(x.T))


@pytest.mark.parametrize("criterion", ["auto", "minka", "bic"])
@pytest.mark.parametrize(("d", "m"), [(3, 10), (7, 20), (1, 6)])
def test_known_dimension_comes_back(d, m, criterion):
    x = low_dimensional(d, m, 2000, noise=0.5)
    assert effective_dimension(eigenvalues(x), len(x), criterion).dimension == d
    assert Whitening(criterion, mode="pca").fit(x).components_.shape == (d, m)


@pytest.mark.parametrize("seed", range(6))
def test_minka_is_the_choice_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60 + 40 * seed, 12)) * np.geomspace(1, 0.02 + 0.1 * seed, 12)
    theirs = PCA(n_components="mle", svd_solver="full").fit(x).n_components_
    assert effective_dimension(eigenvalues(x), len(x), "minka").dimension == theirs


def test_bic_is_that_of_the_likelihood():
    x = low_dimensional(3, 8, 300, noise=0.5)
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    curve = effective_dimension(values, len(x), "bic").curves["bic"]
    for k in (2, 3, 5):
        # probabilistic PCA by its covariance, as a Gaussian; parameters of W up to rotation, and the noise
        kept, noise = np.sort(values)[::-1][:k], np.sort(values)[: 8 - k].mean()
        likelihood = -len(x) / 2 * (np.log(kept).sum() + (8 - k) * np.log(noise))
        penalty = (8 * k - k * (k - 1) / 2 + 1) / 2 * np.log(len(x))
        assert curve[k - 1] == pytest.approx(likelihood - penalty, rel=1e-9)


def test_explained_variance_counts_dimensions():
    choice = effective_dimension([6.0, 3.0, 0.9, 0.1], 100, 0.9)
    assert (choice.dimension, choice.criterion) == (2, "explained")
    np.testing.assert_allclose(choice.curves["explained"], [0.6, 0.9, 0.99, 1.0])
    assert effective_dimension([6.0, 3.0, 0.9, 0.1], 100, 1.0).dimension == 4


def test_spectrum_without_a_floor_is_cut_at_the_ridge():
    # as on natural images: a power law, for which evidence keeps nearly everything
    values = np.arange(1, 76.0) ** -3
    choice = effective_dimension(values, 100_000)
    assert choice.votes["minka"] > 67
    assert choice.criterion == "ridge"
    assert choice.votes["ridge"] == sum(values > 0.1 * values.sum() / 75) == 8
    assert choice.votes["explained"] == np.searchsorted(np.cumsum(values) / values.sum(), 0.99) + 1
    # a slower law has 21 dimensions above the ridge: the next round number is 24
    slower = effective_dimension(np.arange(1, 76.0) ** -2, 100_000)
    assert (slower.votes["ridge"], slower.dimension) == (21, 24)
    assert effective_dimension(np.arange(1, 76.0) ** -2, 100_000, "ridge").dimension == 21


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_known_number_of_clusters_comes_back(n):
    choice = select_components(clusters(n, 3, 1200, seed=n), most=12)
    assert choice.components == n
    assert choice.votes == {"nec": n, "bic": n}
    assert choice.curves["nec"][choice.tried.index(1)] == 1.0


def test_number_is_found_at_other_shapes():
    rng = np.random.default_rng(0)
    x = 14 * np.array([[0, 0], [1, 0], [0, 1], [1, 1]])[rng.integers(0, 4, 1500)] + rng.laplace(
        size=(1500, 2)
    )
    assert select_components(x, 1.0, most=8).components == 4


def test_nec_and_bic_differ_where_components_are_not_clusters():
    # one heavy-tailed cloud: a density in need of several Gaussians, which are no clusters
    x = np.random.default_rng(0).standard_t(2, size=(4000, 2))
    choice = select_components(x, 2.0, most=12)
    assert choice.votes["bic"] > 2 * choice.votes["nec"]
    assert choice.components == choice.votes["bic"]
    assert select_components(x, 2.0, most=12, criterion="nec").components == choice.votes["nec"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: effective_dimension([1.0, 2.0], 10, "nec"), "criterion='nec'"),
        (lambda: effective_dimension([1.0, 2.0], 10, 1.5), "criterion=1.5"),
        (lambda: effective_dimension([0.0, 0.0], 10), "eigenvalues"),
        (lambda: select_components(random_rows(20, 2), criterion="aic"), "criterion='aic'"),
        (lambda: select_components(random_rows(20, 2), most=0), "most=0"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(SimNetsError, match=message):
        call()
