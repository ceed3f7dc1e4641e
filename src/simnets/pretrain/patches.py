"""Patches of a layer's input, sampled from images: every position, bounded memory, no labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.models import ImageClassifier, SimNetBlock
from simnets.nn import ConvSimilarity2d, Mex, Mex2d, Similarity, Similarity2d
from simnets.nn._contrast import equalised
from simnets.nn.similarity2d import normalize
from simnets.pretrain.distributed import all_sum, first_keys, world
from simnets.pretrain.rows import chunks

Layer = ConvSimilarity2d | Similarity2d | Similarity
Images = Any  # tensor, array, data set with `.images`, iterable of batches, or a callable that returns one

_WATCHED = (ConvSimilarity2d, Similarity2d, Similarity, Mex, Mex2d)
# Patches of one image are alike: more of them would say less than those of another image
_PER_IMAGE = 10


class ImageSource:
    """Batches of images, as often as they are asked for, from whatever a person has.

    Arrays and tensors (N, ...), data sets with `.images`, iterables of batches (a batch may be a tuple whose
    first entry is the images, as data loaders give; the rest is not looked at), and callables that return
    such an iterable. Under `torch.distributed` every process is given the same images and takes every
    size-th batch.
    """

    def __init__(self, images: Images, batch_size: int) -> None:
        images = getattr(images, "images", images)
        self.batch_size = batch_size
        self.stacked: Tensor | None = None
        self._batches: Callable[[], Iterable[Any]]
        self.once = False
        if isinstance(images, Tensor | np.ndarray):
            self.stacked = torch.as_tensor(images)
            if self.stacked.ndim < 2 or not len(self.stacked):
                raise SimNetsError(f"images have shape {tuple(images.shape)}; expected (N, C, H, W), N ≥ 1")
        elif callable(images):
            self._batches = images
        elif isinstance(images, Iterable):
            self.once = iter(images) is images
            self._batches = lambda: images
        else:
            raise SimNetsError(
                f"images are of type {type(images).__name__}; expected a tensor, an array, a data set, an "
                "iterable of batches, or a callable that returns one"
            )

    def first(self) -> Tensor:
        """The first batch, which stays available."""
        if self.stacked is not None:
            return self.stacked[:2]
        stream = iter(self._batches())
        first = next(stream, None)
        if first is None:
            raise SimNetsError("images: the iterator gave no batch")
        if self.once:
            rest = chain([first], stream)
            self._batches = lambda: rest
        return _as_batch(first)[:2]

    def batches(self, wanted: int, generator: torch.Generator) -> Iterator[Tensor]:
        """All batches of a stream, or, of images in memory, about `wanted` random ones in batches."""
        if self.stacked is None:
            for batch in self._batches():
                yield _as_batch(batch)
            return
        total = len(self.stacked)
        index = torch.randperm(total, generator=generator)[: min(wanted, total)].sort().values
        # small parts, so that several processes find something to do
        for part in torch.split(index, max(1, min(self.batch_size, -(-len(index) // 8)))):
            yield self.stacked[part.to(self.stacked.device)]

    def per_image(self, patches: int) -> int:
        """How many patches to take of each image to have about `patches` in the end."""
        if self.stacked is None:
            return _PER_IMAGE
        return -(-patches // self.image_count(patches))

    def image_count(self, patches: int) -> int:
        assert self.stacked is not None
        return min(len(self.stacked), -(-patches // _PER_IMAGE))


def _as_batch(batch: Any) -> Tensor:
    if isinstance(batch, tuple | list) and len(batch) and isinstance(batch[0], Tensor | np.ndarray):
        batch = batch[0]
    if not isinstance(batch, Tensor | np.ndarray) or batch.ndim < 2:
        raise SimNetsError(f"images: a batch is {type(batch).__name__}; expected a tensor (N, C, H, W)")
    return torch.as_tensor(batch)


@dataclass(frozen=True)
class Site:
    """A similarity layer within a model: its name, the block that pads for it, the MEX that follows."""

    name: str
    layer: Layer
    block: SimNetBlock | None
    mex: Mex | Mex2d | None

    @property
    def similarity(self) -> Similarity:
        return self.layer if isinstance(self.layer, Similarity) else self.layer.similarity

    @property
    def width(self) -> int:
        """The number m of coordinates of a patch."""
        if isinstance(self.layer, ConvSimilarity2d):
            return self.layer.filters[0].numel()
        return self.similarity.in_features

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """(C, kh, kw), or (m,) where the layer's input has no places."""
        if isinstance(self.layer, Similarity):
            return (self.width,)
        return (self.layer.in_channels, *self.layer.kernel_size)


