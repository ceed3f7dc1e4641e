"""What bfloat16 saves: a training step of a network in float32 and with `--amp bf16`, interleaved.

    python benchmarks/precision.py simnet2 simnet2_rectified caffe_quick

Prints, for each network, the median time of a step (batch of 100, one thread) in both, and their ratio.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch.nn.functional import cross_entropy

import simnets
from simnets.data import ImageDataset
from simnets.training import preparation, recipe_for
from simnets.training.evaluate import arranged
from simnets.training.optimizer import make_optimizer

BATCH, WARM, ROUNDS = 100, 5, 60


def steps(name: str, precisions: tuple[str, ...] = ("float32", "bfloat16")) -> dict[str, float]:
    """Median seconds of a step, by precision."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # times do not depend on what the images show, nor on where parameters start
    images = torch.randint(256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    sample = ImageDataset(images, torch.arange(BATCH) % 10, tuple("0123456789"), "noise")
    recipe = recipe_for("fast", "cifar10", name, pretrain=False, label_start=False)
    model = simnets.create_model(name)
    preparation.prepare(model, sample, recipe, seed=0, report=lambda text: None)
    optimizer = make_optimizer(preparation.parameter_groups(model, recipe), recipe)
    times: dict[str, list[float]] = {precision: [] for precision in precisions}
    for _ in range(WARM + ROUNDS):
        for precision, taken in times.items():
            started = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                scores = model(arranged(images))
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(scores.float(), sample.labels).backward()
            optimizer.step()
            preparation.after_step(model, recipe)
            taken.append(time.perf_counter() - started)
    return {precision: statistics.median(taken[WARM:]) for precision, taken in times.items()}


def main(names: list[str]) -> None:
    for name in names or ["simnet2", "simnet2_rectified", "caffe_quick"]:
        found = steps(name)
        whole, half = found["float32"], found["bfloat16"]
        print(f"{name}: float32 {1e3 * whole:.1f} ms, bfloat16 {1e3 * half:.1f} ms, ratio {whole / half:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
