"""The generalized Gaussian mixture against formulas, scipy, scikit-learn and known parameters."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.mixture import GaussianMixture

from simnets.errors import SimNetsError
from simnets.pretrain import GeneralizedGaussianMixture, MixtureDensity
from simnets.pretrain.medians import SortedColumns

MEANS = np.array([[-6.0, 0.0, 3.0], [6.0, 1.0, -3.0], [0.0, 9.0, 0.0]])
SCALES = np.array([[1.0, 0.5, 1.5], [0.7, 1.0, 0.5], [1.0, 1.2, 0.8]])
WEIGHTS = np.array([0.5, 0.3, 0.2])


def random_rows(count: int, m: int) -> np.ndarray:
    return np.random.default_rng(0).random((count, m))


def known(shape: float) -> MixtureDensity:
    return MixtureDensity(torch.tensor(WEIGHTS), torch.tensor(MEANS), torch.tensor(SCALES), shape)


def rows_of(shape: float, count: int, seed: int = 1) -> np.ndarray:
    """Drawn by scipy, not by our own sampler."""
    rng = np.random.default_rng(seed)
    component = rng.choice(3, count, p=WEIGHTS)
    noise = stats.gennorm.rvs(shape, size=(count, 3), random_state=rng)
    return MEANS[component] + SCALES[component] * noise


def log_density(x: np.ndarray, shape: float) -> np.ndarray:
    """log P(y ∧ l) by scipy's generalized normal distribution, (N, n)."""
    terms = stats.gennorm.logpdf(x[:, None], shape, MEANS, SCALES).sum(2)
    return terms + np.log(WEIGHTS)


def fitted(x: np.ndarray, n: int, shape: float | None, **options: object) -> GeneralizedGaussianMixture:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GeneralizedGaussianMixture(n, shape, **options).fit(x)  # type: ignore[arg-type]


def matched(mixture: GeneralizedGaussianMixture) -> list[int]:
    """The component nearest to each true mean; they must be different ones."""
    order = [int(np.abs(mixture.means_ - mean).sum(1).argmin()) for mean in MEANS]
    assert sorted(order) == [0, 1, 2]
    return order


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0, 3.5])
def test_density_is_the_papers(shape):
    x = rows_of(shape, 200)
    np.testing.assert_allclose(known(shape).log_joint(torch.tensor(x)), log_density(x, shape), rtol=1e-9)


@pytest.mark.parametrize("shape", [0.7, 1.0, 1.5, 2.0, 4.0])
def test_similarity_is_log_probability_up_to_c(shape):
    density = known(shape)
    x = torch.tensor(rows_of(shape, 50))
    difference = (x[:, None] - density.means).abs() ** shape
    similarity = -(density.similarity_weights * difference).sum(2)
    np.testing.assert_allclose(similarity + density.constants, log_density(x.numpy(), shape), rtol=1e-9)


@pytest.mark.parametrize("estimate", [False, True])
@pytest.mark.parametrize("shape", [0.7, 1.0, 1.5, 2.0, 4.0])
def test_known_parameters_are_recovered(shape, estimate):
    mixture = fitted(rows_of(shape, 8_000), 3, None if estimate else shape, max_iter=40, tol=1e-5, n_init=2)
    order = matched(mixture)
    assert mixture.shape_ == pytest.approx(shape, rel=0.04)
    np.testing.assert_allclose(mixture.weights_[order], WEIGHTS, atol=0.02)
    # the standard error of a mean is up to std/√(N·λ); heavy tails have a large std
    spread = stats.gennorm.std(shape) * SCALES
    np.testing.assert_allclose(mixture.means_[order], MEANS, atol=5 * spread.max() / np.sqrt(8_000 * 0.2))
    np.testing.assert_allclose(mixture.scales_[order], SCALES, rtol=0.12)


@pytest.mark.parametrize(
    ("shape", "n"), [(None, 5), (0.7, 5), (1.0, 5), (1.3, 5), (2.0, 5), (2.0, 12), (3.0, 5), (6.0, 4)]
)
def test_likelihood_never_decreases(shape, n):
    # Data that the model does not fit, so that EM has a long way to go
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [rng.standard_t(2.5, (700, 4)), rng.uniform(-8, 3, (500, 4)), rng.normal(5, 0.1, (60, 4))]
    )
    mixture = fitted(x, n, shape, max_iter=40, tol=0.0)
    bounds = np.array(mixture.lower_bounds_)
    assert len(bounds) > 5
    assert bounds[-1] > bounds[0] + 0.05
    assert np.diff(bounds).min() > -1e-10
    # the last entry is that of the mixture which is returned
    assert mixture.score(x) == pytest.approx(bounds[-1], abs=1e-9)


