"""How cost grows: `python benchmarks/growth.py`, one thread, about two minutes.

A layer conv→ℓp-sim with classification MEX is made larger in one respect at a time (templates n, whitened
channels d, side of the image, batch), and each way to compute it is timed. Beside the milliseconds stands the
count of operations (`simnets.count_cost`); the last row of a table has the slopes of log time and log
operations against log size. A path whose slope stays below that of the count pays overhead that larger sizes
share; one above it falls out of a cache.

Times are those of the processor, the shortest of several interleaved rounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import simnets
from simnets.deploy._onnx import session
from simnets.deploy.onnx_export import to_onnx
from simnets.deploy.optimize import optimize
from simnets.models import ImageClassifier

BASE = {"n": 64, "d": 32, "side": 32, "batch": 16}
SIZES = {"n": (16, 32, 64, 128, 256), "d": (8, 16, 32, 64), "side": (12, 20, 36, 68), "batch": (1, 4, 16, 64)}
PATHS = ("ℓ2 eager", "ℓ2 optimized", "ℓ2 ONNX Runtime", "ℓ1 eager", "ℓ1.5 eager")
ROUNDS = 7


def network(size: dict[str, int], p: float) -> ImageClassifier:
    shape = (3, size["side"], size["side"])
    return simnets.create_model(
        "simnet_mlpconv", input_shape=shape, whitened=size["d"], templates=size["n"], p=p
    ).eval()


def runners(size: dict[str, int]) -> Iterator[Callable[[], Any]]:
    """In the order of PATHS."""
    images = torch.randint(0, 256, (size["batch"], 3, size["side"], size["side"]), dtype=torch.uint8)
    squares = network(size, 2.0)
    fast = optimize(squares)
    runner = session(to_onnx(squares))
    yield lambda: squares(images)
    yield lambda: fast(images)
    yield lambda: runner.run(None, {"images": images.numpy()})
    yield partial(network(size, 1.0), images)
    yield partial(network(size, 1.5), images)


def shortest(candidates: list[Callable[[], Any]]) -> list[float]:
    times = [math.inf] * len(candidates)
    for _ in range(ROUNDS):
        for index, run in enumerate(candidates):
            run()
            start = time.process_time()
            run()
            run()
            times[index] = min(times[index], (time.process_time() - start) / 2)
    return times


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    logs = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return statistics.linear_regression(*logs).slope


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    console = Console(width=120)
    for name, sizes in SIZES.items():
        table = Table(title=f"growth with {name}: milliseconds a batch (rest: {BASE})", title_justify="left")
        for column in (name, "operations, M", *PATHS):
            table.add_column(column, justify="right")
        counts, columns = [], []
        for value in sizes:
            size = {**BASE, name: value}
            counts.append(float(size["batch"] * simnets.count_cost(network(size, 2.0)).flops))
            columns.append(shortest(list(runners(size))))
            table.add_row(str(value), f"{counts[-1] / 1e6:.1f}", *(f"{1000 * t:.2f}" for t in columns[-1]))
        table.add_section()
        slopes = [slope(sizes, list(times)) for times in zip(*columns, strict=True)]
        table.add_row("slope", f"{slope(sizes, counts):.2f}", *(f"{value:.2f}" for value in slopes))
        console.print(table)


if __name__ == "__main__":
    main()
