"""`ConvSimilarity2d`: conv→ℓp-sim of section 4.2, its coordinates W = V·A, and folding."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import pytest
import torch
from layer_contract import F64, ImageLayerContract, refused, shared_family
from test_similarity2d import patch_loop
from test_similarity_layer import formula
from torch import Tensor, nn
from torch.func import functional_call

from simnets.nn import ConvSimilarity2d, Similarity2d


class TestConvSimilarity2d(ImageLayerContract):
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "l2": {"bias_mode": "learned", "normalization": True},
        "l2_padded": {"padding": 1, "conv_bias_mode": "none", "stride": 2},
        "l2_no_weights": {"weights_mode": "none", "padding": (1, 2), "padding_value": -1.5},
        "l1": {"p": 1.0, "bias_mode": "learned"},
        "learned_p": {"p": 1.5, "p_mode": "learned", "kernel_size": (1, 2)},
        "linear": {"kind": "linear"},
        "omit": {"nan_policy": "omit", "normalization": True},
        "frozen": {"filters_mode": "frozen", "conv_bias_mode": "frozen"},
        "fused": {"method": "fused"},
        "depthwise": {"depthwise": True, "padding": 1},
        "contrast": {"contrast": 0.1},
        "contrast_padded": {"contrast": 2.0, "padding": 1, "padding_value": 0.7, "stride": 2, "p": 1.0},
    }
    traced = ("l2", "l2_no_weights", "l1", "depthwise", "contrast")

    def make(self, **options: Any) -> ConvSimilarity2d:
        whitened = 2 if options.get("depthwise") else 4
        return ConvSimilarity2d(2, whitened, 3, **{"kernel_size": 3, **options})

    def input(self, count: int = 2, dtype: torch.dtype = F64) -> Tensor:
        return torch.randn(count, 2, 5, 6, dtype=dtype)

    def expected(self, layer: ConvSimilarity2d, x: Tensor) -> Tensor:
        filters = layer.effective_filters
        if layer.depthwise:  # a row of W is 0 but in its own channel
            filters = torch.diag_embed(filters.squeeze(1).permute(1, 2, 0)).permute(2, 3, 0, 1)
        rows = patch_loop(x, layer)
        if layer.contrast:
            deviation = (rows.var(-1, correction=0, keepdim=True) + layer.contrast).sqrt()
            rows = (rows - rows.mean(-1, keepdim=True)) / deviation
        y = rows @ filters.flatten(1).T
        if layer.conv_bias is not None:
            y = y + layer.conv_bias
        return formula(layer.similarity, y).movedim(-1, 1)


@pytest.mark.parametrize("depthwise", [False, True])
def test_normalising_folds_away(depthwise: bool) -> None:
    torch.manual_seed(0)
    layer = ConvSimilarity2d(3, 3, 5, 3, padding=1, depthwise=depthwise, dtype=F64).eval()
    x = 5 + 2 * torch.randn(40, 3, 6, 6, dtype=F64)
    before = layer(x)
    layer.normalize()
    torch.testing.assert_close(layer(x), before)  # running averages start where nothing changes
    layer.train()
    for _ in range(200):
        layer(x)
    y = layer.whiten(x)
    torch.testing.assert_close(y.mean((0, 2, 3)), layer.conv_bias.detach(), atol=1e-9, rtol=0)
    torch.testing.assert_close(y.std((0, 2, 3)), torch.ones(3, dtype=F64), atol=1e-3, rtol=0)
    other = ConvSimilarity2d(3, 3, 5, 3, padding=1, depthwise=depthwise, dtype=F64)
    other.load_state_dict(layer.state_dict())
    assert other.batch_norm is not None
    layer.eval()
    expected = layer(x)
    torch.testing.assert_close(other.eval()(x), expected)
    layer.fold()
    assert layer.batch_norm is None
    assert not any("batch_norm" in name for name in layer.state_dict())
    torch.testing.assert_close(layer(x), expected)
    other.load_state_dict(layer.state_dict())  # what is folded loads into what is not
    torch.testing.assert_close(other(x), expected)


def test_normalised_channels_stay_in_bfloat16() -> None:
    """Or what follows would run in float32, for the bias that is added is learned in float32."""
    torch.manual_seed(0)
    layer = ConvSimilarity2d(3, 4, 5, 3)
    layer.normalize()
    layer.conv_bias = torch.arange(4.0)
    x = torch.randn(16, 3, 8, 8)
    expected = layer.whiten(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer.whiten(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, atol=0.05, rtol=0.02)
    (by_bias,) = torch.autograd.grad(y.sum(), layer.conv_bias)
    torch.testing.assert_close(by_bias, torch.full((4,), 16.0 * 36))


def test_contrast_where_patches_are_bright_or_flat() -> None:
    torch.manual_seed(0)
    layer = ConvSimilarity2d(3, 4, 5, 3, contrast=0.1)
    x = torch.randn(2, 3, 9, 9)
    exact = copy.deepcopy(layer).double().whiten(x.double()).float()
    torch.testing.assert_close(layer.whiten(x), exact)
    torch.testing.assert_close(layer.whiten(x + 1000), exact, atol=1e-3, rtol=1e-3)  # x + 1000 is rounded
    flat = torch.full((1, 3, 5, 5), 0.3, requires_grad=True)
    y = layer.whiten(flat)
    torch.testing.assert_close(y[0, :, 0, 0], layer.conv_bias.detach(), atol=1e-6, rtol=0)
    y.sum().backward()
    assert bool(flat.grad.isfinite().all())
    assert layer(x[:0]).shape == (0, 5, 7, 7)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.whiten(x).dtype == torch.bfloat16
        torch.testing.assert_close(layer.whiten(x).float(), exact, atol=0.03, rtol=0.03)
    layer.normalize()
    normalised = layer.whiten(x)
    torch.testing.assert_close(normalised.mean((0, 2, 3)), layer.conv_bias.detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("contrast", [-1.0, math.inf, math.nan])
def test_contrast_out_of_range_is_refused(contrast: float) -> None:
    with refused("contrast=.*expected a number of at least 0"):
        ConvSimilarity2d(2, 4, 5, 3, contrast=contrast)
    with refused("contrast=.*expected 0 in a depthwise layer"):
        ConvSimilarity2d(2, 2, 5, 3, depthwise=True, contrast=0.1)


def test_what_cannot_be_normalised_or_depthwise_is_said() -> None:
    with refused("normalize: the layer has no conv_bias"):
        ConvSimilarity2d(3, 4, 5, 3, conv_bias_mode="none").normalize()
    first = ConvSimilarity2d(3, 4, 5, 3)
    ConvSimilarity2d(3, 4, 5, 3, filters_mode=first)
    with refused("normalize: the filters are shared"):
        first.normalize()
    with refused("a depthwise layer has as many as in_channels, 3"):
        ConvSimilarity2d(3, 4, 5, 3, depthwise=True)


@pytest.mark.parametrize("depthwise", [False, True])
def test_a_map_of_constants(depthwise: bool) -> None:
    layer = ConvSimilarity2d(4, 4, 5, 3, conv_bias_mode="none", depthwise=depthwise, dtype=F64)
    constants = torch.randn(4, dtype=F64)
    y = layer.whiten(constants.view(1, 4, 1, 1).expand(1, 4, 3, 3))
    torch.testing.assert_close(layer.of_constants(constants), y.flatten())


@pytest.mark.parametrize("weights_mode", ["learned", "none"])
def test_convolved_squares_stay_accurate_far_from_zero(weights_mode: str) -> None:
    """An offset of 100 in y and z costs less than 1e-4 of the result in float32."""
    layer, x = ConvSimilarity2d(3, 8, 6, 3, weights_mode=weights_mode), torch.randn(4, 3, 8, 8)
    layer.conv_bias = layer.conv_bias + 100
    layer.similarity.templates = layer.similarity.templates + 100
    exact = copy.deepcopy(layer).double()
    y = patch_loop(x.double(), layer) @ exact.filters.flatten(1).T + exact.conv_bias
    torch.testing.assert_close(
        layer(x).double(), formula(exact.similarity, y).movedim(-1, 1), rtol=1e-4, atol=0
    )


def test_autocast_runs_only_the_convolution_in_bfloat16() -> None:
    layer = ConvSimilarity2d(4, 4, 6, 1, conv_bias_mode="none")
    layer.filters = torch.eye(4).view(4, 4, 1, 1)
    half = torch.randn(3, 4)
    # the templates' mean is 0, so y is x, exactly where x has 8 bits
    layer.similarity.templates = torch.cat([half, -half])
    x = torch.randn(2, 4, 5, 5).bfloat16().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = layer(x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, formula(layer.similarity, x.movedim(1, -1)).movedim(-1, 1))
    layer.filters = layer.filters / 3  # and the convolution does run in bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = layer(x)
    assert (rounded - layer(x)).abs().max() > 1e-4


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_any_value_can_lie_outside_of_the_image(value: float) -> None:
    layer = ConvSimilarity2d(2, 4, 3, 3, padding=1, padding_value=value)
    result = layer(torch.randn(1, 2, 5, 5))
    assert result[:, :, 1:-1, 1:-1].isfinite().all()
    assert not result[:, :, 0].isfinite().any()


def test_the_filters_are_those_of_a_convolution() -> None:
    """With W = I and a = 0, conv→sim is the similarity of the patches themselves."""
    layer, plain = ConvSimilarity2d(2, 8, 3, 2, conv_bias_mode="none"), Similarity2d(2, 3, 2)
    layer.filters = torch.eye(8).view(8, 2, 2, 2)
    layer.similarity.load_state_dict(plain.similarity.state_dict())
    x = torch.randn(2, 2, 4, 4)
    torch.testing.assert_close(layer(x), plain(x))


# ── W = V·A ──────────────────────────────────────────────────────────────────────────────────────────


def matrix(m: int, decades: float = 2) -> Tensor:
    """Invertible, not symmetric, of condition number 10^decades."""
    left, _ = torch.linalg.qr(torch.randn(m, m, dtype=F64))
    right, _ = torch.linalg.qr(torch.randn(m, m, dtype=F64))
    return left @ torch.diag(torch.logspace(0, decades, m, dtype=F64)) @ right


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_preconditioning_and_folding_change_no_output(dtype: torch.dtype) -> None:
    layer, x = ConvSimilarity2d(2, 4, 3, 3, dtype=dtype), torch.randn(2, 2, 6, 6, dtype=dtype)
    filters, before = layer.filters.clone(), layer(x)
    a = matrix(18)
    layer.precondition(a.to(dtype))
    assert (layer.filters - filters).abs().max() > 0.1
    v, w = layer.filters.flatten(1).double(), filters.flatten(1).double()
    torch.testing.assert_close(v @ a, w, atol=1e-5, rtol=0)
    torch.testing.assert_close(layer.effective_filters, filters)
    torch.testing.assert_close(layer(x), before)
    layer.precondition(matrix(18))  # another one takes the place of the first
    torch.testing.assert_close(layer(x), before)
    layer.fold()
    assert layer.preconditioner is None
    torch.testing.assert_close(layer.filters, filters)
    torch.testing.assert_close(layer(x), before)
    layer.fold()  # nothing left to fold
    torch.testing.assert_close(layer(x), before)


def test_the_learned_tensor_is_v() -> None:
    layer, x = ConvSimilarity2d(2, 4, 3, 3, dtype=F64), torch.randn(2, 2, 6, 6, dtype=F64)
    parameter, a = layer.filters, matrix(18)
    layer(x).sum().backward()
    assert parameter.grad is not None
    gradient = parameter.grad.clone().flatten(1)
    parameter.grad = None
    layer.precondition(a)
    layer(x).sum().backward()
    assert layer.filters is parameter
    torch.testing.assert_close(parameter.grad.flatten(1), gradient @ a.T)  # dL/dV = dL/dW·Aᵀ
    assert "preconditioner" not in dict(layer.named_parameters())


def test_the_preconditioner_is_part_of_the_state() -> None:
    layer, x = ConvSimilarity2d(2, 4, 3, 3), torch.randn(2, 2, 6, 6)
    layer.precondition(matrix(18))
    other = ConvSimilarity2d(2, 4, 3, 3)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    layer.fold()
    other.load_state_dict(layer.state_dict())  # and so is that there is none
    assert torch.equal(other(x), layer(x))
    layer.precondition(matrix(18))
    layer.reset_parameters()
    assert layer.preconditioner is None


def test_a_preconditioned_layer_compiles_and_exports() -> None:
    layer, x = ConvSimilarity2d(2, 4, 3, 3), torch.randn(2, 2, 6, 6)
    layer.precondition(matrix(18))
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_natural_coordinates_leave_a_constant_out() -> None:
    layer, x = (
        ConvSimilarity2d(2, 4, 3, 3, bias_mode="learned", dtype=F64),
        torch.randn(2, 2, 6, 6, dtype=F64),
    )
    with torch.no_grad():
        layer.similarity.raw_weights.normal_()
    z, before = layer.similarity.templates.clone(), layer(x)
    constants = layer.to_natural()
    torch.testing.assert_close(constants, (layer.similarity.weights * z * z).sum(1))
    torch.testing.assert_close(layer.similarity.templates, 2 * layer.similarity.weights * z)
    torch.testing.assert_close(layer(x), before + constants.view(-1, 1, 1))
    torch.testing.assert_close(layer.effective_templates, z)
    torch.testing.assert_close(layer.slope_norms, layer.similarity.templates.norm(dim=1))
    torch.testing.assert_close(layer.from_natural(), constants)
    torch.testing.assert_close(layer.similarity.templates, z)
    torch.testing.assert_close(layer(x), before)
    assert not layer.from_natural().any()  # nothing left to undo
    torch.testing.assert_close(layer(x), before)


def test_natural_coordinates_reach_linear_filters() -> None:
    """u → 0 with v = 2u∘z fixed: in these coordinates a step, in (z, u) at infinity."""
    layer, x = ConvSimilarity2d(2, 4, 3, 3, dtype=F64), torch.randn(2, 2, 6, 6, dtype=F64)
    layer.to_natural()
    layer.similarity.weights = torch.full((3, 4), 1e-12)
    y = torch.nn.functional.conv2d(x, layer.filters, layer.conv_bias)
    linear = torch.einsum("nd,bdhw->bnhw", layer.similarity.templates, y)
    torch.testing.assert_close(layer(x), linear, rtol=1e-9, atol=1e-9)


def test_natural_coordinates_are_part_of_the_state() -> None:
    layer, x = ConvSimilarity2d(2, 4, 3, 3), torch.randn(2, 2, 6, 6)
    layer.to_natural()
    other = ConvSimilarity2d(2, 4, 3, 3)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert "natural" in repr(layer)
    layer.from_natural()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    layer.to_natural()
    layer.reset_parameters()
    assert layer.slope_norms is None


def test_a_natural_layer_has_right_gradients_and_compiles() -> None:
    layer, x = ConvSimilarity2d(2, 4, 3, 3, dtype=F64), torch.randn(2, 2, 5, 5, dtype=F64, requires_grad=True)
    layer.to_natural()
    learned = dict(layer.named_parameters())

    def function(x: Tensor, *values: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(learned, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (x, *learned.values()), fast_mode=True)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))


@pytest.mark.parametrize("bias_mode", ["none", "learned"])
@pytest.mark.parametrize("images", [0, 3])
def test_natural_coordinates_under_autocast_agree_with_full_precision(bias_mode: str, images: int) -> None:
    torch.manual_seed(0)
    layer = ConvSimilarity2d(3, 8, 6, 3, bias_mode=bias_mode)
    layer.to_natural()
    x = torch.randn(images, 3, 7, 7).contiguous(memory_format=torch.channels_last)
    grad = torch.randn(images, 6, 5, 5)

    def run(amp: bool) -> list[Tensor]:
        own = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            s = layer(own)
        assert s.dtype == (torch.bfloat16 if amp else torch.float32)
        return [s, *torch.autograd.grad(s, [own, *layer.parameters()], grad.to(s.dtype))]

    for rounded, exact in zip(run(True), run(False), strict=True):
        assert rounded.isfinite().all()
        # bfloat16 has 8 bits, and the errors of many terms add up
        assert (rounded - exact).norm() <= 0.02 * exact.norm()


@pytest.mark.parametrize("bias_mode", ["none", "learned"])
@pytest.mark.parametrize("images", [0, 1, 5])
def test_natural_coordinates_part_by_part_agree_with_two_convolutions(
    bias_mode: str, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float32 on a processor goes some rows at a time; float64 is the formula as it stands."""
    monkeypatch.setattr("simnets.nn._maps._ROWS", 60)  # 25 rows an image: 2 whole parts and a half
    exact = ConvSimilarity2d(3, 8, 6, 3, bias_mode=bias_mode, dtype=F64)
    with torch.no_grad():
        exact.similarity.raw_weights.normal_()
    exact.to_natural()
    fast = ConvSimilarity2d(3, 8, 6, 3, bias_mode=bias_mode)
    fast.to_natural()
    fast.load_state_dict(exact.state_dict())
    x = 3 + torch.randn(images, 3, 7, 7, dtype=F64).contiguous(memory_format=torch.channels_last)
    grad = torch.randn(images, 6, 5, 5, dtype=F64)
    results = []
    for layer in (exact, fast):
        own = x.to(layer.filters.dtype).requires_grad_()
        s = layer(own)
        learned = [own, *layer.parameters()]
        results.append([s, *torch.autograd.grad(s, learned, grad.to(s.dtype))])
    for plain, parts in zip(*results, strict=True):
        assert parts.dtype == torch.float32
        torch.testing.assert_close(
            parts.double(), plain, rtol=1e-4, atol=1e-5 * (1 + float(plain.detach().norm()))
        )
    torch.testing.assert_close(
        torch.compile(fast, backend="aot_eager", fullgraph=True)(x.float()), fast(x.float())
    )


