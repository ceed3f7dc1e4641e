"""`export_web`: a network as a static page that classifies pictures in the browser, without a network."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simnets.data import ImageDataset
from simnets.data.download import Progress
from simnets.deploy._onnx import check_images, require, session
from simnets.deploy.comparison import TOLERANCE
from simnets.deploy.onnx_export import ExportReport, example_images, export_onnx, traced
from simnets.deploy.web_runtime import SCRIPT, VERSION, WASM, runtime_files
from simnets.errors import SimNetsError
from simnets.flops import count_cost
from simnets.models import DeepSimNet, ImageClassifier, SimNetBlock, SimNetMLP
from simnets.nn import ConvSimilarity2d
from simnets.training.evaluate import require_same_classes
from simnets.training.files import writing
from simnets.training.pictures import pixels

MOST_EXAMPLES = 12
_PATCH_IMAGES = 128  # from which the templates' pictures are made
_PAGE = ("app.js", "style.css", "index.html")


@dataclass(frozen=True)
class WebReport:
    """What `export_web` wrote: `files` of `size` bytes in all, and how near ONNX is to torch.

    templates: how many of the first layer the page shows; 0 for a network that has none.
    """

    folder: Path
    files: int
    size: int
    examples: int
    templates: int
    onnx: ExportReport

    def lines(self) -> list[str]:
        """What a person wants to know, a line each."""
        templates = f"{self.templates} templates" if self.templates else "no templates"
        return [
            f"{self.folder}: a page of {self.files} files, {self.size / 1e6:,.1f} MB; network "
            f"{self.onnx.size / 1000:,.1f} KB, {self.examples} examples, {templates}",
            self.onnx.lines()[1],
            f"to see it: python -m http.server --directory {self.folder}, then http://localhost:8000",
        ]


def export_web(
    model: ImageClassifier,
    folder: str | os.PathLike[str],
    *,
    examples: ImageDataset | Tensor | None = None,
    overwrite: bool = False,
    runtime: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> WebReport:
    """Write a page into `folder` that any static server can serve and that needs nothing from elsewhere.

    The page takes a picture (dropped, opened, pasted, or an example) and shows the classes with their
    probabilities, the latency, and where the first layer's templates are the most similar. Pictures are
    brought to the network's size as `simnets.data.read_image` does it. `model.onnx` is the file that
    `export_onnx` writes, compared with torch before; `templates.onnx` gives the first layer's maps.

    Args:
        examples: pictures to choose from, uint8 (N, C, H, W), or a data set with labels, whose classes take
            turns; the page has up to 12.
        overwrite: write into a folder that has files, and replace those with the page's names.
        runtime: a copy of npm's package onnxruntime-web (.tgz, or its folder `dist`). If not given, the
            one that $SIMNETS_ORT_WEB names, or the registry's, which is fetched once (33 MB).
        progress: called while that is fetched, with (file name, bytes there, bytes in all).

    Example:
        >>> import simnets
        >>> from simnets.deploy import export_web
        >>> model = simnets.load("model.safetensors")  # doctest: +SKIP
        >>> examples = simnets.data.load_dataset("cifar10", "test")  # doctest: +SKIP
        >>> report = export_web(model, "page", examples=examples)  # doctest: +SKIP
        >>> print(report.lines()[-1])  # doctest: +SKIP
        to see it: python -m http.server --directory page, then http://localhost:8000
    """
    target = Path(folder)
    _check_target(target, overwrite)
    _check_model(model)
    images, labels = _examples(model, examples)
    runtime_content = runtime_files(runtime, progress)
    with _aside(target) as aside:
        compared = images if len(images) else example_images(model.spec.input_shape)
        report = export_onnx(model, aside / "model.onnx", images=compared)
        first = _first_layer(model)
        if first is not None:
            _put(aside / "templates.onnx", _maps_graph(first, compared))
            shown = _template_pictures(first, examples)
            _put(aside / "templates.png", pixels(torch.cat(shown.unbind(0), dim=2)))
        files = [f"examples/{number:02}.png" for number in range(1, len(images) + 1)]
        for name, image in zip(files, images, strict=True):
            _put(aside / name, pixels(image))
        for name, content in runtime_content.items():
            _put(aside / "runtime" / name, content)
        listed = [{"file": name, "label": label} for name, label in zip(files, labels, strict=True)]
        described = _description(model, first, listed)
        _put(aside / "page.json", json.dumps(described, ensure_ascii=False, indent=1).encode())
        for name in _PAGE:
            _put(aside / name, resources.files("simnets.deploy").joinpath("web", name).read_bytes())
        written = [path for path in aside.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in written)
        _move(aside, target)
    return WebReport(
        folder=target,
        files=len(written),
        size=size,
        examples=len(images),
        templates=0 if first is None else first.similarity.out_features,
        onnx=dataclasses.replace(report, path=target / "model.onnx"),
    )


# ── what is asked for ────────────────────────────────────────────────────────────────────────────────────


def _check_target(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise SimNetsError(f"{target} is a file; give the name of a folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise SimNetsError(f"{target} is not empty; choose another folder, or overwrite=True (--overwrite)")
    if not target.absolute().parent.is_dir():
        raise SimNetsError(f"the folder {target.parent} does not exist; make it first")


def _check_model(model: ImageClassifier) -> None:
    require("onnxruntime")
    if not isinstance(model, ImageClassifier):
        raise SimNetsError(f"model is a {type(model).__name__}, expected a network of simnets")
    shape = tuple(model.spec.input_shape)
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise SimNetsError(f"the network takes {shape}; a page needs pictures, (1, H, W) or (3, H, W)")


def _examples(
    model: ImageClassifier, examples: ImageDataset | Tensor | None
) -> tuple[Tensor, list[str | None]]:
    """Up to `MOST_EXAMPLES` images, of a data set one of each class in turn, and what they show."""
    if examples is None:
        return torch.empty(0, dtype=torch.uint8), []
    if isinstance(examples, Tensor):
        check_images("examples", examples, model.spec.input_shape)
        return examples[:MOST_EXAMPLES], [None] * min(len(examples), MOST_EXAMPLES)
    require_same_classes(model, examples)
    check_images("examples", examples.images, model.spec.input_shape)
    of_class = [torch.nonzero(examples.labels == c).flatten().tolist() for c in range(len(examples.classes))]
    rounds = [[indices[turn] for indices in of_class if turn < len(indices)] for turn in range(MOST_EXAMPLES)]
    # of many classes, some from everywhere in the list
    step = max(1, math.ceil(len(rounds[0]) / MOST_EXAMPLES))
    chosen = [index for turn in rounds for index in turn[::step]][:MOST_EXAMPLES]
    return examples.images[chosen], [examples.classes[int(c)] for c in examples.labels[chosen]]


def _description(
    model: ImageClassifier, first: _FirstLayer | None, examples: list[dict[str, str | None]]
) -> dict[str, Any]:
    cost = count_cost(model)
    templates = first and {
        "tile": first.tile,
        "stride": first.stride,
        "padding": first.padding,
        "patches": first.whitening is not None and bool(examples),
    }
    return {
        "network": model.spec.family,
        "classes": model.classes,
        "input": model.spec.input_shape,
        "cost": {"params": cost.params, "flops": cost.flops},
        "examples": examples,
        "templates": templates,
        "runtime": {"version": VERSION, "script": SCRIPT, "wasm": WASM},
        "simnets": version("simnets"),
    }


# ── the first layer ──────────────────────────────────────────────────────────────────────────────────────


class _FirstLayer(nn.Module):
    """Images to the first layer's similarity maps (N, n, H, W); for an MLP, which has none, (N, n, 1, 1).

    tile: height and width of what a template is compared with; stride, padding: where those lie.
    """

    tile: tuple[int, ...]

    def __init__(self, model: DeepSimNet | SimNetMLP) -> None:
        super().__init__()
        self.model = model
        self.block: SimNetBlock | None = None
        if isinstance(model, SimNetMLP):
            self.similarity = model.similarity
            self.tile, self.stride, self.padding = tuple(model.spec.input_shape[1:]), 1, 0
        else:
            block = model.layers[0]
            assert isinstance(block, SimNetBlock)
            self.block, self.similarity = block, block.conv_similarity.similarity
            self.tile = (block.spec.field, block.spec.field)
            self.stride, self.padding = block.spec.stride, block.spec.padding

    @property
    def whitening(self) -> ConvSimilarity2d | None:
        """The layer, if templates are compared with filtered patches and not with pixels."""
        layer = None if self.block is None else self.block.conv_similarity
        return layer if isinstance(layer, ConvSimilarity2d) else None

    def forward(self, images: Tensor) -> Tensor:
        x = self.model.normalise(images)
        if self.block is not None:
            return self.block.similarities(x)
        similarities: Tensor = self.similarity(x.flatten(1))
        return similarities[:, :, None, None]


def _first_layer(model: ImageClassifier) -> _FirstLayer | None:
    if not isinstance(model, DeepSimNet | SimNetMLP):
        return None
    return _FirstLayer(model).eval()


def _maps_graph(first: _FirstLayer, images: Tensor) -> bytes:
    """The ONNX graph of the maps, compared with torch like that of the scores."""
    content: bytes = traced(first, tuple(first.model.spec.input_shape), output="maps").SerializeToString()
    with torch.no_grad():
        expected = first(images).numpy()
    found = session(content).run(None, {"images": images.numpy()})[0]
    if not np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max():
        raise SimNetsError("model cannot be exported: the first layer's maps differ from torch's")
    return content


def _template_pictures(first: _FirstLayer, examples: ImageDataset | Tensor | None) -> Tensor:
    """What each template looks like, uint8 (n, C, h, w).

    A template of whitened channels is no picture, and W⁺ makes noise of it once W is trained; the mean of
    the patches that are most similar to it shows what it stands for. Without examples W⁺ has to do.
    """
    layer = first.whitening
    shape = (-1, first.model.spec.input_shape[0], *first.tile)
    if examples is not None and layer is not None:
        images = examples if isinstance(examples, Tensor) else examples.images
        images = images[:: math.ceil(len(images) / _PATCH_IMAGES)]
        similarities, patches = _similarities_and_patches(first, images)
        nearest = similarities.topk(min(50, math.ceil(len(patches) / 100)), dim=0).indices
        return patches[nearest].mean(0).round().to(torch.uint8).reshape(shape)
    templates = first.similarity.templates.detach()
    if layer is not None:
        templates = layer.effective_templates.detach()
        bias = 0 if layer.conv_bias is None else layer.conv_bias.detach()
        templates = (templates - bias) @ torch.linalg.pinv(layer.effective_filters.detach().flatten(1)).T
    low, high = templates.amin(1, keepdim=True), templates.amax(1, keepdim=True)
    stretched = 255 * (templates - low) / (high - low).clamp(min=1e-12)
    return stretched.round().to(torch.uint8).reshape(shape)


def _similarities_and_patches(first: _FirstLayer, images: Tensor) -> tuple[Tensor, Tensor]:
    """Of every position of every image: the similarities (N·H·W, n), and the patch (N·H·W, C·h·w)."""
    with torch.no_grad():
        maps = first(images).flatten(2)
    padded = F.pad(images.float(), [first.padding] * 4, mode="replicate")
    patches = F.unfold(padded, first.tile, stride=first.stride)
    return maps.transpose(1, 2).flatten(0, 1), patches.transpose(1, 2).flatten(0, 1)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A folder beside `target` to build in, which is gone afterwards, whatever happens."""
    place = target.resolve()
    aside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    with writing(target):
        shutil.rmtree(aside, ignore_errors=True)  # of an export that was killed
        aside.mkdir()
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def _move(aside: Path, target: Path) -> None:
    """The whole folder at once where there is none yet; else file by file, the page itself last."""
    if not target.exists():
        os.rename(aside, target)
        return
    files = [path.relative_to(aside) for path in aside.rglob("*") if path.is_file()]
    for name in sorted(files, key=lambda name: (str(name) in _PAGE, name)):
        (target / name).parent.mkdir(exist_ok=True)
        os.replace(aside / name, target / name)
