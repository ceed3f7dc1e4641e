"""`optimize`: the inference copy has the network's scores, whatever the network is."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import simnets
from simnets import SimNetsError
from simnets.data import load_dataset
from simnets.deploy import optimize
from simnets.deploy.inference import GeneralMex, InferenceNetwork, ProductMex, SquaredSimilarity
from simnets.models import DeepSimNet, ImageClassifier, SimNetBlock
from simnets.ops import reference

LARGE = ("simnet1_200", "simnet1_400", "simnet1_800", "simnet3", "convnet1_1600", "convnet1_3200", "nin")
INFINITY = math.inf


def digits(shape: tuple[int, ...], count: int = 3) -> Tensor:
    """Real images brought to a shape, with noise in every channel so that channels differ."""
    images = F.interpolate(load_dataset("digits", "test").images[:count].double(), shape[1:])
    noise = torch.randint(-40, 40, (count, *shape), generator=torch.Generator().manual_seed(0))
    return (images + noise).clamp(0, 255).round().to(torch.uint8)


def randomised(model: ImageClassifier, seed: int = 0) -> ImageClassifier:
    """Everything that starts at a special value gets another one."""
    generator = torch.Generator().manual_seed(seed)
    channels = len(model.pixel_mean)
    model.set_pixel_statistics(
        torch.rand(channels, generator=generator), 0.2 + torch.rand(channels, generator=generator)
    )
    for module in model.modules():
        if isinstance(module, SimNetBlock):
            module.padding_mean.copy_(torch.randn(len(module.padding_mean), generator=generator))
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_mean, module.weight.data, module.bias.data):
                assert values is not None
                values.copy_(torch.randn(len(values), generator=generator))
            assert module.running_var is not None
            module.running_var.copy_(0.5 + torch.rand(len(module.running_var), generator=generator))
    return model.eval()


@torch.no_grad()
def assert_same(model: ImageClassifier, images: Tensor, tolerance: float) -> InferenceNetwork:
    expected = model(images)
    network = optimize(model)
    for given in (images, images.to(expected.dtype) / 255):
        found = network(given)
        assert found.dtype == expected.dtype
        assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())
    return network


@pytest.mark.parametrize("name", [name for name in simnets.list_models() if name not in LARGE])
def test_every_network_keeps_its_scores(name: str) -> None:
    torch.manual_seed(0)
    model = randomised(simnets.create_model(name))
    assert_same(model, digits((3, 32, 32)), 1e-5)


VARIANTS: dict[str, dict[str, Any]] = {
    "l2": {},
    "l1": {"p": 1.0},
    "p between": {"p": 1.5},
    "p learned": {"p": 1.3, "p_mode": "learned"},
    "linear, merged": {"kind": "linear"},
    "linear, not merged": {"kind": "linear", "whitened": 4, "templates": 40},
    "linear patches": {"kind": "linear", "whitened": None},
    "l2 patches": {"whitened": None},
    "l2 patches, padded": {"whitened": None, "padding": 1},
    "l1 patches, padded": {"whitened": None, "padding": 1, "p": 1.0},
    "padded": {"padding": (2, 1)},
    "strided": {"stride": (2, 1), "field": 3},
    "no weights": {"weights_mode": "none"},
    "bias": {"bias_mode": "learned"},
    "rectified": {"rectify": True, "bias_mode": "learned"},
    "rectified, padded, average": {
        "rectify": (True, False),
        "bias_mode": "learned",
        "padding": 1,
        "pool_beta": 0.0,
    },
    "rectified patches": {"rectify": True, "bias_mode": "learned", "whitened": None, "padding": (0, 1)},
    "depthwise": {"depthwise": (False, True), "whitened": (32, 32), "padding": 1},
    "depthwise, linear": {"depthwise": (True, False), "whitened": (2, 8), "kind": "linear"},
    "contrast": {"contrast": (0.1, 0.0)},
    "contrast, linear": {"contrast": (0.1, 0.0), "kind": "linear", "conv_bias_mode": "none"},
    "contrast, strided": {"contrast": (0.1, 0.0), "stride": (2, 1), "field": 3},
    "no convolution bias": {"conv_bias_mode": "none"},
    "average pooling": {"pool_beta": 0.0, "pool_ceil": True},
    "MEX pooling": {"pool_beta": (2.0, -3.0), "pool_beta_mode": "learned"},
    "min pooling": {"pool_beta": -INFINITY},
    "pooled last layer": {"pool": 2},
    "classify minimum side": {"classify_beta": -2.0},
    "classify mean": {"classify_beta": 0.0},
    "classify maximum": {"classify_beta": INFINITY},
    "classify learned": {"classify_beta": 0.4, "classify_beta_mode": "learned"},
    "classify nearly mean": {"classify_beta": 1e-4},
    "global MEX": {"global_beta": 0.7, "global_beta_mode": "learned"},
    "global maximum": {"global_beta": INFINITY},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_rewrites_are_exact(options: dict[str, Any]) -> None:
    # in float64 nothing but a wrong rewrite can differ; λ and preconditioners are there as in training
    torch.manual_seed(1)
    model = simnets.create_model("simnet2", input_shape=(2, 22, 20), **options).double()
    assert isinstance(model, DeepSimNet)
    model.scale = 2.5
    layer = model.layers[-1].conv_similarity
    if hasattr(layer, "precondition"):
        m = layer.filters[0].numel()
        layer.precondition(torch.eye(m) + 0.01 * torch.randn(m, m))
    assert_same(randomised(model), digits((2, 22, 20)), 1e-10)


def test_normalisation_is_folded() -> None:
    torch.manual_seed(1)
    model = randomised(simnets.create_model("simnet2", input_shape=(2, 22, 20), padding=1).double())
    assert isinstance(model, DeepSimNet)
    for block in model.layers:
        block.conv_similarity.normalize()
        block.conv_similarity.batch_norm.running_var.uniform_(0.5, 2)
    assert_same(model, digits((2, 22, 20)), 1e-10)
    assert model.layers[0].conv_similarity.batch_norm is not None  # of the copy, not of the network


def test_natural_coordinates_are_undone() -> None:
    torch.manual_seed(1)
    model = randomised(simnets.create_model("simnet2", input_shape=(2, 22, 20), padding=1).double())
    assert isinstance(model, DeepSimNet)
    model.to_natural()
    assert_same(model, digits((2, 22, 20)), 1e-10)
    assert model.layers[0].conv_similarity.slope_norms is not None  # of the copy, not of the network


@pytest.mark.parametrize(
    "options", [{}, {"p": 1.0}, {"kind": "linear"}, {"beta": -1.5}, {"beta": INFINITY}], ids=str
)
def test_rewrites_of_the_mlp_are_exact(options: dict[str, Any]) -> None:
    torch.manual_seed(2)
    model = simnets.create_model("simnet_mlp", input_shape=(2, 5, 4), templates=7, **options).double()
    model.scale = 3.0
    assert_same(randomised(model), digits((2, 5, 4)), 1e-10)


def test_against_the_formulas() -> None:
    # patch by patch, with the operators as the paper has them
    torch.manual_seed(3)
    model = simnets.create_model("simnet_mlpconv", input_shape=(2, 9, 9), whitened=5, templates=6, padding=1)
    model = randomised(model.double())
    images = digits((2, 9, 9))
    block = model.layers[0]
    layer = block.conv_similarity
    x = (images.double() / 255 - model.pixel_mean.view(-1, 1, 1)) / model.pixel_std.view(-1, 1, 1)
    padded = block.padding_mean.view(-1, 1, 1).expand(3, 2, 11, 11).clone()
    padded[:, :, 1:-1, 1:-1] = x
    patches = F.unfold(padded, 5).transpose(1, 2)
    y = patches @ layer.filters.flatten(1).T + layer.conv_bias
    s = reference.similarity(y, layer.similarity.templates, layer.similarity.weights, 2.0)
    expected = reference.mex(s, 1.0, model.classify.offsets).mean(1)
    torch.testing.assert_close(optimize(model)(images), expected.detach(), rtol=1e-10, atol=0)


def test_pixels_that_no_pooling_window_sees_are_left_out() -> None:
    network = optimize(simnets.create_model("simnet2"))
    assert network.used == (31, 31)  # 28 positions, of which windows of 3 at a distance of 2 see 27
    assert optimize(simnets.create_model("simnet3_compact")).used is None
    assert optimize(simnets.create_model("simnet_mlpconv")).used is None


def test_fast_forms_are_taken_where_they_are_safe() -> None:
    model = simnets.create_model("simnet2", input_shape=(1, 20, 20))
    head = optimize(model).body[-1]
    assert isinstance(head, ProductMex)
    assert sum(isinstance(module, SquaredSimilarity) for module in optimize(model).modules()) == 2


@pytest.mark.parametrize("offset", [-200.0, -INFINITY])
def test_offsets_too_wide_for_the_product(offset: float) -> None:
    # all weight of class 0 on template 3, which is the least similar: the product of exponentials underflows
    model = simnets.create_model("simnet2", input_shape=(1, 20, 20))
    with torch.no_grad():
        model.classify.offsets[0] = offset
        model.classify.offsets[0, 3] = 0.0
        model.layers[-1].conv_similarity.similarity.templates[3] += 20.0
    network = assert_same(model.eval(), digits((1, 20, 20)), 1e-5)
    assert isinstance(network.body[-1], GeneralMex)


def test_the_network_stays_as_it_is() -> None:
    model = randomised(simnets.create_model("resnet8"))
    before = copy.deepcopy(model.state_dict())
    network = optimize(model.train())
    assert model.training
    assert not network.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_images_are_not_written_to() -> None:
    for options in ({"whitened": None}, {}):
        model = simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), **options).eval()
        images = torch.rand(2, 1, 8, 8)
        kept = images.clone()
        first, second = optimize(model)(images), optimize(model)(images)
        assert torch.equal(images, kept)
        assert torch.equal(first, second)


def test_large_batches_are_computed_in_parts() -> None:
    network = optimize(simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8)))
    images = load_dataset("digits", "test").images[:75]
    together = network(images)
    assert together.shape == (75, 10)
    one_by_one = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(together, one_by_one, rtol=1e-5, atol=1e-6)


def test_bad_input() -> None:
    class Other(ImageClassifier):
        pass

    with pytest.raises(SimNetsError, match="model is a Linear, expected a network"):
        optimize(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(SimNetsError, match="model is a Other, which has no inference form"):
        optimize(Other(simnets.create_model("simnet2").spec))
    network = optimize(simnets.create_model("simnet2"))
    with pytest.raises(
        SimNetsError, match=r"images have shape \(1, 1, 8, 8\), this network takes \(N, 3, 32, 32\)"
    ):
        network(torch.zeros(1, 1, 8, 8))


def test_templates_far_away_leave_no_large_numbers_between_layers() -> None:
    """What 8 bits must hold: with every similarity near −Σ u·z², they would hold little else."""
    torch.manual_seed(0)
    model = randomised(simnets.create_model("simnet2", input_shape=(2, 22, 20)).double())
    similarity = model.get_submodule("layers.0.conv_similarity.similarity")
    similarity.templates = 20 * torch.randn_like(similarity.templates)
    similarity.weights = torch.full_like(similarity.templates, 0.01)
    images = digits((2, 22, 20))
    network = assert_same(model, images, 1e-9)
    seen: list[Tensor] = []
    first = next(module for module in network.modules() if isinstance(module, SquaredSimilarity))
    first.register_forward_hook(lambda module, given, maps: seen.append(maps))
    with torch.no_grad():
        network(images)
        plain = model.get_submodule("layers.0").similarities(model.normalise(images))
    assert float(seen[0].abs().max()) < 0.5 * float(plain.abs().max())
    moved = seen[0] - plain[:, :, : seen[0].shape[2], : seen[0].shape[3]]  # but for what no window sees
    assert float(moved.std((0, 2, 3)).max()) < 1e-9
