"""A labelled set of images, whole in memory, and the ways to take parts of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from simnets.errors import SimNetsError

HELD_OUT = 5  # sources without a test set of their own hold out one image in this many


@dataclass(frozen=True, eq=False, repr=False)
class ImageDataset:
    """Images (N, C, H, W) as uint8, labels (N,) as int64 in 0…k−1, and the names of the k classes.

    >>> ImageDataset(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), ("no", "yes"), "mine")
    ImageDataset('mine', 2 images 1×8×8, 2 classes)
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        images, labels, k = self.images, self.labels, len(self.classes)
        if images.dtype != torch.uint8 or images.dim() != 4 or 0 in images.shape:
            given = f"{images.dtype} {tuple(images.shape)}"
            raise SimNetsError(f"{self.name}: images must be uint8 (N, C, H, W), none of them 0; got {given}")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            given = f"{labels.dtype} {tuple(labels.shape)}"
            raise SimNetsError(
                f"{self.name}: labels must be int64 ({len(images)},), one an image; got {given}"
            )
        low, high = (int(v) for v in labels.aminmax())
        if low < 0 or high >= k:
            raise SimNetsError(
                f"{self.name}: labels must lie in 0…{k - 1}, for {k} classes; they reach {low}…{high}"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        c, h, w = self.images.shape[1:]
        return c, h, w

    def subset(self, indices: Tensor) -> ImageDataset:
        """The images at `indices` (int64 or a mask), in that order; the classes stay."""
        return ImageDataset(self.images[indices], self.labels[indices], self.classes, self.name)

    def __repr__(self) -> str:
        c, h, w = self.shape
        return f"ImageDataset({self.name!r}, {len(self)} images {c}×{h}×{w}, {len(self.classes)} classes)"


def stratified_split(labels: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices (rest, chosen), each in order: `size` chosen, of every class as near its share as can be.

    The share size·n_c/N is rounded down, and what is left goes to the largest remainders, but never takes
    the last image of a class while another class can give one.
    """
    total = len(labels)
    if not 0 < size < total:
        raise SimNetsError(f"size of the split must lie in 1…{total - 1}, for {total} images; got {size}")
    counts = torch.bincount(labels).tolist()
    take = [size * n // total for n in counts]
    order = sorted(
        (c for c, n in enumerate(counts) if n > take[c]),
        key=lambda c: (counts[c] - take[c] == 1, -(size * counts[c] % total), c),
    )
    for c in order[: size - sum(take)]:
        take[c] += 1
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(total, dtype=torch.bool)
    for c, n in enumerate(counts):
        members = torch.nonzero(labels == c).squeeze(1)
        chosen[members[torch.randperm(n, generator=generator)[: take[c]]]] = True
    return torch.nonzero(~chosen).squeeze(1), torch.nonzero(chosen).squeeze(1)


def split_validation(
    dataset: ImageDataset, size: int = 10_000, seed: int = 0
) -> tuple[ImageDataset, ImageDataset]:
    """(train, validation): exactly `size` images for validation, stratified, fixed by `seed` (section 6)."""
    if size >= len(dataset):
        raise SimNetsError(
            f"{dataset.name}: cannot take {size} validation images out of {len(dataset)}; ask for fewer"
        )
    rest, chosen = stratified_split(dataset.labels, size, seed)
    return dataset.subset(rest), dataset.subset(chosen)


def hold_out(labels: Tensor, split: str) -> Tensor:
    """Indices of `split` where there is no test set: one image in five, always the same, is for testing."""
    if len(labels) < 2:
        raise SimNetsError(f"cannot hold out test images from {len(labels)} image; give at least 2")
    train, test = stratified_split(labels, max(1, round(len(labels) / HELD_OUT)), seed=0)
    return train if split == "train" else test


def pixel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C,) of each channel of uint8 images, pixels counted as 0…1.

    Exact, from the histogram of the 256 values. A channel that never varies gets deviation 1, so that
    dividing by it is harmless.
    """
    if images.dtype != torch.uint8 or images.dim() != 4 or images.numel() == 0:
        raise SimNetsError(f"images must be uint8 (N, C, H, W); got {images.dtype} {tuple(images.shape)}")
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.reshape(-1), minlength=256).double().cpu()
        share /= share.sum()
        mean = share @ values
        deviation = (share @ (values - mean).square()).sqrt()
        means.append(mean)
        deviations.append(deviation if torch.count_nonzero(share) > 1 else torch.ones_like(deviation))
    return torch.stack(means).float(), torch.stack(deviations).float()
