"""Whitening and ICA: identity covariance, known sources, damping, streams."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from simnets.errors import SimNetsError
from simnets.pretrain import Whitening, preconditioner
from simnets.pretrain.whitening import Moments, kurtosis


def random_rows(count: int, m: int) -> np.ndarray:
    return np.random.default_rng(0).random((count, m))


def amari(product: np.ndarray) -> float:
    """0 where W·mixing is a permutation with signs and scales, up to 1 for a matrix of equal entries."""
    a = np.abs(product)
    n = len(a)
    rows = (a / a.max(1, keepdims=True)).sum() - n
    columns = (a / a.max(0, keepdims=True)).sum() - n
    return float((rows + columns) / (2 * n * (n - 1)))


def mixed_sources(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows x = M·s of heavy- and light-tailed independent sources, and M (6, 6)."""
    rng = np.random.default_rng(seed)
    sources = np.concatenate([rng.laplace(size=(count, 4)), rng.uniform(-1, 1, (count, 2))], axis=1)
    mixing = np.random.default_rng(7).normal(size=(6, 6))
    return sources @ mixing.T + 3.0, mixing


def decaying(count: int, m: int, ratio: float, seed: int = 0) -> np.ndarray:
    """Rows whose eigenvalues fall from 1 to `ratio`, in random directions, far from the origin."""
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.normal(size=(m, m)))
    return rng.laplace(size=(count, m)) * np.geomspace(1, ratio, m) ** 0.5 @ axes.T + 10.0


@pytest.mark.parametrize("mode", ["ica", "pca", "zca"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-3), (np.float64, 1e-8)])
def test_covariance_is_the_identity(mode, dtype, tolerance):
    x = decaying(3000, 12, 1e-6).astype(dtype)
    y = Whitening(mode=mode).fit(x).transform(x).astype(np.float64)
    np.testing.assert_allclose(np.cov(y.T, bias=True), np.eye(12), atol=tolerance)
    np.testing.assert_allclose(y.mean(0), 0, atol=3 * tolerance)


@pytest.mark.parametrize("mode", ["ica", "pca"])
def test_reduction_keeps_the_principal_subspace(mode):
    x = decaying(2000, 10, 1e-3)
    whitening = Whitening(4, mode=mode).fit(x)
    pca = PCA(4).fit(x)
    assert whitening.components_.shape == (4, 10)
    assert whitening.explained_variance_ratio_ == pytest.approx(pca.explained_variance_ratio_.sum(), rel=1e-9)
    back = whitening.inverse_transform(whitening.transform(x))
    np.testing.assert_allclose(back, pca.inverse_transform(pca.transform(x)), atol=1e-8)
    np.testing.assert_allclose(np.cov(whitening.transform(x).T, bias=True), np.eye(4), atol=1e-8)


def test_zca_stays_near_the_data():
    x = decaying(2000, 6, 1e-2)
    whitening = Whitening(mode="zca").fit(x)
    np.testing.assert_allclose(whitening.components_, whitening.components_.T, atol=1e-10)
    inverse = np.linalg.inv(whitening.components_)
    np.testing.assert_allclose(inverse @ inverse, np.cov(x.T, bias=True), atol=1e-10)


def test_ridge_damps_small_directions_as_documented():
    x = decaying(2000, 8, 1e-4)
    values = np.sort(np.linalg.eigvalsh(np.cov(x.T, bias=True)))[::-1]
    y = Whitening(mode="pca", ridge=0.1).fit(x).transform(x)
    np.testing.assert_allclose(y.var(0), values / (values + 0.1 * values.mean()), rtol=1e-8)


def test_preconditioner_is_the_formula():
    covariance = np.cov(decaying(500, 7, 1e-3).T)
    a = preconditioner(torch.tensor(covariance), ridge=0.1).numpy()
    regularised = covariance + 0.1 * np.trace(covariance) / 7 * np.eye(7)
    np.testing.assert_allclose(a @ regularised @ a, np.eye(7), atol=1e-8)
    np.testing.assert_allclose(a, a.T, atol=1e-10)


@pytest.mark.parametrize("mode", ["pca", "ica"])
def test_rows_of_v_are_orthonormal(mode):
    # W = V·A with the same ridge: what training keeps at unit norm starts there
    x = decaying(2000, 9, 1e-4)
    whitening = Whitening(5, mode=mode, ridge=0.1).fit(x)
    v = whitening.components_ @ np.linalg.inv(
        preconditioner(torch.tensor(whitening.covariance_), 0.1).numpy()
    )
    np.testing.assert_allclose(v @ v.T, np.eye(5), atol=1e-8)


