"""A folder of pictures, one subfolder a class, with or without train/ and test/ above the classes."""

from __future__ import annotations

from pathlib import Path

import torch

from simnets.data.dataset import ImageDataset, hold_out
from simnets.data.images import SUFFIXES, read_image
from simnets.errors import SimNetsError

LAYOUT = "expected FOLDER/CLASS/*.png or FOLDER/{train,test}/CLASS/*.png (also jpg, bmp, gif, webp)"

Listing = list[tuple[Path, int]]  # every picture with its label, in the order of the path


def list_folder(folder: Path, split: str) -> tuple[Listing, tuple[str, ...]]:
    """The pictures of `split` and the class names, which are the names of the subfolders, sorted."""
    # A class may be called "train": only a folder that has folders in it is a split.
    splits = {name: folder / name for name in ("train", "test") if _subfolders(folder / name)}
    if not splits:
        classes = _classes(folder)
        listing = _pictures(folder, classes)
        chosen = hold_out(torch.tensor([label for _, label in listing]), split).tolist()
        return [listing[i] for i in chosen], classes
    if len(splits) < 2:
        missing = "test" if "train" in splits else "train"
        raise SimNetsError(f"{folder}: has {'/, '.join(splits)}/ but no {missing}/; {LAYOUT}")
    classes = _classes(splits["train"])
    unknown = sorted(set(_subfolders(splits["test"])) - set(classes))
    if unknown:
        raise SimNetsError(f"{folder}: test/ has classes that train/ has not: {', '.join(unknown)}")
    return _pictures(splits[split], classes), classes


def read_folder(folder: Path, split: str, image_size: int = 32) -> ImageDataset:
    """Every picture of `split` as RGB, scaled and centre cropped to `image_size` (see `read_image`)."""
    listing, classes = list_folder(folder, split)
    images = torch.empty(len(listing), 3, image_size, image_size, dtype=torch.uint8)
    for i, (path, _) in enumerate(listing):
        images[i] = read_image(path, image_size)
    return ImageDataset(images, torch.tensor([label for _, label in listing]), classes, folder.resolve().name)


def _subfolders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _classes(folder: Path) -> tuple[str, ...]:
    names = _subfolders(folder)
    if len(names) < 2:
        raise SimNetsError(f"{folder}: needs a subfolder for each of at least 2 classes; {LAYOUT}")
    return tuple(names)


def _pictures(folder: Path, classes: tuple[str, ...]) -> Listing:
    listing: Listing = []
    for name in _subfolders(folder):
        paths = [
            path
            for path in sorted((folder / name).iterdir())
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
        ]
        if not paths:
            raise SimNetsError(f"{folder / name}: holds no pictures; {LAYOUT}")
        listing += [(path, classes.index(name)) for path in paths]
    return listing
