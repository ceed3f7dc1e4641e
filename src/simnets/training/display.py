"""What a run shows while it trains: a live picture on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

_SHOWN_EPOCHS = 8


@dataclass(frozen=True)
class Moment:
    """Where a run stands."""

    step: int
    steps: int
    steps_per_epoch: int
    loss: float
    accuracy: float
    lr: float
    images_per_second: float
    seconds_left: float

    @property
    def epoch(self) -> int:
        """Counted from 1."""
        return (self.step - 1) // self.steps_per_epoch + 1

    @property
    def epochs(self) -> int:
        """Epochs of the whole run."""
        return self.steps // self.steps_per_epoch


class Display:
    """The silent display, and what the others have in common."""

    def say(self, text: str) -> None:
        """One line about the run."""

    def step(self, moment: Moment) -> None:
        """Called after every step."""

    def epoch(self, record: dict[str, Any], moment: Moment) -> None:
        """Called after every epoch, with its line of metrics."""

    def close(self) -> None:
        """The run is over or stopped."""


class Lines(Display):
    """A line an epoch; within long epochs a line a minute."""

    _SECONDS = 60.0

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """One line about the run."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, moment: Moment) -> None:
        """A line a minute."""
        if time.monotonic() - self._last >= self._SECONDS:
            self._last = time.monotonic()
            done = (moment.step - 1) % moment.steps_per_epoch + 1
            self.say(
                f"epoch {moment.epoch}/{moment.epochs}  step {done}/{moment.steps_per_epoch}  "
                f"loss {moment.loss:.4f}  accuracy {moment.accuracy:.2%}  lr {moment.lr:.2e}  "
                f"{moment.images_per_second:.0f} images/s  {span(moment.seconds_left)} left"
            )

    def epoch(self, record: dict[str, Any], moment: Moment) -> None:
        """A line an epoch."""
        self._last = time.monotonic()
        parts = [f"epoch {record['epoch']}/{moment.epochs}"]
        parts += [f"loss {record['loss']:.4f}", f"accuracy {record['accuracy']:.2%}"]
        if "validation_accuracy" in record:
            parts += [f"validation {record['validation_accuracy']:.2%}"]
        parts += [f"lr {record['lr']:.2e}", f"{record['images_per_second']:.0f} images/s"]
        self.say("  ".join([*parts, f"{span(moment.seconds_left)} left"]))


class Picture(Display):
    """A bar and the last epochs, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.records: list[dict[str, Any]] = []
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            expand=True,
        )
        self.task: TaskID | None = None
        self.live: Live | None = None

    def say(self, text: str) -> None:
        """One line about the run, above the picture."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, moment: Moment) -> None:
        """Move the bar."""
        if self.live is None:
            self.live = Live(self._picture(), console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
            self.task = self.bar.add_task("", total=moment.steps_per_epoch, figures="")
        assert self.task is not None
        self.bar.update(
            self.task,
            description=f"epoch {moment.epoch}/{moment.epochs}",
            completed=(moment.step - 1) % moment.steps_per_epoch + 1,
            figures=(
                f"loss {moment.loss:.4f} · accuracy {moment.accuracy:.2%} · lr {moment.lr:.1e} · "
                f"{moment.images_per_second:.0f} images/s · {span(moment.seconds_left)} left"
            ),
        )

    def epoch(self, record: dict[str, Any], moment: Moment) -> None:
        """Add a row."""
        self.records.append(record)
        if self.live is not None:
            self.live.update(self._picture())

    def close(self) -> None:
        """Leave the last rows on the screen."""
        if self.live is not None:
            self.live.stop()
            self.live = None
            if self.records:
                self.console.print(self._rows())

    def _picture(self) -> Group:
        return Group(*([self._rows()] if self.records else []), self.bar)

    def _rows(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for column in ("epoch", "loss", "accuracy", "validation", "lr", "images/s"):
            table.add_column(column, justify="right")
        for record in self.records[-_SHOWN_EPOCHS:]:
            held_out = record.get("validation_accuracy")
            table.add_row(
                str(record["epoch"]),
                f"{record['loss']:.4f}",
                f"{record['accuracy']:.2%}",
                "–" if held_out is None else f"{held_out:.2%}",
                f"{record['lr']:.1e}",
                f"{record['images_per_second']:.0f}",
            )
        return table


def display_for(console: Console) -> Display:
    """A picture if `console` is a terminal, else lines."""
    return Picture(console) if console.is_terminal else Lines(console)


def span(seconds: float) -> str:
    """
    >>> span(3725)
    '1 h 02 min'
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
