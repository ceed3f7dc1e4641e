"""Where `simnet2` spends its time in ONNX Runtime: `python benchmarks/inference.py [ROUNDS]`, about a minute.

Three tables, which docs/decisions/0006-inference.md quotes. One thread, the weights in the box:

1. ONNX Runtime's profile at batch 1: the share of each operator (that of small ones is too large by what
   profiling costs), and for convolutions the rate of multiply-adds relative to `caffe_quick`'s convolutions;
2. exact forms of the first similarity, relative to the one that `optimize` chooses;
3. `simnet2` relative to `caffe_quick`, which is exported as it is and with `optimize`.

Times of 2 and 3 are those of the process. All take turns, and a ratio is the median of those of the rounds
(25, if not given, and at least 2; quartiles in brackets).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import onnx
import onnxruntime
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import simnets
from simnets.deploy import optimize
from simnets.deploy._onnx import session
from simnets.deploy.inference import InferenceNetwork, SquaredSimilarity
from simnets.deploy.onnx_export import example_images, onnx_scores, traced

SHAPE = (3, 32, 32)
BATCHES = (1, 64)
PROFILED, TURN = 1000, 0.05  # calls; seconds at least
SIMNET2, PLAIN, WITH_CARE = "simnet2", "caffe_quick as torch exports it", "caffe_quick with the same care"
# the operators of simnet2 in the order in which they run; what is left is the head
PARTS = {
    "pixels": ("Pad", "Cast"),
    "first convolution": ("Conv",),
    "first similarity": ("Mul", "Conv", "Conv"),
    "pooling": ("MaxPool",),
    "second convolution": ("Conv",),
    "second similarity": ("Mul", "Conv", "Conv"),
}
HEAD = "MEX head and global pooling"


def exported(network: nn.Module) -> bytes:
    return traced(network, SHAPE).SerializeToString()


# -- the profile -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operator:
    kind: str
    output: tuple[int, ...]
    multiply_adds: int  # of a convolution
    microseconds: float


def profile(content: bytes) -> list[Operator]:
    """In the order in which they run. The clock has whole microseconds: the mean of the middle half."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        runner = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        images = example_images(SHAPE, 1).numpy()
        for _ in range(PROFILED):
            runner.run(None, {"images": images})
        events = json.loads(Path(runner.end_profiling()).read_text())
    times: dict[str, list[int]] = {}
    arguments = {}
    for event in events:
        if event["cat"] == "Node":
            times.setdefault(event["name"], []).append(event["dur"])
            arguments[event["name"]] = event["args"]
    operators = []
    for name, found in times.items():
        kind = arguments[name]["op_name"]
        inputs, outputs = (
            [tuple(size) for tensor in arguments[name][key] for size in tensor.values()]
            for key in ("input_type_shape", "output_type_shape")
        )
        count = prod(outputs[0]) * prod(inputs[1][1:]) if kind == "Conv" else 0
        middle = sorted(found)[len(found) // 4 : -(len(found) // 4)]
        operators.append(Operator(kind, outputs[0], count, statistics.fmean(middle)))
    return operators


def part_of_each(operators: list[Operator]) -> list[str]:
    parts = [part for part, kinds in PARTS.items() for _ in kinds]
    expected = [kind for kinds in PARTS.values() for kind in kinds]
    if [operator.kind for operator in operators[: len(expected)]] != expected:
        raise SystemExit("ONNX Runtime runs other operators than those that PARTS names")
    return parts + [HEAD] * (len(operators) - len(parts))


def show_profile(console: Console, simnet2: bytes, caffe_quick: bytes) -> None:
    ours, theirs = profile(simnet2), profile(caffe_quick)
    total = sum(operator.microseconds for operator in ours)
    convolutions = [[operator for operator in some if operator.multiply_adds] for some in (ours, theirs)]
    counts = [sum(operator.multiply_adds for operator in some) for some in convolutions]
    spent = [sum(operator.microseconds for operator in some) for some in convolutions]
    usual = counts[1] / spent[1]
    table = Table("part", "operator", "output", title="simnet2, batch 1", title_justify="left")
    table.add_column("share", justify="right")
    table.add_column("rate / caffe_quick's", justify="right")
    parts = part_of_each(ours)
    for part, operator in zip(parts, ours, strict=True):
        rate = operator.multiply_adds / operator.microseconds / usual
        output = "×".join(str(size) for size in operator.output)
        share = f"{100 * operator.microseconds / total:.1f} %"
        table.add_row(part, operator.kind, output, share, f"{rate:.2f}" if operator.multiply_adds else "")
    table.add_section()
    for part in dict.fromkeys(parts):
        some = [operator.microseconds for p, operator in zip(parts, ours, strict=True) if p == part]
        table.add_row(part, f"{len(some)} together", "", f"{100 * sum(some) / total:.1f} %")
    table.add_row(
        "all convolutions", "", "", f"{100 * spent[0] / total:.1f} %", f"{counts[0] / spent[0] / usual:.2f}"
    )
    console.print(table)
    console.print(
        f"multiply-adds of all convolutions: simnet2 {counts[0] / 1e6:.1f} M, "
        f"caffe_quick {counts[1] / 1e6:.1f} M, ratio {counts[0] / counts[1]:.2f}; "
        f"operators in simnet2's graph: {len(onnx.load_from_string(simnet2).graph.node)}"
    )


# -- forms of the first similarity -----------------------------------------------------------------------


class Concatenated(nn.Module):
    """One convolution on y and y² together."""

    def __init__(self, chosen: SquaredSimilarity) -> None:
        super().__init__()
        self.filters = torch.cat([chosen.cross, chosen.square], 1)
        self.constant = chosen.constant

    def forward(self, y: Tensor) -> Tensor:
        return F.conv2d(torch.cat([y, y * y], 1), self.filters, self.constant)


class Composed(nn.Module):
    """Σ 2uz·(W·x + b) as a convolution of x, beside that which gives y for y²."""

    def __init__(self, whitening: nn.Conv2d, chosen: SquaredSimilarity) -> None:
        super().__init__()
        self.whitening, self.square = whitening, chosen.square
        cross = chosen.cross.flatten(1).double()
        assert whitening.bias is not None
        self.filters = torch.einsum("nd,dchw->nchw", cross, whitening.weight.double()).float()
        self.constant = (chosen.constant + cross @ whitening.bias.double()).float()

    def forward(self, x: Tensor) -> Tensor:
        y = self.whitening(x)
        return F.conv2d(x, self.filters, self.constant) + F.conv2d(y * y, self.square)


def forms(network: InferenceNetwork) -> dict[str, InferenceNetwork]:
    whitening, chosen, *rest = network.body.children()
    assert isinstance(whitening, nn.Conv2d)
    assert isinstance(chosen, SquaredSimilarity)

    def with_body(*modules: nn.Module, used: tuple[int, int] | None = network.used) -> InferenceNetwork:
        body = nn.Sequential(*modules, *rest)
        return InferenceNetwork(
            network.spec, network.classes, body, network.dtype, network.offset, used
        ).eval()

    return {
        "one 1×1 convolution on y and y² together": with_body(whitening, Concatenated(chosen)),
        "2uz·y composed with the first convolution": with_body(Composed(whitening, chosen)),
        "two 1×1 convolutions, on all 28×28 positions": with_body(whitening, chosen, used=None),
    }


# -- times -----------------------------------------------------------------------------------------------


def seconds(run: Callable[[], object]) -> float:
    """Of one call; one that is not counted comes before, as others have filled the caches."""
    run()
    calls, start = 0, time.process_time()
    while (elapsed := time.process_time() - start) < TURN:
        run()
        calls += 1
    return elapsed / calls


def measured(contents: dict[str, bytes], rounds: int) -> dict[int, dict[str, list[float]]]:
    """Seconds a batch, of each round: by size of the batch, then by name."""
    runners = {name: session(content) for name, content in contents.items()}
    times: dict[int, dict[str, list[float]]] = {}
    for batch in BATCHES:
        images = {"images": example_images(SHAPE, batch).numpy()}
        times[batch] = {name: [] for name in runners}
        for turn in range(rounds):
            first = turn % len(runners)  # nobody always follows the same one
            for name in [*runners][first:] + [*runners][:first]:
                times[batch][name].append(seconds(partial(runners[name].run, None, images)))
    return times


def main(rounds: int = 25) -> None:
    torch.set_num_threads(1)
    console = Console(width=120)
    simnet2, caffe_quick = (
        simnets.create_model(name, weights="cifar10").eval() for name in ("simnet2", "caffe_quick")
    )
    network = optimize(simnet2)
    others = {name: exported(form) for name, form in forms(network).items()}
    contents = {
        SIMNET2: exported(network),
        **others,
        PLAIN: exported(caffe_quick),
        WITH_CARE: exported(optimize(caffe_quick)),
    }
    images = example_images(SHAPE)
    for model, names in ((simnet2, (SIMNET2, *others)), (caffe_quick, (PLAIN, WITH_CARE))):
        with torch.no_grad():
            expected = model(images)
        for name in names:
            difference = (onnx_scores(contents[name], images) - expected).abs().max()
            assert difference <= 1e-5 * expected.abs().max(), f"{name}: scores differ by {difference:.2g}"

    show_profile(console, contents[SIMNET2], contents[WITH_CARE])
    times = measured(contents, rounds)

    def row(table: Table, name: str, ours: str, other: str) -> None:
        cells = []
        for batch in BATCHES:
            pairs = zip(times[batch][ours], times[batch][other], strict=True)
            low, median, high = statistics.quantiles([a / b for a, b in pairs], n=4, method="inclusive")
            cells.append(f"{median:.2f} ({low:.2f}–{high:.2f})")
        table.add_row(name, *cells)

    columns = [f"batch {batch}" for batch in BATCHES]
    table = Table("first similarity, time of simnet2 / with the chosen form", *columns)
    for name in others:
        row(table, name, name, SIMNET2)
    console.print(table)
    table = Table("time / time", *columns)
    for ours, other in ((SIMNET2, PLAIN), (SIMNET2, WITH_CARE), (WITH_CARE, PLAIN)):
        row(table, f"{ours} / {other}", ours, other)
    console.print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
