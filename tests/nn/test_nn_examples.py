"""Every layer is exported, and the example in its docstring runs."""

from __future__ import annotations

import doctest
import inspect
import sys

import pytest
import torch

import simnets.nn


@pytest.mark.parametrize("name", simnets.nn.__all__)
def test_the_docstring_has_the_section_and_an_example_that_runs(name: str) -> None:
    layer = getattr(simnets.nn, name)
    assert "ection" in layer.__doc__
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(layer, name, sys.modules[layer.__module__], extraglobs={"torch": torch})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_all_layers_are_exported() -> None:
    public = {
        name
        for name, value in vars(simnets.nn).items()
        if inspect.isclass(value) and issubclass(value, torch.nn.Module)
    }
    assert public == set(simnets.nn.__all__)
