"""`load_dataset`: by name or by path, whatever the layout."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

from simnets.data.arrays import reason
from simnets.data.dataset import ImageDataset
from simnets.data.digits import read_digits
from simnets.data.folder import read_folder
from simnets.data.npz import read_npz
from simnets.data.official import OFFICIAL
from simnets.errors import SimNetsError

DATASETS = (*OFFICIAL, "digits")


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets live: `root`, else $SIMNETS_DATA, else the user's cache folder."""
    return Path(root or os.environ.get("SIMNETS_DATA") or user_cache_path("simnets")).expanduser()


def load_dataset(
    name_or_path: str | Path,
    split: str = "train",
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
) -> ImageDataset:
    """The "train" or "test" images of a data set, all in memory.

    `name_or_path` is cifar10, cifar100, svhn (under `root`, see `data_root`), digits (embedded), or the path
    of an official folder, of an .npz file, or of a folder of pictures by class, whose pictures are brought to
    `image_size` (default 32).

    >>> load_dataset("digits", "test")
    ImageDataset('digits', 359 images 1×8×8, 10 classes)
    """
    if split not in ("train", "test"):
        raise SimNetsError(f'split must be "train" or "test"; got {split!r}')
    kind, path = locate(name_or_path, root)
    if image_size is not None and (kind != "folder" or image_size < 1):
        raise SimNetsError(
            f"image_size must be ≥ 1, and only for a folder of pictures; got {image_size} for {name_or_path}"
        )
    try:
        if kind == "digits":
            return read_digits(split)
        if kind == "npz":
            return read_npz(path, split)
        if kind == "folder":
            return read_folder(path, split, image_size or 32)
        return OFFICIAL[kind].read(path, split)
    except OSError as error:
        raise SimNetsError(f"{error.filename or path}: cannot be read ({reason(error)})") from error


def locate(name_or_path: str | Path, root: str | Path | None = None) -> tuple[str, Path]:
    """What a name or path stands for: (kind, path), kind one of `DATASETS`, "npz" or "folder" (of pictures).

    A name wins over a file of the same name in the working folder; ./digits means the latter.
    """
    if name_or_path == "digits":
        return "digits", Path("digits")
    if isinstance(name_or_path, str) and name_or_path in OFFICIAL:
        path = data_root(root) / OFFICIAL[name_or_path].folder
        if not path.is_dir():
            raise SimNetsError(
                f"{name_or_path}: there is no folder {path}; run `simnets data fetch {name_or_path}`,"
                " or set SIMNETS_DATA to the folder that holds it"
            )
        return name_or_path, path
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        found = [
            (name, folder)
            for name, official in OFFICIAL.items()
            for folder in (path, path / official.folder)
            if official.found_in(folder)
        ]
        if len(found) > 1:
            raise SimNetsError(
                f"{path}: holds several data sets; give one: {', '.join(str(f) for _, f in found)}"
            )
        return found[0] if found else ("folder", path)
    if not path.exists():
        raise SimNetsError(
            f"{name_or_path}: no such data set or path; the names are {', '.join(DATASETS)}, a path may be"
            " that of an official folder, of an .npz file or of a folder of pictures by class"
        )
    if path.suffix != ".npz":
        raise SimNetsError(f"{path}: is neither a folder nor an .npz file")
    return "npz", path
