"""What the paper says about its operators, sentence by sentence, as tests (sections 2, 3 and 4.1).

Each compares the operators with something computed directly: sums, kernels, unfolded patches.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import pairwise
from torch import Tensor
from torch.nn import functional

from simnets import mex, similarity

FLOAT64 = torch.float64
BETAS = [-3.0, -1e-3, 0.0, 1e-6, 0.4, 1.0, 7.0, math.inf, -math.inf]


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=FLOAT64) * scale


# Section 2: MEX


def test_mex_is_the_mean_exponential() -> None:
    """Equation 1."""
    c = random(5, 9)
    expected = np.log(np.exp(0.7 * c.numpy()).mean(-1)) / 0.7
    np.testing.assert_allclose(mex(c, 0.7).numpy(), expected, rtol=1e-13)


def test_mex_spans_maximum_average_and_minimum() -> None:
    """ "β ∈ R spans a continuum between maximum (β → +∞), average (β → 0) and minimum (β → −∞)"."""
    c = random(6, 20)
    for beta, limit in ((1e9, c.amax(-1)), (1e-9, c.mean(-1)), (-1e9, c.amin(-1))):
        torch.testing.assert_close(mex(c, beta), limit, rtol=1e-7, atol=1e-7)
    assert torch.equal(mex(c, math.inf), c.amax(-1))
    assert torch.equal(mex(c, 0.0), c.mean(-1))
    assert torch.equal(mex(c, -math.inf), c.amin(-1))


@settings(max_examples=60, deadline=None)
@given(
    c=st.lists(st.floats(-100, 100), min_size=1, max_size=8),
    betas=st.lists(st.floats(-50, 50) | st.sampled_from([0.0, math.inf, -math.inf]), min_size=2, max_size=6),
)
def test_mex_grows_with_beta_between_minimum_and_maximum(c: list[float], betas: list[float]) -> None:
    values = torch.tensor(c, dtype=FLOAT64)
    results = torch.stack([mex(values, beta) for beta in sorted(betas)])
    rounding = 1e-12 * (1 + values.abs().max())
    assert (results.diff() >= -rounding).all()
    assert (results >= values.amin() - rounding).all()
    assert (results <= values.amax() + rounding).all()
    for beta, result in zip(sorted(betas), results, strict=True):
        side = result - values.mean()
        assert side >= -rounding if beta >= 0 else side <= rounding


@pytest.mark.parametrize("beta", BETAS)
def test_mex_collapses(beta: float) -> None:
    """MEX_β{MEX_β{c_ij}_j}_i = MEX_β{c_ij}_ij, and the same over three indices."""
    c = random(4, 5, 6, 3, scale=3.0)
    torch.testing.assert_close(mex(mex(c, beta), beta), mex(c.flatten(2), beta))
    torch.testing.assert_close(mex(mex(mex(c, beta), beta), beta), mex(c.flatten(1), beta))


def test_other_softmax_functions_lack_one_of_the_three_properties() -> None:
    """The first footnote: log-sum-exp has no average, the weighted mean does not collapse."""
    c = random(1, 4, 5)
    log_sum = torch.logsumexp(1e-6 * c.flatten(1), 1) / 1e-6
    assert (log_sum - c.mean((1, 2))).abs().min() > 1e3

    def weighted(values: Tensor) -> Tensor:
        return (values.softmax(-1) * values).sum(-1)

    assert (weighted(weighted(c)) - weighted(c.flatten(1))).abs().max() > 1e-3


def test_mex_is_an_inner_product_in_log_space() -> None:
    """Second footnote: MEX_1{log c_i + log d_i} = log⟨c, d⟩ − log d."""
    c, d = random(7, 12).exp(), random(3, 12, seed=1).exp()
    expected = (c @ d.T).log() - math.log(12)
    torch.testing.assert_close(mex(c.log(), 1.0, d.log()), expected)


def test_mex_without_biases_is_between_average_and_maximum() -> None:
    c = random(8, 10)
    soft = mex(c, 2.0)
    torch.testing.assert_close(soft, mex(c, 2.0, torch.zeros(1, 10, dtype=FLOAT64)).squeeze(1))
    assert (c.mean(-1) < soft).all()
    assert (soft < c.amax(-1)).all()


# Section 2: similarity


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_uniform_weights_are_an_inner_product_and_a_distance(p: float) -> None:
    """ "when setting u = 1, the similarities reduce to inner-product and p-distance (by the power of p)"."""
    x, z = random(6, 5), random(4, 5, seed=1)
    torch.testing.assert_close(similarity(x, z, kind="linear"), x @ z.T)
    torch.testing.assert_close(similarity(x, z, p=p), -(torch.cdist(x, z, p=p) ** p))


# Section 3: SimNet MLP


def test_maxout_is_the_limit_of_linear_similarity() -> None:
    """u = 1, linear φ, β → ∞: h_r = max_l {z_l·x + b_rl}."""
    x, z, b = random(6, 5), random(7, 5, seed=1), random(3, 7, seed=2)
    maxout = (x @ z.T).unsqueeze(1).add(b).amax(-1)
    hidden = similarity(x, z, kind="linear")
    torch.testing.assert_close(mex(hidden, math.inf, b), maxout)
    torch.testing.assert_close(mex(hidden, 1e10, b), maxout)


def exponential_kernel(x: Tensor, z: Tensor, beta: float) -> Tensor:
    return torch.from_numpy(np.exp(beta * pairwise.linear_kernel(x.numpy(), z.numpy())))


def laplacian_kernel(x: Tensor, z: Tensor, beta: float) -> Tensor:
    return torch.from_numpy(pairwise.laplacian_kernel(x.numpy(), z.numpy(), gamma=beta))


def rbf_kernel(x: Tensor, z: Tensor, beta: float) -> Tensor:
    return torch.from_numpy(pairwise.rbf_kernel(x.numpy(), z.numpy(), gamma=beta))


def generalized_gaussian_kernel(x: Tensor, z: Tensor, beta: float) -> Tensor:
    distance = pairwise.pairwise_distances(x.numpy(), z.numpy(), metric="minkowski", p=1.4) ** 1.4
    return torch.from_numpy(np.exp(-beta * distance))


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    ("kernel", "kind", "p"),
    [
        (exponential_kernel, "linear", 2.0),
        (laplacian_kernel, "lp", 1.0),
        (rbf_kernel, "lp", 2.0),
        (generalized_gaussian_kernel, "lp", 1.4),
    ],
)
def test_outputs_are_kernel_machines(
    kernel: Callable[[Tensor, Tensor, float], Tensor], kind: str, p: float, beta: float
) -> None:
    """h_r(x) = σ(Σ_l α_rl·K(x, z_l)), α_rl = exp(β·b_rl), σ(t) = (1/β)·ln(t/n)."""
    x, z, b = random(9, 4), random(6, 4, seed=1), random(3, 6, seed=2)
    alpha = (beta * b).exp()
    expected = (kernel(x, z, beta) @ alpha.T / 6).log() / beta
    torch.testing.assert_close(mex(similarity(x, z, kind=kind, p=p), beta, b), expected)


def test_learned_weights_are_multiple_kernel_learning() -> None:
    """K_ℓp(x, z_l) = exp{−β·Σ_i u_li·|x_i − z_li|^p}: a product of one kernel per coordinate."""
    beta, p = 0.6, 1.7
    x, z, b = random(9, 4), random(6, 4, seed=1), random(3, 6, seed=2)
    u = random(6, 4, seed=3).exp()
    kernels = [
        np.exp(-beta * u[:, i].numpy() * np.abs(x[:, i, None].numpy() - z[:, i].numpy()) ** p)
        for i in range(4)
    ]
    product = torch.from_numpy(np.prod(kernels, axis=0))
    expected = (product @ (beta * b).exp().T / 6).log() / beta
    torch.testing.assert_close(mex(similarity(x, z, u, p), beta, b), expected)


@pytest.mark.parametrize(("kind", "p"), [("linear", 2.0), ("lp", 1.0), ("lp", 2.0), ("lp", 1.4)])
def test_the_kernels_are_positive_definite(kind: str, p: float) -> None:
    """h_r(x) = σ(⟨ψ(x), w_r⟩): a feature space exists for the exponential kernel, and for ℓp with p ≤ 2."""
    x = random(30, 3)
    gram = similarity(x, x, kind=kind, p=p).exp()
    smallest = torch.linalg.eigvalsh((gram + gram.T) / 2)[0]
    assert smallest > -1e-9 * gram.diagonal().sum()


def test_no_kernel_for_p_above_two() -> None:
    """Why the paper says p ≤ 2: beyond, exp{−|x − z|^p} is not positive definite."""
    x = torch.linspace(-2, 2, 30, dtype=FLOAT64)[:, None]
    gram = similarity(x, x, p=4.0, method="reference").exp()
    assert torch.linalg.eigvalsh(gram)[0] < -1e-3


# Section 4.1: SimNet MLPConv


@pytest.mark.parametrize("beta", [0.5, 1.0, -2.0, 1e-5])
@pytest.mark.parametrize(("kind", "p"), [("linear", 2.0), ("lp", 1.0), ("lp", 2.0)])
def test_mlpconv_collapses_when_both_betas_are_equal(kind: str, p: float, beta: float) -> None:
    """MEX_β2{MEX_β1{u·φ(x_ij, z_l) + b_rl}_l}_ij = MEX_β{u·φ(x_ij, z_l) + b_rl}_ijl for β₁ = β₂ = β."""
    images, size, n, k = random(2, 3, 6, 7), 3, 5, 4
    patches = functional.unfold(images, size).transpose(1, 2)
    z, u = random(n, 27, seed=1, scale=0.3), random(n, 27, seed=2).exp()
    b = random(k, n, seed=3)
    similarities = similarity(patches, z, u, p, kind=kind)
    layered = mex(mex(similarities, beta, b), beta, dim=1)

    by_hand = [[] for _ in range(2)]
    for i in range(6 - size + 1):
        for j in range(7 - size + 1):
            patch = images[:, :, i : i + size, j : j + size].reshape(2, 1, -1)
            phi = patch * z if kind == "linear" else -((patch - z).abs() ** p)
            for image in range(2):
                by_hand[image].append((u * phi).sum(-1)[image] + b)
    for image in range(2):
        together = torch.stack(by_hand[image], 1).flatten(1)  # (k, positions · n)
        torch.testing.assert_close(layered[image], mex(together, beta), rtol=1e-9, atol=1e-9)

    different = mex(mex(similarities, beta, b), 3 * beta + 1, dim=1)
    assert (different - layered).abs().max() > 1e-3