def test_agrees_with_sklearn_at_shape_two():
    x = rows_of(2.0, 3000) * [0.2, 0.3, 1.0]  # components that overlap
    start = {"weights_init": [0.3, 0.3, 0.4], "means_init": MEANS / 9}
    ours = fitted(
        x, 3, 2.0, max_iter=7, tol=0.0, scales_init=np.full((3, 3), np.sqrt(2.0)), min_usage=0, **start
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs = GaussianMixture(
            3,
            covariance_type="diag",
            max_iter=7,
            tol=0.0,
            reg_covar=0.0,
            precisions_init=np.ones((3, 3)),
            **start,
        ).fit(x)
    assert ours.n_iter_ == 7
    np.testing.assert_allclose(ours.weights_, theirs.weights_, rtol=1e-9)
    np.testing.assert_allclose(ours.means_, theirs.means_, atol=1e-9)
    np.testing.assert_allclose(ours.scales_**2 / 2, theirs.covariances_, rtol=1e-9)
    np.testing.assert_allclose(ours.score_samples(x), theirs.score_samples(x), atol=1e-9)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-9)
    assert (ours.predict(x) == theirs.predict(x)).all()
    assert ours.bic(x) == pytest.approx(theirs.bic(x), rel=1e-9)
    assert ours.aic(x) == pytest.approx(theirs.aic(x), rel=1e-9)
    assert ours.score(x) == pytest.approx(theirs.score(x), rel=1e-9)


def test_float32_is_close_to_float64_far_from_the_origin():
    x = rows_of(2.0, 3000) + 300
    single, double = (fitted(x.astype(dtype), 3, 2.0, max_iter=10) for dtype in (np.float32, np.float64))
    np.testing.assert_allclose(single.means_, double.means_, atol=1e-3)
    np.testing.assert_allclose(single.scales_, double.scales_, rtol=1e-3)


def test_narrow_components_survive_float32():
    # E[x²] − μ² of a component of width 1e-3 at 5 is lost in float32 unless the products are exact
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(5, 1e-3, (2000, 2)), rng.normal(-5, 1.0, (2000, 2))]).astype(np.float32)
    mixture = fitted(x, 2, 2.0, scale_floor=1e-6, max_iter=30)
    deviation = np.sort(mixture.scales_[:, 0] / np.sqrt(2))
    assert deviation[0] == pytest.approx(x[:2000, 0].astype(np.float64).std(), rel=0.02)


def test_weighted_medians_are_medians():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(900, 3, generator=generator, dtype=torch.float64)
    y[:40, 0] = y[0, 0]  # ties
    r = torch.rand(900, 4, generator=generator, dtype=torch.float64)
    r[:, 3] = 0.0
    r[17, 3] = 1.0  # all weight in one row
    medians = SortedColumns(y, torch.rand(900, dtype=torch.float64)).medians(r, r.sum(0))
    for l, t in itertools.product(range(4), range(3)):
        order = y[:, t].argsort()
        enough = r[order, l].cumsum(0) >= r[:, l].sum() / 2
        assert medians[l, t] == y[order, t][enough][0]


def test_means_at_shape_one_are_medians_of_a_single_component():
    x = np.random.default_rng(0).exponential(size=(2001, 2))
    mixture = fitted(x, 1, 1.0)
    np.testing.assert_allclose(mixture.means_[0], np.median(x, axis=0), atol=1e-12)
    np.testing.assert_allclose(mixture.scales_[0], np.abs(x - np.median(x, axis=0)).mean(0), rtol=1e-12)


@pytest.mark.parametrize("shape", [1.4, 3.0])
def test_means_solve_the_likelihood_equation(shape):
    x = np.random.default_rng(0).exponential(size=(2000, 1))
    mean = fitted(x, 1, shape, max_iter=200, tol=0.0).means_[0, 0]
    residual = (np.sign(x - mean) * np.abs(x - mean) ** (shape - 1)).mean()
    assert abs(residual) < 1e-6


def test_dead_components_are_revived():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 2)) + 12 * np.array([[0, 0], [1, 0], [0, 1]])[rng.integers(0, 3, 3000)]
    start = np.array([[0.0, 0.0], [12.0, 0.0], [400.0, 400.0]])
    options = {"means_init": start, "weights_init": [0.6, 0.4, 0.0], "max_iter": 60, "tol": 1e-6}
    revived = fitted(x, 3, 2.0, **options)
    assert revived.weights_.min() > 0.25
    found = sorted(revived.means_.round().tolist())
    assert found == [[0, 0], [0, 12], [12, 0]]
    assert fitted(x, 3, 2.0, min_usage=0.0, **options).weights_.min() < 1e-6


