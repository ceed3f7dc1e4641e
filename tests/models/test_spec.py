"""Specifications: JSON and back, refusals, tables, and how the registry changes them."""

import json
from io import StringIO

import pytest
import torch
from rich.console import Console

import simnets
from simnets.models import (
    CaffeQuickSpec,
    DeepSimNetSpec,
    LayerSpec,
    NiNSpec,
    SimNetMLPConvSpec,
    SimNetMLPSpec,
    Spec,
    model_spec,
)
from simnets.models.spec import pooled


@pytest.mark.parametrize("name", simnets.list_models())
def test_json_and_back(name: str) -> None:
    spec = model_spec(name, 7, input_shape=(1, 40, 40))
    text = spec.to_json()
    json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    again = Spec.from_json(text)
    assert again == spec
    assert type(again) is type(spec)
    assert hash(again) == hash(spec)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(colour="red"), "unknown fields colour"),
        (lambda d: d.pop("layers"), "lacks the fields layers"),
        (lambda d: d["layers"][1].pop("p"), r"layers\[1\] lacks the fields p"),
        (lambda d: d["layers"][0].update(shape=3), r"layers\[0\] has unknown fields shape"),
        (lambda d: d["layers"][0].update(templates="many"), r"templates is 'many', expected a whole number"),
        (lambda d: d["layers"][0].update(p=-1), "p is -1.0, expected a positive"),
        (lambda d: d["layers"][0].update(kind="cosine"), "kind is 'cosine', expected one of 'lp', 'linear'"),
        (lambda d: d["layers"][0].update(p_mode="none"), "p_mode is 'none', expected one of"),
        (lambda d: d["layers"][0].update(pool_ceil=1), "pool_ceil is 1, expected a bool"),
        (lambda d: d.update(layers={}), "layers is {}, expected a sequence"),
        (lambda d: d.update(layers=[]), "layers is empty"),
        (lambda d: d.update(num_classes=True), "num_classes is True, expected a whole number"),
        (lambda d: d.update(num_classes=10**12), "num_classes is 1000000000000"),
        (lambda d: d.update(classify_beta="hot"), "classify_beta is 'hot', expected a number"),
        (lambda d: d.update(family="perceptron"), "family of the network is 'perceptron'"),
        (lambda d: d.update(input_shape=[3, 0, 32]), "input_shape is"),
        (lambda d: d.update(input_shape=[32, 32]), "expected .channels, height, width"),
    ],
)
def test_a_wrong_specification_is_refused_in_one_line(change, message: str) -> None:
    data = json.loads(model_spec("simnet2").to_json())
    change(data)
    with pytest.raises(simnets.SimNetsError, match=message) as error:
        Spec.from_json(json.dumps(data))
    assert "\n" not in str(error.value)


def test_a_field_that_was_added_is_stored_only_where_it_is_used() -> None:
    """Files from before `rectify` are read, and files of networks without it are as they were."""
    plain = model_spec("simnet2")
    assert "rectify" not in plain.to_json()
    assert Spec.from_json(plain.to_json()) == plain
    rectified = plain.replace(rectify=(True, False), bias_mode=("learned", "none"))
    assert [layer.get("rectify") for layer in json.loads(rectified.to_json())["layers"]] == [True, None]
    assert Spec.from_json(rectified.to_json()) == rectified
    assert "ℓ2 similarity, rectified" in [stage.operation for stage in rectified.stages()]


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(simnets.SimNetsError, match="not JSON"):
        Spec.from_json("{")
    with pytest.raises(simnets.SimNetsError, match="family"):
        Spec.from_json("[1]")


def test_replace_reaches_into_layers() -> None:
    spec = model_spec("simnet2")
    assert isinstance(spec, DeepSimNetSpec)
    assert [layer.p for layer in spec.replace(p=1).layers] == [1.0, 1.0]
    assert [layer.templates for layer in spec.replace(templates=(16, 48)).layers] == [16, 48]
    changed = spec.replace(p_mode="learned", classify_beta=2.0, pool_beta="inf")
    assert changed.classify_beta == 2.0
    assert {layer.p_mode for layer in changed.layers} == {"learned"}
    assert spec == model_spec("simnet2")  # frozen: nothing changed in place
    with pytest.raises(simnets.SimNetsError, match="3 values, the network has 2 layers"):
        spec.replace(p=(1, 2, 3))
    with pytest.raises(simnets.SimNetsError, match="unknown option colour"):
        spec.replace(colour="red")
    with pytest.raises(simnets.SimNetsError, match="p is 'two'"):
        spec.replace(p="two")


