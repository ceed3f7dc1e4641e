"""The cropped digits of SVHN: a MATLAB file with X (32, 32, 3, N) and y (N, 1), where 10 means digit 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.io import loadmat

from simnets.data.arrays import Arrays, check_labels, reason
from simnets.errors import SimNetsError


def read_svhn(path: Path) -> Arrays:
    """Images and labels 0…9 of train_32x32.mat or test_32x32.mat."""
    if not path.is_file():
        raise SimNetsError(f"{path}: cannot be read (No such file or directory)")
    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # a damaged file makes SciPy raise almost anything
        raise SimNetsError(
            f"{path}: is not a readable MATLAB 5 file, or is truncated ({reason(error)})"
        ) from error
    if "X" not in content or "y" not in content:
        raise SimNetsError(
            f"{path}: expected the variables X and y of SVHN's cropped digits; not both are there"
        )
    x, y = content["X"], content["y"].reshape(-1)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        raise SimNetsError(f"{path}: X must be uint8 (32, 32, 3, N); got {x.dtype} {x.shape}")
    if y.dtype.kind not in "ui" or y.shape != x.shape[3:] or len(y) == 0:
        raise SimNetsError(f"{path}: y must be {x.shape[3]} integers, one an image; got {y.dtype} {y.shape}")
    check_labels(y, 1, 10, path)
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10
