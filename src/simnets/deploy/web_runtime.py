"""ONNX Runtime Web, which computes a network in a browser: fetched once, checked, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
import zlib
from pathlib import Path

from platformdirs import user_cache_path

from simnets.data.download import Progress, download
from simnets.data.official import Download
from simnets.errors import SimNetsError

VERSION = "1.30.0"
VARIABLE = "SIMNETS_ORT_WEB"
# The script has the glue for the WASM build inside; without threads it needs no special headers.
SCRIPT, WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
SHA256 = {
    SCRIPT: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    WASM: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
# npm's registry states for this file: sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02V
# b7QmRMDs1SigqR4CXAfKYQ==. The file with that checksum has this one.
PACKAGE = Download(
    url=f"https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-{VERSION}.tgz",
    size=33_106_585,
    sha256="d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
)


def runtime_files(
    copy: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> dict[str, bytes]:
    """The script and the WASM file, by name, each with the checksum that is expected.

    copy: npm's package onnxruntime-web, as .tgz or as a folder that holds the two files (its `dist`); if not
        given, $SIMNETS_ORT_WEB, then the user's cache, which is filled from npm's registry.
    """
    copy = copy or os.environ.get(VARIABLE)
    if copy:
        return _from_copy(Path(copy).expanduser())
    cache = user_cache_path("simnets") / f"onnxruntime-web-{VERSION}"
    found = {name: _read(cache / name) for name in SHA256}
    if all(_right(name, content) for name, content in found.items()):
        return found
    return _fetch(cache, progress)


def _from_copy(path: Path) -> dict[str, bytes]:
    if not path.exists():
        raise SimNetsError(f"{path}: there is no such copy of ONNX Runtime Web; check {VARIABLE} or runtime")
    files = {name: _read(path / name) for name in SHA256} if path.is_dir() else _unpack(path)
    for name, content in files.items():
        if not _right(name, content):
            what = "is not that of" if content else "is missing; expected that of"
            raise SimNetsError(f"{path}: {name} {what} onnxruntime-web {VERSION} from npm")
    return files


def _fetch(cache: Path, progress: Progress | None) -> dict[str, bytes]:
    """By way of a folder of its own: another process may be doing the same."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as aside:
            package = Path(aside) / PACKAGE.filename
            download(PACKAGE, package, progress)
            files = _unpack(package)
            for name, content in files.items():
                (Path(aside) / name).write_bytes(content)
                os.replace(Path(aside) / name, cache / name)
    except SimNetsError as error:
        why = str(error).split(";")[0]
        raise SimNetsError(
            f"the page needs ONNX Runtime Web {VERSION}: {why}; "
            f"try again, or set {VARIABLE} to a copy of that package"
        ) from error
    except OSError as error:
        raise SimNetsError(f"cannot write {cache}: {error.strerror or error}") from error
    return files


def _unpack(package: Path) -> dict[str, bytes]:
    """The two files out of the .tgz, read by name: nothing in it decides where anything is written."""
    files = {}
    try:
        with tarfile.open(package, "r:gz") as tar:
            for name in SHA256:
                member = tar.extractfile(f"package/dist/{name}")
                files[name] = b"" if member is None else member.read()
    except (tarfile.TarError, KeyError, EOFError, zlib.error, OSError) as error:
        raise SimNetsError(f"{package}: is not npm's package onnxruntime-web ({error})") from error
    return files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _right(name: str, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == SHA256[name]
