"""MEX against the operations it is made of: `python benchmarks/mex.py`, one thread, about a minute.

Shortest times of interleaved runs and their ratio (MEX / other: lower is better), as processor time of the
thread, so that a busy machine matters little. One run, AVX2, torch 2.13, batch 8192, n = 64, forward:
with offsets 3.1 times the plain product for k = 10 and 3.7 for k = 64 (with backward 3.7 and 3.0), 0.04 and
0.01 of the broadcast formula; pooling 1.1 of logsumexp (2.0 for β = 0.001), 1.15 of mean and of amax.
Many rows, some after another (AVX-512, with backward): 0.83 of all at once for n = 50, 0.57 for n = 200.
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
from simnets.ops import _mex_kernels, reference

BATCH, ROUNDS, CALLS = 8192, 5, 4
Run = Callable[[], object]


def shortest(ours: Run, other: Run) -> tuple[float, float]:
    """A few calls at a time, so that neither pays for the memory that the other has just given back."""
    times = [math.inf, math.inf]
    for _ in range(ROUNDS):
        for i, run in enumerate((ours, other)):
            for _ in range(CALLS):
                start = time.thread_time()
                run()
                times[i] = min(times[i], time.thread_time() - start)
    return times[0], times[1]


def with_backward(run: Callable[..., Tensor], *inputs: Tensor) -> Run:
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]

    def step() -> None:
        y = run(*leaves)
        torch.autograd.grad(y, leaves, torch.ones_like(y))

    return step


def compare(
    table: Table,
    what: str,
    name: str,
    ours: Callable[..., Tensor],
    other: Callable[..., Tensor],
    *inputs: Tensor,
) -> None:
    """One row: forward alone, then forward and backward."""
    forward = shortest(lambda: ours(*inputs), lambda: other(*inputs))
    both = shortest(with_backward(ours, *inputs), with_backward(other, *inputs))
    cells = [f"{a * 1e3:.2f} / {b * 1e3:.2f} = {a / b:.2f}" for a, b in (forward, both)]
    table.add_row(what, name, *cells)


def offsets(table: Table, k: int, n: int = 64) -> None:
    x, b = torch.randn(BATCH, n), torch.randn(k, n)
    images = x.reshape(-1, 8, 8, n).permute(0, 3, 1, 2)
    what = f"offsets, {n} → {k}"

    def spatial(v: Tensor, w: Tensor) -> Tensor:
        return mex(v, 1.0, w, dim=1)

    compare(table, what, "x @ b.T", lambda v, w: mex(v, 1.0, w), lambda v, w: v @ w.T, x, b)
    compare(table, f"{what}, NCHW", "b @ x", spatial, lambda v, w: w @ v.flatten(2), images.contiguous(), b)
    compare(
        table, f"{what}, channels-last", "x @ b.T", spatial, lambda v, w: v.movedim(1, -1) @ w.T, images, b
    )
    compare(
        table,
        what,
        "broadcast formula",
        lambda v, w: mex(v, 1.0, w),
        lambda v, w: reference.mex(v, 1.0, w),
        x,
        b,
    )


def pooling(table: Table) -> None:
    x = torch.randn(128, 64, 14, 14)
    cases: list[tuple[str, float, str, Callable[[Tensor], Tensor]]] = [
        ("β = 1", 1.0, "logsumexp", lambda v: v.logsumexp((2, 3))),
        ("β = 0.001", 0.001, "logsumexp", lambda v: v.logsumexp((2, 3))),
        ("β = 0", 0.0, "mean", lambda v: v.mean((2, 3))),
        ("β = ∞", math.inf, "amax", lambda v: v.amax((2, 3))),
    ]
    for what, beta, name, other in cases:
        compare(
            table, f"global pooling, {what}", name, lambda v, beta=beta: mex(v, beta, dim=(2, 3)), other, x
        )


def parts(table: Table) -> None:
    """784 positions of 100 images, the last map of a single layer: some after another, or all at once."""
    part = _mex_kernels.PART
    for n in (50, 200):
        x, b = torch.randn(78_400, n), torch.randn(10, n)
        runs: list[Run] = [lambda x=x, b=b: mex(x, 1.0, b), with_backward(lambda v, w: mex(v, 1.0, w), x, b)]

        def with_part(size: int, run: Run) -> Run:
            def step() -> None:
                _mex_kernels.PART = size
                run()

            return step

        cells = []
        for run in runs:
            some, whole = shortest(with_part(part, run), with_part(len(x), run))
            cells.append(f"{some * 1e3:.2f} / {whole * 1e3:.2f} = {some / whole:.2f}")
        table.add_row(f"offsets, {n} → 10, {len(x):,} rows", "all at once", *cells)
    _mex_kernels.PART = part


def hard_offsets(table: Table, n: int = 64, k: int = 10) -> None:
    """Every row underflows, in float32 or in float64 as well."""
    for what, spread in (("all rows again in float64", 30.0), ("all rows again as exact sums", 3000.0)):
        x, b = torch.randn(BATCH, n) * spread, torch.randn(k, n) * spread
        compare(
            table,
            what,
            "broadcast formula",
            lambda v, w: mex(v, 1.0, w),
            lambda v, w: reference.mex(v, 1.0, w),
            x,
            b,
        )


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = Table(
        "mex", "against", "forward, ms", "forward and backward, ms", title=f"batch {BATCH}, float32"
    )
    for k in (10, 64):
        offsets(table, k)
    parts(table)
    hard_offsets(table)
    pooling(table)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
