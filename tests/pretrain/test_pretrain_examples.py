"""The examples in the docstrings of `simnets.pretrain` say what happens."""

import doctest
import importlib
import pkgutil

import pytest

import simnets.pretrain

MODULES = [f"simnets.pretrain.{module.name}" for module in pkgutil.iter_modules(simnets.pretrain.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    counts = [doctest.testmod(importlib.import_module(name)).attempted for name in MODULES]
    assert sum(count > 0 for count in counts) >= 5
