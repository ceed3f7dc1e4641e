"""The binary files of CIFAR-10 and CIFAR-100.

A record is its label bytes (CIFAR-10: one; CIFAR-100: coarse, then fine) and 3072 pixels, channel by
channel, row by row. A file is records and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simnets.data.arrays import Arrays, check_labels, reason
from simnets.errors import SimNetsError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


def read_cifar10(path: Path) -> Arrays:
    """Images and labels 0…9 of one batch file of CIFAR-10."""
    return _read_records(path, label_bytes=1, num_classes=10)


def read_cifar100(path: Path) -> Arrays:
    """Images and fine labels 0…99 of train.bin or test.bin of CIFAR-100."""
    return _read_records(path, label_bytes=2, num_classes=100)


def _read_records(path: Path, label_bytes: int, num_classes: int) -> Arrays:
    record = label_bytes + PIXELS
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise SimNetsError(f"{path}: cannot be read ({reason(error)})") from error
    if len(content) == 0 or len(content) % record:
        raise SimNetsError(
            f"{path}: {len(content):,} bytes are not a whole number of records of {record} bytes;"
            " the file is truncated or not of this format"
        )
    records = content.reshape(-1, record)
    labels = records[:, label_bytes - 1].astype(np.int64)
    check_labels(labels, 0, num_classes - 1, path)
    return records[:, label_bytes:].reshape(-1, *SHAPE), labels


def read_names(path: Path, count: int) -> tuple[str, ...]:
    """The class names in a text file, one a line; the official files end with empty lines."""
    try:
        names = tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise SimNetsError(f"{path}: is not a text file of class names") from error
    except OSError as error:
        raise SimNetsError(f"{path}: cannot be read ({reason(error)}); it holds the class names") from error
    if len(names) != count or len(set(names)) != count:
        raise SimNetsError(f"{path}: expected {count} different class names, one a line; found {len(names)}")
    return names