def find_sites(model: nn.Module, images: Tensor) -> list[Site]:
    """The similarity layers of any model in the order in which `images` pass through them.

    A MEX belongs to the last similarity before it that has as many templates as it has inputs: MEX pooling in
    between does not matter, since it commutes with constants added to a channel.
    """
    inner = {m.similarity for m in model.modules() if isinstance(m, ConvSimilarity2d | Similarity2d)}
    blocks: dict[nn.Module, SimNetBlock] = {
        m.conv_similarity: m for m in model.modules() if isinstance(m, SimNetBlock)
    }
    names = {module: name for name, module in model.named_modules()}
    order: list[nn.Module] = []
    handles = [
        module.register_forward_pre_hook(lambda module, _: order.append(module))
        for module in model.modules()
        if isinstance(module, ConvSimilarity2d | Similarity2d | Similarity | Mex | Mex2d)
        and module not in inner
    ]
    try:
        _forward(model, images)
    finally:
        for handle in handles:
            handle.remove()
    calls = list(dict.fromkeys(order))
    sites = []
    for at, module in enumerate(calls):
        if isinstance(module, ConvSimilarity2d | Similarity2d | Similarity):
            site = Site(names[module] or "the model itself", module, blocks.get(module), None)
            after = calls[at + 1] if at + 1 < len(calls) else None
            if isinstance(after, Mex | Mex2d) and after.offsets.shape[-1] == site.similarity.out_features:
                site = Site(site.name, module, site.block, after)
            sites.append(site)
    return sites


def _forward(model: nn.Module, images: Tensor) -> None:
    """Runs the model in evaluation mode, without gradients, on images as they were given."""
    example = next(chain(model.parameters(), model.buffers()), torch.empty(0))
    if images.is_floating_point():
        images = images.to(example.device, example.dtype)
    else:
        images = images.to(example.device)
        if not isinstance(model, ImageClassifier):
            images = images.to(example.dtype) / (255 if images.dtype == torch.uint8 else 1)
    training = {module for module in model.modules() if module.training}
    model.eval()
    try:
        with torch.no_grad():
            model(images)
    finally:
        for module in training:
            module.training = True


class _Reached(Exception):
    """Ends a forward pass at the layer whose input is wanted."""


@dataclass(frozen=True)
class Sample:
    """Patches of a layer's input as rows (N, m), a random key for each, and each channel's border value."""

    rows: Tensor
    keys: Tensor
    channel_mean: Tensor | None
    total: int
    images: int