@pytest.mark.parametrize(
    "options", [{"p": 1.0}, {"kind": "linear"}, {"weights_mode": "none"}, {"p_mode": "learned"}], ids=str
)
def test_only_weighted_l2_has_natural_coordinates(options: dict[str, Any]) -> None:
    with refused("to_natural: expected an ℓ2 similarity with weights"):
        ConvSimilarity2d(2, 4, 3, 3, **options).to_natural()
    layer = ConvSimilarity2d(2, 4, 3, 3)
    layer.to_natural()
    with refused("in natural coordinates already"):
        layer.to_natural()


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (torch.eye(17), r"precondition: expected A of shape \(18, 18\), got \(17, 17\)"),
        (torch.ones(18, 18), "precondition: A is singular"),
        (matrix(18, decades=9), "too badly conditioned"),
        (torch.full((18, 18), math.nan), "precondition: A is singular, not finite"),
    ],
)
def test_bad_a_changes_nothing(a: Tensor, message: str) -> None:
    layer = ConvSimilarity2d(2, 4, 3, 3)
    before = layer.filters.clone()
    with refused(message):
        layer.precondition(a)
    assert layer.preconditioner is None
    assert torch.equal(layer.filters, before)


# ── modes ────────────────────────────────────────────────────────────────────────────────────────────