def test_scales_do_not_collapse():
    x = np.random.default_rng(0).normal(size=(500, 2))
    x[:250, 0] = 0.5  # half of the rows coincide in one coordinate
    mixture = fitted(x, 2, 2.0, scale_floor=0.01)
    assert mixture.scales_[:, 0].min() == pytest.approx(0.01 * x[:, 0].std(), rel=1e-6)


@pytest.mark.parametrize(("shape", "rel"), [(2.0, 0.05), (1.0, 0.1), (1.5, 0.1), (0.7, 0.15)])
def test_stochastic_em_finds_the_mixture(shape, rel):
    mixture = GeneralizedGaussianMixture(3, shape)
    for seed in range(40):
        mixture.partial_fit(rows_of(shape, 500, seed))
    order = matched(mixture)
    np.testing.assert_allclose(mixture.weights_[order], WEIGHTS, atol=0.04)
    np.testing.assert_allclose(mixture.means_[order], MEANS, atol=0.25)
    np.testing.assert_allclose(mixture.scales_[order], SCALES, rtol=2.5 * rel)


def test_stochastic_em_estimates_the_shape():
    mixture = GeneralizedGaussianMixture(3)
    for seed in range(60):
        mixture.partial_fit(rows_of(1.2, 500, seed))
    assert mixture.shape_ == pytest.approx(1.2, abs=0.15)


def test_sample_has_the_fitted_moments():
    mixture = fitted(rows_of(1.5, 4000), 3, 1.5)
    rows, component = mixture.sample(40_000)
    order = matched(mixture)
    for true, l in enumerate(order):
        mine = rows[component == l]
        np.testing.assert_allclose(mine.mean(0), MEANS[true], atol=0.1)
        np.testing.assert_allclose(mine.std(0), stats.gennorm.std(1.5) * SCALES[true], rtol=0.1)
        assert (
            stats.kstest(
                (mine[:, 0] - mixture.means_[l, 0]) / mixture.scales_[l, 0], "gennorm", (1.5,)
            ).pvalue
            > 1e-4
        )
    assert (mixture.sample(5)[0] == mixture.sample(5)[0]).all()


def test_entropy_and_nec_by_their_definitions():
    x = rows_of(2.0, 1000)
    mixture, one = fitted(x, 3, 2.0), fitted(x, 1, 2.0)
    r = mixture.predict_proba(x)
    entropy = -(r * np.log(np.maximum(r, 1e-300))).sum()
    assert mixture.entropy(x) == pytest.approx(entropy, rel=1e-9)
    gain = mixture.score_samples(x).sum() - one.score_samples(x).sum()
    assert mixture.nec(x) == pytest.approx(entropy / gain, rel=1e-6)
    assert one.nec(x) == 1.0


def test_scikit_learn_manners():
    mixture = GeneralizedGaussianMixture(3, shape=1.5, tol=1e-2)
    assert clone(mixture).get_params()["shape"] == 1.5
    assert mixture.set_params(n_components=2).n_components == 2
    with pytest.raises(NotFittedError):
        mixture.score_samples(np.zeros((3, 2)))
    first, second = (fitted(rows_of(2.0, 500), 3, 2.0, random_state=5).means_ for _ in range(2))
    assert (first == second).all()
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        GeneralizedGaussianMixture(3, 1.5, max_iter=2, tol=1e-12).fit(rows_of(1.5, 500))


@pytest.mark.parametrize(
    ("options", "x", "message"),
    [
        ({"n_components": 9}, random_rows(5, 2), "5 rows, fewer than n_components=9"),
        ({"n_components": 0}, random_rows(5, 2), "n_components=0"),
        ({"shape": -1.0}, random_rows(5, 2), "shape=-1.0"),
        ({"tol": -1.0}, random_rows(5, 2), "tol=-1.0"),
        ({}, np.ones((50, 2)), "all the same"),
        ({}, np.array([[1.0, np.nan], [0.0, 2.0]]), "NaN or infinite values in 1 of 2 rows"),
        ({}, np.zeros(7), r"shape \(7,\)"),
        ({"means_init": [[1.0, 2.0, 3.0]]}, random_rows(5, 2), "means_init has shape"),
    ],
)
def test_bad_input_is_one_clear_line(options, x, message):
    with pytest.raises(SimNetsError, match=message) as caught:
        GeneralizedGaussianMixture(**options).fit(x)
    assert "\n" not in str(caught.value)


def test_other_width_than_in_fit_is_refused():
    with pytest.raises(SimNetsError, match="2 columns; expected 3"):
        fitted(rows_of(2.0, 100), 2, 2.0).score_samples(np.zeros((4, 2)))
