"""The committed JSON turned into results/README.md, figures, and the table of the project's README."""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from simnets.errors import SimNetsError
from simnets.experiments.plan import EXPERIMENTS
from simnets.experiments.results import Record, read_results
from simnets.experiments.trial import COST_VARIANTS, FINAL_VARIANTS, Experiment
from simnets.training.files import write_whole

_BEGIN, _END = "<!-- results: begin, made by `simnets reproduce report` -->", "<!-- results: end -->"
_CURVE = 5  # epochs that make a curve worth drawing
_COLOURS = {"simnet": "#0b6e4f", "other": "#b3541e"}


@dataclass(frozen=True)
class Row:
    """All seeds of one trial together; accuracies in percent."""

    experiment: Experiment
    network: str
    variant: str
    data: str
    epochs: int
    accuracies: tuple[float, ...]
    train_accuracy: float
    parameters: int
    flops: int
    hours: float
    loss_curve: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def name(self) -> str:
        """The network, and what was changed about it."""
        return self.network + (f", {self.variant}" if self.variant else "")

    @property
    def label(self) -> str:
        """The same in Markdown."""
        return f"`{self.network}`" + (f", {self.variant}" if self.variant else "")

    @property
    def measured(self) -> str:
        """Mean ± standard deviation over seeds."""
        if len(self.accuracies) == 1:
            return f"{self.accuracy:.2f}"
        return f"{self.accuracy:.2f} ± {statistics.stdev(self.accuracies):.2f}"

    @property
    def command(self) -> str:
        """What repeats it, among others of its experiment."""
        planned = {
            t.epochs for t in self.experiment.trials if (t.network, t.variant) == (self.network, self.variant)
        }
        epochs = "" if self.epochs in planned else f" --epochs {self.epochs}"
        return f"`simnets reproduce {self.experiment.name}{epochs}`"

    @property
    def paper(self) -> float | None:
        """What the paper states for it."""
        return self.experiment.paper.get((self.network, self.variant, self.data))


def rows_of(experiment: Experiment, folder: Path) -> list[Row]:
    """A row for each network, variant, data set and schedule, in the order of the experiment's trials."""
    groups: dict[tuple[str, str, str, int], list[Record]] = {}
    for record in read_results(folder, experiment.name):
        key = (record["network"], record["variant"], record["data"], record["epochs"])
        groups.setdefault(key, []).append(record)
    order = [(trial.data, trial.network, trial.variant) for trial in experiment.trials]
    datasets = list(dict.fromkeys(data for data, _, _ in order))

    def place(key: tuple[str, str, str, int]) -> tuple[int, int, int]:
        network, variant, data, epochs = key
        known = (data, network, variant) in order
        return (
            datasets.index(data) if data in datasets else len(datasets),
            -epochs,
            order.index((data, network, variant)) if known else len(order),
        )

    rows = []
    for key in sorted(groups, key=place):
        records = groups[key]
        rows.append(
            Row(
                experiment,
                *key,
                accuracies=tuple(100 * record["test"]["accuracy"] for record in records),
                train_accuracy=100 * statistics.fmean(record["train_accuracy"] for record in records),
                parameters=records[0]["parameters"],
                flops=records[0]["flops"],
                hours=sum(record["seconds"] for record in records) / 3600,
                loss_curve=tuple(line["loss"] for line in records[0]["curve"]),
            )
        )
    return rows


def report(folder: Path = Path("results"), readme: Path | None = None) -> list[Path]:
    """Write everything that follows from the JSON files in `folder`; the paths of what was written.

    readme: a file with the markers of the results' table, which is then brought up to date.
    """
    rows = {name: rows_of(experiment, folder) for name, experiment in EXPERIMENTS.items()}
    finished = [row for some in rows.values() for row in some]
    if not finished:
        raise SimNetsError(f"{folder} has no results; run `simnets reproduce two-layer` first")
    figures = {
        "accuracy_flops.png": _accuracy_against_operations(longest(finished, COST_VARIANTS)),
        "curves.png": _curves(longest(finished)),
    }
    if rows["single-layer"]:
        figures["single_layer.png"] = _single_layer(rows["single-layer"])
    written = []
    for name, figure in figures.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
        write_whole(folder / name, buffer.getvalue())
        written.append(folder / name)
    write_whole(folder / "README.md", page(rows, list(figures), _comparisons(folder)))
    written.append(folder / "README.md")
    if readme is not None:
        write_whole(readme, with_table(readme.read_text(), finished))
        written.append(readme)
    return written


