"""Runs a contract's tests once for each variant of the layer, and each in a compiler without memory."""

from __future__ import annotations

import pytest
import torch


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        variants = metafunc.cls.variants
        metafunc.parametrize("variant", list(variants.values()), ids=list(variants))
    if "traced_variant" in metafunc.fixturenames:
        variants = {name: metafunc.cls.variants[name] for name in metafunc.cls.traced}
        metafunc.parametrize("traced_variant", list(variants.values()), ids=list(variants))


@pytest.fixture(autouse=True)
def _fresh_state() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
