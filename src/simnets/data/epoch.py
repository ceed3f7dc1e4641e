"""The batches of an epoch, each a function of (seed, epoch, index) alone: a run can go on from any one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from simnets.data.augmentation import Augmentation
from simnets.data.dataset import ImageDataset
from simnets.errors import SimNetsError


def count_batches(images: int, batch_size: int, drop_last: bool = False) -> int:
    """How many batches an epoch has."""
    return images // batch_size if drop_last else -(-images // batch_size)


def batches(
    dataset: ImageDataset,
    batch_size: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    augmentation: Augmentation | None = None,
    drop_last: bool = False,
    start: int = 0,
    rank: int = 0,
    world_size: int = 1,
    targets: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """(images, labels) of each batch of one epoch, from batch `start` on; with `targets`, (images, targets).

    Order and augmentation depend on nothing but (seed, epoch, index of the batch): starting at batch k gives
    what batch k would have been. `batch_size` counts the images of all `world_size` processes together; each
    takes every `world_size`-th of them from `rank` on, with the very augmentation that one process alone
    would have used. In a last, smaller batch the shares may differ by one image.

    >>> from simnets.data import load_dataset
    >>> digits = load_dataset("digits")
    >>> sum(len(labels) for images, labels in batches(digits, 100, epoch=3, augmentation=Augmentation()))
    1438
    """
    if batch_size < 1 or start < 0:
        raise SimNetsError(f"batch_size must be ≥ 1 and start ≥ 0; got {batch_size} and {start}")
    if not 0 <= rank < world_size or batch_size % world_size:
        raise SimNetsError(
            f"rank must lie below world_size, which must divide batch_size;"
            f" got rank {rank}, world_size {world_size}, batch_size {batch_size}"
        )
    order = torch.arange(len(dataset))
    if shuffle:
        order = torch.randperm(len(dataset), generator=_generator(seed, epoch, "order"))
    order = order.to(dataset.images.device)
    wanted = dataset.labels if targets is None else targets

    def generate() -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(start, count_batches(len(dataset), batch_size, drop_last)):
            whole = order[index * batch_size : (index + 1) * batch_size]
            share = slice(rank, None, world_size)
            # index_select copies whole images; plain indexing is ten times slower.
            images, labels = (t.index_select(0, whole[share]) for t in (dataset.images, wanted))
            if augmentation is not None:
                _, h, w = dataset.shape
                draws = augmentation.draw(len(whole), h, w, _generator(seed, epoch, index))
                images = augmentation.apply(images, draws.part(share))
            yield images, labels

    return generate()


def _generator(seed: int, epoch: int, purpose: int | str) -> torch.Generator:
    """A generator of its own for every key: neighbouring seeds and epochs share no numbers."""
    digest = hashlib.sha256(f"{seed} {epoch} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