def test_ica_recovers_sources():
    x, mixing = mixed_sources(20_000)
    ica = Whitening().fit(x)
    assert ica.converged_
    assert amari(ica.components_ @ mixing) < 0.02
    assert amari(Whitening(mode="pca").fit(x).components_ @ mixing) > 0.1
    # heaviest tails first: four Laplacians (kurtosis 3), two uniforms (−1.2)
    np.testing.assert_allclose(ica.kurtosis_, [3, 3, 3, 3, -1.2, -1.2], atol=0.8)


def test_filters_do_not_depend_on_rounding_where_fastica_wanders():
    # six Gaussians have no independent directions to be found
    x = np.random.default_rng(0).normal(size=(400, 6))
    first, second = (Whitening(max_iter=20).fit(x * scale) for scale in (1.0, 1 + 1e-13))
    assert not first.converged_
    np.testing.assert_allclose(first.components_, second.components_, atol=1e-8)


def test_stochastic_ica_recovers_sources_from_a_stream():
    ica = Whitening()
    for seed in range(60):
        ica.partial_fit(mixed_sources(500, seed)[0])
    _, mixing = mixed_sources(2)
    assert amari(ica.components_ @ mixing) < 0.05
    fresh = ica.transform(mixed_sources(20_000, 99)[0])
    np.testing.assert_allclose(np.cov(fresh.T), np.eye(6), atol=0.06)


def test_stochastic_ica_reduces_the_dimension():
    # two sources in five dimensions with a little noise: the axes move while the covariance settles
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(5, 2))
    ica = Whitening(2)
    for _ in range(40):
        ica.partial_fit(rng.laplace(size=(400, 2)) @ mixing.T + 0.02 * rng.normal(size=(400, 5)))
    assert amari(ica.components_ @ mixing) < 0.06


def test_moments_in_parts_equal_moments_of_all():
    x = decaying(3000, 5, 1e-3) + 1e3
    moments = Moments()
    for part in np.array_split(x.astype(np.float32), 7):
        moments.add(torch.tensor(part))
    single = x.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(moments.mean, single.mean(0), rtol=1e-9)
    np.testing.assert_allclose(moments.covariance, np.cov(single.T, bias=True), atol=1e-7)


def test_kurtosis_of_known_distributions():
    rng = np.random.default_rng(0)
    x = np.stack([rng.normal(size=100_000), rng.laplace(size=100_000), rng.uniform(size=100_000)], 1)
    np.testing.assert_allclose(kurtosis(torch.tensor(x)), [0, 3, -1.2], atol=0.3)


def test_same_seed_same_filters():
    x = mixed_sources(2000)[0]
    first, second = (Whitening(random_state=3).fit(x).components_ for _ in range(2))
    assert (first == second).all()


@pytest.mark.parametrize(
    ("options", "x", "message"),
    [
        ({"mode": "pcb"}, random_rows(9, 3), "mode='pcb'; expected one of ica, pca, zca"),
        (
            {"n_components": 4},
            random_rows(9, 3),
            "4 whitened dimensions were asked for of rows that have 3",
        ),
        ({"n_components": 2, "mode": "zca"}, random_rows(9, 3), "zca"),
        ({"ridge": -1.0}, random_rows(9, 3), "ridge=-1.0"),
        ({"tol": 0.0}, random_rows(9, 3), "tol=0.0"),
        ({}, np.full((9, 3), 0.3), "all the same"),
        ({}, random_rows(3, 8), "rank 2"),
        ({"ridge": 0.1}, random_rows(3, 8), "ask for at most 2, give more rows$"),
        (
            {},
            np.repeat(random_rows(50, 1), 3, 1),
            "rank 1; ask for at most 1, give more rows or a ridge > 0",
        ),
        ({}, np.array([[np.inf, 1.0]]), "NaN or infinite"),
    ],
)
def test_bad_input_is_one_clear_line(options, x, message):
    with pytest.raises(SimNetsError, match=message) as caught:
        Whitening(**options).fit(x)
    assert "\n" not in str(caught.value)


def test_constant_coordinates_are_fine_with_a_ridge():
    x = np.random.default_rng(0).normal(size=(500, 4))
    x[:, 2] = 1.0
    y = Whitening(ridge=1e-3).fit(x).transform(x)
    assert np.isfinite(y).all()