def test_modes() -> None:
    layer = ConvSimilarity2d(2, 4, 3, 3, filters_mode="frozen", conv_bias_mode="none")
    assert not layer.filters.requires_grad
    assert layer.conv_bias is None
    assert set(layer.state_dict()) == {
        "filters",
        "similarity.templates",
        "similarity.raw_weights",
        "similarity.p",
    }


def test_sharing() -> None:
    source = ConvSimilarity2d(2, 4, 3, 3)
    shared_family(source, ConvSimilarity2d(2, 4, 5, 3, filters_mode=source), "filters")
    shared_family(source, ConvSimilarity2d(2, 4, 5, 3, conv_bias_mode=source), "conv_bias")
    weights = ConvSimilarity2d(2, 4, 3, 3, weights_mode=source).similarity
    shared_family(source.similarity, weights, "weights")


def test_shared_filters_have_one_set_of_coordinates() -> None:
    source = ConvSimilarity2d(2, 4, 3, 3)
    sharer = ConvSimilarity2d(2, 4, 3, 3, filters_mode=source)
    for layer in (source, sharer):
        with refused("precondition: the filters are shared with another layer"):
            layer.precondition(torch.eye(18))
    preconditioned = ConvSimilarity2d(2, 4, 3, 3)
    preconditioned.precondition(torch.eye(18))
    with refused(r"filters_mode: the layer to share with is preconditioned; fold\(\) it first"):
        ConvSimilarity2d(2, 4, 3, 3, filters_mode=preconditioned)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 0}, "in_channels=0: expected a positive int"),
        ({"whitened_channels": 0}, "in_features=0"),
        ({"kernel_size": -1}, "kernel_size=-1"),
        ({"filters_mode": "none"}, "filters_mode='none': expected 'learned', 'frozen' or a layer"),
        ({"filters_mode": nn.Conv2d(2, 4, 3)}, "filters_mode: Conv2d has no filters to share"),
        ({"conv_bias_mode": "zero"}, "conv_bias_mode='zero': expected 'learned', 'frozen', 'none'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with refused(message):
        ConvSimilarity2d(
            **{"in_channels": 2, "whitened_channels": 4, "out_channels": 3, "kernel_size": 3, **options}
        )


def test_bad_x_and_bad_assignment() -> None:
    layer = ConvSimilarity2d(2, 4, 3, 3)
    with refused(r"x: expected images of shape \(N, 2, H, W\), got \(1, 1, 5, 5\)"):
        layer(torch.zeros(1, 1, 5, 5))
    with refused(r"x: maps of 2×2 .* smaller than kernel_size"):
        layer(torch.zeros(1, 2, 2, 2))
    with refused(r"filters: expected shape \(4, 2, 3, 3\), got \(4, 18\)"):
        layer.filters = torch.zeros(4, 18)
