"""Compiles `lp_kernel.c` for this machine, once, and loads it.

The kernel is one short C file, so that nothing has to be built when the package is installed: the system's
C compiler is called at the first use, and the library is kept in the user's cache folder under a name
that says what it was made of (source, compiler, flags, processor). Without a compiler there is no kernel,
and callers have a slower way. See docs/decisions/0001-fused-kernel.md.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import torch

SOURCE = Path(__file__).with_name("lp_kernel.c")
# No flag changes a result: sqrt need not set errno, nobody reads the floating-point exceptions, and a copy of
# each loop for each of its options only takes time to compile.
FLAGS = (
    "-std=gnu99",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-unswitch-loops",
    "-shared",
    "-fPIC",
)
# In this order: x86, other processors, compilers that know neither.
TUNING: tuple[tuple[str, ...], ...] = (("-march=native",), ("-mcpu=native",), ())
TIMEOUT = 120.0  # seconds; a compiler that hangs is a compiler that is not there


def kernel(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled kernel for float32 or float64; None without a compiler or with SIMNETS_NO_COMPILER=1."""
    if _declined():
        return None
    library = _load(dtype == torch.float64)
    if library is None:
        _warn()
    return library


def is_available(dtype: torch.dtype) -> bool:
    """Whether `kernel` has one, for those who can do without: no warning."""
    return not _declined() and _load(dtype == torch.float64) is not None


def _declined() -> bool:
    return os.environ.get("SIMNETS_NO_COMPILER", "0") not in ("", "0")


@functools.cache
def _warn() -> None:
    warnings.warn(
        "simnets found no working C compiler ($CC, cc, gcc or clang), so the fused similarity runs in plain "
        "PyTorch: same results and memory, many times slower. Install gcc or clang, or set "
        "SIMNETS_NO_COMPILER=1 to accept this.",
        RuntimeWarning,
        stacklevel=2,
    )


@functools.cache
def _load(double: bool) -> ctypes.CDLL | None:
    defines = ("-DLP_DOUBLE",) if double else ()
    for compiler in _compilers():
        try:
            version = _run([*compiler, "--version"]).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        for tuning in TUNING:
            command = [*compiler, *FLAGS, *tuning, *defines]
            for folder in _folders():
                try:
                    return _declare(ctypes.CDLL(str(_built(command, version, folder))))
                except subprocess.SubprocessError:
                    break  # this compiler does not take these flags: the folder is not at fault
                except OSError:
                    continue  # cannot write there, or not load from there
    return None


def _compilers() -> Iterator[list[str]]:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            yield words


def _folders() -> Iterator[Path]:
    yield platformdirs.user_cache_path("simnets") / "kernels"
    private = tempfile.mkdtemp(
        prefix="simnets-"
    )  # for this process alone: nobody else can put a library there
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    yield Path(private)


def _built(command: list[str], version: bytes, folder: Path) -> Path:
    """The library's path, after compiling it there if it was missing."""
    parts = (SOURCE.read_bytes(), " ".join(command).encode(), version, _processor().encode())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]
    path = folder / f"lp-{key}.so"
    if path.exists():
        return path
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(handle)
    try:
        _run([*command, "-o", temporary, str(SOURCE), "-lm"])
        os.replace(temporary, path)  # whole or not at all: another process may be doing the same
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=True)


def _processor() -> str:
    """What -march=native depends on; a cache folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, integer, flag, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
    library.lp_forward.argtypes = [*[pointer] * 3, *[integer] * 5, real, flag, pointer]
    library.lp_backward.argtypes = [*[pointer] * 4, *[integer] * 5, real, flag, *[pointer] * 4]
    library.lp_lanes.restype = integer
    return library
