"""The engines behind `method="fused"`: compiling, threads, memory, and doing without a compiler."""

from __future__ import annotations

import ctypes
import json
import os
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs
import pytest
import torch
from similarity_engines import ENGINES, use_engine
from torch import Tensor

from simnets import similarity
from simnets.ops import _compiler, _lp_kernel, reference

# A library that has the functions and nothing in them, so that compiling takes no time.
STUB = (
    "int lp_forward(void) { return 0; } int lp_backward(void) { return 0; } int lp_lanes(void) { return 8; }"
)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As in a process that has not used the kernel yet."""
    monkeypatch.delenv("SIMNETS_NO_COMPILER", raising=False)
    monkeypatch.delenv("CC", raising=False)
    caches = (_compiler._load, _compiler._warn)
    for cached in caches:
        cached.cache_clear()
    yield monkeypatch
    for cached in caches:
        cached.cache_clear()


def inputs(rows: int = 700, n: int = 40, d: int = 37) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, z = torch.randn(rows, d, generator=generator), torch.randn(n, d, generator=generator)
    return x.requires_grad_(), z.requires_grad_(), torch.rand(n, d, generator=generator).requires_grad_()


def run(x: Tensor, z: Tensor, u: Tensor, p: float) -> list[Tensor]:
    order = torch.tensor(p, requires_grad=True)
    out = similarity(x, z, u, order, method="fused")
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), [x, z, u, order])]


# ---- threads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_bits_every_time(engine: str, monkeypatch: pytest.MonkeyPatch, threads: None) -> None:
    use_engine(engine, monkeypatch)
    tensors = inputs()
    for count in (1, 3):
        torch.set_num_threads(count)
        first = run(*tensors, 1.4)
        for _ in range(3):
            for a, b in zip(run(*tensors, 1.4), first, strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(700, 40, 37), (3, 500, 400), (5000, 5, 12), (20_000, 3, 5)])
def test_any_number_of_threads_gives_the_same(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    """Splits by rows, by templates, by coordinates and by both; more threads than there is work."""
    use_engine("compiled", monkeypatch)
    monkeypatch.setattr(_lp_kernel, "SMALL", 2**10)
    tensors = inputs(*shape)
    torch.set_num_threads(1)
    expected = run(*tensors, 0.9)
    for count in (2, 7):
        torch.set_num_threads(count)
        actual = run(*tensors, 0.9)
        assert torch.equal(actual[0], expected[0])
        assert torch.equal(actual[1], expected[1])
        for a, e in zip(actual[2:], expected[2:], strict=True):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4 * e.abs().max().item())


@pytest.mark.parametrize(
    ("total", "parts", "unit"),
    [(0, 3, 4), (1, 3, 4), (7, 1, 4), (37, 3, 8), (100, 7, 16), (64, 8, 8), (5, 9, 1)],
)
def test_ranges_cover_everything_once(total: int, parts: int, unit: int) -> None:
    ranges = _lp_kernel._cut(total, parts, unit)
    assert [i for a, b in ranges for i in range(a, b)] == list(range(total))
    assert len(ranges) <= parts
    assert all(a % unit == 0 for a, _ in ranges)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_makes_its_own_threads(monkeypatch: pytest.MonkeyPatch, threads: None) -> None:
    use_engine("compiled", monkeypatch)
    monkeypatch.setattr(_lp_kernel, "SMALL", 2**10)
    torch.set_num_threads(2)
    x, z, u = (t.detach() for t in inputs())
    expected = similarity(x, z, u, 1.5, method="fused")
    assert _lp_kernel._pool is not None
    assert _lp_kernel._pool[0] == os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forking a process that has threads: that is the point
        child = os.fork()
    if child == 0:
        try:
            same = torch.equal(similarity(x, z, u, 1.5, method="fused"), expected)
            os._exit(0 if same and _lp_kernel._pool[0] == os.getpid() else 3)
        finally:
            os._exit(4)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended == (child, 0)


def test_no_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemoryError):
        _lp_kernel._run(lambda: 1, [()])


# ---- a process of its own ---------------------------------------------------------------------------------

SCRIPT = """
import ctypes, json, os, subprocess

calls, real = [], subprocess.run
subprocess.run = lambda *a, **k: (calls.append(a), real(*a, **k))[1]
import torch
from simnets import similarity
report = {"commands run while importing": len(calls)}

def memory(name):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(name)) * 1024

def step(x, z, u, p, grad):
    leaves = [t.requires_grad_() for t in (x, z, u)]
    wanted = leaves + ([p] if isinstance(p, torch.Tensor) else [])
    return torch.autograd.grad(similarity(*leaves, p, method="fused"), wanted, grad)

