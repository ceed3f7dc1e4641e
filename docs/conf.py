"""Sphinx: `make docs`. No network is needed, to build the pages or to read them."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

import simnets

project = "simnets"
copyright = "the simnets authors, MIT licence"
version = release = simnets.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"simnets {release}"
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_default_options = {"members": True, "imported-members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False  # torch's own text on forward() and the like is not ours to repeat
autodoc_typehints_format = "short"
autodoc_type_aliases = {"ArrayLike": "ArrayLike", "Images": "Images"}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False

_NAMES = r"(?:[a-z_*][\w*]*|[A-Z])(?: \([\w, ]*\))?"
_HEAD = re.compile(rf"({_NAMES}(?:, {_NAMES})*):(?= \S|$)")  # a line `name, other name: what they are`
_LOOSE_HEAD = re.compile(r"(\"?\w[\w ]*\"?):(?= \S|$)")  # a value and what it does
_SECTION = re.compile(r"\s*(Args|Returns|Raises|Example|Attributes):$")


def plain_docstrings(
    app: Sphinx, what: str, name: str, target: object, options: Any, lines: list[str]
) -> None:
    """Docstrings are written to be read as they stand: |x|, *, means_ and `names` are themselves there."""
    result: list[str] = []
    for paragraph in _paragraphs(lines):
        if not _is_example(paragraph):
            paragraph = _escaped(_listed(paragraph))
        result += [*paragraph, ""]
    lines[:] = result


def _paragraphs(lines: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in lines:
        if not line.strip():
            found.append([])
        elif line.lstrip().startswith(">>>") and not _is_example(found[-1]):
            found.append([line])
        else:
            found[-1].append(line)
    return [paragraph for paragraph in found if paragraph]


def _is_example(paragraph: list[str]) -> bool:
    return bool(paragraph) and paragraph[0].lstrip().startswith(">>>")


def _listed(paragraph: list[str]) -> list[str]:
    """A paragraph of lines `name: what it is`, further lines indented, becomes a list."""
    if paragraph[0].startswith(" ") or _SECTION.match(paragraph[0]):
        return paragraph
    heads = [line for line in paragraph if not line.startswith(" ")]
    nested = len(heads) < len(paragraph)
    if all(map(_HEAD.match, heads)):
        pattern = _HEAD
    elif nested and all(map(_LOOSE_HEAD.match, heads)):
        pattern = _LOOSE_HEAD
    else:
        return paragraph
    result: list[str] = []
    body: list[str] = []
    for line in [*paragraph, ""]:
        if line.startswith(" "):
            body.append(line)
            continue
        if body and result[-1].endswith(":"):  # a list within the list
            inner = _listed(textwrap.dedent("\n".join(body)).split("\n"))
            result += ["", *("  " + text for text in inner), ""]
        else:
            result += ["  " + text.lstrip() for text in body]
        body = []
        result += [pattern.sub(r"* `\1`:", line, count=1)] if line else []
    return result


def _escaped(paragraph: list[str]) -> list[str]:
    text = "\n".join(paragraph)
    parts = re.split(r"(`+[^`]+`+|^\s*\* )", text, flags=re.MULTILINE)
    for i, part in enumerate(parts):
        if not i % 2:
            parts[i] = re.sub(r"[|*\\]|(?<=\w)_(?!\w)", r"\\\g<0>", part)
        elif "`" in part:
            parts[i] = f"``{part.strip('`')}``"
    return "".join(parts).split("\n")


def results_are_a_page(app: Sphinx, page: str, source: list[str]) -> None:
    """In the repository pages link to results/README.md, which here is results.md."""
    source[0] = source[0].replace("](../results/README.md", "](results.md")


def setup(app: Sphinx) -> None:
    app.connect("source-read", results_are_a_page)
    app.connect("autodoc-process-docstring", plain_docstrings, priority=100)  # before napoleon
