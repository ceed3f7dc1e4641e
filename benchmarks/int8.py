"""What int8 costs: how often a quantised network gives the float network's first class, and how
long it takes, by variant.

    python benchmarks/int8.py simnet2 simnet2_l1 simnet2_rectified simnet3_compact

Judged on training images, for the choice between variants must not see test images. Needs CIFAR-10 under
$SIMNETS_DATA and the weights in the box; docs/decisions/0006-inference.md has what it printed.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import simnets
from simnets.data import load_dataset
from simnets.deploy import export_onnx

quantising = importlib.import_module("simnets.deploy.quantise")  # the package's name is the function
ROUNDS = 15


def classes(content: bytes, images: torch.Tensor) -> np.ndarray:
    session = _session(content)
    scores = [session.run(None, {"images": part.numpy()})[0] for part in torch.split(images, 250)]
    return np.concatenate(scores).argmax(1)


def times(contents: dict[str, bytes], batch: int) -> str:
    """Time of the process for each graph, relative to the first: medians of interleaved rounds."""
    sessions = {name: _session(content) for name, content in contents.items()}
    images = np.random.default_rng(0).integers(0, 256, (batch, 3, 32, 32), dtype=np.uint8)
    taken: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            started = time.process_time()
            for _ in range(max(1, 256 // batch)):
                session.run(None, {"images": images})
            taken[name].append(time.process_time() - started)
    medians = {name: statistics.median(rounds) for name, rounds in taken.items()}
    first = next(iter(medians.values()))
    return ", ".join(f"{name} {median / first:.2f}" for name, median in medians.items())


def _session(content: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options)


def measure(name: str, calibration: torch.Tensor, judged: torch.Tensor) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        export_onnx(simnets.create_model(name, weights="cifar10"), path)
        content = path.read_bytes()
    right = classes(content, judged)

    contents = {"float": content}
    for title, float_similarities, percentiles in (
        ("similarities int8 but the last", False, (99.9, 99.99, 99.95)),
        ("similarities float", True, (99.9, 99.99, 99.95)),
    ):
        shares = []
        for quantising.PERCENTILE in percentiles:
            contents[title] = quantising.quantise(content, calibration, float_similarities=float_similarities)
            share = (classes(contents[title], judged) == right).mean()
            shares.append(f"{quantising.PERCENTILE}: {100 * share:.1f} %")
        print(f"{name}, {title}:", *shares, flush=True)
    for batch in (1, 64):
        print(f"{name}, time at batch {batch}: {times(contents, batch)}", flush=True)


def main(names: list[str]) -> None:
    training = load_dataset("cifar10", "train")
    for name in names or ["simnet2", "simnet2_l1", "simnet2_rectified", "simnet3_compact"]:
        measure(name, training.images[:20_000], training.images[30_000:34_000])


if __name__ == "__main__":
    main(sys.argv[1:])