def sample_patches(
    model: nn.Module, site: Site, source: ImageSource, *, patches: int, max_bytes: int, seed: int
) -> Sample:
    """About `patches` patches of the layer's input, uniformly over images and positions.

    At most `max_bytes` are kept: of all patches drawn from a stream, those with the smallest random keys, so
    that the sample depends neither on the length of the stream nor on how processes share it.
    """
    limit = min(patches, max_bytes // (4 * site.width))
    reservoir = _Reservoir(limit, site.width)
    generator = torch.Generator().manual_seed(seed)
    rank, size = world()
    per_image = source.per_image(limit)
    wanted = limit if source.stacked is None else source.image_count(limit)
    sums: Tensor | None = None
    images = 0
    error: SimNetsError | None = None
    for index, batch in enumerate(source.batches(wanted, generator)):
        # drawn for every batch by every process, so that nobody's numbers depend on the others' share
        keys = torch.rand(len(batch), per_image, generator=generator, dtype=torch.float64)
        places = torch.rand(len(batch), per_image, generator=generator, dtype=torch.float64)
        images += len(batch)
        if index % size != rank or error is not None:
            continue
        try:
            if batch.is_floating_point() and not torch.isfinite(batch).all():
                raise SimNetsError(f"images: batch {index} has NaN or infinite pixels; remove or fill them")
            x = _input_of(model, site, batch)
            if site.block is not None and x.ndim == 4:
                part = torch.cat([x.double().sum((0, 2, 3)), x.new_tensor([x.numel() / x.shape[1]]).double()])
                sums = part if sums is None else sums + part
            reservoir.add(*_cut(site, x, places, keys))
        except SimNetsError as problem:
            error = problem
    _agree(error)
    mean = None
    if site.block is not None and sums is not None:
        all_sum(sums)
        mean = sums[:-1] / sums[-1]
        if not site.block.pads_with_mean:
            mean = torch.zeros_like(mean)
    rows, keys = reservoir.rows, reservoir.keys
    counts = torch.tensor([len(rows), float(len(rows) == 0)], dtype=torch.float64)
    all_sum(counts)
    if counts[1]:
        raise SimNetsError(
            f"images: a process of {size} got no patches (few images, or none inside); give more images"
        )
    if counts[0] > limit and size > 1:
        mine = first_keys(keys, limit)
        rows, keys = rows[mine], keys[mine]
    if mean is not None and site.block is not None and site.block.spec.padding:
        # the border, which the block fills with the mean of each channel, or 0
        filling = mean.to(rows).repeat_interleave(rows.shape[1] // len(mean))
        for part in chunks(rows, rows.shape[1]):
            part.copy_(torch.where(part.isnan(), filling, part))
    if not torch.isfinite(rows.sum()):
        raise SimNetsError("the layer's input has NaN or infinite values; look at the layers before it")
    return Sample(rows, keys, mean, min(int(counts[0]), limit), images)


def _agree(error: SimNetsError | None) -> None:
    """Raises on every process when one has failed: the others would wait for it for ever."""
    failed = torch.tensor([float(error is not None)])
    all_sum(failed)
    if error is not None:
        raise error
    if failed:
        raise SimNetsError("another process failed while it sampled patches; see its message")


def _input_of(model: nn.Module, site: Site, images: Tensor) -> Tensor:
    """What the layer, or the block that pads for it, is given when the model sees these images."""
    seen: list[Tensor] = []

    def stop(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen.append(arguments[0])
        raise _Reached

    handle = (site.block or site.layer).register_forward_pre_hook(stop)
    try:
        _forward(model, images)
    except _Reached:
        pass
    finally:
        handle.remove()
    return seen[0]


def _cut(site: Site, x: Tensor, places: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The patches of x at random places (a number in [0, 1) each), as rows (N, m), and their keys."""
    layer = site.layer
    if isinstance(layer, Similarity):
        windows = x.reshape(len(x), -1, x.shape[-1])
        count = windows.shape[1]
    else:
        if site.block is not None:
            (top, left), value = (site.block.spec.padding,) * 2, float("nan")
        else:
            (top, left), value = layer.padding, layer.padding_value
        x = F.pad(x, (left, left, top, top), value=value)
        (kh, kw), (down, right) = layer.kernel_size, layer.stride
        windows = x.unfold(2, kh, down).unfold(3, kw, right).permute(0, 2, 3, 1, 4, 5)
        count = windows.shape[1] * windows.shape[2]
    k = min(places.shape[1], count)
    everywhere = torch.arange(count).expand(len(x), count)
    position = everywhere if k == count else (places[:, :k] * count).long()
    position, image = position.to(x.device), torch.arange(len(x), device=x.device).unsqueeze(1)
    if isinstance(layer, Similarity):
        rows = windows[image, position]
    else:
        columns = windows.shape[2]
        rows = windows[image, position // columns, position % columns]
    rows, keys = rows.reshape(len(x) * k, -1), keys[:, :k].reshape(-1).to(x.device)
    if isinstance(layer, ConvSimilarity2d | Similarity2d) and not np.isfinite(layer.padding_value):
        # such a border says "missing": patches that touch it have no place in the statistics
        inside = torch.isfinite(rows).all(1)
        rows, keys = rows[inside], keys[inside]
    if isinstance(layer, Similarity2d) and layer.normalize_patches:
        rows = normalize(rows)
    elif isinstance(layer, ConvSimilarity2d) and layer.contrast:
        rows = equalised(rows, layer.contrast)
    return rows, keys


class _Reservoir:
    """The rows (N, width) with the smallest keys of all that were added, at most `limit` of them."""

    def __init__(self, limit: int, width: int) -> None:
        self._limit = limit
        self._rows = torch.empty(0, width)
        self._keys = torch.empty(0, dtype=torch.float64)
        self._held = 0

    def add(self, rows: Tensor, keys: Tensor) -> None:
        if not self._held:
            self._rows = rows.new_empty(self._limit, rows.shape[1])
            self._keys = keys.new_empty(self._limit)
        fits = min(self._limit - self._held, len(rows))
        slots = slice(self._held, self._held + fits)
        self._rows[slots], self._keys[slots] = rows[:fits], keys[:fits]
        self._held += fits
        if fits < len(rows):
            kept = torch.zeros(self._limit + len(rows) - fits, dtype=torch.bool, device=keys.device)
            kept[torch.cat([self._keys, keys[fits:]]).argsort()[: self._limit]] = True
            free, taken = ~kept[: self._limit], kept[self._limit :]
            self._rows[free], self._keys[free] = rows[fits:][taken], keys[fits:][taken]

    @property
    def rows(self) -> Tensor:
        return self._rows[: self._held]

    @property
    def keys(self) -> Tensor:
        return self._keys[: self._held]
