"""One page of pictures a layer: filters, templates as patches, spectrum, criteria, likelihood, usage."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from simnets.pretrain.report import Array, LayerReport

_MOST_TILES = 144


def layer_page(layer: LayerReport, path: str | os.PathLike[str]) -> Path:
    """Draws the page of a layer into a PNG file."""
    path = Path(path)
    figure = Figure(figsize=(13, 9), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(layer))
    axes = figure.subplots(2, 3)
    if layer.filters is None:
        _say(axes[0, 0], "the layer has no filters")
    else:
        _tiles(axes[0, 0], layer.filters, layer.patch_shape, "filters W", signed=True)
    _tiles(axes[0, 1], layer.templates_as_patches, layer.patch_shape, "templates z as patches", signed=False)
    _spectrum(axes[0, 2], layer)
    _components(axes[1, 0], layer)
    _likelihood(axes[1, 1], layer)
    _usage(axes[1, 2], layer)
    temporary = path.with_name(f".{path.name}.part")
    figure.savefig(temporary, format="png")
    os.replace(temporary, path)
    return path


def _title(layer: LayerReport) -> str:
    d = "" if layer.whitened is None else f" → {layer.whitened} whitened"
    return (
        f"{layer.name}: {layer.patches} patches of {layer.patch_dimension}{d}, {layer.templates} templates, "
        f"shape {layer.shape:.3g}, perplexity {layer.mixture_perplexity:.1f} → {layer.perplexity:.1f}"
    )


def _say(axes: Axes, text: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center")


def _tiles(axes: Axes, rows: Array, patch_shape: tuple[int, ...], title: str, *, signed: bool) -> None:
    """Rows as tiles. Three channels are colours; of more, a tile shows the one in which its row varies most.

    Filters are grey where they are zero, each at its own contrast. Templates are patches: those of images
    share one range of brightness, others have each their own.
    """
    shown = rows[:_MOST_TILES].reshape(-1, *patch_shape) if len(patch_shape) == 3 else _as_maps(rows)
    if shown is None:
        _say(axes, f"{title}: rows of {rows.shape[1]}, not images")
        return
    note = ""
    if shown.shape[1] not in (1, 3):
        strongest = shown.var((2, 3)).argmax(1)
        shown = shown[np.arange(len(shown)), strongest][:, None]
        note = ", strongest channel"
    high = shown.max((1, 2, 3), keepdims=True)
    low = shown.min((1, 2, 3), keepdims=True)
    if signed:
        high = np.maximum(high, -low)
        low = -high
    elif not note:
        low, high = low.min(keepdims=True), high.max(keepdims=True)
    shown = (shown - low) / np.maximum(high - low, 1e-12)
    count, channels, height, width = shown.shape
    columns = math.ceil(math.sqrt(count))
    lines = math.ceil(count / columns)
    canvas = np.ones((lines * (height + 1) + 1, columns * (width + 1) + 1, channels))
    for index, tile in enumerate(shown):
        top, left = (height + 1) * (index // columns) + 1, (width + 1) * (index % columns) + 1
        canvas[top : top + height, left : left + width] = tile.transpose(1, 2, 0)
    axes.imshow(
        canvas.squeeze(-1) if channels == 1 else canvas, cmap="gray", interpolation="nearest", vmin=0, vmax=1
    )
    left_out = f", first {count} of {len(rows)}" if count < len(rows) else ""
    axes.set_title(f"{title}{note}{left_out}")
    axes.axis("off")


def _as_maps(rows: Array) -> Array | None:
    """Vectors whose length is a square, or three times one, as images."""
    for channels in (1, 3):
        side = math.isqrt(rows.shape[1] // channels)
        if channels * side * side == rows.shape[1] and side > 1:
            return rows[:_MOST_TILES].reshape(-1, channels, side, side)
    return None


def _spectrum(axes: Axes, layer: LayerReport) -> None:
    if not layer.eigenvalues:
        _say(axes, "no whitening, no spectrum")
        return
    values = np.asarray(layer.eigenvalues)
    number = np.arange(1, len(values) + 1)
    axes.semilogy(number, np.maximum(values, values[0] * 1e-9))
    axes.set_title(f"spectrum: {layer.whitened} dimensions keep {100 * layer.explained_variance:.1f} %")
    axes.set_xlabel("dimension")
    axes.set_ylabel("variance")
    if layer.whitened is not None:
        axes.axvline(layer.whitened, color="black", linewidth=0.8)
    choice = layer.dimension_choice
    if choice is not None:
        right = axes.twinx()
        for name, style in (("minka", "-"), ("bic", "--")):
            curve = np.asarray(choice.curves[name][:-1])
            right.plot(
                number[:-1],
                (curve - curve.min()) / max(np.ptp(curve), 1e-12),
                style,
                color="tab:red",
                label=name,
            )
        right.plot(number, choice.curves["explained"], ":", color="tab:green", label="explained")
        right.set_ylabel("criteria, from their least to their largest")
        right.legend(loc="center right", fontsize="small")
        axes.set_xlabel("dimension; votes: " + ", ".join(f"{k} {v}" for k, v in choice.votes.items()))


def _components(axes: Axes, layer: LayerReport) -> None:
    choice = layer.component_choice
    if choice is None:
        axes.hist(layer.kurtosis, bins=min(30, 5 + len(layer.kurtosis) // 2))
        axes.set_title(f"excess kurtosis of the coordinates, mean {np.mean(layer.kurtosis):.2f}")
        axes.set_xlabel("excess kurtosis (0 Gaussian, 3 Laplacian)")
        axes.set_ylabel("coordinates")
        return
    nec = np.clip(choice.curves["nec"], 1e-6, 10)
    axes.loglog(choice.tried, nec, "o-", label=f"NEC, vote {choice.votes['nec']}")
    axes.set_title(f"templates: {choice.components} by {choice.criterion}")
    axes.set_xlabel("components")
    axes.set_ylabel("NEC")
    right = axes.twinx()
    right.semilogx(
        choice.tried, choice.curves["bic"], "s--", color="tab:red", label=f"BIC, vote {choice.votes['bic']}"
    )
    right.set_ylabel("BIC")
    axes.axvline(choice.components, color="black", linewidth=0.8)
    for each in (axes, right):
        each.xaxis.set_minor_locator(NullLocator())
        each.set_xticks(choice.tried[::2], [str(k) for k in choice.tried[::2]])
    axes.legend(handles=[*axes.get_lines()[:1], *right.get_lines()], loc="upper center")


def _likelihood(axes: Axes, layer: LayerReport) -> None:
    axes.plot(layer.likelihoods, "o-", markersize=3)
    axes.set_title("mean log-likelihood")
    axes.set_xlabel("iteration of EM")


def _usage(axes: Axes, layer: LayerReport) -> None:
    axes.bar(np.arange(len(layer.usage)), np.sort(layer.usage)[::-1])
    axes.axhline(1 / len(layer.usage), color="black", linewidth=0.8)
    axes.set_title("usage of the templates, most used first")
    axes.set_xlabel("template")
    axes.set_ylabel("share of the patches")
