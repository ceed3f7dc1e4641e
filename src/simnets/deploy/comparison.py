"""What every export does around its own format: look at the target first, compare with torch afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from simnets.data import ImageDataset
from simnets.errors import SimNetsError
from simnets.models import ImageClassifier
from simnets.training.evaluate import scores_of

# Scores of a float export may differ from torch's by this much of the largest score: the order of sums.
TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Scores of an export beside torch's, and accuracies where labelled images were given.

    images: how many were compared. difference: the largest between two scores; scale: the largest score.
    agreement: share of the images whose first class is the same. accuracy, float_accuracy: of the export and
    of the network.
    """

    images: int
    difference: float
    scale: float
    agreement: float
    accuracy: float | None = None
    float_accuracy: float | None = None

    def compared(self, runtime: str) -> list[str]:
        """The comparison in a line, and the accuracies in another."""
        lines = [
            f"{runtime} and torch on {self.images} images: scores (up to {self.scale:.3g}) differ by "
            f"{self.difference:.2g} at most, the first class is the same for {self.agreement:.2%}"
        ]
        if self.accuracy is not None and self.float_accuracy is not None:
            lost = 100 * (self.float_accuracy - self.accuracy)
            lines.append(
                f"accuracy {self.accuracy:.2%}, torch {self.float_accuracy:.2%}: {lost:.2f} points lost"
            )
        return lines


def compare(model: ImageClassifier, images: Tensor, found: Tensor, test: ImageDataset | None) -> Comparison:
    """The scores `found` (N, k) beside the network's own; `test` has the labels of `images`."""
    expected = scores_of(model, images)
    accuracies = [
        None if test is None else float((scores.argmax(1) == test.labels).double().mean())
        for scores in (found, expected)
    ]
    return Comparison(
        images=len(images),
        difference=float((expected - found).abs().max()),
        scale=float(expected.abs().max()),
        agreement=float((expected.argmax(1) == found.argmax(1)).double().mean()),
        accuracy=accuracies[0],
        float_accuracy=accuracies[1],
    )


def check_target(target: Path, overwrite: bool, example: str) -> None:
    """Refuse a file that cannot or must not be written; `example` is a name for one."""
    if target.is_dir():
        raise SimNetsError(f"{target} is a folder; give the name of a file, such as {target / example}")
    if target.exists() and not overwrite:
        raise SimNetsError(f"{target} exists; choose another name, or overwrite=True (--overwrite)")
    if not target.parent.is_dir():
        raise SimNetsError(f"the folder {target.parent} does not exist; make it first")
