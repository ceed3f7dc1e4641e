"""Pictures of a run and of a network, as PNG files in memory."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn

from simnets.models import ImageClassifier
from simnets.nn import ConvSimilarity2d, Mex, Mex2d, Similarity, Similarity2d
from simnets.training.evaluate import Evaluation

_BLUE, _ORANGE, _GREY = "#2a6f97", "#e07a2c", "#6b7280"
_MOST_TILES = 256
_MOST_NUMBERED_CLASSES = 20
_FAR = 3.0  # standard deviations of whitened patches
_Array = NDArray[np.float64]


def learning_curves(history: list[dict[str, Any]]) -> bytes:
    """Loss and accuracy by epoch, for training and held-out images, and the learning rate."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    loss, accuracy, lr = figure.subplots(1, 3)
    epochs = [record["epoch"] for record in history]
    mark = "o" if len(epochs) == 1 else None
    for axes, key, factor in ((loss, "loss", 1.0), (accuracy, "accuracy", 100.0)):
        values = [factor * record[key] for record in history]
        axes.plot(epochs, values, color=_BLUE, label="training", marker=mark)
        held_out = f"validation_{key}"
        if history and held_out in history[0]:
            values = [factor * record[held_out] for record in history]
            axes.plot(epochs, values, color=_ORANGE, label="validation", marker=mark)
        axes.legend(frameon=False)
    lr.plot(epochs, [record["lr"] for record in history], color=_GREY, marker=mark)
    for axes, title in ((loss, "loss"), (accuracy, "accuracy, %"), (lr, "learning rate (largest group)")):
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    return _png(figure)


def confusion_matrix(evaluation: Evaluation) -> bytes:
    """Share of each true class (row) that was taken for each class (column)."""
    counts = np.array(evaluation.confusion, dtype=float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    k = len(evaluation.classes)
    side = min(12.0, 2.2 + 0.5 * k)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    numbered = k <= _MOST_NUMBERED_CLASSES
    every = 1 if numbered else math.ceil(k / 25)
    places = list(range(0, k, every))
    names = [evaluation.classes[place] for place in places]
    axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 2 else 0, fontsize=9)
    axes.set_yticks(places, names, fontsize=9)
    if numbered:
        for row, column in np.argwhere(counts > 0):
            color = "white" if shares[row, column] > 0.6 else "black"
            text = f"{int(counts[row, column])}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    return _png(figure)


def parameters(model: ImageClassifier) -> dict[str, bytes]:
    """Filters, templates, weights and offsets of a network, by file name.

    Filters of the first layer are drawn as image patches, and so are its templates. Later layers have no such
    picture and are drawn as matrices.
    """
    drawn: dict[str, bytes] = {}
    shape = tuple(model.spec.input_shape)
    first = True
    inner: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inner:
            continue
        label = name.replace(".", "_")
        if isinstance(module, ConvSimilarity2d):
            inner.add(module.similarity)
            filters = module.effective_filters.detach()
            if first:
                drawn[f"{label}_filters"] = _tiles(filters, f"{name}: filters W")
                patches, formula = _templates_as_patches(module)
                drawn[f"{label}_templates"] = _tiles(patches, f"{name}: templates z, as {formula}")
            else:
                drawn[f"{label}_filters"] = _matrix(
                    filters.flatten(1), f"{name}: filters W", "coordinate of a patch"
                )
                templates = module.effective_templates.detach()
                drawn[f"{label}_templates"] = _matrix(templates, f"{name}: templates z", "whitened channel")
            drawn |= _weights(label, name, module.similarity, None)
            first = False
        elif isinstance(module, Similarity | Similarity2d):
            similarity = module.similarity if isinstance(module, Similarity2d) else module
            inner.add(similarity)
            patch = _patch_shape(module, shape) if first else None
            templates = similarity.templates.detach()
            title = f"{name}: templates z"
            if patch is None:
                drawn[f"{label}_templates"] = _matrix(templates, title, "coordinate")
            else:
                drawn[f"{label}_templates"] = _tiles(templates.reshape(-1, *patch), title)
            drawn |= _weights(label, name, similarity, patch)
            first = False
        elif isinstance(module, Mex | Mex2d) and module.offsets is not None:
            offsets = module.offsets.detach()
            drawn[f"{label}_offsets"] = _matrix(
                offsets.reshape(-1, offsets.shape[-1]), f"{name}: offsets b", "template"
            )
        elif isinstance(module, nn.Conv2d) and first and module.in_channels in (1, 3):
            drawn[f"{label}_filters"] = _tiles(module.weight.detach(), f"{name}: filters")
            first = False
    return drawn


