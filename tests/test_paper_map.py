"""docs/paper_map.md names only what exists, and every operator and layer."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADER = ["section", "equation or claim", "function", "test"]


def rows() -> list[dict[str, str]]:
    lines = [
        line
        for line in (ROOT / "docs" / "paper_map.md").read_text("utf8").splitlines()
        if line.startswith("|")
    ]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert cells[0] == HEADER
    return [dict(zip(HEADER, row, strict=True)) for row in cells[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def definitions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def resolve(name: str) -> object:
    """The object of a dotted name: the longest part of it that is a module, then attributes."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['section']}: {row['equation or claim'][:40]}")
def test_functions_and_tests_exist(row: dict[str, str]) -> None:
    assert re.match(r"[2-6](\.\d)?\b", row["section"])
    assert row["equation or claim"]
    functions, tests = quoted(row["function"]), quoted(row["test"])
    assert functions
    assert tests
    for name in functions:
        assert callable(resolve(name)), f"{name} is not something to call"
    for name in tests:
        file, _, *function = name.partition("::")
        path = ROOT / file
        assert path.is_file(), f"there is no file {file}"
        missing = {part for part in function[0].split("::") if part} - definitions(path)
        assert not missing, f"{file} has no {missing}"


@pytest.mark.parametrize("room", ["simnets.ops", "simnets.nn"])
def test_every_operator_and_layer_is_in_the_map(room: str) -> None:
    named = {name for row in rows() for name in quoted(row["function"])}
    missing = {f"{room}.{name}" for name in importlib.import_module(room).__all__} - named
    assert not missing


def test_a_wrong_name_would_be_found() -> None:
    with pytest.raises(AttributeError):
        resolve("simnets.ops.softmex")
    assert "test_of_nothing" not in definitions(Path(__file__))
