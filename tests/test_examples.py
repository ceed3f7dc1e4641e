"""The scripts in examples/ run, are short, and say first what they show."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
# a line that each prints if all went well
SHOWS = {
    "export_onnx": "ONNX Runtime:",
    "kernel_machine": "what each template stands for",
    "layer_in_your_network": "SimNet head:",
    "operators": "nested 1.127255 = flat 1.127255",
    "pretrain_without_labels": "pretrain.json",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert SHOWS[path.stem] in capsys.readouterr().out
    source = path.read_text("utf8")
    assert len(source.splitlines()) < 60
    assert f"python examples/{path.name}" in (ast.get_docstring(ast.parse(source)) or "")


def test_there_are_five() -> None:
    assert {path.stem for path in EXAMPLES} == set(SHOWS)
