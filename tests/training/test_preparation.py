"""What surrounds the loop: starting values, groups, the constraint, folding."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

import simnets
from simnets.data import ImageDataset, load_dataset
from simnets.models import DeepSimNet, DeepSimNetSpec, LayerSpec, SimNetMLP
from simnets.nn import ConvSimilarity2d
from simnets.pretrain import pretrain_model
from simnets.training import preparation
from simnets.training.recipe import RECIPES, Recipe

FAST = Recipe(perplexity=4.0)


@pytest.fixture
def digits() -> ImageDataset:
    return load_dataset("digits").subset(torch.arange(300))


def small(name: str = "simnet_mlpconv", **changes: object) -> DeepSimNet | SimNetMLP:
    torch.manual_seed(0)
    model = simnets.create_model(name, input_shape=(1, 8, 8), **{"templates": 12, **changes})
    assert isinstance(model, DeepSimNet | SimNetMLP)
    return model


@pytest.mark.parametrize("name", ["simnet_mlpconv", "simnet_mlp"])
def test_offsets_are_counted_from_labels(name: str, digits: ImageDataset) -> None:
    model = small(name)
    shared = torch.linspace(-1, 1, 12)
    model.classify.offsets = shared.expand(10, 12)
    preparation.start_offsets(model, digits)
    # the same by loops over classes, with every position of an image a patch of its own
    x = model.normalise(digits.images)
    s = (
        model.similarities(x).flatten(2)
        if isinstance(model, DeepSimNet)
        else model.similarity(x.flatten(1))[..., None]
    )
    posterior = torch.exp(s + shared[:, None])
    posterior = posterior / posterior.sum(1, keepdim=True)
    shares = torch.stack([posterior[digits.labels == r].mean((0, 2)) for r in range(10)])
    expected = shared + (shares / shares.mean(0)).clamp_min(1e-3).log()
    torch.testing.assert_close(model.classify.offsets.detach(), expected.detach(), rtol=1e-4, atol=1e-4)


def test_counted_offsets_leave_the_saddle(digits: ImageDataset) -> None:
    model = small()
    model.classify.offsets = torch.zeros(10, 12)
    templates = model.layers[0].conv_similarity.similarity.templates

    def gradient() -> float:
        (grad,) = torch.autograd.grad(cross_entropy(model(digits.images), digits.labels), templates)
        return float(grad.abs().max())

    assert gradient() < 1e-6
    preparation.start_offsets(model, digits)
    assert gradient() > 1e-5


@pytest.mark.parametrize("beta", [1.0, 2.5])
def test_templates_of_classes_start_as_discriminants(digits: ImageDataset, beta: float) -> None:
    torch.manual_seed(0)
    model = simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), templates=24, classify_beta=beta)
    assert isinstance(model, DeepSimNet)
    pretrain_model(model, digits.images)
    preparation.start_classes(model, digits, 0.5, seed=0)
    s = beta * model.similarities(model.normalise(digits.images)).transpose(0, 1).flatten(1)
    offsets = beta * model.classify.offsets.detach()
    own = torch.arange(24) % 10
    torch.testing.assert_close(offsets[own, torch.arange(24)], -s.mean(1).detach(), rtol=1e-3, atol=1e-3)
    others = offsets[own, torch.arange(24)] - offsets
    assert torch.equal(others > 2, own != torch.arange(10)[:, None])
    torch.testing.assert_close(others.unique().max(), torch.tensor(4.0), rtol=1e-3, atol=1e-3)
    # the linear part deviates by 1, the quadratic one by half of it, up to what whitening leaves correlated
    layer = model.layers[0].conv_similarity
    y = layer.whiten(model.normalise(digits.images)).transpose(0, 1).flatten(1)
    u, z = layer.similarity.weights, layer.similarity.templates
    linear, quadratic = beta * (2 * u * z) @ y, beta * u @ y.square()
    assert 0.7 < float(linear.std(1).mean().detach()) < 1.4
    assert 0.3 < float(quadratic.std(1).mean().detach()) < 1.0
    # and without a step they tell digits apart
    right = model(digits.images).argmax(1) == digits.labels
    assert float(right.float().mean()) > 0.5


@pytest.mark.parametrize("images", [1, 40])
def test_templates_of_classes_of_flat_images_are_finite(images: int) -> None:
    flat = torch.full((images, 1, 8, 8), 7, dtype=torch.uint8)
    sample = ImageDataset(flat, torch.arange(images) % 2, tuple("0123456789"), "flat")
    model = simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), templates=24)
    assert isinstance(model, DeepSimNet)
    preparation.start_classes(model, sample, 2.0, seed=0)
    assert all(value.isfinite().all() for value in model.parameters() if value.requires_grad)
    assert model(flat).isfinite().all()


def test_classes_share_clusters_where_there_are_too_few_templates(digits: ImageDataset) -> None:
    recipe = dataclasses.replace(FAST, energy=0.5, class_energy=2.0)

    def started(templates: int, recipe: Recipe) -> tuple[DeepSimNet, list[str]]:
        torch.manual_seed(0)
        model, said = simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), templates=templates), []
        assert isinstance(model, DeepSimNet)
        preparation.prepare(model, digits, recipe, seed=0, report=said.append)
        return model, said

    for templates, of_classes in ((19, False), (20, True)):
        model, said = started(templates, recipe)
        assert any(text.startswith("templates of classes") for text in said) == of_classes
        assert (model.layers[-1].conv_similarity.slope_norms is not None) == of_classes
        before = model(digits.images)
        preparation.finish(model, recipe)
        torch.testing.assert_close(model(digits.images), before, rtol=1e-3, atol=1e-3)
    flat = small(templates=24, classify_beta=0.0)  # an average of templates has no classes of them
    assert not preparation._can_share(flat)
    model, said = started(20, dataclasses.replace(recipe, label_start=False))  # labels are not to be read
    assert not any("from the labels" in text for text in said)


def test_scale_has_the_least_loss(digits: ImageDataset) -> None:
    model = small()
    preparation.prepare(model, digits, FAST, seed=0, report=lambda text: None)
    assert model.scale is not None
    found = float(model.scale.detach())

    @torch.no_grad()
    def loss(scale: float) -> float:
        model.scale = scale
        return float(cross_entropy(model(digits.images), digits.labels))

    assert loss(found) < min(loss(found * math.sqrt(2)), loss(found / math.sqrt(2)))


def test_groups_hold_every_learned_parameter_once() -> None:
    model = small()
    model.scale = 2.0
    for recipe in (FAST, RECIPES["paper"]):
        groups = preparation.parameter_groups(model, recipe)
        held = [id(value) for group in groups for value in group["params"]]
        assert sorted(held) == sorted(id(value) for value in model.parameters() if value.requires_grad)
    groups = preparation.parameter_groups(model, FAST)
    rate = {id(value): group["lr"] for group in groups for value in group["params"]}
    layer = model.layers[0].conv_similarity
    assert rate[id(layer.similarity.templates)] == FAST.filter_lr * FAST.template_lr
    assert rate[id(layer.conv_bias)] == FAST.lr
    assert rate[id(model.classify.offsets)] == FAST.filter_lr * FAST.offset_lr
    orthogonal = {id(value) for group in groups if group.get("orthogonal") for value in group["params"]}
    similarity = layer.similarity
    maps = (layer.filters, similarity.templates, similarity.raw_weights, model.classify.offsets)
    assert orthogonal == {id(value) for value in maps}


def test_a_convnets_classifier_is_not_orthogonalised() -> None:
    model = simnets.create_model("caffe_quick")
    groups = preparation.parameter_groups(model, FAST)
    orthogonal = {id(value) for group in groups if group.get("orthogonal") for value in group["params"]}
    assert orthogonal == {id(layer.weight) for layer in (model.conv1, model.conv2, model.conv3)}


def test_the_paper_has_one_rate() -> None:
    groups = preparation.parameter_groups(small(), RECIPES["paper"])
    assert {group["lr"] for group in groups} == {0.01}


def test_start_step_and_finish_give_the_papers_network(digits: ImageDataset) -> None:
    model = small()
    said: list[str] = []
    preparation.prepare(model, digits, FAST, seed=0, report=said.append)
    layer = model.layers[0].conv_similarity
    assert isinstance(layer, ConvSimilarity2d)
    assert layer.preconditioner is not None
    assert model.scale is not None
    assert len(said) == 3
    with torch.no_grad():
        layer.filters.mul_(3.0)
    preparation.after_step(model, FAST)
    torch.testing.assert_close(layer.filters.flatten(1).norm(dim=1), torch.ones(len(layer.filters)))
    before = model(digits.images)
    preparation.finish(model, FAST)
    assert layer.preconditioner is None
    assert model.scale is None
    torch.testing.assert_close(model(digits.images), before, rtol=1e-3, atol=1e-3)


def test_natural_coordinates_are_projected_and_folded(digits: ImageDataset) -> None:
    recipe = dataclasses.replace(FAST, energy=0.5)
    layers = (
        LayerSpec(whitened=9, templates=12, field=3, pool=2),
        LayerSpec(whitened=8, templates=16, field=2),
    )
    model = DeepSimNetSpec(input_shape=(1, 8, 8), layers=layers).build()
    preparation.prepare(model, digits, recipe, seed=0, report=lambda text: None)
    layer = model.layers[0].conv_similarity
    similarity = layer.similarity
    assert layer.slope_norms is not None
    norms, ends = layer.slope_norms.clone(), similarity.raw_weights.clone()
    with torch.no_grad():
        similarity.templates.mul_(7.0)
        similarity.raw_weights[0] -= 50.0
    preparation.after_step(model, recipe)
    torch.testing.assert_close(similarity.templates.norm(dim=1), norms)
    assert torch.equal(similarity.raw_weights[1:], ends[1:])  # far from the bound
    assert layer.effective_templates.abs().max() <= 501
    before = model(digits.images)
    preparation.finish(model, recipe)
    assert layer.slope_norms is None
    torch.testing.assert_close(model(digits.images), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("energy", [0.0, 0.5])
def test_normalised_layers_are_projected_and_folded(digits: ImageDataset, energy: float) -> None:
    recipe = dataclasses.replace(FAST, normalize=True, energy=energy)
    layers = (
        LayerSpec(whitened=9, templates=12, field=3, pool=2),
        LayerSpec(whitened=12, templates=16, field=3, padding=1, depthwise=True),
    )
    model = DeepSimNetSpec(input_shape=(1, 8, 8), layers=layers).build()
    preparation.prepare(model, digits, recipe, seed=0, report=lambda text: None)
    model.train()
    with torch.no_grad():
        started = [model.layers[0].conv_similarity.whiten(model.normalise(digits.images))]
        started.append(
            model.layers[1].conv_similarity.whiten(model.layers[0](model.normalise(digits.images)))
        )
    assert all(abs(float(y.mean())) < 0.01 for y in started)
    assert all(float(y.std()) == pytest.approx(1, abs=0.01) for y in started)
    for block in model.layers:
        layer = block.conv_similarity
        with torch.no_grad():
            layer.filters.mul_(3.0)
        preparation.after_step(model, recipe)
        torch.testing.assert_close(layer.filters.flatten(1).norm(dim=1), torch.ones(len(layer.filters)))
    model(digits.images)
    model.eval()
    before = model(digits.images)
    preparation.finish(model, recipe)
    assert all(block.conv_similarity.batch_norm is None for block in model.layers)
    torch.testing.assert_close(model(digits.images), before, rtol=1e-3, atol=1e-3)


def test_of_the_baselines_network_in_network_can_be_normalised(digits: ImageDataset) -> None:
    model = simnets.create_model("nin_compact", input_shape=(1, 8, 8))
    recipe = dataclasses.replace(FAST, normalize=True)
    preparation.prepare(model, digits, recipe, seed=0, report=lambda text: None)
    model.train()
    model(digits.images)
    before = model.eval()(digits.images)
    assert any("batch_norm" in name for name in model.state_dict())
    preparation.finish(model, recipe)
    assert not any("batch_norm" in name for name in model.state_dict())
    torch.testing.assert_close(model(digits.images), before)


def test_the_papers_recipe_changes_no_coordinates(digits: ImageDataset) -> None:
    model = small(whitened=10)
    preparation.prepare(model, digits, RECIPES["paper"], seed=0, report=lambda text: None)
    layer = model.layers[0].conv_similarity
    assert layer.preconditioner is None
    assert model.scale is None
    offsets = model.classify.offsets
    assert torch.equal(offsets, offsets[:1].expand_as(offsets))  # b_l = c_l, section 5: no label was read
    filters = layer.filters.clone()
    preparation.after_step(model, RECIPES["paper"])
    assert torch.equal(layer.filters, filters)


def test_a_convnet_keeps_its_own_start(digits: ImageDataset) -> None:
    model = simnets.create_model("convnet1_50", input_shape=(1, 8, 8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert preparation.prepare(model, digits, FAST, seed=0, report=lambda text: None) is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
