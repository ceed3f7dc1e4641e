"""What int8 costs: how often a quantised `simnet2` gives the float network's first class, by variant.

Judged on training images, for the choice between variants must not see test images. Needs CIFAR-10 under
$SIMNETS_DATA and the weights in the box; docs/decisions/0006-inference.md has what it printed.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import simnets
from simnets.data import load_dataset
from simnets.deploy import export_onnx

quantising = importlib.import_module("simnets.deploy.quantise")  # the package's name is the function
_FLOAT_NODES = quantising.float_nodes


def classes(content: bytes, images: torch.Tensor) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options)
    scores = [session.run(None, {"images": part.numpy()})[0] for part in torch.split(images, 250)]
    return np.concatenate(scores).argmax(1)


def main() -> None:
    training = load_dataset("cifar10", "train")
    calibration, judged = training.images[:20_000], training.images[30_000:34_000]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "simnet2.onnx"
        export_onnx(simnets.create_model("simnet2", weights="cifar10"), path)
        content = path.read_bytes()
    right = classes(content, judged)

    def agreement(percentile: float) -> str:
        quantising.PERCENTILE = percentile
        share = (classes(quantising.quantise(content, calibration), judged) == right).mean()
        return f"{100 * share:.1f} %"

    print("first convolution float:", *(f"{p}: {agreement(p)}" for p in (99.9, 99.95, 99.99)))

    def first_layer(graph: object) -> set[str]:
        convolutions = [node.name for node in graph.node if node.op_type == "Conv"]  # type: ignore[attr-defined]
        return _FLOAT_NODES(graph) | set(convolutions[:3])

    quantising.float_nodes = first_layer
    print("first layer float:", agreement(99.95))


if __name__ == "__main__":
    main()
