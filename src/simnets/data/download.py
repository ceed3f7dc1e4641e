"""`fetch`: the official files, by HTTP, resumed where a transfer broke off, checked, and moved into place."""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from simnets.data.archive import extract
from simnets.data.arrays import reason
from simnets.data.load import data_root
from simnets.data.official import OFFICIAL, Download, OfficialSet, sha256_of
from simnets.errors import SimNetsError

Progress = Callable[[str, int, int], None]  # (file name, bytes there, bytes in all)

PAUSES = (1.0, 4.0)  # seconds before the second and the third try
TIMEOUT = 30.0
CHUNK = 1 << 18


def fetch(name: str, root: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Get the official files of `name` into its folder under `root` (see `data_root`); return the folder.

    What is already there and right is kept, what is there and differs is not overwritten. A transfer that
    breaks off is resumed, now or by the next call. An official archive that was put under `root` by hand is
    used as it is.

    >>> fetch("cifar10", progress=lambda file, done, total: print(file, done, total))  # doctest: +SKIP
    """
    if name not in OFFICIAL:
        raise SimNetsError(f"cannot fetch {name!r}; the names are {', '.join(OFFICIAL)}")
    official = OFFICIAL[name]
    base = data_root(root)
    folder = base / official.folder
    try:
        missing = _missing_files(official, folder)
        if not missing:
            return folder
        base.mkdir(parents=True, exist_ok=True)
        if official.unpacked_size:
            _fetch_archive(official, base, progress)
        else:
            folder.mkdir(exist_ok=True)
            for item in official.downloads:
                if item.filename in missing:
                    _require_space(base, _remaining(item, folder / item.filename))
                    download(item, folder / item.filename, progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SimNetsError(
                f"{base}: the disk is full; free some space and fetch {name} again, it will go on"
            ) from error
        raise SimNetsError(
            f"{error.filename or base}: cannot be read or written ({reason(error)})"
        ) from error
    return folder


def _missing_files(official: OfficialSet, folder: Path) -> list[str]:
    missing = []
    for file in official.files:
        path = folder / file.name
        if not path.exists():
            missing.append(file.name)
        elif sha256_of(path) != file.sha256:
            raise SimNetsError(f"{path}: exists and is not the official file; move it away to fetch that one")
    try:
        official.read_classes(folder)
    except SimNetsError:
        missing.append("class names")
    return missing


def _fetch_archive(official: OfficialSet, base: Path, progress: Progress | None) -> None:
    (item,) = official.downloads
    archive = base / item.filename
    found = archive.is_file()
    if found and sha256_of(archive) != item.sha256:
        raise SimNetsError(
            f"{archive}: is not the official archive, or is cut short; delete it and try again"
        )
    _require_space(base, official.unpacked_size + (0 if found else _remaining(item, archive)))
    if not found:
        download(item, archive, progress)
    # Unpacked aside, then moved: a folder with only half of its files is never seen.
    aside = base / f".unpack-{official.name}"
    shutil.rmtree(aside, ignore_errors=True)  # of a fetch that was killed
    aside.mkdir()
    try:
        extract(archive, aside, official.unpacked_size)
        unpacked, folder = aside / official.folder, base / official.folder
        lacking = [file.name for file in official.files if not (unpacked / file.name).is_file()]
        if lacking:
            raise SimNetsError(f"{archive}: does not hold {official.folder}/{lacking[0]}")
        if folder.exists():
            for path in unpacked.iterdir():
                os.replace(path, folder / path.name)
        else:
            os.replace(unpacked, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if not found:
        archive.unlink()


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _remaining(item: Download, path: Path) -> int:
    part = _part(path)
    return item.size - (part.stat().st_size if part.exists() else 0)


def _require_space(base: Path, size: int) -> None:
    free = shutil.disk_usage(base).free
    if free < size:
        raise SimNetsError(
            f"{base}: needs {size / 1e6:,.0f} MB and has {free / 1e6:,.0f} MB free;"
            " free some space or set SIMNETS_DATA to a folder on another disk"
        )


def download(item: Download, path: Path, progress: Progress | None = None) -> None:
    """Get `item` to `path`, by way of `path`.part, which is kept when the transfer breaks off."""
    part = _part(path)
    for pause in (*PAUSES, None):
        try:
            _transfer(item, part, progress)
            break
        except (ConnectionError, urllib.error.URLError) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or pause is None:
                cause = getattr(error, "reason", error)  # urllib wraps what went wrong
                why = reason(cause) if isinstance(cause, BaseException) else f"the server answered {error}"
                raise SimNetsError(
                    f"{item.url}: could not be fetched ({why}); fetch again to go on"
                ) from error
            time.sleep(pause)
    digest = sha256_of(part)
    if digest != item.sha256:
        part.unlink()
        raise SimNetsError(
            f"{item.url}: its SHA-256 is {digest[:16]}…, expected {item.sha256[:16]}…;"
            " what came was deleted, fetch again"
        )
    os.replace(part, path)


def _transfer(item: Download, part: Path, progress: Progress | None) -> None:
    """Bring `part` to its full size, going on from what is there if the server can."""
    done = part.stat().st_size if part.exists() else 0
    if done == item.size:
        return
    if done > item.size:
        part.unlink()
        done = 0
    request = urllib.request.Request(item.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.URLError as error:
        if getattr(error, "code", None) == 416:  # the server's file ends before ours: ours is of another one
            part.unlink()
            raise ConnectionError("the server's file is another one") from error
        raise
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(reason(error)) from error
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(
            f"bytes {done}-"
        )
        if done and not resumed:
            done = 0
        with part.open("ab" if done else "wb") as file:
            while chunk := _read(response):
                done += len(chunk)
                if done > item.size:
                    break
                file.write(chunk)
                if progress is not None:
                    progress(item.filename, done, item.size)
            file.flush()
            os.fsync(file.fileno())
    if done > item.size:
        part.unlink()
        raise SimNetsError(
            f"{item.url}: is larger than the official {item.size:,} bytes; what came was deleted"
        )
    if done < item.size:
        raise ConnectionError(f"{done:,} of {item.size:,} bytes came")


def _read(response: http.client.HTTPResponse) -> bytes:
    """The next bytes; whatever goes wrong is a broken connection, and not a matter of the disk."""
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(reason(error)) from error
