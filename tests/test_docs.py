"""The pages build without a warning, and what they show is so: code runs, commands parse, links lead on."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import simnets
from simnets import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted({ROOT / "README.md", *DOCS.rglob("*.md")} - set(DOCS.glob("_build/**/*.md")))
# Their code runs from top to bottom, as a reader would run it. Other pages need data or a trained network.
RUNNING = [ROOT / "README.md", DOCS / "index.md", DOCS / "operators.md", *sorted(DOCS.glob("tutorials/*.md"))]
SOURCE = Path(simnets.__file__).parent
# nn and pretrain have tests of their own for this
WITH_EXAMPLES = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>>" in path.read_text("utf8") and path.relative_to(SOURCE).parts[0] not in ("nn", "pretrain")
]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_blocks(page: Path) -> Iterator[tuple[int, str]]:
    """(line of the page, code) of every fenced block of Python."""
    text = page.read_text("utf8")
    for match in re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)), match[1]


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `simnets …` that stands on a line of its own in a block, also under torchrun."""
    for line in page.read_text("utf8").splitlines():
        if "…" in line:
            continue
        match = re.match(r"(?:\s*\$ |    |)(?:torchrun .* -m )?simnets ((?:data |[a-z]).*)", line)
        if match and not line.startswith(("simnets, ", "simnets is")):
            yield shlex.split(match[1], comments=True)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    options = ["-W", "--keep-going", "-q", "-E", "-b", "html", "-d", tmp_path / "doctrees"]
    # by itself: autodoc replaces the defaults of the functions that it describes
    built = [sys.executable, "-m", "sphinx", *map(str, options), str(DOCS), str(tmp_path / "html")]
    assert subprocess.run(built).returncode == 0
    page = (tmp_path / "html" / "api" / "ops.html").read_text("utf8")
    assert "simnets.ops.mex" in page
    assert "$SIMNETS_DATA" in (tmp_path / "html" / "data.html").read_text("utf8")


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_in_docstrings(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ".".join(["simnets", *path.relative_to(SOURCE).with_suffix("").parts])
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("page", RUNNING, ids=named)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = list(python_blocks(page))
    assert blocks
    names: dict[str, Any] = {"__name__": page.stem}
    runner = doctest.DocTestRunner()
    for line, code in blocks:
        code = code.replace(
            "torch.rand(500, 3, 32, 32)", "torch.rand(4, 3, 32, 32)"
        )  # seconds for the README
        if code.startswith(">>>"):
            example = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
            assert runner.run(example, clear_globs=False).failed == 0
            names.update(example.globs)
        else:
            exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if list(python_blocks(page))], ids=named)
def test_code_names_only_what_exists(page: Path) -> None:
    for _, code in python_blocks(page):
        if code.startswith(">>>"):
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simnets"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "simnets"
            ):
                assert hasattr(simnets, node.attr), ast.unparse(node)


def without_effect(command: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the same options that does nothing."""

    @functools.wraps(command)
    def parsed(*args: Any, **options: Any) -> int:
        return 0

    return parsed


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page))], ids=named)
def test_commands_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = cli._train_with
    monkeypatch.setattr(cli, "_train_with", lambda arguments: without_effect(train(arguments)))
    for name, command in cli.COMMANDS.items():
        monkeypatch.setitem(cli.COMMANDS, name, without_effect(command))
    for arguments in commands(page):
        assert cli.main(arguments) == 0, shlex.join(arguments)


def test_a_wrong_command_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "    simnets train --epoch 3\n    torchrun --nproc-per-node=2 -m simnets fly  # no\n", "utf8"
    )
    assert list(commands(page)) == [["train", "--epoch", "3"], ["fly"]]
    assert cli.main(["fly"]) == 2


def test_the_tutorial_on_own_images_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands one after the other, on pictures of three colours; a smaller network, one epoch."""
    monkeypatch.chdir(tmp_path)
    for name, colour in (("cat", (200, 60, 60)), ("dog", (60, 200, 60)), ("fish", (60, 60, 200))):
        folder = tmp_path / "pets" / name
        folder.mkdir(parents=True)
        for i in range(10):
            Image.effect_noise((40, 36), 40 + i).convert("RGB").point(lambda v: v // 2).save(
                folder / f"{i}.png"
            )
            with Image.open(folder / f"{i}.png") as noise:
                Image.blend(noise, Image.new("RGB", noise.size, colour), 0.5).save(folder / f"{i}.png")
    (tmp_path / "holiday.jpg").write_bytes((tmp_path / "pets" / "dog" / "3.png").read_bytes())
    page = DOCS / "your_own_images.md"
    small = ["--model", "simnet_mlpconv", "--epochs", "1", "--batch-size", "8", "--quiet"]
    done = []
    for arguments in commands(page):
        assert cli.main(arguments + (small if arguments[0] == "train" else [])) == 0
        done.append(arguments[0])
    assert done == ["data", "train", "predict"]
    assert (tmp_path / "runs" / "pets" / "report.html").is_file()
    ((_, code),) = python_blocks(page)
    exec(compile(code, str(page), "exec"), {})
    assert len(re.findall(r"holiday\.jpg", capsys.readouterr().out)) == 2


def test_pictures_are_those_of_the_script() -> None:
    script = runpy.run_path(str(DOCS / "make_pictures.py"))
    for name in script["PICTURES"]:
        path = DOCS / "images" / f"{name}.png"
        assert 1_000 < path.stat().st_size < 100_000
    curve = script["mex_picture"]().axes[0].lines[0].get_ydata()
    assert 0 < curve[0] < 4 / 3 < curve[-1] < 3
    assert len(script["similarity_picture"]().axes) == 10


@pytest.mark.parametrize("page", [ROOT / "README.md"], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf8")):
        assert (page.parent / target).exists(), target
