"""`Mex`, `Mex2d` and `GlobalMexPool2d`: section 2's operator, and the classifier of sections 4.1 and 4.3."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from layer_contract import F64, ImageLayerContract, LayerContract, refused, shared_family
from torch import Tensor, nn

from simnets.nn import GlobalMexPool2d, Mex, Mex2d, MexPool2d
from simnets.ops import reference

BETAS: dict[str, dict[str, Any]] = {
    "one": {},
    "negative": {"beta": -2.5},
    "mean": {"beta": 0.0},
    "maximum": {"beta": math.inf},
    "minimum": {"beta": -math.inf},
    "learned": {"beta": 0.5, "beta_mode": "learned"},
    "normalized": {"beta": 2.0, "normalized": True},
    "normalized_learned": {"beta": 0.5, "beta_mode": "learned", "normalized": True},
    "normalized_maximum": {"beta": math.inf, "normalized": True},
    "frozen": {"offsets_mode": "frozen"},
}


def offsets_of(layer: Any) -> Tensor:
    """b_rl, or normalised b_rl − MEX_β{b_rl}_l."""
    if not layer.normalized:
        return layer.offsets
    return layer.offsets - reference.mex(
        layer.offsets, layer.beta.detach().to(layer.offsets), dim=-1
    ).unsqueeze(-1)


class TestMex(LayerContract):
    variants = BETAS
    traced = ("mean", "maximum", "normalized_learned")

    def make(self, **options: Any) -> Mex:
        return Mex(5, 3, **options)

    def input(self, count: int = 2, dtype: torch.dtype = F64) -> Tensor:
        return torch.randn(count, 4, 5, dtype=dtype)

    def expected(self, layer: Mex, x: Tensor) -> Tensor:
        return reference.mex(x, layer.beta.detach().to(x), offsets_of(layer))


class TestMex2d(ImageLayerContract):
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "one": {},
        "regions": {"regions": (2, 3), "beta": 2.0},
        "locations": {"regions": (4, 5), "beta_mode": "learned", "normalized": True},
        "maximum": {"beta": math.inf},
        "normalized": {"beta": -1.5, "normalized": True},
    }
    traced = ("one", "regions")

    def make(self, **options: Any) -> Mex2d:
        return Mex2d(3, 2, **options)

    def input(self, count: int = 2, dtype: torch.dtype = F64) -> Tensor:
        return torch.randn(count, 3, 4, 5, dtype=dtype)

    def expected(self, layer: Mex2d, x: Tensor) -> Tensor:
        offsets, (height, width) = offsets_of(layer), x.shape[2:]
        result = x.new_empty(x.shape[0], 2, height, width)
        for i in range(height):
            for j in range(width):
                b = offsets
                if layer.regions is not None:
                    b = offsets[i * layer.regions[0] // height, j * layer.regions[1] // width]
                result[:, :, i, j] = reference.mex(x[:, :, i, j], layer.beta.detach().to(x), b)
        return result


class TestGlobalMexPool2d(ImageLayerContract):
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "mean": {},
        "maximum": {"beta": math.inf},
        "learned": {"beta": 0.5, "beta_mode": "learned"},
    }
    traced = ("mean", "learned")
    random = False

    def make(self, **options: Any) -> GlobalMexPool2d:
        return GlobalMexPool2d(**options)

    def input(self, count: int = 2, dtype: torch.dtype = F64) -> Tensor:
        return torch.randn(count, 3, 4, 5, dtype=dtype)

    def expected(self, layer: GlobalMexPool2d, x: Tensor) -> Tensor:
        return reference.mex(x.reshape(*x.shape[:2], -1), layer.beta.detach().to(x))


# ── statements of the paper ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("beta", [-3.0, 1e-3, 1.0, 4.0])
def test_normalized_weights_sum_to_one(beta: float) -> None:
    layer = Mex(6, 4, beta=beta, normalized=True, dtype=F64)
    weights = torch.exp(beta * layer.effective_offsets) / 6
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, dtype=F64))
    # so that equal inputs come out as they are
    torch.testing.assert_close(layer(torch.full((6,), 0.7, dtype=F64)), torch.full((4,), 0.7, dtype=F64))


def test_one_beta_makes_classification_and_pooling_a_single_mex() -> None:
    """Section 4.1: with β₁ = β₂ the prediction is MEX over locations and templates at once."""
    classify = Mex2d(3, 2, beta=1.7, beta_mode="learned", dtype=F64)
    pool = GlobalMexPool2d(beta_mode=classify)
    x = torch.randn(2, 3, 4, 5, dtype=F64)
    for beta in (1.7, -0.4):
        classify.beta = beta
        everything = (x.unsqueeze(1) + classify.offsets[:, :, None, None]).flatten(2)
        torch.testing.assert_close(pool(classify(x)), reference.mex(everything, beta))


def test_offsets_start_different_in_every_output() -> None:
    """Equal offsets are a saddle: no gradient would tell the outputs apart."""
    for layer in (Mex(64, 10), Mex2d(64, 10, regions=(2, 2))):
        rows = layer.offsets.flatten(0, -2)
        assert rows.unique(dim=0).shape == rows.shape
        assert rows.abs().max() < 1


# ── modes ────────────────────────────────────────────────────────────────────────────────────────────


def test_assigned_values_come_back() -> None:
    layer = Mex(2, 2, beta_mode="learned")
    layer.beta = -0.5
    layer.offsets = [[0.0, -math.inf], [1.0, 2.0]]  # −∞: template 2 has no part in class 1
    assert layer.beta.item() == -0.5
    assert layer.offsets.tolist() == [[0.0, -math.inf], [1.0, 2.0]]
    for beta in (math.inf, -math.inf, 0.0, 0.1):
        frozen = Mex(2, 2)
        frozen.beta = beta
        other = Mex(2, 2).to(torch.bfloat16)
        other.load_state_dict(frozen.state_dict())
        assert other.beta.item() == beta


def test_sharing() -> None:
    source = Mex(3, 2, beta_mode="learned")
    shared_family(source, Mex(3, 2, offsets_mode=source), "offsets")
    shared_family(source, MexPool2d(2, beta_mode=source), "beta")
    frozen = Mex2d(3, 2, beta=2.0)
    pair = nn.ModuleList([frozen, GlobalMexPool2d(beta_mode=frozen)])
    pair[0].beta = math.inf
    x = torch.randn(1, 3, 2, 2)
    torch.testing.assert_close(pair[1](x), x.amax((2, 3)))


@pytest.mark.parametrize("layer_type", [Mex, Mex2d])
def test_approximation_is_handed_on(layer_type: Any) -> None:
    x = torch.randn(2, 4, 4, 4)
    fast, exact = layer_type(4, 3, approximation="fast"), layer_type(4, 3)
    exact.load_state_dict(fast.state_dict())
    error = (fast(x) - exact(x)).abs().max()
    assert 0 < error < 1e-4
    with refused("approximation"):
        layer_type(4, 3, approximation="slow")(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_features": 0}, "in_features=0: expected a positive int"),
        ({"beta": math.nan}, "beta: expected values a number.*got nan"),
        ({"beta": math.inf, "beta_mode": "learned"}, "beta: expected values finite, got inf"),
        ({"beta_mode": "none"}, "beta_mode='none'"),
        ({"offsets_mode": "none"}, "offsets_mode='none': expected 'learned', 'frozen' or a layer"),
        ({"offsets_mode": Mex(4, 2)}, r"offsets_mode: .* shape \(2, 4\), expected shape \(2, 3\)"),
        ({"beta_mode": nn.ReLU()}, "beta_mode: ReLU has no beta to share"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with refused(message):
        Mex(**{"in_features": 3, "out_features": 2, **options})


def test_bad_x_regions_and_assignment() -> None:
    with refused(r"x: expected shape \(\.\.\., 3\), got \(2, 4\)"):
        Mex(3, 2)(torch.zeros(2, 4))
    with refused(r"x: expected images of shape \(N, 3, H, W\), got \(2, 3\)"):
        Mex2d(3, 2)(torch.zeros(2, 3))
    with refused(r"x: expected images of shape \(N, C, H, W\), got \(2, 3\)"):
        GlobalMexPool2d()(torch.zeros(2, 3))
    with refused(r"regions=\(0, 2\)"):
        Mex2d(3, 2, regions=(0, 2))
    with refused("out_channels=-1"):
        Mex2d(3, -1)
    with refused("regions: 5 rows of regions do not fit a map with 4 rows"):
        Mex2d(3, 2, regions=(5, 1))(torch.zeros(1, 3, 4, 4))
    with refused("offsets: expected values finite or -inf, got inf"):
        Mex(3, 2).offsets = torch.full((2, 3), math.inf)
    with refused("beta: expected values finite, got inf"):
        Mex(3, 2, beta_mode="learned").beta = math.inf
