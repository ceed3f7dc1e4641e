"""`export_onnx`: what is written computes torch's scores, and says what it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import simnets
from simnets import SimNetsError
from simnets.data import load_dataset
from simnets.deploy import export_onnx, onnx_export
from simnets.deploy.onnx_export import example_images
from simnets.models import ImageClassifier

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def tiny(**options: Any) -> ImageClassifier:
    torch.manual_seed(0)
    return simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), whitened=4, templates=6, **options)


@pytest.fixture(scope="module")
def content() -> bytes:
    return onnx_export.to_onnx(tiny())


@pytest.fixture
def exported_before(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's exporter takes seconds for, once for all tests that are about something else."""
    monkeypatch.setattr(onnx_export, "to_onnx", lambda *arguments: content)


def scores(path: Path, images: torch.Tensor) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: np.ndarray[Any, Any] = session.run(None, {"images": images.numpy()})[0]
    return found


@pytest.mark.parametrize(
    "name",
    [
        "simnet_mlp",
        "simnet2",
        "simnet2_plus",
        "simnet4",
        "simnet3_compact_plus",
        "simnet3_compact",
        "convnet1_50",
        "convnet2",
        "caffe_quick",
        "nin_compact",
        "resnet8",
        "simnet3",  # the one large network
    ],
)
def test_every_network_exports(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = simnets.create_model(name).eval()
    images = example_images((3, 32, 32), 4)
    report = export_onnx(model, tmp_path / "model.onnx", input_shape=(3, 32, 32), images=images)
    with torch.no_grad():
        expected = model(images)
    allowed = 2e-6 * float(expected.abs().max()) + 1e-6
    assert np.abs(scores(tmp_path / "model.onnx", images) - expected.numpy()).max() <= allowed
    assert report.difference <= allowed
    assert (report.images, report.agreement) == (4, 1.0)


VARIANTS: dict[str, dict[str, Any]] = {
    "l1, MEX pooling with learned β": {"p": 1.0, "pool": 2, "pool_beta": 3.0, "pool_beta_mode": "learned"},
    "p learned, every β learned": {
        "p": 1.7,
        "p_mode": "learned",
        "classify_beta": 0.02,
        "classify_beta_mode": "learned",
        "global_beta": 0.5,
        "global_beta_mode": "learned",
    },
    "contrast": {"contrast": 0.1},
    "p below 1, patches, padded": {"p": 0.5, "whitened": None, "padding": 1},
    "linear, maximum": {"kind": "linear", "classify_beta": float("inf")},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_p_and_beta_exports(options: dict[str, Any], tmp_path: Path) -> None:
    options = {"whitened": 4, "templates": 6, "input_shape": (1, 8, 8), **options}
    torch.manual_seed(0)
    model = simnets.create_model("simnet_mlpconv", **options).eval()
    images = load_dataset("digits", "test").images[:8]
    export_onnx(model, tmp_path / "model.onnx", images=images)
    with torch.no_grad():
        expected = model(images).numpy()
    np.testing.assert_allclose(scores(tmp_path / "model.onnx", images), expected, rtol=1e-5, atol=1e-5)


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    model = tiny()
    model.classes = [f"Ziffer {digit}" for digit in range(10)]
    path = tmp_path / "model.onnx"
    report = export_onnx(model, path, opset=20)
    file = onnx.load(path)
    assert [entry.version for entry in file.opset_import if entry.domain == ""] == [20]
    assert (report.opset, report.size, report.int8) == (20, path.stat().st_size, False)
    metadata = {entry.key: entry.value for entry in file.metadata_props}
    assert json.loads(metadata["classes"]) == list(model.classes)
    assert simnets.models.Spec.from_json(metadata["spec"]) == model.spec
    assert metadata["simnets_version"] == simnets.__version__
    assert b".py" not in path.read_bytes()  # no paths of the machine that it was made on
    (images,) = file.graph.input
    sizes = [size.dim_param or size.dim_value for size in images.type.tensor_type.shape.dim]
    assert (images.name, images.type.tensor_type.elem_type) == ("images", onnx.TensorProto.UINT8)
    assert isinstance(sizes[0], str)
    assert sizes[1:] == [1, 8, 8]
    digits = load_dataset("digits", "test").images
    whole = scores(path, digits[:70])
    for size in (1, 3, 64):
        np.testing.assert_allclose(scores(path, digits[:size]), whole[:size], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("exported_before")
def test_accuracy_is_reported(tmp_path: Path) -> None:
    test = load_dataset("digits", "test")
    model = tiny()
    report = export_onnx(model, tmp_path / "model.onnx", test=test)
    with torch.no_grad():
        right = (model.eval()(test.images).argmax(1) == test.labels).double().mean()
    assert report.float_accuracy == pytest.approx(float(right))
    assert report.accuracy == report.float_accuracy
    assert report.images == len(test)
    assert "0.00 points lost" in report.lines()[-1]


@pytest.mark.usefixtures("exported_before")
def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(SimNetsError, match=r"model\.onnx exists; choose another name"):
        export_onnx(tiny(), path)
    assert path.read_text() == "mine"
    export_onnx(tiny(), path, overwrite=True)
    onnx.checker.check_model(onnx.load(path))


@pytest.mark.usefixtures("exported_before")
def test_a_graph_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("mine")
    monkeypatch.setattr(onnx_export, "onnx_scores", lambda content, images: torch.zeros(len(images), 10))
    with pytest.raises(SimNetsError, match="cannot be exported: scores of ONNX Runtime and torch differ by"):
        export_onnx(tiny(), path, overwrite=True)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_network_that_torch_cannot_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("no ONNX function\nfor aten.strange")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(SimNetsError, match=r"^model cannot be exported: no ONNX function for aten\.strange$"):
        export_onnx(tiny(), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for opset in (7, 99):
        with pytest.raises(SimNetsError, match=f"opset is {opset}, expected 18 to "):
            export_onnx(tiny(), path, opset=opset)
    with pytest.raises(
        SimNetsError, match=r"input_shape is \(3, 32, 32\), this network takes images of \(1, 8, 8\)"
    ):
        export_onnx(tiny(), path, input_shape=(3, 32, 32))
    with pytest.raises(SimNetsError, match="model is a Linear"):
        export_onnx(torch.nn.Linear(2, 2), path)  # type: ignore[arg-type]
    with pytest.raises(SimNetsError, match="is a folder"):
        export_onnx(tiny(), tmp_path)
    with pytest.raises(SimNetsError, match="does not exist; make it first"):
        export_onnx(tiny(), tmp_path / "none" / "model.onnx")
    for images, message in (
        (torch.zeros(0, 1, 8, 8, dtype=torch.uint8), "images are empty"),
        (torch.zeros(2, 1, 8, 8), r"images are torch.float32 \(2, 1, 8, 8\), expected uint8"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"expected uint8 \(N, 1, 8, 8\)"),
    ):
        with pytest.raises(SimNetsError, match=message):
            export_onnx(tiny(), path, images=images)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_package_that_is_missing(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SimNetsError, match=rf"{package} is not installed.*pip install simnets\[onnx\]"):
        export_onnx(tiny(), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