def test_layers_can_be_given_as_a_whole() -> None:
    layers = (LayerSpec(whitened=4, templates=5), LayerSpec(whitened=6, templates=7, field=3))
    model = simnets.create_model("simnet2", layers=layers, p=1.5)
    assert [layer.templates for layer in model.spec.layers] == [5, 7]
    assert [layer.p for layer in model.spec.layers] == [1.5, 1.5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerSpec(whitened=0, templates=3), "whitened is 0"),
        (lambda: LayerSpec(whitened=3, templates=3, rectify=True), "rectify needs a threshold to learn"),
        (lambda: LayerSpec(whitened=None, templates=3, depthwise=True), "depthwise concerns the convolution"),
        (
            lambda: LayerSpec(whitened=None, templates=3, contrast=0.1),
            "contrast is 0.1; expected 0, or a layer",
        ),
        (lambda: LayerSpec(whitened=3, templates=3, contrast=0.1, padding=2), "and not padded"),
        (lambda: LayerSpec(whitened=3, templates=3, contrast=-0.1), "contrast is -0.1, expected at least 0"),
        (
            lambda: model_spec("simnet2", contrast=0.1),
            "contrast of layer 2 is 0.1; expected 0 after the first",
        ),
        (
            lambda: model_spec("simnet2", depthwise=(False, True)),
            "whitened of layer 2 is 64; a depthwise layer has as many as its input has channels, 32",
        ),
        (lambda: LayerSpec(whitened=3, templates=0), "templates is 0"),
        (lambda: LayerSpec(whitened=3, templates=3, noise=-1.0), "noise is -1"),
        (lambda: SimNetMLPConvSpec(layers=(LayerSpec(whitened=3, templates=3),) * 2), "expected one"),
        (lambda: SimNetMLPSpec(templates=0), "templates is 0"),
        (lambda: SimNetMLPSpec(templates=3, p=0.0), "p is 0"),
        (lambda: NiNSpec(channels=(1, 2)), "expected eight"),
        (lambda: NiNSpec(dropout=1.0), "dropout is 1"),
        (lambda: CaffeQuickSpec(num_classes=1), "num_classes is 1"),
        (lambda: model_spec("convnet1_50", channels=0), "channels is 0"),
        (lambda: model_spec("perceptron"), "expected one of simnet_mlp, "),
        (lambda: model_spec("simnet2", input_shape="big"), "input_shape is 'big'"),
    ],
)
def test_impossible_networks_are_refused(make, message: str) -> None:
    with pytest.raises(simnets.SimNetsError, match=message):
        make()


def printed(table) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()


def test_the_table_shows_shapes_and_what_is_learned() -> None:
    text = printed(model_spec("simnet2", 100, p_mode="learned").table("two layers"))
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.count("│") == 6}
    assert "two layers" in text
    assert "32×28×28" in rows["whiten1"]
    assert "32×13×13" in rows["pool1"]
    assert "64×9×9" in rows["similarity2"]
    assert "100×9×9" in rows["classify"]
    learned, fixed = rows["similarity1"].split("│")[4:6]
    assert learned.split() == ["z,", "u,", "p=2"]
    assert fixed.split() == []
    assert "β=inf" in rows["pool1"].split("│")[5]
    padded = printed(model_spec("simnet3_compact").table())
    assert "padded by 2 with channel means" in padded
    assert all(f"10×{side}×{side}" in padded for side in (32, 16, 8))


@pytest.mark.parametrize("name", simnets.list_models())
def test_every_network_prints(name: str) -> None:
    assert "output" in printed(model_spec(name))


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("window", "stride"), [(3, 2), (2, 2), (2, 3), (4, 1), (5, 3)])
def test_pooled_grids_are_those_of_torch(window: int, stride: int, ceil: bool) -> None:
    for side in range(window, 20):
        x = torch.zeros(1, side, side + 1)
        expected = torch.nn.functional.max_pool2d(x, window, stride, ceil_mode=ceil).shape[1:]
        assert pooled((side, side + 1), window, stride, ceil) == tuple(expected)


def test_the_shapes_of_the_table_are_those_of_the_network() -> None:
    """Odd sizes, strides and both kinds of rounding, against what torch computes."""
    layers = (
        LayerSpec(whitened=2, templates=3, field=4, stride=2, padding=1, pool=3, pool_ceil=True),
        LayerSpec(whitened=None, templates=4, field=3, pool=2, pool_stride=3),
    )
    spec = DeepSimNetSpec(input_shape=(2, 41, 37), num_classes=3, layers=layers)
    model = spec.build().eval()
    rows = {stage.name: stage.output for stage in spec.stages()}
    x = torch.rand(1, 2, 41, 37)
    x = model.layers[0](x)
    assert tuple(x.shape[1:]) == rows["pool1"]
    x = model.layers[1](x)
    assert tuple(x.shape[1:]) == rows["pool2"]
