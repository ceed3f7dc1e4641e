"""`benchmark`: how long networks take, in every engine, side by side in one process."""

from __future__ import annotations

import io
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from simnets.data import ImageDataset
from simnets.deploy.engines import ENGINES, Contestant, Run
from simnets.deploy.onnx_export import example_images
from simnets.errors import SimNetsError
from simnets.flops import count_cost
from simnets.models import create_model, list_models, load, shipped_accuracies, weights_file
from simnets.training.evaluate import evaluate

LATENCY_BATCH = 1
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Network:
    """A network that was measured; `accuracy` where its file knows it or test images were given."""

    name: str
    params: int
    flops: int
    accuracy: float | None


@dataclass(frozen=True)
class Measurement:
    """Milliseconds an image: the median of the rounds, and the quartiles around it."""

    network: str
    engine: str
    threads: int
    batch: int
    median: float
    low: float
    high: float

    @property
    def images_per_second(self) -> float:
        return 1000 / self.median


@dataclass(frozen=True)
class BenchmarkReport:
    """All measurements of one run, with what is needed to read them."""

    networks: tuple[Network, ...]
    measurements: tuple[Measurement, ...]
    reference: str
    machine: dict[str, Any]

    def find(self, network: str, engine: str, threads: int, batch: int) -> Measurement | None:
        wanted = (network, engine, threads, batch)
        return next(
            (m for m in self.measurements if (m.network, m.engine, m.threads, m.batch) == wanted), None
        )

    def ratio(self, measurement: Measurement) -> float:
        """Its time relative to the reference network's in the same engine, threads and batch."""
        other = self.find(self.reference, measurement.engine, measurement.threads, measurement.batch)
        assert other is not None
        return measurement.median / other.median

    def table(self) -> Table:
        """A row for each network, engine and number of threads, a column for each batch."""
        batches = sorted({m.batch for m in self.measurements})
        title = f"milliseconds an image (quartiles), and the ratio to {self.reference}"
        table = Table(title=title, title_justify="left")
        for name in ("engine", "threads", "network"):
            table.add_column(name)
        for batch in batches:
            table.add_column(f"batch {batch}", justify="right")
        table.add_column(f"images/s, batch {batches[-1]}", justify="right")
        previous = None
        for engine, threads in dict.fromkeys((m.engine, m.threads) for m in self.measurements):
            for network in self.networks:
                found = [self.find(network.name, engine, threads, batch) for batch in batches]
                cells = [self._cell(m) for m in found]
                last = next((m for m in reversed(found) if m is not None), None)
                speed = "" if last is None else f"{last.images_per_second:,.0f}"
                if previous not in (None, (engine, threads)):
                    table.add_section()
                previous = (engine, threads)
                table.add_row(engine, str(threads), network.name, *cells, speed)
        return table

    def _cell(self, measurement: Measurement | None) -> str:
        if measurement is None:
            return ""
        m = measurement
        return f"{m.median:.3f} ({m.low:.3f}–{m.high:.3f})  ×{self.ratio(m):.2f}"

    def to_json(self) -> str:
        measurements = [{**asdict(m), "ratio": self.ratio(m)} for m in self.measurements]
        networks = [asdict(network) for network in self.networks]
        report = {
            "unit": "milliseconds an image",
            "reference": self.reference,
            "machine": self.machine,
            "networks": networks,
            "measurements": measurements,
        }
        return json.dumps(report, indent=2, ensure_ascii=False) + "\n"

    def plot(self) -> bytes:
        """Accuracy against the measured time of one image on one thread, an engine a colour, as PNG."""
        known = {network.name: network.accuracy for network in self.networks if network.accuracy is not None}
        if not known:
            raise SimNetsError(
                "no accuracy is known to plot: give weights files of finished runs, or data to measure it on"
            )
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        batch = min(m.batch for m in self.measurements)
        threads = min(m.threads for m in self.measurements)
        figure = Figure(figsize=(7, 5), dpi=120, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for engine in dict.fromkeys(m.engine for m in self.measurements if m.engine != "training"):
            points = [
                m
                for m in self.measurements
                if (m.engine, m.batch, m.threads) == (engine, batch, threads) and m.network in known
            ]
            times, accuracies = [m.median for m in points], [100 * known[m.network] for m in points]
            axes.plot(times, accuracies, "o", label=engine)
            for m, x, y in zip(points, times, accuracies, strict=True):
                axes.annotate(m.network, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.set_xscale("log")
        axes.set_xlabel(f"milliseconds an image (batch {batch}, threads {threads})")
        axes.set_ylabel("test accuracy, %")
        axes.grid(alpha=0.3)
        axes.legend()
        buffer = io.BytesIO()
        canvas.print_png(buffer)  # type: ignore[no-untyped-call]
        return buffer.getvalue()


def benchmark(
    networks: Sequence[str | Path],
    *,
    engines: Sequence[str] = tuple(ENGINES),
    batches: Sequence[int] = (1, 64, 256),
    threads: Sequence[int] = (1, 0),
    rounds: int = 15,
    turn: float = 0.02,
    clock: str = "wall",
    test: ImageDataset | None = None,
    progress: Progress = lambda done, total, text: None,
) -> BenchmarkReport:
    """Time networks side by side: in each round everyone takes a turn, so that all see the same machine.

    Args:
        networks: names from `simnets.list_models()`, names of weights in the box, or weights files.
        engines: "eager" (the network as it is), "optimized" (`optimize`), "compile" (torch.compile of that),
            "onnx" and "int8" (ONNX Runtime), "training" (forward and backward, eager).
        batches: images in a batch; 1 is latency, larger ones are throughput.
        threads: numbers of threads; 0 is all processors.
        rounds: how often everyone takes a turn; the median and the quartiles are over these.
        turn: seconds that a turn lasts at least, after a first call that is not counted.
        clock: "wall", or "processor" for the time that this process was running, which on a machine that is
            busy with other things says more; for one thread only.
        test: labelled images to measure accuracy on, where the weights file does not know it.
        progress: told after every turn how many are done, of how many, and what is measured.

    The reference of the ratios is `caffe_quick` where it takes part, else the first network.
    """
    _check(networks, engines, batches, threads, rounds)
    now = _clock(clock, threads)
    contestants = [Contestant(str(name), _network(name)) for name in networks]
    names = [contestant.name for contestant in contestants]
    shapes = {contestant.model.spec.input_shape for contestant in contestants}
    if len(shapes) > 1:
        given = ", ".join(str(shape) for shape in sorted(shapes))
        raise SimNetsError(f"networks take images of different shapes: {given}; compare those of one shape")
    counts = list(dict.fromkeys(count or os.cpu_count() or 1 for count in threads))
    total = len(counts) * len(batches) * rounds * len(contestants) * len(engines)
    done = 0
    measurements = []
    for count in counts:
        with _threads(count):
            for batch in batches:
                images = _batch(contestants[0].model.spec.input_shape, batch)
                runs: dict[tuple[str, str], Run] = {}
                for engine in engines:
                    for contestant in contestants:
                        progress(done, total, f"{contestant.name}: preparing {engine}")
                        runs[engine, contestant.name] = contestant.prepare(engine, images, count)
                times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
                for run in runs.values():
                    run()  # compilers, memory and thread pools start here
                for _ in range(rounds):
                    for key, run in runs.items():
                        times[key].append(_turn(run, turn, now) / batch)
                        done += 1
                        progress(done, total, f"{count} threads, batch {batch}: {key[1]}, {key[0]}")
                for (engine, name), values in times.items():
                    measurements.append(_summary(name, engine, count, batch, values))
    pairs = zip(networks, contestants, strict=True)
    measured = tuple(_describe(name, contestant, test) for name, contestant in pairs)
    reference = "caffe_quick" if "caffe_quick" in names else names[0]
    order = {engine: place for place, engine in enumerate(engines)}
    measurements.sort(key=lambda m: (order[m.engine], m.threads))
    return BenchmarkReport(measured, tuple(measurements), reference, _machine())


def _check(
    networks: Sequence[object],
    engines: Sequence[str],
    batches: Sequence[int],
    threads: Sequence[int],
    rounds: int,
) -> None:
    lists = {"networks": networks, "engines": engines, "batches": batches, "threads": threads}
    for name, values in lists.items():
        if not values:
            raise SimNetsError(f"{name} is empty; give at least one")
        if len(set(values)) < len(values):
            raise SimNetsError(f"{name} names something twice: {', '.join(str(v) for v in values)}")
    for engine in engines:
        if engine not in ENGINES:
            raise SimNetsError(f"engine is {engine!r}, expected one of {', '.join(ENGINES)}")
    for name, smallest, least in (
        ("batches", min(batches), 1),
        ("threads", min(threads), 0),
        ("rounds", rounds, 1),
    ):
        if smallest < least:
            raise SimNetsError(f"{name}: {smallest} is too small, expected at least {least}")


def _network(name: str | Path) -> Any:
    if str(name) in list_models():
        return create_model(str(name))
    return load(weights_file(name, "network"))


def _describe(name: str | Path, contestant: Contestant, test: ImageDataset | None) -> Network:
    cost = count_cost(contestant.model)
    accuracy = None
    if str(name) not in list_models():  # starting values have no accuracy worth a word
        accuracy = _known_accuracy(name) if test is None else evaluate(contestant.model, test).accuracy
    return Network(contestant.name, cost.params, cost.flops, accuracy)


def _known_accuracy(name: str | Path) -> float | None:
    """Of weights in the box, or from the result of the run that made them."""
    if (accuracy := shipped_accuracies().get(str(name))) is not None:
        return accuracy
    try:
        found = json.loads(Path(name).with_name("result.json").read_text())
        return float(found["test"]["accuracy"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _batch(shape: tuple[int, ...], size: int) -> Tensor:
    images = example_images(shape, min(size, 64))
    return images.repeat(-(-size // len(images)), *(1 for _ in shape))[:size]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _clock(name: str, threads: Sequence[int]) -> Callable[[], float]:
    if name == "wall":
        return time.perf_counter
    if name != "processor":
        raise SimNetsError(f"clock is {name!r}, expected 'wall' or 'processor'")
    if tuple(threads) != (1,):
        raise SimNetsError("clock 'processor' adds the time of all threads up; use it with one thread only")
    return time.process_time


def _turn(run: Run, least: float, now: Callable[[], float]) -> float:
    """Seconds of one call, from as many as fill a turn."""
    run()  # whoever was before has filled the caches, and their threads may still be spinning
    calls = 0
    start = now()
    while True:
        run()
        calls += 1
        elapsed = now() - start
        if elapsed >= least:
            return elapsed / calls


def _summary(name: str, engine: str, threads: int, batch: int, values: list[float]) -> Measurement:
    milliseconds = [1000 * value for value in values]
    if len(values) == 1:
        milliseconds *= 2
    low, median, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return Measurement(name, engine, threads, batch, median, low, high)


def _machine() -> dict[str, Any]:
    versions: dict[str, str | None] = {}
    for package in ("simnets", "torch", "onnxruntime"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {"processor": _processor(), "processors": os.cpu_count(), "system": platform.system(), **versions}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
