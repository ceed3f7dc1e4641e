"""What a batch costs to load and augment, against a training step.

    python benchmarks/data.py

The step is forward and backward of two 5×5 convolutions (3→32, pooling, 32→64) on 100 images of 32×32,
less than a two-layer SimNet does, so the ratio is an upper bound. Both are timed in turn, and the fastest
of each compared: on a busy machine all else is the others' time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from simnets.data import Augmentation, ImageDataset, batches

BATCH = 100
ROUNDS = 30


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    images = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8)
    dataset = ImageDataset(images, torch.arange(50_000) % 10, tuple("0123456789"), "random")
    network = nn.Sequential(
        nn.Conv2d(3, 32, 5), nn.MaxPool2d(3, 2), nn.Conv2d(32, 64, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    batch = images[:BATCH].float() / 255

    def step() -> None:
        network(batch).square().mean().backward()

    step()
    print(f"{torch.get_num_threads()} threads, batch {BATCH}, fastest of {ROUNDS}")
    for name, augmentation in {
        "load": None,
        "load, flip, shift 4": Augmentation(),
        "load, flip, shift 4 mirrored": Augmentation(padding="reflect"),
        "load, flip, shift 4, cutout 8": Augmentation(cutout=8),
        "load, flip, shift 4, warp 0.1": Augmentation(padding="reflect", warp=0.1),
    }.items():
        stream = batches(dataset, BATCH, augmentation=augmentation)
        pairs = [(seconds(lambda s=stream: next(s)), seconds(step)) for _ in range(ROUNDS)]
        load, work = (min(column) for column in zip(*pairs, strict=True))
        print(f"{name:<30} {1e3 * load:6.2f} ms   step {1e3 * work:6.1f} ms   {load / work:6.1%}")


if __name__ == "__main__":
    main()
