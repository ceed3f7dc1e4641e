"""What the readers share: the arrays that they hand on, and the words for what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simnets.errors import SimNetsError

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (N, C, H, W), labels (N,)


def check_labels(labels: NDArray[np.integer], low: int, high: int, path: Path) -> None:
    """Refuse the first label outside low…high, naming where it stands."""
    wrong = np.flatnonzero((labels < low) | (labels > high))
    if len(wrong):
        raise SimNetsError(
            f"{path}: label {labels[wrong[0]]} of image {wrong[0]} is out of range {low}…{high}"
            f" ({len(wrong)} such); the file is damaged or of another data set"
        )


def reason(error: BaseException) -> str:
    """An error of another library in a few words, on one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:200] or type(error).__name__