def _templates_as_patches(layer: ConvSimilarity2d) -> tuple[Tensor, str]:
    """(n, C, kh, kw): the patch that the filters turn into z; of a linear layer, the filter it amounts to.

    ℓ2 templates that no patch comes near (recipe field `energy`) are nearly linear and drawn as such: around
    y = 0, the mean patch, s_l grows as 2u∘z·y.
    """
    shape = (layer.in_channels, *layer.kernel_size)
    w, z = layer.effective_filters.detach().flatten(1), layer.effective_templates.detach()
    if layer.depthwise:  # rows that are 0 in all channels but their own
        w = (torch.eye(len(w)).to(w)[:, :, None] * w[:, None]).flatten(1)
    u = layer.similarity.weights
    filters = ((z if u is None else z * u.detach()) @ w).reshape(-1, *shape)
    if layer.similarity.kind == "linear":
        return filters, "filters Wᵀ(u∘z)"
    if float(layer.similarity.p) == 2.0 and float(z.square().mean()) > _FAR**2:
        return 2 * filters, "filters Wᵀ(2u∘z)"
    centred = z if layer.conv_bias is None else z - layer.conv_bias.detach()
    return (centred @ torch.linalg.pinv(w).T).reshape(-1, *shape), "patches W⁺(z − bias)"


def _patch_shape(module: Similarity | Similarity2d, image: tuple[int, ...]) -> tuple[int, ...] | None:
    shape = (image[0], *module.kernel_size) if isinstance(module, Similarity2d) else image
    similarity = module.similarity if isinstance(module, Similarity2d) else module
    fits = len(shape) == 3 and math.prod(shape) == similarity.in_features
    return shape if fits else None


def _weights(
    label: str, name: str, similarity: Similarity, patch: tuple[int, ...] | None
) -> dict[str, bytes]:
    if similarity.weights is None:
        return {}
    logarithms = similarity.weights.detach().clamp(min=1e-12).log10()
    title = f"{name}: weights, log₁₀ u"
    if patch is not None:
        return {f"{label}_weights": _tiles(logarithms.reshape(-1, *patch), title)}
    return {f"{label}_weights": _matrix(logarithms, title, "coordinate")}


def _tiles(patches: Tensor, title: str) -> bytes:
    """Patches (n, C, h, w) side by side, each stretched over its own range about its own middle."""
    shown = patches[:_MOST_TILES].double().cpu().numpy()
    n, channels, height, width = shown.shape
    if channels not in (1, 3):
        return _matrix(patches.flatten(1), title, "coordinate of a patch")
    middle = (shown.max((1, 2, 3), keepdims=True) + shown.min((1, 2, 3), keepdims=True)) / 2
    reach = np.abs(shown - middle).max((1, 2, 3), keepdims=True)
    shown = 0.5 + (shown - middle) / (2 * np.maximum(reach, 1e-12))
    columns = min(n, 16)
    rows = math.ceil(n / columns)
    sheet = np.ones((rows * (height + 1) - 1, columns * (width + 1) - 1, channels))
    for index in range(n):
        top, left = index // columns * (height + 1), index % columns * (width + 1)
        sheet[top : top + height, left : left + width] = shown[index].transpose(1, 2, 0)
    tile = 0.42
    figure = Figure(
        figsize=(max(3.0, columns * tile), max(0.8, rows * tile * height / width) + 0.4), layout="constrained"
    )
    axes = figure.subplots()
    axes.imshow(
        sheet.squeeze(-1) if channels == 1 else sheet, cmap="gray", vmin=0, vmax=1, interpolation="nearest"
    )
    axes.set_axis_off()
    more = f" ({_MOST_TILES} of {len(patches)})" if len(patches) > _MOST_TILES else ""
    _title(axes, title + more)
    return _png(figure)


def _matrix(values: Tensor, title: str, across: str) -> bytes:
    """A heat map; wide matrices are drawn wide."""
    shown = values.double().cpu().numpy()
    rows, columns = shown.shape
    finite = shown[np.isfinite(shown)]
    # The range of nearly all values: a few far ones would hide the rest.
    low, high = np.percentile(finite, [1, 99]) if finite.size else (0.0, 1.0)
    height = min(5.0, max(1.6, 7.5 * rows / max(columns, 1)))
    figure = Figure(figsize=(8, height + 0.6), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        shown, cmap="RdBu_r" if low < 0 < high else "viridis", vmin=low, vmax=high, aspect="auto"
    )
    axes.set_xlabel(across, fontsize=9)
    axes.tick_params(labelsize=8)
    figure.colorbar(image, ax=axes, shrink=0.9).ax.tick_params(labelsize=8)
    _title(axes, title)
    return _png(figure)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10)


def pixels(image: Tensor) -> bytes:
    """One uint8 image (C, H, W), pixel by pixel."""
    from PIL import Image

    array = image.permute(1, 2, 0).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array).save(buffer, "PNG")
    return buffer.getvalue()


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
