"""`Similarity`: section 2's operator with its parameters, and section 5's densities."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from layer_contract import F64, LayerContract, refused, shared_family
from torch import Tensor, nn

from simnets.nn import Mex, Similarity
from simnets.ops import reference


def formula(layer: Similarity, x: Tensor) -> Tensor:
    """s_l = Σ_t u_lt·φ(x_t, z_lt) + Σ_t log(p·u_lt^{1/p} / (2Γ(1/p))) + b_l, over the observed t."""
    result = reference.similarity(
        x, layer.templates, layer.weights, layer.p, kind=layer.kind, nan_policy=layer.nan_policy
    )
    if layer.normalization:
        p = layer.p.to(x)
        weights = torch.ones_like(layer.templates) if layer.weights is None else layer.weights
        density = torch.log(p * weights ** (1 / p) / (2 * torch.exp(torch.lgamma(1 / p))))
        density = density.expand(*x.shape[:-1], -1, -1)
        if layer.nan_policy == "omit":
            density = torch.where(x.isnan().unsqueeze(-2), 0.0, density)
        result = result + density.sum(-1)
    return result if layer.bias is None else result + layer.bias


class TestSimilarity(LayerContract):
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "l2": {},
        "l1_bias": {"p": 1.0, "bias_mode": "learned"},
        "learned_p": {"p": 1.7, "p_mode": "learned", "normalization": True},
        "linear": {"kind": "linear"},
        "no_weights": {"weights_mode": "none", "normalization": True, "bias_mode": "learned"},
        "missing": {"p": 1.3, "nan_policy": "omit", "normalization": True, "bias_mode": "frozen"},
        "frozen": {"templates_mode": "frozen", "weights_mode": "frozen"},
    }

    traced = ("l2", "learned_p", "missing")

    def make(self, **options: Any) -> Similarity:
        self.omit = options.get("nan_policy") == "omit"
        return Similarity(5, 4, **options)

    def input(self, count: int = 2, dtype: torch.dtype = F64) -> Tensor:
        x = torch.randn(count, 3, 5, dtype=dtype)
        if self.omit:
            x[:, 0, 1:3] = torch.nan
            x[:, 1] = torch.nan
        return x

    def expected(self, layer: Similarity, x: Tensor) -> Tensor:
        return formula(layer, x)


def test_defaults_give_similarities_of_about_one_on_whitened_input() -> None:
    for kind in ("lp", "linear"):
        layer = Similarity(300, 50, kind=kind)
        assert 0.5 < layer(torch.randn(40, 300)).square().mean().sqrt() < 1.5


# ── parameters ───────────────────────────────────────────────────────────────────────────────────────


def test_assigned_values_come_back() -> None:
    layer = Similarity(2, 2, bias_mode="learned", p_mode="learned", dtype=F64)
    layer.templates = [[1.0, 2.0], [3.0, 4.0]]
    layer.weights = torch.tensor([[1e-30, 2.0], [3e20, 0.25]])
    layer.bias = nn.Parameter(torch.tensor([0.5, -math.inf]))
    for p in (1.0, 2.0, 0.3):
        layer.p = p
        assert layer.p.item() == pytest.approx(p, rel=1e-15)
    torch.testing.assert_close(layer.weights, torch.tensor([[1e-30, 2.0], [3e20, 0.25]]).double())
    assert layer.templates.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert layer.bias.tolist() == [0.5, -math.inf]


@pytest.mark.parametrize("p", [1.0, 2.0, 1.3])
def test_a_frozen_p_is_exact_in_every_dtype(p: float) -> None:
    layer = Similarity(2, 2, p=p).to(torch.bfloat16)
    assert layer.order == p
    other = Similarity(2, 2, p=0.5)
    other.load_state_dict(layer.state_dict())
    assert other.order == p


def test_p_one_and_two_are_exact_when_learned() -> None:
    for p in (1.0, 2.0):
        assert Similarity(2, 2, p=p, p_mode="learned").p.item() == pytest.approx(p, rel=2e-7)


def test_assignment_keeps_the_parameter_so_that_optimizers_follow() -> None:
    layer = Similarity(2, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.templates = torch.zeros(3, 2)
    layer.weights = torch.ones(3, 2)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert (layer.templates != 0).all()
    assert (layer.weights != 1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_weight_of_zero_is_zero_and_stays_zero(dtype: torch.dtype) -> None:
    layer = Similarity(2, 1, dtype=dtype)
    layer.weights = [[0.0, 1.0]]
    assert layer.weights is not None
    assert layer.weights.tolist() == [[0.0, 1.0]]
    # weight decay and averaging would make NaN of an infinite logarithm
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layer.float()(torch.randn(4, 2)).sum().backward()
        optimizer.step()
    average = torch.optim.swa_utils.AveragedModel(layer)
    average.update_parameters(layer)
    average.update_parameters(layer)
    for copy in (layer, average.module):
        assert copy.weights[0, 0] == 0
        assert all(parameter.isfinite().all() for parameter in copy.parameters())


def test_modes_say_what_is_learned() -> None:
    everything = Similarity(3, 4, p_mode="learned", bias_mode="learned")
    assert {name for name, _ in everything.named_parameters()} == {
        "templates",
        "raw_weights",
        "raw_p",
        "bias",
    }
    assert all(parameter.requires_grad for parameter in everything.parameters())
    frozen = Similarity(3, 4, templates_mode="frozen", weights_mode="frozen", bias_mode="frozen")
    assert set(frozen.state_dict()) == {"templates", "raw_weights", "bias", "p"}
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    without = Similarity(3, 4, weights_mode="none")
    assert without.weights is None
    assert without.bias is None
    assert set(without.state_dict()) == {"templates", "p"}


@pytest.mark.parametrize("name", ["templates", "weights", "bias", "p"])
def test_sharing_a_learned_family(name: str) -> None:
    source = Similarity(3, 4, bias_mode="learned", p_mode="learned")
    before = source.templates.clone()
    sharer = Similarity(3, 4, **{f"{name}_mode": source})
    assert torch.equal(source.templates, before)  # the new layer's initial values are its own affair
    shared_family(source, sharer, name)


def test_sharing_a_frozen_p() -> None:
    source = Similarity(3, 4, p=1.5)
    pair = nn.ModuleList([source, Similarity(3, 4, p_mode=source)]).to(torch.bfloat16)
    pair[0].p = 1.2
    assert pair[1].order == 1.2


def test_a_parameter_can_be_put_in_place_as_in_torch() -> None:
    layer = Similarity(2, 3)
    replacement = nn.Parameter(torch.zeros(3, 2))
    layer.templates = replacement
    assert layer.templates is replacement
    with refused(r"templates: expected shape \(3, 2\), got \(2, 2\)"):
        layer.templates = nn.Parameter(torch.zeros(2, 2))


def test_loading_into_a_layer_without_memory() -> None:
    layer, x = Similarity(2, 3, p=1.4, bias_mode="frozen"), torch.randn(4, 2)
    empty = Similarity(2, 3, bias_mode="frozen", device="meta")
    empty.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(empty(x), layer(x))


def test_a_missing_or_bad_number_is_noticed_when_loading() -> None:
    state = Similarity(2, 3).state_dict()
    with refused("p: expected values finite and > 0, got -1"):
        Similarity(2, 3).load_state_dict({**state, "p": torch.tensor(-1.0)})
    del state["p"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"p"'):
        Similarity(2, 3).load_state_dict(state)
    Similarity(2, 3).load_state_dict(state, strict=False)


# ── densities, section 5 ─────────────────────────────────────────────────────────────────────────────


def grid(dimensions: int, points: int, dtype: torch.dtype = F64) -> tuple[Tensor, float]:
    axis = torch.linspace(-12, 12, points, dtype=dtype)
    return torch.cartesian_prod(*[axis] * dimensions).view(-1, dimensions), (24 / (points - 1)) ** dimensions


@pytest.mark.parametrize("p", [0.9, 1.0, 2.0, 3.5])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_normalized_similarities_are_log_densities(p: float, dimensions: int) -> None:
    layer = Similarity(dimensions, 3, p=p, normalization=True, dtype=F64)
    layer.weights = torch.rand(3, dimensions) + 1.5
    x, cell = grid(dimensions, 20_001 if dimensions == 1 else 501)
    mass = layer(x).exp().sum(0) * cell
    torch.testing.assert_close(mass, torch.ones(3, dtype=F64), rtol=3e-3, atol=0)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0])
def test_omitting_nan_is_exact_marginalisation(p: float) -> None:
    layer = Similarity(2, 3, p=p, normalization=True, nan_policy="omit", bias_mode="learned", dtype=F64)
    layer.weights = torch.rand(3, 2) + 1.5
    layer.bias = torch.tensor([0.2, 0.3, 0.5]).log()  # log λ_l
    observed = 0.4
    axis, cell = grid(1, 20_001)
    integral = (layer(torch.cat([torch.full_like(axis, observed), axis], 1)).exp().sum(0) * cell).log()
    marginal = layer(torch.tensor([observed, math.nan], dtype=F64))
    torch.testing.assert_close(marginal, integral, rtol=0, atol=1e-5)
    # nothing observed: the prior
    torch.testing.assert_close(layer(torch.full((2,), math.nan, dtype=F64)), layer.bias)


# ── mixed precision, compilers ───────────────────────────────────────────────────────────────────────


def test_autocast_leaves_the_similarity_in_full_precision() -> None:
    layer, x = Similarity(6, 4, normalization=True, nan_policy="omit"), torch.randn(5, 6)
    x[:, 2] = torch.nan
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(layer(x), expected)
        assert layer(x.bfloat16()).dtype == torch.float32


def test_compiled_layer_follows_an_assigned_p() -> None:
    layer, x = Similarity(3, 2, p=1.3, normalization=True), torch.randn(4, 3)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for p in (1.3, 1.5, 1.7, 2.0):
        layer.p = p
        torch.testing.assert_close(compiled(x), formula(layer, x))


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_features": 0}, "in_features=0: expected a positive int"),
        ({"out_features": 1.5}, "out_features=1.5"),
        ({"kind": "cosine"}, "kind='cosine': expected one of 'lp', 'linear'"),
        ({"nan_policy": "raise"}, "nan_policy='raise'"),
        ({"method": "fast"}, "method='fast'"),
        ({"p": 0.0}, "p: expected values finite and > 0, got 0"),
        ({"p": -2.0}, "p: expected values finite and > 0, got -2"),
        ({"p": math.nan}, "p: expected values finite and > 0, got nan"),
        ({"p": math.inf, "p_mode": "learned"}, "p: expected values finite and > 0, got inf"),
        ({"templates_mode": "none"}, "templates_mode='none': expected 'learned', 'frozen' or a layer"),
        ({"weights_mode": "fixed"}, "weights_mode='fixed': expected 'learned', 'frozen', 'none' or a layer"),
        ({"p_mode": "none"}, "p_mode='none'"),
        ({"weights_mode": Similarity(3, 5)}, r"weights_mode: .* shape \(5, 3\), expected shape \(4, 3\)"),
        ({"bias_mode": Similarity(3, 4)}, "bias_mode: the layer to share with has bias none"),
        ({"weights_mode": Mex(3, 4)}, "weights_mode: Mex has no weights to share; give a Similarity"),
        ({"weights_mode": nn.Linear(3, 4)}, "weights_mode: Linear has no weights to share"),
        ({"kind": "linear", "p_mode": "learned"}, "kind='linear' has no order p"),
        ({"kind": "linear", "normalization": True}, "kind='linear' has no order p"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with refused(message):
        Similarity(**{"in_features": 3, "out_features": 4, **options})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weights", -torch.ones(4, 3), "weights: expected values finite and >= 0, got -1"),
        ("weights", torch.full((4, 3), math.nan), "weights: expected values finite and >= 0, got nan"),
        ("weights", torch.ones(3), r"weights: expected shape \(4, 3\), got \(3,\)"),
        ("templates", torch.full((4, 3), math.inf), "templates: expected values finite, got inf"),
        ("p", -1, "p: expected values finite and > 0, got -1"),
        ("p", [1.0, 2.0], r"p: expected shape \(\), got \(2,\)"),
        ("bias", torch.ones(4), "bias: this layer has none"),
    ],
)
def test_bad_assignment_changes_nothing(name: str, value: Any, message: str) -> None:
    layer = Similarity(3, 4)
    before = {key: tensor.clone() for key, tensor in layer.state_dict().items()}
    with refused(message):
        setattr(layer, name, value)
    for key, tensor in layer.state_dict().items():
        assert torch.equal(tensor, before[key])


def test_bad_x() -> None:
    with refused(r"x: expected shape \(\.\.\., 3\), got \(2, 4\)"):
        Similarity(3, 4)(torch.zeros(2, 4))
