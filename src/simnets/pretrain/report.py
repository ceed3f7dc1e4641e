"""What pre-training found, layer by layer: as a table, as JSON, and as pictures."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from simnets.pretrain.selection import ComponentChoice, DimensionChoice

Array = NDArray[np.float64]


def _without_infinities(value: Any) -> Any:
    """JSON has none: criteria that are not defined at a number become null."""
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One layer.

    patch_shape, patches, images: of the layer's input, (C, kh, kw) or (m,), and how many were sampled.
    patch_dimension, whitened, templates: m, d (None without whitening) and n.
    explained_variance: the share that is left after the reduction to d; eigenvalues: the spectrum.
    kurtosis: excess kurtosis of each whitened coordinate: 0 Gaussian, above 0 heavy tails.
    ica_converged: whether FastICA reached its tolerance.
    shape: β, which p is now.
    likelihoods: mean log-likelihood of the patches before each iteration of EM and after the last.
    usage: λ, the share of the patches of each template.
    mixture_perplexity, perplexity: of the posterior over templates, as the mixture has it and as the layer
        has it after its similarities were multiplied by `factor`.
    dimension_choice, component_choice: how d and n were chosen, where they were.
    filters (d, m), templates_as_patches (n, m): for the pictures; not in the JSON.
    """

    name: str
    kind: str
    patch_shape: tuple[int, ...]
    patches: int
    images: int
    patch_dimension: int
    whitened: int | None
    templates: int
    explained_variance: float
    eigenvalues: list[float]
    kurtosis: list[float]
    ica_converged: bool
    shape: float
    likelihoods: list[float]
    usage: list[float]
    mixture_perplexity: float
    perplexity: float
    factor: float
    seconds: dict[str, float]
    filters: Array | None = field(repr=False)
    templates_as_patches: Array = field(repr=False)
    dimension_choice: DimensionChoice | None = None
    component_choice: ComponentChoice | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the arrays."""
        numbers = replace(self, filters=None, templates_as_patches=np.zeros(0))
        return {k: v for k, v in asdict(numbers).items() if k not in ("filters", "templates_as_patches")}


_ROWS: dict[str, Callable[[LayerReport], str]] = {
    "patches (of images)": lambda layer: f"{layer.patches} ({layer.images})",
    "dimension": lambda layer: f"{layer.patch_dimension} → {layer.whitened or layer.patch_dimension}",
    "variance kept": lambda layer: f"{100 * layer.explained_variance:.1f} %",
    "excess kurtosis": lambda layer: f"{np.mean(layer.kurtosis):.2f}",
    "ICA converged": lambda layer: "yes" if layer.ica_converged else "no, averaged",
    "templates": lambda layer: f"{layer.templates}",
    "shape β": lambda layer: f"{layer.shape:.3g}",
    "log-likelihood": lambda layer: f"{layer.likelihoods[0]:.2f} → {layer.likelihoods[-1]:.2f}",
    "iterations of EM": lambda layer: f"{len(layer.likelihoods) - 1}",
    "usage of a template": lambda layer: f"{100 * min(layer.usage):.2f} to {100 * max(layer.usage):.2f} %",
    "perplexity": lambda layer: f"{layer.mixture_perplexity:.1f} → {layer.perplexity:.1f}",
    "seconds": lambda layer: f"{sum(layer.seconds.values()):.1f}",
}


@dataclass(frozen=True)
class PretrainReport:
    """All layers, and the time of the whole sweep in seconds."""

    layers: tuple[LayerReport, ...]
    seconds: float

    def table(self) -> Table:
        """A column a layer, for people."""
        table = Table(title=f"Pre-training, {self.seconds:.1f} s", title_justify="left")
        table.add_column("")
        for layer in self.layers:
            table.add_column(layer.name, justify="right", overflow="fold")
        for title, cell in _ROWS.items():
            table.add_row(title, *(cell(layer) for layer in self.layers))
        return table

    def to_json(self) -> str:
        """The numbers of all layers."""
        data = {"seconds": self.seconds, "layers": [layer.to_dict() for layer in self.layers]}
        return json.dumps(_without_infinities(data), indent=1, allow_nan=False)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes `pretrain.json` and a page of pictures a layer, `pretrain-NAME.png`; returns the paths."""
        from simnets.pretrain.pictures import layer_page  # matplotlib is slow to import

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "pretrain.json"
        temporary = folder / ".pretrain.json.part"
        temporary.write_text(self.to_json(), encoding="utf-8")
        os.replace(temporary, path)
        paths = [path]
        for layer in self.layers:
            paths.append(layer_page(layer, folder / f"pretrain-{layer.name.replace(' ', '-')}.png"))
        return paths
