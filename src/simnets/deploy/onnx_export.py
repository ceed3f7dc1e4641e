"""`export_onnx`: a network as one ONNX file for uint8 images, compared with torch before it is written."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simnets.data import ImageDataset, load_dataset
from simnets.deploy._onnx import check_images, require, session
from simnets.deploy.comparison import TOLERANCE, Comparison, check_target, compare
from simnets.deploy.optimize import optimize
from simnets.deploy.quantise import quantise
from simnets.errors import SimNetsError
from simnets.models import ImageClassifier
from simnets.training.evaluate import require_same_classes
from simnets.training.files import write_whole

OPSETS = range(18, 24)
_BATCH = 250
_ENOUGH = 0.97  # images whose first class int8 should not change; below that there is a better way


@dataclass(frozen=True, kw_only=True)
class ExportReport(Comparison):
    """What `export_onnx` wrote, and how near ONNX Runtime's scores are to torch's."""

    path: Path
    opset: int
    size: int
    int8: bool
    float_similarities: bool = False

    def lines(self) -> list[str]:
        """What a person wants to know, a line each."""
        kind = "int8" if self.int8 else "float"
        written = f"{self.path}: ONNX {kind}, opset {self.opset}, {self.size / 1000:,.1f} KB"
        lines = [written, *self.compared("ONNX Runtime")]
        if self.int8 and not self.float_similarities and self.agreement < _ENOUGH:
            lines.append(
                "int8 changes the class of many images; float_similarities (--float-similarities) keeps it"
            )
        return lines


def export_onnx(
    model: ImageClassifier,
    path: str | os.PathLike[str],
    input_shape: tuple[int, ...] | None = None,
    *,
    opset: int = OPSETS[0],
    images: Tensor | None = None,
    calibration: Tensor | None = None,
    float_similarities: bool = False,
    test: ImageDataset | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Write `model` as ONNX: uint8 images (N, C, H, W) in, class scores (N, k) out, N free.

    The graph is that of `optimize(model)`. Before anything is written, ONNX Runtime computes the scores of
    `images` and they are compared with torch's; a float graph that differs is refused. The file's metadata
    say `classes`, `spec`, `simnets_version` and `input`.

    Args:
        input_shape: the network's own, as a check; it cannot be changed here.
        opset: version of ONNX's operators.
        images: uint8 images to compare on; digits brought to the network's size if not given.
        calibration: training images (uint8); given, the file is quantised to int8 (`quantise`).
        float_similarities: with `calibration`, keep all similarities in float: slower, and next to no loss.
        test: labelled images on which the accuracy before and after is measured.
        overwrite: replace a file that exists.

    Example:
        >>> import simnets
        >>> from simnets.deploy import export_onnx
        >>> report = export_onnx(simnets.create_model("simnet2"), "simnet2.onnx", input_shape=(3, 32, 32))
        >>> report.difference < 1e-4
        True
    """
    target = Path(path)
    check_target(target, overwrite, "model.onnx")
    require("onnxruntime")
    if not isinstance(model, ImageClassifier):
        raise SimNetsError(f"model is a {type(model).__name__}, expected a network of simnets")
    if test is not None:
        require_same_classes(model, test)
        images = test.images
    elif images is None:
        images = example_images(model.spec.input_shape)
    check_images("images", images, model.spec.input_shape)
    if float_similarities and calibration is None:
        raise SimNetsError("float_similarities is for int8; give calibration images (--int8 with --data)")
    if calibration is not None:
        check_images("calibration images", calibration, model.spec.input_shape)
    content = to_onnx(model, input_shape, opset)
    if calibration is not None:
        content = quantise(content, calibration, float_similarities=float_similarities)
    comparison = compare(model, images, onnx_scores(content, images), test)
    report = ExportReport(
        path=target,
        opset=opset,
        size=len(content),
        int8=calibration is not None,
        float_similarities=float_similarities,
        **vars(comparison),
    )
    if not report.int8 and not report.difference <= TOLERANCE * report.scale:
        raise SimNetsError(
            f"model cannot be exported: scores of ONNX Runtime and torch differ by {report.difference:.2g}, "
            f"the largest is {report.scale:.3g}; nothing was written"
        )
    write_whole(target, content)
    return report


def to_onnx(
    model: ImageClassifier, input_shape: tuple[int, ...] | None = None, opset: int = OPSETS[0]
) -> bytes:
    """The ONNX graph of `optimize(model)`, as the bytes of a file."""
    onnx = require("onnx")
    require("onnxscript")
    if opset not in OPSETS:
        raise SimNetsError(f"opset is {opset}, expected {OPSETS[0]} to {OPSETS[-1]}")
    network = optimize(model).cpu().float()
    shape = tuple(model.spec.input_shape)
    if input_shape is not None and tuple(input_shape) != shape:
        raise SimNetsError(f"input_shape is {tuple(input_shape)}, this network takes images of {shape}")
    proto = traced(network, shape, opset)
    onnx.helper.set_model_props(
        proto,
        {
            "classes": json.dumps(model.classes, ensure_ascii=False),
            "spec": model.spec.to_json(),
            "simnets_version": version("simnets"),
            "input": f"uint8 (N, {', '.join(str(n) for n in shape)}), pixels 0 to 255",
        },
    )
    proto.producer_name, proto.producer_version = "simnets", version("simnets")
    content: bytes = proto.SerializeToString()
    return content


def traced(network: nn.Module, shape: tuple[int, ...], opset: int = OPSETS[0], output: str = "scores") -> Any:
    """The graph of a module that takes `images`, uint8 (N, *shape), and returns one tensor, `output`.

    torch's exporter, without what it says about packages that are not needed.
    """
    example = torch.zeros(2, *shape, dtype=torch.uint8)
    batch = torch.export.Dim("batch")
    with _quiet():
        try:
            program = torch.onnx.export(
                network,
                (example,),
                dynamo=True,
                dynamic_shapes=({0: batch},),
                input_names=["images"],
                output_names=[output],
                opset_version=opset,
                verbose=False,
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise SimNetsError(f"model cannot be exported: {reason}") from error
    assert program is not None
    proto = program.model_proto
    # where each operator was called from: paths on this machine, and a third of the file
    for node in proto.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    proto.graph.ClearField("metadata_props")
    proto.ClearField("metadata_props")
    return proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def onnx_scores(content: bytes, images: Tensor) -> Tensor:
    """Class scores (N, k) of uint8 images in ONNX Runtime."""
    runner = session(content)
    parts = [runner.run(None, {"images": batch.numpy()})[0] for batch in torch.split(images, _BATCH)]
    return torch.from_numpy(np.concatenate(parts))


def example_images(shape: tuple[int, ...], count: int = 64) -> Tensor:
    """Digits brought to the size (C, H, W), in every channel; for plain vectors (d,), noise."""
    if len(shape) != 3:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    digits = load_dataset("digits", "test").images[:count].float()
    resized = F.interpolate(digits, shape[1:], mode="bilinear")
    return resized.round().clamp(0, 255).to(torch.uint8).expand(-1, shape[0], -1, -1).contiguous()
