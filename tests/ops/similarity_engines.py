"""What the tests of the similarity have in common: the two engines of `method="fused"`."""

from __future__ import annotations

import shutil

import pytest
import torch

from simnets.ops import _compiler

ENGINES = ("compiled", "chunked")


def use_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `method="fused"` run on that engine; skips where there is no C compiler at all."""
    if name == "chunked":
        monkeypatch.setenv("SIMNETS_NO_COMPILER", "1")
        return
    monkeypatch.delenv("SIMNETS_NO_COMPILER", raising=False)
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler")
    assert _compiler.is_available(torch.float32), "there is a compiler, but the kernel does not compile"
