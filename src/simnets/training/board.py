"""The metrics for TensorBoard, where that is asked for and installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from simnets.errors import SimNetsError


@contextlib.contextmanager
def board(folder: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that logs one epoch's record into `folder`; without a folder it does nothing."""
    if folder is None:
        yield lambda record: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SimNetsError(
            "tensorboard is not installed; run `pip install 'simnets[tensorboard]'`, or leave it out"
        ) from None
    writer: Any = None

    def log(record: dict[str, Any]) -> None:
        nonlocal writer
        if writer is None:
            # What a killed run had logged from this step on is about to be logged again.
            writer = SummaryWriter(str(folder), purge_step=record["step"])
        for name, value in record.items():
            if name not in ("epoch", "step"):
                writer.add_scalar(name, value, record["step"])
        writer.flush()

    try:
        yield log
    finally:
        if writer is not None:
            writer.close()
