"""Writing that leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from simnets.errors import SimNetsError


def write_whole(path: Path, content: bytes | str) -> None:
    """Write to a temporary file beside `path`, flush it to the disk, then rename it."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says (disk full, no permission) into one clear line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SimNetsError(
            f"cannot write {path}: {reason}; what was written before is intact, "
            "mend that and give the same command again"
        ) from error


def _flush_folder(folder: Path) -> None:
    """A rename survives a power cut only once its folder is on the disk; not every system can do this."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
