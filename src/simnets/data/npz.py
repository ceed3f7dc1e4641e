"""NumPy archives: x_train, y_train, x_test, y_test; or images and labels, of which a fifth is held out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from simnets.data.arrays import Arrays, check_labels, reason
from simnets.data.dataset import ImageDataset, hold_out
from simnets.errors import SimNetsError

MAX_CLASSES = 10_000  # more than this, and the labels are not classes


def read_npz(path: Path, split: str) -> ImageDataset:
    """Images uint8 (N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3; integer labels; optional `classes`.

    Without `classes`, the names are the numbers 0…largest label in the file. Objects are never unpickled.
    """
    content = _load(path)
    if "images" in content:
        images, labels = _pair(content, "images", "labels", path)
        chosen = hold_out(torch.from_numpy(labels), split).numpy()
        every_label, images, labels = labels, images[chosen], labels[chosen]
    else:
        train, test = _pair(content, "x_train", "y_train", path), _pair(content, "x_test", "y_test", path)
        if train[0].shape[1:] != test[0].shape[1:]:
            shapes = f"{train[0].shape[1:]} and {test[0].shape[1:]}"
            raise SimNetsError(f"{path}: images of x_train and x_test must have one shape; got {shapes}")
        every_label = np.concatenate([train[1], test[1]])
        images, labels = train if split == "train" else test
    if "classes" in content:
        classes = tuple(str(name) for name in content["classes"].reshape(-1))
    else:
        classes = tuple(str(c) for c in range(int(every_label.max()) + 1))
    check_labels(every_label, 0, len(classes) - 1, path)
    return ImageDataset(torch.from_numpy(images), torch.from_numpy(labels), classes, path.stem)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    wanted = ("images", "labels", "x_train", "y_train", "x_test", "y_test", "classes")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise SimNetsError(f"{path}: is one array, not an .npz archive; save it with numpy.savez")
        with archive:
            return {key: archive[key] for key in wanted if key in archive.files}
    except SimNetsError:
        raise
    except Exception as error:  # a damaged archive makes zipfile, zlib or NumPy raise almost anything
        raise SimNetsError(
            f"{path}: is not a readable .npz archive of plain arrays ({reason(error)})"
        ) from error


def _pair(content: dict[str, NDArray[Any]], images_key: str, labels_key: str, path: Path) -> Arrays:
    """The images under one key, laid out (N, C, H, W), and the labels under the other."""
    if images_key not in content or labels_key not in content:
        raise SimNetsError(
            f"{path}: expected arrays x_train, y_train, x_test, y_test, or images, labels;"
            f" found {', '.join(sorted(content)) or 'none of them'}"
        )
    images, labels = content[images_key], content[labels_key]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
        raise SimNetsError(
            f"{path}: {images_key} must be uint8 (N, H, W), (N, H, W, C) or (N, C, H, W);"
            f" got {images.dtype} {images.shape}"
        )
    if images.ndim == 3:
        images = images[:, None]
    else:
        channels_first, channels_last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if channels_first == channels_last:
            problem = "both its second and its last" if channels_first else "neither its second nor its last"
            raise SimNetsError(
                f"{path}: where are the channels (1 or 3) of {images_key} {images.shape}? {problem} size fits"
            )
        if channels_last:
            images = images.transpose(0, 3, 1, 2)
    if labels.dtype.kind not in "ui" or labels.size != len(images):
        raise SimNetsError(
            f"{path}: {labels_key} must be {len(images)} integers, one an image;"
            f" got {labels.dtype} {labels.shape}"
        )
    labels = labels.reshape(-1).astype(np.int64)
    check_labels(labels, 0, MAX_CLASSES - 1, path)
    return np.ascontiguousarray(images), labels
