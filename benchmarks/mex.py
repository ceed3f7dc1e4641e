"""MEX against the operations it is made of: `python benchmarks/mex.py`, one thread, about a minute.

Each row is a ratio of the shortest times in one interleaved run (time of MEX / time of the other; lower is
better). Forward alone, or forward and backward.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from simnets import mex
from simnets.ops import reference

ROUNDS, CALLS = 6, 5


def shortest(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Time of this thread, interleaved, so that whatever else the machine does matters little.

    Five calls at a time, so that none of them pays for the memory that another one has just given back.
    """
    times = dict.fromkeys(candidates, math.inf)
    for _ in range(ROUNDS):
        for name, run in candidates.items():
            for _ in range(CALLS):
                start = time.thread_time()
                run()
                times[name] = min(times[name], time.thread_time() - start)
    return times


def with_backward(run: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], None]:
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]

    def step() -> None:
        torch.autograd.grad(run(*leaves).sum(), leaves)

    return step


def offset_rows(table: Table, n: int, k: int, batch: int = 8192) -> None:
    x, b = torch.randn(batch, n), torch.randn(k, n)
    image = x.reshape(-1, 8, 8, n).permute(0, 3, 1, 2)
    images = {"rows": (x, -1), "NCHW": (image.contiguous(), 1), "channels-last": (image, 1)}
    for name, (values, dim) in images.items():
        plain = (lambda v, w: v @ w.T) if dim == -1 else (lambda v, w: torch.matmul(w, v.flatten(2)))
        if name == "channels-last":
            plain = lambda v, w: v.movedim(1, -1) @ w.T  # noqa: E731
        forward = shortest(
            {
                "mex": lambda values=values, dim=dim: mex(values, 1.0, b, dim=dim),
                "matmul": lambda values=values, plain=plain: plain(values, b),
                "broadcast": lambda values=values, dim=dim: reference.mex(values, 1.0, b, dim=dim),
            }
        )
        both = shortest(
            {
                "mex": with_backward(lambda v, w, dim=dim: mex(v, 1.0, w, dim=dim), values, b),
                "matmul": with_backward(plain, values, b),
                "broadcast": with_backward(
                    lambda v, w, dim=dim: reference.mex(v, 1.0, w, dim=dim), values, b
                ),
            }
        )
        for kind, times in (("forward", forward), ("forward + backward", both)):
            label = f"offsets, {name}, {batch} × {n} → {k}, {kind}"
            for other in ("matmul", "broadcast"):
                table.add_row(
                    label,
                    other,
                    f"{times['mex'] * 1e3:.2f}",
                    f"{times[other] * 1e3:.2f}",
                    f"{times['mex'] / times[other]:.2f}",
                )


def pooling_rows(table: Table) -> None:
    x = torch.randn(128, 64, 14, 14)
    compared: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
        "torch.logsumexp": (1.0, lambda v: v.logsumexp((2, 3))),
        "torch.amax": (math.inf, lambda v: v.amax((2, 3))),
        "torch.mean": (0.0, lambda v: v.mean((2, 3))),
        "torch.mean, β = 0.001": (0.001, lambda v: v.mean((2, 3))),
    }
    for name, (beta, other) in compared.items():
        for kind in ("forward", "forward + backward"):
            pool = lambda v, beta=beta: mex(v, beta, dim=(2, 3))  # noqa: E731
            if kind == "forward":
                times = shortest(
                    {"mex": lambda pool=pool: pool(x), "other": lambda other=other: other(x)}
                )
            else:
                times = shortest({"mex": with_backward(pool, x), "other": with_backward(other, x)})
            table.add_row(
                f"global pooling, 128 × 64 × 14 × 14, {kind}",
                name,
                f"{times['mex'] * 1e3:.2f}",
                f"{times['other'] * 1e3:.2f}",
                f"{times['mex'] / times['other']:.2f}",
            )


def hard_rows(table: Table, n: int = 64, k: int = 10, batch: int = 8192) -> None:
    """What it costs when the matrix product is not enough: all rows a second time in float64, or exactly."""
    b = torch.randn(k, n)
    for name, x in {
        "float64 a second time (gap 100)": torch.randn(batch, n) * 30,
        "exact sums (gap 1e4)": torch.randn(batch, n) * 3000,
    }.items():
        offsets = b * float(x.std())
        times = shortest(
            {
                "mex": lambda x=x, offsets=offsets: mex(x, 1.0, offsets),
                "broadcast": lambda x=x, offsets=offsets: reference.mex(x, 1.0, offsets),
            }
        )
        table.add_row(
            f"offsets, rows, all of them {name}",
            "broadcast",
            f"{times['mex'] * 1e3:.2f}",
            f"{times['broadcast'] * 1e3:.2f}",
            f"{times['mex'] / times['broadcast']:.2f}",
        )


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = Table("what", "against", "mex ms", "other ms", "mex / other", title="MEX, one thread, float32")
    offset_rows(table, n=64, k=10)
    offset_rows(table, n=64, k=64)
    pooling_rows(table)
    hard_rows(table)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
