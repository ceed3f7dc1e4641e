"""int8: what is quantised and what is not, and that a trained network keeps its accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import simnets
from simnets import SimNetsError
from simnets.data import load_dataset
from simnets.deploy import export_onnx, quantise
from simnets.deploy.onnx_export import onnx_scores, to_onnx
from simnets.models import DeepSimNet

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def quantised(trained: DeepSimNet) -> Any:
    return onnx.load_from_string(quantise(to_onnx(trained), load_dataset("digits", "train").images))


def test_the_loss_of_accuracy_is_small_and_reported(trained: DeepSimNet, tmp_path: Path) -> None:
    train, test = load_dataset("digits", "train"), load_dataset("digits", "test")
    report = export_onnx(trained, tmp_path / "model.onnx", calibration=train.images, test=test)
    assert report.int8
    assert report.float_accuracy is not None
    assert report.accuracy is not None
    assert report.float_accuracy > 0.9
    scores = onnx_scores((tmp_path / "model.onnx").read_bytes(), test.images)
    assert report.accuracy == pytest.approx(float((scores.argmax(1) == test.labels).double().mean()))
    assert abs(report.float_accuracy - report.accuracy) <= 3 / len(test)
    assert f"{100 * (report.float_accuracy - report.accuracy):.2f} points lost" in report.lines()[-1]
    assert report.difference > 0


def test_what_is_exponentiated_stays_float(quantised: Any) -> None:
    producer = {output: node for node in quantised.graph.node for output in node.output}
    constants = {tensor.name for tensor in quantised.graph.initializer}
    # whitening and both terms of the square, twice; the first and the last stay float
    assert _kinds(quantised) == ["FLOAT"] + ["int8"] * 3 + ["FLOAT"] * 2
    convolutions = [node for node in quantised.graph.node if node.op_type == "Conv"]
    assert all(producer[node.input[0]].op_type != "DequantizeLinear" for node in convolutions[5:])
    products = [node for node in quantised.graph.node if node.op_type == "MatMul"]
    assert all(set(node.input) & constants for node in products)


def test_float_similarities(trained: DeepSimNet) -> None:
    images = load_dataset("digits", "train").images
    graph = onnx.load_from_string(quantise(to_onnx(trained), images, float_similarities=True))
    assert _kinds(graph) == ["FLOAT", "FLOAT", "FLOAT", "int8", "FLOAT", "FLOAT"]
    producer = {output: node for node in graph.graph.node for output in node.output}
    for node in graph.graph.node:  # nothing after a similarity is rounded: not the sum, not the pooling
        if node.op_type in ("Add", "MaxPool", "AveragePool"):
            before = [producer[name].op_type for name in node.input if name in producer]
            assert "DequantizeLinear" not in before


def test_a_network_that_int8_spoils_is_told_apart(tmp_path: Path) -> None:
    model = simnets.create_model("simnet3_compact", weights="cifar10")
    noise = torch.rand(128, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = (255 * torch.nn.functional.interpolate(noise, (32, 32), mode="bicubic")).clamp(0, 255).byte()
    options: dict[str, Any] = {"calibration": images, "images": images}
    spoilt = export_onnx(model, tmp_path / "a.onnx", **options)
    kept = export_onnx(model, tmp_path / "b.onnx", **options, float_similarities=True)
    assert kept.agreement > 0.9
    assert spoilt.agreement < 0.8
    assert "--float-similarities" in spoilt.lines()[-1]
    assert "--float-similarities" not in kept.lines()[-1]
    with pytest.raises(SimNetsError, match="float_similarities is for int8"):
        export_onnx(model, tmp_path / "c.onnx", float_similarities=True)


def test_l1_similarities_stay_float_with_their_pooling() -> None:
    torch.manual_seed(0)
    model = simnets.create_model("simnet2_l1", input_shape=(1, 20, 20), whitened=6, templates=8)
    images = torch.randint(0, 256, (64, 1, 20, 20), dtype=torch.uint8)
    graph = onnx.load_from_string(quantise(to_onnx(model), images, float_similarities=True))
    assert _kinds(graph) == ["FLOAT", "int8", "FLOAT", "FLOAT"]
    producer = {output: node for node in graph.graph.node for output in node.output}
    (pool,) = (node for node in graph.graph.node if node.op_type == "MaxPool")
    assert producer[pool.input[0]].op_type != "DequantizeLinear"


def _kinds(model: Any) -> list[str]:
    """What the weights of each convolution are: of every layer whitening, then both terms of an ℓ2 square."""
    producer = {output: node for node in model.graph.node for output in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}

    def kind(weights: str) -> str:
        return "int8" if weights in producer else onnx.TensorProto.DataType.Name(constants[weights].data_type)

    return [kind(node.input[1]) for node in model.graph.node if node.op_type == "Conv"]


def test_weights_have_seven_bits(quantised: Any) -> None:
    weights = [
        onnx.numpy_helper.to_array(tensor)
        for tensor in quantised.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 4
    ]
    assert len(weights) == 3
    assert all(abs(values.astype(int)).max() <= 64 for values in weights)
    # per channel: the largest of nearly every filter uses its whole range
    assert all((abs(values.astype(int)).max((1, 2, 3)) >= 63).mean() > 0.9 for values in weights)


def test_metadata_stay(quantised: Any, trained: DeepSimNet) -> None:
    metadata = {entry.key: entry.value for entry in quantised.metadata_props}
    assert simnets.models.Spec.from_json(metadata["spec"]) == trained.spec
    assert metadata["int8"].startswith("512 calibration images")


def test_networks_without_exponentials(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = simnets.create_model("convnet1_50", input_shape=(1, 8, 8), channels=6)
    images = load_dataset("digits", "train").images[:100]
    report = export_onnx(model, tmp_path / "model.onnx", calibration=images, images=images)
    assert report.agreement > 0.9
    assert report.difference < 0.1 * report.scale


def test_bad_calibration(trained: DeepSimNet, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(SimNetsError, match="calibration images are empty; give at least one"):
        export_onnx(trained, path, calibration=torch.zeros(0, 1, 8, 8, dtype=torch.uint8))
    with pytest.raises(SimNetsError, match=r"images are torch.float32 .* expected uint8 \(N, 1, 8, 8\)"):
        export_onnx(trained, path, calibration=torch.zeros(4, 1, 8, 8))
    with pytest.raises(SimNetsError, match=r"expected uint8 \(N, 1, 8, 8\)"):
        export_onnx(trained, path, calibration=torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    alone = simnets.create_model("simnet_mlp", input_shape=(1, 8, 8), templates=4)
    with pytest.raises(SimNetsError, match="nothing to quantise"):
        export_onnx(alone, path, calibration=load_dataset("digits", "train").images)
    assert not list(tmp_path.iterdir())
