"""A network's structure from unlabelled images: how many channels each layer should have (sections 5, 7)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.models import DeepSimNet, DeepSimNetSpec
from simnets.nn import ConvSimilarity2d
from simnets.pretrain.config import PretrainConfig
from simnets.pretrain.distributed import gather_first
from simnets.pretrain.patches import Images, ImageSource, find_sites, sample_patches
from simnets.pretrain.report import PretrainReport
from simnets.pretrain.selection import effective_dimension, select_components
from simnets.pretrain.sweep import pretrain_model
from simnets.pretrain.whitening import Whitening

_SELECTION_ROWS = 20_000


@dataclass(frozen=True)
class Structure:
    """The proposed network, pre-trained, and how its numbers of channels came about."""

    model: DeepSimNet
    report: PretrainReport

    @property
    def spec(self) -> DeepSimNetSpec:
        return self.model.spec


def pretrain_structure(
    images: Images,
    spec: DeepSimNetSpec,
    config: PretrainConfig | None = None,
    *,
    whitened_channels: int | float | Literal["auto", "minka", "bic", "ridge", "spec"] = "auto",
    templates: int | Literal["auto", "nec", "bic", "spec"] = "auto",
    most_templates: int = 128,
    pixel_statistics: tuple[Tensor, Tensor] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Structure:
    """Chooses the channels of every layer from unlabelled images and pre-trains the network (section 5, end).

    `spec` gives what data cannot: depth, receptive fields, pooling, classes. Layer by layer, in the forward
    sweep, the patches of the layer's input say how many whitened channels it needs (`effective_dimension`)
    and the whitened patches how many templates (`select_components`); then the layer is pre-trained, and its
    output is the input of the next.

    whitened_channels, templates: a criterion, a number for every layer, or "spec" for those of `spec`; as
    whitened channels also a share of the variance. pixel_statistics: mean and standard deviation of each
    channel, for `set_pixel_statistics` of the network.

    >>> import simnets
    >>> spec = simnets.models.model_spec("simnet_mlpconv", 10, input_shape=(1, 5, 5))
    >>> generator = torch.Generator().manual_seed(0)
    >>> pixels = torch.randn(500, 3, generator=generator) @ torch.randn(3, 25, generator=generator)
    >>> images = (pixels + 0.1 * torch.randn(500, 25, generator=generator)).view(500, 1, 5, 5)
    >>> pretrain_structure(images, spec, templates=4).spec.layers[0].whitened
    3
    """
    config = config or PretrainConfig()
    started = time.perf_counter()
    if config.layers is not None:
        raise SimNetsError("layers cannot be chosen where the structure is; leave PretrainConfig.layers None")
    model = spec.build()
    if pixel_statistics is not None:
        model.set_pixel_statistics(*pixel_statistics)
    reports = []
    for index in range(len(spec.layers)):
        name = f"layers.{index}.conv_similarity"
        if progress is not None:
            progress(f"choosing the channels of {name}")
        source = ImageSource(images, config.batch_size)
        if source.once:
            raise SimNetsError(
                "images can be iterated only once, but several passes are needed; give a callable that "
                "returns a new iterator, or an iterable that can be restarted"
            )
        seed = config.seed + 1000 * index
        site = find_sites(model, source.first())[index]
        try:
            sample = sample_patches(
                model, site, source, patches=config.patches, max_bytes=config.max_bytes, seed=seed
            )
            layer = spec.layers[index]
            rows, dimension, components = sample.rows, None, None
            if isinstance(site.layer, ConvSimilarity2d):
                wanted = layer.whitened if whitened_channels == "spec" else whitened_channels
                whitening = Whitening(
                    wanted, mode=config.whitening, ridge=config.ridge, random_state=seed
                ).fit(rows, keys=sample.keys)
                if isinstance(wanted, str | float):
                    dimension = effective_dimension(whitening.eigenvalues_, sample.total, wanted)
                rows = whitening.project(rows)
                layer = replace(layer, whitened=rows.shape[1])
            if isinstance(templates, int):
                layer = replace(layer, templates=templates)
            elif templates != "spec":
                # the same rows on every process, so that all choose the same
                rows = gather_first(rows, sample.keys, _SELECTION_ROWS)
                shape = layer.p if layer.p_mode == "frozen" else None
                components = select_components(
                    rows, shape, criterion=templates, most=most_templates, random_state=seed
                )
                layer = replace(layer, templates=components.components)
        except SimNetsError as error:
            raise SimNetsError(f"{name}: {error}") from None
        spec = replace(spec, layers=(*spec.layers[:index], layer, *spec.layers[index + 1 :]))
        model = _rebuilt(model, spec, index)
        report = pretrain_model(model, images, replace(config, layers=(name,)), progress=progress)
        reports.append(replace(report.layers[0], dimension_choice=dimension, component_choice=components))
    return Structure(model, PretrainReport(tuple(reports), time.perf_counter() - started))


def _rebuilt(model: DeepSimNet, spec: DeepSimNetSpec, done: int) -> DeepSimNet:
    """A network of the new structure whose first `done` layers are those of the old one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        new = spec.build()
    for old_block, block in zip(list(model.layers)[:done], new.layers, strict=False):
        block.load_state_dict(old_block.state_dict())
    new.set_pixel_statistics(model.pixel_mean, model.pixel_std)
    return new
