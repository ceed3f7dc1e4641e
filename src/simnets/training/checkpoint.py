"""Checkpoints: one file each, that carries tensors and JSON and has its own checksum in its name.

    checkpoints/step-00001200.5d41402abc4b2a76.safetensors

The name is given by the last, atomic, act of writing, so a file with a proper name is complete; the
checksum then tells whether it was altered or cut afterwards. The one before the newest is kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from simnets.training.files import write_whole, writing

_NAME = re.compile(r"step-(\d{8,})\.([0-9a-f]{16})\.safetensors")
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to go on: tensors by name, and the rest as JSON values."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def pack(self) -> bytes:
        """One safetensors file; copies, since shared parameters would be refused."""
        tensors = {name: value.detach().cpu().clone().contiguous() for name, value in self.tensors.items()}
        return bytes(to_bytes(tensors, metadata={"state": json.dumps(self.state)}))

    @staticmethod
    def unpack(data: bytes) -> Checkpoint:
        """The inverse of pack."""
        length = int.from_bytes(data[:8], "little")
        state = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["state"])
        # Cloned into memory of torch's own alignment: kernels, and so the last bits, depend on it.
        return Checkpoint({k: v.clone() for k, v in from_bytes(data).items()}, state)


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write `checkpoint` (its state has a "step"), then drop all but the last two."""
        data = checkpoint.pack()
        digest = hashlib.sha256(data).hexdigest()[:16]
        path = self.folder / f"step-{checkpoint.state['step']:08d}.{digest}.safetensors"
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
        for old in self._newest_first()[_KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def read(self, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest sound checkpoint; says which ones were damaged and passed over."""
        for unfinished in self.folder.glob("step-*.tmp"):
            unfinished.unlink()
        for path in self._newest_first():
            data = path.read_bytes()
            match = _NAME.fullmatch(path.name)
            if match is not None and hashlib.sha256(data).hexdigest()[:16] == match[2]:
                return Checkpoint.unpack(data)
            say(f"checkpoint {path.name} was altered or cut and is not used; going back to the one before it")
            # Set aside, or it would be counted among the kept ones in place of a sound one.
            path.rename(path.with_name(path.name + ".damaged"))
        return None

    def clear(self) -> None:
        """Remove them all."""
        if self.folder.is_dir():
            for path in self.folder.glob("step-*"):
                path.unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _newest_first(self) -> list[Path]:
        found = [p for p in self.folder.glob("step-*.safetensors") if _NAME.fullmatch(p.name)]
        return sorted(
            found, key=lambda p: (int(p.name.split("-")[1].split(".")[0]), p.stat().st_mtime), reverse=True
        )
