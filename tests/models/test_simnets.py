"""The SimNets against the paper's formulas, written out with the reference operators."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import simnets
from simnets.models import DeepSimNetSpec, LayerSpec, SimNetMLPSpec, model_spec
from simnets.ops import reference

INFINITY = float("inf")


def perturb(model: torch.nn.Module) -> None:
    """Values without symmetries, so that a swapped or forgotten family shows."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def patches(x: torch.Tensor, field: int, stride: int = 1) -> torch.Tensor:
    """(N, C, H, W) → (N, H', W', C·field²)"""
    rows = (x.shape[2] - field) // stride + 1
    columns = (x.shape[3] - field) // stride + 1
    return F.unfold(x, field, stride=stride).mT.reshape(len(x), rows, columns, -1)


def by_hand(model: simnets.models.DeepSimNet, images: torch.Tensor) -> torch.Tensor:
    """Section 4.3, position by position."""
    x = (images - 0.5) / 0.25
    rectified = False
    for block, spec in zip(model.layers, model.spec.layers, strict=True):
        if spec.padding:
            k = spec.padding
            border = torch.zeros_like(block.padding_mean) if rectified else block.padding_mean
            padded = border.view(-1, 1, 1).repeat(len(x), 1, x.shape[2] + 2 * k, x.shape[3] + 2 * k)
            padded[:, :, k:-k, k:-k] = x
            x = padded
        y = patches(x, spec.field, spec.stride)
        layer = block.conv_similarity
        if spec.whitened is not None:
            filters = layer.effective_filters
            if spec.depthwise:
                filters = torch.diag_embed(filters.squeeze(1).permute(1, 2, 0)).permute(2, 3, 0, 1)
            y = y @ filters.flatten(1).mT
            y = y if layer.conv_bias is None else y + layer.conv_bias
        inner = layer.similarity
        p = 2.0 if inner.p is None else float(inner.p)
        s = reference.similarity(y, inner.templates, inner.weights, p, kind=spec.kind)
        s = s if inner.bias is None else s + inner.bias
        rectified = spec.rectify
        if rectified:
            s = reference.mex(torch.stack([s, torch.zeros_like(s)], -1), INFINITY)
        x = s.permute(0, 3, 1, 2)
        if spec.pool:
            windows = x.unfold(2, spec.pool, spec.pool_stride).unfold(3, spec.pool, spec.pool_stride)
            x = reference.mex(windows.flatten(-2), float(block.pool.beta))
    b = model.classify.offsets
    h = reference.mex(x.permute(0, 2, 3, 1), float(model.classify.beta), b)
    if model.scale is not None:
        h = h * model.scale
    return reference.mex(h.flatten(1, 2), float(model.pool.beta), dim=1)


LAYERS = {
    "two layers, max": (
        LayerSpec(whitened=6, templates=5, field=3, pool=3),
        LayerSpec(whitened=4, templates=7, field=3),
    ),
    "padded, strided, MEX pooling": (
        LayerSpec(whitened=6, templates=5, field=3, padding=1, pool=3, pool_beta=0.7, p=1.0),
        LayerSpec(whitened=4, templates=7, field=3, stride=2, padding=1, p=1.7, bias_mode="learned"),
    ),
    "pooling last, no weights": (
        LayerSpec(whitened=6, templates=5, field=3, weights_mode="none", conv_bias_mode="none", pool=2),
        LayerSpec(whitened=4, templates=7, field=2, weights_mode="none", p=1.5, pool=2, pool_beta=0.5),
    ),
    "rectified, max": (
        LayerSpec(whitened=6, templates=5, field=3, padding=1, pool=3, rectify=True, bias_mode="learned"),
        LayerSpec(whitened=4, templates=7, field=3, padding=1),
    ),
    "rectified, MEX pooling, last layer too": (
        LayerSpec(whitened=6, templates=5, field=3, rectify=True, bias_mode="learned", p=1.0),
        LayerSpec(
            whitened=4,
            templates=7,
            field=3,
            padding=1,
            rectify=True,
            bias_mode="learned",
            pool=2,
            pool_beta=0.7,
        ),
    ),
    "depthwise": (
        LayerSpec(whitened=2, templates=5, field=3, padding=1, depthwise=True),
        LayerSpec(whitened=5, templates=7, field=3, depthwise=True, kind="linear", weights_mode="none"),
    ),
    "rectified patches, minimum": (
        LayerSpec(
            whitened=None, templates=5, field=3, rectify=True, bias_mode="frozen", pool=2, pool_beta=-INFINITY
        ),
    ),
    "no whitening": (LayerSpec(whitened=None, templates=5, field=3, p=1.0),),
    "linear": (LayerSpec(whitened=None, templates=5, field=3, kind="linear", weights_mode="none"),),
}


