"""The embedded data set: 1797 real handwritten digits, 1×8×8, that come with scikit-learn."""

from __future__ import annotations

import numpy as np
import torch

from simnets.data.dataset import ImageDataset, hold_out


def read_digits(split: str) -> ImageDataset:
    """Grey values 0…16 become 0…255; one image in five is held out for testing, always the same ones."""
    from sklearn.datasets import (
        load_digits,
    )  # imported here: it costs a second, other data sets need none of it

    digits = load_digits()
    images = torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8))[:, None]
    labels = torch.from_numpy(digits.target.astype(np.int64))
    classes = tuple(str(name) for name in digits.target_names)
    return ImageDataset(images, labels, classes, "digits").subset(hold_out(labels, split))