torch.set_num_threads(1)
rows, n, d = 8192, 256, 256
for engine, p in (("compiled", 1.0), ("compiled", torch.tensor(1.7, requires_grad=True)), ("chunked", 1.0)):
    os.environ["SIMNETS_NO_COMPILER"] = "1" if engine == "chunked" else "0"
    step(torch.rand(9, 17), torch.rand(5, 17), torch.rand(5, 17), p, torch.rand(9, 5))  # loads what there is
    x, z, u, grad = torch.randn(rows, d), torch.randn(n, d), torch.rand(n, d), torch.randn(rows, n)
    ctypes.CDLL(None).malloc_trim(0)  # or memory that was used before would be used again unseen
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
    before = memory("VmRSS")
    grads = step(x, z, u, p, grad)
    peak = memory("VmHWM") - before
    report[f"{engine} {float(p)}"] = peak / (4 * (rows * d + 2 * n * d + rows * n))
    del x, z, u, grad, grads
print(json.dumps(report))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak from Linux's /proc")
def test_memory_stays_within_three_times_input_and_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """8192 × 256 × 256 differences are 2 GB in float32, and the formula holds several such tensors."""
    use_engine("compiled", monkeypatch)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report.pop("commands run while importing") == 0
    assert list(report) == ["compiled 1.0", "compiled 1.7000000476837158", "chunked 1.0"]
    for ratio in report.values():
        assert 0.5 < ratio <= 3.0  # the gradient of x alone is 0.5


# ---- compiling ------------------------------------------------------------------------------------------


def test_without_a_compiler_there_is_one_warning(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.setenv("PATH", str(tmp_path))
    x, z, u = (t.detach() for t in inputs(5, 4, 3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = similarity(x, z, u, 1.3)
        second = similarity(x.double(), z.double(), u.double(), 0.7)
        similarity(x, z, u)  # p = 2 has another way, and nothing to warn of
        similarity(x, z, u, 1.3)
    ours = [w for w in caught if "simnets" in str(w.message)]
    assert len(ours) == 1
    assert "compiler" in str(ours[0].message)
    torch.testing.assert_close(first, reference.similarity(x, z, u, 1.3))
    torch.testing.assert_close(second, reference.similarity(x.double(), z.double(), u.double(), 0.7))


def test_declining_the_compiler_is_quiet(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("SIMNETS_NO_COMPILER", "1")
    fresh.setattr(_compiler, "_load", lambda double: pytest.fail("must not compile"))
    x, z, u = (t.detach() for t in inputs(5, 4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        similarity(x, z, u, 1.3)


def fake_compiler(folder: Path, body: str) -> str:
    path = folder / "fake-cc"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    "body",
    [
        "exit 1",
        "sleep 60",
        'case "$*" in *--version*) echo fake;; *) exit 1;; esac',
        # Claims success, and leaves something that is no library.
        'case "$*" in *--version*) echo fake;; *) exit 0;; esac',
    ],
)
def test_a_broken_compiler_is_as_none(body: str, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.setenv("CC", fake_compiler(tmp_path, body))
    fresh.setattr(_compiler.shutil, "which", lambda name: name if "fake" in name else None)
    fresh.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / "cache")
    fresh.setattr(_compiler, "TIMEOUT", 0.3)
    assert not _compiler.is_available(torch.float32)
    with pytest.warns(RuntimeWarning, match="compiler"):
        assert _compiler.kernel(torch.float32) is None


@pytest.fixture
def stub(fresh: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A source that compiles at once, and a cache folder of its own."""
    use_engine("compiled", fresh)
    _compiler._load.cache_clear()
    source = tmp_path / "stub.c"
    source.write_text(STUB)
    fresh.setattr(_compiler, "SOURCE", source)
    fresh.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    return tmp_path / "simnets" / "kernels"


def test_the_library_is_kept_and_found_again(stub: Path, fresh: pytest.MonkeyPatch) -> None:
    assert _compiler._load(False) is not None
    (library,) = stub.iterdir()
    _compiler._load.cache_clear()
    fresh.setattr(_compiler.os, "replace", lambda *_: pytest.fail("compiled again"))
    assert _compiler._load(False) is not None
    assert [library] == list(stub.iterdir())


def test_another_source_or_dtype_is_another_library(stub: Path) -> None:
    assert _compiler._load(False) is not None
    assert _compiler._load(True) is not None
    assert len(list(stub.iterdir())) == 2
    _compiler.SOURCE.write_text(STUB + "/* changed */")
    _compiler._load.cache_clear()
    assert _compiler._load(False) is not None
    assert len(list(stub.iterdir())) == 3


def test_many_at_once_leave_one_whole_library(stub: Path) -> None:
    def build(_: int) -> ctypes.CDLL | None:
        return _compiler._load.__wrapped__(False)

    with ThreadPoolExecutor(4) as pool:
        assert all(library is not None for library in pool.map(build, range(4)))
    assert len(list(stub.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_replaced(
    stub: Path, fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    fresh.setattr(platformdirs, "user_cache_path", lambda name: blocked / name)
    assert _compiler._load(False) is not None
    assert not stub.exists()