def make(layers: tuple[LayerSpec, ...], **options) -> simnets.models.DeepSimNet:
    torch.manual_seed(0)
    spec = DeepSimNetSpec(input_shape=(2, 12, 11), num_classes=3, layers=layers, **options)
    model = spec.build().double()
    perturb(model)
    for block in model.layers:
        block.padding_mean.normal_(generator=torch.Generator().manual_seed(2))
    return model


@pytest.mark.parametrize("betas", [(1.0, 0.0), (0.4, 2.0), (INFINITY, 1.0), (-0.5, INFINITY)])
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_deep_simnet_is_the_formula(layers: tuple[LayerSpec, ...], betas: tuple[float, float]) -> None:
    model = make(layers, classify_beta=betas[0], global_beta=betas[1])
    x = torch.rand(2, 2, 12, 11, dtype=torch.float64)
    assert torch.allclose(model(x), by_hand(model, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_folding_changes_no_score(layers: tuple[LayerSpec, ...]) -> None:
    model = make(layers, classify_beta=0.8, global_beta=0.3)
    model.scale = 3.7
    generator = torch.Generator().manual_seed(3)
    for block in model.layers:
        layer = block.conv_similarity
        if isinstance(layer, simnets.nn.ConvSimilarity2d):
            m = math.prod(layer.filters.shape[1:])
            layer.precondition(torch.eye(m) + 0.1 * torch.randn(m, m, generator=generator))
    x = torch.rand(2, 2, 12, 11, dtype=torch.float64)
    before = model(x)
    assert not torch.allclose(before, before / 3.7)
    assert torch.allclose(before, by_hand(model, x), rtol=1e-9, atol=1e-9)
    model.fold()
    assert model.scale is None
    assert not any("preconditioner" in name or "scale" in name for name in model.state_dict())
    assert torch.allclose(model(x), before, rtol=1e-9, atol=1e-9)
    model.fold()  # nothing left to do
    assert torch.allclose(model(x), before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("pool_beta", [INFINITY, 0.0, 0.7])
@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_natural_coordinates_change_no_score(
    pool_beta: float, noise: float, rectify: bool, last: bool
) -> None:
    first = LayerSpec(
        whitened=6, templates=5, field=3, padding=1, pool=3, pool_beta=pool_beta, bias_mode="learned"
    )
    layers = (
        dataclasses.replace(first, rectify=rectify),
        LayerSpec(whitened=4, templates=5, field=3, padding=1, noise=noise),
        LayerSpec(whitened=4, templates=7, field=3, padding=1),
    )
    model = make(layers, classify_beta=0.8, global_beta=0.3)
    x = torch.rand(2, 2, 12, 11, dtype=torch.float64)

    def scores() -> Tensor:
        torch.manual_seed(0)
        result: Tensor = model(x)  # the noise of training, too
        return result

    before, state = scores(), {name: value.clone() for name, value in model.state_dict().items()}
    model.to_natural(last=last)
    natural = [block.conv_similarity.slope_norms is not None for block in model.layers]
    assert natural == [True, True, last]
    assert torch.allclose(scores(), before, rtol=1e-9, atol=1e-9)
    model.fold()
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.allclose(value, state[name], rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize(
    "changes", [{"p": 1.0}, {"kind": "linear"}, {"weights_mode": "none"}, {"whitened": None}], ids=str
)
def test_layers_without_natural_coordinates_keep_theirs(changes: dict[str, Any]) -> None:
    layer = LayerSpec(whitened=4, templates=5, field=3)
    model = make((dataclasses.replace(layer, **changes), layer))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.to_natural()  # and so does the last, which is not asked
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_scale_that_cannot_be_folded_is_said() -> None:
    layer = LayerSpec(whitened=None, templates=5, field=3, weights_mode="none")
    model = make((layer,))
    model.scale = 2.0
    with pytest.raises(simnets.SimNetsError, match="cannot be folded"):
        model.fold()


def test_scale_is_a_learned_positive_number() -> None:
    model = simnets.create_model("simnet3_compact")
    count = len(list(model.parameters()))
    assert model.scale is None
    model.scale = 8.0
    assert model.scale.item() == pytest.approx(8.0)
    parameter = model.log_scale
    model.scale = torch.tensor(2.0)
    assert model.log_scale is parameter  # an optimiser that holds it stays right
    assert len(list(model.parameters())) == count + 1
    model(torch.rand(2, 3, 32, 32)).sum().backward()
    assert parameter.grad is not None
    for wrong in (0.0, -1.0, INFINITY, [1.0, 2.0]):
        with pytest.raises(simnets.SimNetsError, match="scale is"):
            model.scale = wrong
    model.scale = None
    assert len(list(model.parameters())) == count


def test_a_network_in_training_survives_a_file_with_its_scale_and_preconditioner(tmp_path) -> None:
    torch.manual_seed(0)
    model = simnets.create_model("simnet3_compact").eval()
    model.scale = 5.0
    layer = model.layers[0].conv_similarity
    layer.precondition(torch.eye(75) + 0.1 * torch.rand(75, 75))
    model.layers[1].padding_mean.fill_(-0.5)
    simnets.save(model, tmp_path / "model.safetensors")
    loaded = simnets.load(tmp_path / "model.safetensors")
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(x), model(x))
    assert loaded.log_scale.requires_grad
    loaded.fold()
    assert torch.allclose(loaded(x), model(x), atol=1e-4)
    # and a folded state goes into a network that was in training
    model.load_state_dict(loaded.state_dict())
    assert model.scale is None
    assert torch.equal(loaded(x), model(x))


def test_padding_with_the_channel_mean_is_a_border_that_says_nothing() -> None:
    """A constant map stays constant after a padded layer only if the border holds the same constant."""
    layer = LayerSpec(whitened=4, templates=5, field=3, padding=1)
    spec = DeepSimNetSpec(input_shape=(2, 6, 6), num_classes=3, layers=(layer,))
    block = spec.build().double().layers[0]
    x = torch.tensor([-3.0, 2.0]).double().view(1, 2, 1, 1).expand(1, 2, 6, 6)
    zero_border = block(x)
    assert (zero_border[0, :, 0, 0] - zero_border[0, :, 3, 3]).abs().max() > 0.01
    block.padding_mean.copy_(torch.tensor([-3.0, 2.0]))
    mean_border = block(x)
    assert torch.allclose(mean_border, mean_border[:, :, 3:4, 3:4].expand_as(mean_border), atol=1e-12)


FAMILIES = {
    "filters_mode": ("layers.0.conv_similarity.filters", "layers.1.conv_similarity.filters"),
    "conv_bias_mode": ("layers.0.conv_similarity.conv_bias", "layers.1.conv_similarity.conv_bias"),
    "templates_mode": ("layers.0.conv_similarity.similarity.templates",),
    "weights_mode": ("layers.0.conv_similarity.similarity.raw_weights",),
    "p_mode": ("layers.0.conv_similarity.similarity.raw_p", "layers.1.conv_similarity.similarity.raw_p"),
    "bias_mode": ("layers.0.conv_similarity.similarity.bias",),
    "pool_beta_mode": ("layers.0.pool.raw_beta",),
    "classify_beta_mode": ("classify.raw_beta",),
    "offsets_mode": ("classify.offsets",),
    "global_beta_mode": ("pool.raw_beta",),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_learned_or_fixed(family: str) -> None:
    """W, z, u, p, the β of each pooling, β_c, b and β_p (the list at the end of section 4.3)."""
    options = {"input_shape": (3, 20, 20), "pool_beta": 1.0, "templates": 4, "whitened": 4}
    learned = simnets.create_model("simnet2", **options, **{family: "learned"})
    frozen = simnets.create_model("simnet2", **options, **{family: "frozen"})
    x = torch.rand(2, 3, 20, 20)
    learned(x)[0, 0].backward()
    with_gradient = {n for n, p in learned.named_parameters() if p.requires_grad and p.grad.abs().sum() > 0}
    assert set(FAMILIES[family]) <= with_gradient
    fixed = {name for name, p in frozen.named_parameters() if p.requires_grad}
    assert not set(FAMILIES[family]) & fixed


def test_equal_betas_collapse_into_one_mex() -> None:
    """Section 4.1: with β₁ = β₂ = β the network is one MEX over positions and templates."""
    model = simnets.create_model(
        "simnet_mlpconv", num_classes=4, input_shape=(1, 8, 8), whitened=None, templates=6,
        classify_beta=0.7, global_beta=0.7,
    ).double()  # fmt: skip
    perturb(model)
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    inner = model.layers[0].conv_similarity.similarity
    y = patches((x - 0.5) / 0.25, 5).flatten(1, 2)
    s = -(inner.weights * (y.unsqueeze(2) - inner.templates) ** 2).sum(-1)  # (N, positions, templates)
    c = (s.unsqueeze(1) + model.classify.offsets.unsqueeze(1)).flatten(2)
    expected = (torch.logsumexp(0.7 * c, -1) - math.log(c.shape[-1])) / 0.7
    assert torch.allclose(model(x), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", ["lp", "linear"])
@pytest.mark.parametrize("shape", [(1, 3, 4), (12,)])
def test_simnet_mlp_is_the_formula_and_folds(kind: str, shape: tuple[int, ...]) -> None:
    """Section 3: h_r(x) = MEX_β{u_l·φ(x, z_l) + b_rl}."""
    p = 1.5 if kind == "lp" else 2.0
    spec = SimNetMLPSpec(input_shape=shape, num_classes=3, templates=5, kind=kind, p=p, beta=0.6)
    model = spec.build().double()
    perturb(model)
    x = torch.rand(4, *shape, dtype=torch.float64)
    y = ((x - 0.5) / 0.25).flatten(1).unsqueeze(1)
    z, u = model.similarity.templates, model.similarity.weights
    phi = y * z if kind == "linear" else -((y - z).abs() ** p)
    c = (u * phi).sum(-1).unsqueeze(1) + model.classify.offsets
    expected = (torch.logsumexp(0.6 * c, -1) - math.log(5)) / 0.6
    assert torch.allclose(model(x), expected, rtol=1e-9)
    model.scale = 4.0
    assert torch.allclose(model(x), 4 * expected, rtol=1e-9)
    model.fold()
    assert model.scale is None
    assert torch.allclose(model(x), 4 * expected, rtol=1e-9)


def test_noise_is_there_in_training_only() -> None:
    model = simnets.create_model("simnet3_compact", noise=0.5)
    clean = simnets.create_model("simnet3_compact")
    clean.load_state_dict(model.state_dict())
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model.eval()(x), clean.eval()(x))
    model.train()
    first, second = model(x), model(x)
    assert not torch.equal(first, second)
    assert clean.train()(x).isfinite().all()


def test_noise_multiplies_the_whitened_patches() -> None:
    """With no noise drawn (ε = 0 replaced by a known factor) the similarity sees factor·y."""
    spec = DeepSimNetSpec(
        input_shape=(2, 6, 6), num_classes=3, layers=(LayerSpec(whitened=4, templates=5, field=3, noise=0.5),)
    )
    block = spec.build().double().layers[0].train()
    block.noise.forward = lambda y: 3 * y
    x = torch.rand(2, 2, 6, 6, dtype=torch.float64)
    layer = block.conv_similarity
    y = patches(x, 3) @ layer.filters.flatten(1).mT + layer.conv_bias
    inner = layer.similarity
    expected = reference.similarity(3 * y, inner.templates, inner.weights).permute(0, 3, 1, 2)
    assert torch.allclose(block(x), expected, rtol=1e-9)


def test_single_layer_networks_whiten_without_reduction() -> None:
    assert [layer.whitened for layer in model_spec("simnet1_50").layers] == [75]
    assert [layer.whitened for layer in model_spec("simnet1_50", input_shape=(1, 8, 8)).layers] == [25]


def test_two_layers_have_the_papers_parameters() -> None:
    """Table 1: 64.6 K for 10 classes and 70.3 K for 100."""
    for classes, expected in ((10, 64_576), (100, 70_336)):
        model = simnets.create_model("simnet2", classes)
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == expected


def test_current_spec_has_the_numbers_of_now() -> None:
    model = simnets.create_model("simnet2", p_mode="learned", pool_beta=2.0, pool_beta_mode="learned")
    assert model.current_spec() == model.spec
    model.layers[0].conv_similarity.similarity.p = 1.5
    model.layers[0].pool.beta = 3.0
    model.scale = 4.0
    model.fold()
    now = model.current_spec()
    assert [layer.p for layer in now.layers] == pytest.approx([1.5, 2.0])
    assert [layer.pool_beta for layer in now.layers] == pytest.approx([3.0, 2.0])
    assert now.classify_beta == pytest.approx(0.25)
    mlp = simnets.create_model("simnet_mlp", num_classes=3, input_shape=(20,), templates=8)
    mlp.scale = 4.0
    mlp.fold()
    assert mlp.current_spec().beta == pytest.approx(0.25)
