"""The folder of a run: whose it is, whether it is finished, what it holds.

config.json  metrics.jsonl  checkpoints/        while it runs
model.safetensors  learning_curves.png  confusion_matrix.png  report.html  result.json    at its end
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simnets.errors import SimNetsError
from simnets.training.checkpoint import Checkpoints
from simnets.training.files import write_whole, writing
from simnets.training.recipe import recorded

# Fields of the configuration that may differ when a run goes on: they do not change what is computed.
_FREE = ("simnets", "data.name")


class RunFolder:
    """One run's files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def finished(self) -> bool:
        """result.json is written last."""
        return (self / "result.json").is_file()

    @contextlib.contextmanager
    def opened(self, config: dict[str, Any]) -> Iterator[None]:
        """Take the folder for a run with this configuration; nobody else can until it is done."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with _locked(self.path):
            self._take(config)
            yield

    def _take(self, config: dict[str, Any]) -> None:
        file = self / "config.json"
        asked: dict[str, Any] = json.loads(json.dumps(config))
        if not file.is_file():
            others = sorted(p.name for p in self.path.iterdir() if not p.name.endswith(".tmp"))
            if others:
                raise SimNetsError(
                    f"{self.path} holds no run but other files, such as {others[0]}; give --out a new folder"
                )
            write_whole(file, json.dumps(asked, indent=2, ensure_ascii=False) + "\n")
            return
        try:
            held = json.loads(file.read_text())
            held["recipe"] = recorded(held["recipe"])
        except (ValueError, TypeError, KeyError):
            raise SimNetsError(f"{file} is damaged; give --out a new folder") from None
        before, now = _flat(held), _flat(asked)
        different = [key for key in {**before, **now} if key not in _FREE and before.get(key) != now.get(key)]
        if different:
            key = different[0]
            more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
            raise SimNetsError(
                f"{self.path} holds a run with {key} {before.get(key)!r}, asked for is {now.get(key)!r}{more}"
                "; give --out another folder, or the same options as before to go on"
            )

    def write_history(self, history: list[dict[str, Any]]) -> None:
        """metrics.jsonl, whole each time: a resumed run repeats epochs that were not yet in a checkpoint."""
        write_whole(self / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in history))

    def read_history(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl."""
        return [json.loads(line) for line in (self / "metrics.jsonl").read_text().splitlines()]


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder itself; the system lets go of it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such lock on Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SimNetsError(
                f"{folder} is in use by another run; wait for it, or give --out another folder"
            ) from None
        except OSError:
            pass  # some network file systems know no locks
        yield
    finally:
        os.close(handle)
