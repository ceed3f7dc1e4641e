"""Unpacking a .tar.gz so that nothing can land outside the folder that it is meant for."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from simnets.data.arrays import reason
from simnets.errors import SimNetsError


def extract(archive: Path, destination: Path, max_bytes: int) -> None:
    """Unpack `archive` into the empty folder `destination`: plain files and folders only.

    Refused are absolute names, names with "..", links, devices, a name that comes twice, and more than
    `max_bytes` in all, before that much is written.
    """
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                target = destination / _safe_name(member, archive)
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                total += member.size
                if total > max_bytes:
                    raise SimNetsError(f"{archive}: unpacks to more than {max_bytes:,} bytes; not unpacked")
                source = tar.extractfile(member)
                assert source is not None  # it is a regular file
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("xb") as file:
                    shutil.copyfileobj(source, file)
    except FileExistsError as error:
        raise SimNetsError(f"{archive}: holds {error.filename} twice; not unpacked") from error
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SimNetsError(f"{archive}: is not a readable .tar.gz ({reason(error)})") from error


def _safe_name(member: tarfile.TarInfo, archive: Path) -> PurePosixPath:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name or ":" in member.name:
        raise SimNetsError(f"{archive}: holds {member.name!r}, which lies outside its folder; not unpacked")
    if not (member.isreg() or member.isdir()):
        raise SimNetsError(f"{archive}: holds {member.name!r}, a link or device; not unpacked")
    return name
