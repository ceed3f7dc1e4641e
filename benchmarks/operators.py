"""The similarity operator beside what it is compared with: `python benchmarks/operators.py`, half a minute.

One thread, float32, N = 8192 rows, d = n = 64, weights given. Everything is timed in turns in one run and
compared as ratios: of the term rate of `y @ z.T`, a term being one of the N·n·d products or powers; of
torch.cdist; of the broadcast formula; of the forward pass alone.
MEX is measured by `benchmarks/mex.py`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from simnets import similarity

N, D, TEMPLATES = 8192, 64, 64
ROUNDS, CALLS, SLOW_ROUNDS = 12, 4, 3


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, float]:
    """Median seconds of this thread for each candidate, which take turns; the first round warms up.

    A turn is a few calls, so that none pays for the memory that another one has given back.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, run in candidates.items():
            for _ in range(calls):
                start = time.thread_time()
                run()
                if turn > 0:
                    times[name].append(time.thread_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def broadcast(x: Tensor, z: Tensor, u: Tensor, p: float | Tensor) -> Tensor:
    """The formula as one would first write it."""
    return -(u * (x.unsqueeze(-2) - z).abs() ** p).sum(-1)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, z, u = torch.randn(N, D), torch.randn(TEMPLATES, D), torch.rand(TEMPLATES, D)
    grad = torch.randn(N, TEMPLATES)
    learned = torch.tensor(1.7, requires_grad=True)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, z, u)]
    cases: dict[str, tuple[str, float | Tensor]] = {
        "expanded p = 2": ("expanded", 2.0),
        "fused p = 1": ("fused", 1.0),
        "fused p = 1.5": ("fused", 1.5),
        "fused p = 2": ("fused", 2.0),
        "fused learned p": ("fused", learned),
    }

    def forward(method: str, p: float | Tensor) -> Callable[[], object]:
        return lambda: similarity(x, z, u, p, method=method)

    def both(method: str, p: float | Tensor) -> Callable[[], object]:
        wanted = [*leaves, p] if isinstance(p, Tensor) else leaves
        return lambda: torch.autograd.grad(similarity(*leaves, p, method=method), wanted, grad)

    candidates: dict[str, Callable[[], object]] = {"y @ z.T": lambda: x @ z.T}
    candidates |= {name: forward(*case) for name, case in cases.items()}
    candidates |= {f"{name}, and backward": both(*case) for name, case in cases.items()}
    candidates["torch.cdist p = 1"] = lambda: torch.cdist(x, z, p=1.0)
    slow: dict[str, Callable[[], object]] = {
        "broadcast p = 1": lambda: broadcast(x, z, u, 1.0),
        "broadcast p = 1.5": lambda: broadcast(x, z, u, 1.5),
        "broadcast learned p": lambda: broadcast(x, z, u, learned),
    }
    seconds = interleaved(candidates, ROUNDS, CALLS) | interleaved(slow, SLOW_ROUNDS, 1)

    times = Table(title=f"Similarity, one thread, float32, N = {N}, d = n = {D}", title_justify="left")
    for header in ("", "ms", "10⁹ terms/s", "of y @ z.T"):
        times.add_column(header, justify="left" if not header else "right")
    for name, value in seconds.items():
        rate = "" if "backward" in name else f"{N * D * TEMPLATES / value / 1e9:.2f}"
        times.add_row(name, f"{value * 1e3:.2f}", rate, f"{seconds['y @ z.T'] / value:.3f}" if rate else "")

    ratios = Table(title="Targets", title_justify="left")
    for header in ("", "ratio", "target", ""):
        ratios.add_column(header, justify="left" if not header else "right")

    def add(what: str, ratio: float, target: float, *, at_most: bool = False) -> None:
        met = ratio <= target if at_most else ratio >= target
        verdict = "[green]met[/]" if met else "[red]missed[/]"
        ratios.add_row(what, f"{ratio:.2f}", f"{'≤' if at_most else '≥'} {target:g}", verdict)

    product = seconds["y @ z.T"]
    add("expanded p = 2, term rate / y @ z.T", product / seconds["expanded p = 2"], 0.35)
    add("fused p = 1, term rate / y @ z.T", product / seconds["fused p = 1"], 0.20)
    add("fused p = 1, speed / torch.cdist", seconds["torch.cdist p = 1"] / seconds["fused p = 1"], 3)
    for order in ("p = 1.5", "learned p"):
        speedup = seconds[f"broadcast {order}"] / seconds[f"fused {order}"]
        add(f"fused {order}, speed / broadcast formula", speedup, 20)
    for name in cases:
        ratio = seconds[f"{name}, and backward"] / seconds[name]
        add(f"{name}, forward and backward / forward", ratio, 5, at_most=True)
    console = Console()
    console.print(times)
    console.print(ratios)


if __name__ == "__main__":
    main()