# -- text ------------------------------------------------------------------------------------------------


def table(rows: Iterable[Row]) -> str:
    """Rows as Markdown."""
    lines = [
        "| data | network | epochs | seeds | test accuracy % | paper % | training % | parameters "
        "| M operations | hours |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        paper = "" if row.paper is None else f"{row.paper:g}"
        lines.append(
            f"| {row.data} | {row.label} | {row.epochs} | {len(row.accuracies)} | {row.measured} | {paper} "
            f"| {row.train_accuracy:.1f} | {row.parameters:,} | {row.flops / 1e6:.1f} | {row.hours:.2f} |"
        )
    return "\n".join(lines)


def page(rows: dict[str, list[Row]], figures: list[str], comparisons: str) -> str:
    """results/README.md."""
    parts = [
        "# Results",
        "Made by `simnets reproduce report` from the JSON files beside this page, which hold every number "
        "with its settings, seed, code version and learning curve. `simnets reproduce NAME` repeats one.",
        "Trained with recipe `fast`, but for rows marked paper-optimiser, on all training images; settings "
        "were chosen on 10,000 held-out training images (docs/training_notes.md), and the test images were "
        "used once a run, at its end. ± is the "
        "standard deviation over seeds. Training accuracy is that of the last epoch, on augmented images. "
        "Operations are everything that `simnets.count_cost` counts; the paper's 14.2 M for its two-layer "
        "network are closest to 14.3 M, the convolutions and similarities of `simnet2` at one multiply-add "
        "an ℓ2 coordinate. SVHN is trained on its 73,257 training images, without the extra part. Hours are "
        "those of all seeds together, on two shared CPU cores.",
    ]
    for name, experiment in EXPERIMENTS.items():
        if rows[name]:
            parts += [f"## {experiment.title}", f"`simnets reproduce {name}`", table(rows[name])]
    if comparisons:
        parts += ["## Settings, chosen on held-out images", comparisons]
    parts += ["## Figures"] + [f"![{name}]({name})" for name in figures]
    return "\n\n".join(parts) + "\n"


def _comparisons(folder: Path) -> str:
    file = folder / "proxies.jsonl"
    if not file.is_file():
        return ""
    runs = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [
        "`benchmarks/proxies.py`: changes of recipe or network, one seed; below 1.5 points is a tie.",
        "",
        "| network | changes | images | epochs | training % | held out % |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for run in sorted(runs, key=lambda run: (run["model"], run["images"], run["epochs"], -run["validation"])):
        changes = " ".join(word for word in run["run"].split() if not word.startswith("@")) or "none"
        lines.append(
            f"| `{run['model']}` | {changes} | {run['images']:,} | {run['epochs']} "
            f"| {run['train']:.1f} | {run['validation']:.1f} |"
        )
    return "\n".join(lines)


def longest(rows: list[Row], beside: Sequence[str] = ()) -> list[Row]:
    """Every network and final variant, and those `beside`, on every data set, with its longest schedule."""
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        key = (row.data, row.network, row.variant)
        if row.variant in (*FINAL_VARIANTS, *beside) and (key not in found or row.epochs > found[key].epochs):
            found[key] = row
    return list(found.values())


def summary(rows: list[Row]) -> str:
    """The table of the project's README: the longest schedules."""
    lines = [
        "| data | network | parameters | M operations | test accuracy % | paper % | seeds, epochs |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in longest(rows):
        paper = "" if row.paper is None else f"{row.paper:g}"
        effort = f"{_counted(len(row.accuracies), 'seed')}, {_counted(row.epochs, 'epoch')}"
        lines.append(
            f"| {row.data} | {row.label} | {row.parameters:,} | {row.flops / 1e6:.1f} | {row.measured} "
            f"| {paper} | {effort}: {row.command} |"
        )
    return "\n".join(lines)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" + ("s" if count > 1 else "")


def with_table(text: str, rows: list[Row]) -> str:
    """The README's text with its table of results brought up to date."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SimNetsError(f"the README has no place for results; expected the lines {_BEGIN} and {_END}")
    return f"{before}{_BEGIN}\n{summary(rows)}\n{_END}{after}"


# -- figures ---------------------------------------------------------------------------------------------


def _colour(network: str) -> str:
    return _COLOURS["simnet" if network.startswith("simnet") else "other"]


def _log_millions(axes: Axes) -> None:
    """A logarithmic axis that says 20, not 2×10¹."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _accuracy_against_operations(rows: list[Row]) -> Figure:
    """Figure 2(b) with every network of the project."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in rows if row.data == "cifar10"]
    for row in shown:
        axes.plot(row.flops / 1e6, row.accuracy, "o", color=_colour(row.network))
    axes.margins(x=0.25)
    _log_millions(axes)
    axes.set_xlabel("million operations an image (simnets.count_cost)")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("CIFAR-10: SimNets (green) and ConvNets (brown); epochs as trained")
    axes.grid(alpha=0.3)
    _label_points(axes, shown)
    return figure


def _label_points(axes: Axes, rows: list[Row]) -> None:
    """The name of each network beside its point, within the axes and covering no other if there is room;
    a thin line leads to a name that has to stand farther away."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # only now is it known where the points are
    points = axes.transData.transform([(row.flops / 1e6, row.accuracy) for row in rows])
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in points]
    heights = sorted(range(-90, 91, 9), key=lambda height: (abs(height), -height))
    places = [((step, height - 3), side) for height in heights for step, side in ((8, "left"), (-8, "right"))]
    room, to_data = axes.get_window_extent().padded(-4), axes.transData.inverted()
    # from the top, so that of two points close together the upper one has the upper name
    for row, (x, y) in sorted(zip(rows, points, strict=True), key=lambda pair: -pair[0].accuracy):
        name = axes.annotate(
            f"{row.name}, {row.epochs} ep.",
            (row.flops / 1e6, row.accuracy),
            xytext=places[0][0],
            textcoords="offset points",
            fontsize=7,
            color=_colour(row.network),
        )
        for offset, side in places:
            name.set(position=offset, ha=side)
            box = name.get_window_extent()
            within = room.x0 <= box.x0 and box.x1 <= room.x1
            if within and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
        if not box.y0 <= y <= box.y1:
            end = (box.x0 if side == "left" else box.x1, (box.y0 + box.y1) / 2)
            line = to_data.transform([(x, y), end])
            axes.plot(*line.T, color=_colour(row.network), linewidth=0.5, alpha=0.7, zorder=1)


def _single_layer(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    families = {"SimNet ℓ2": ("simnet1", ""), "SimNet ℓ1": ("simnet1", "l1"), "ConvNet": ("convnet1", "")}
    for label, (prefix, variant) in families.items():
        for epochs in sorted({row.epochs for row in rows}, reverse=True):
            some = [
                row
                for row in rows
                if row.network.startswith(prefix) and row.variant == variant and row.epochs == epochs
            ]
            some.sort(key=lambda row: row.flops)
            if some:
                axes.plot(
                    [row.flops / 1e6 for row in some],
                    [row.accuracy for row in some],
                    "o-" if epochs == max(row.epochs for row in rows) else "x:",
                    label=f"{label}, {epochs} epochs",
                )
    _log_millions(axes)
    axes.set_xlabel("million operations an image")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("Single-layer networks on CIFAR-10 (figure 2b)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _curves(rows: list[Row]) -> Figure:
    """The loss of each network, a panel a data set: few enough lines in each to be told apart."""
    shown = [row for row in rows if row.epochs >= _CURVE] or rows
    panels = {
        data: [row for row in shown if row.data == data] for data in dict.fromkeys(r.data for r in shown)
    }
    heights = [2 + 0.25 * len(some) for some in panels.values()]  # inches, so that a legend has room
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
    for axes, (data, some) in zip(grid[:, 0], panels.items(), strict=True):
        axes.set_prop_cycle(color=colormaps["tab20"](range(20)))
        for row in some:
            style = "-" if row.network.startswith("simnet") else "--"
            axes.plot(range(1, len(row.loss_curve) + 1), row.loss_curve, style, label=row.name, lw=1.2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel("training loss")
        axes.set_title(f"{data}: training loss on augmented images, seed 0")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))  # not on the curves
    grid[-1, 0].set_xlabel("epoch")
    return figure
