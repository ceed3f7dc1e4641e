"""What a trained network says about picture files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from simnets.data import read_image
from simnets.errors import SimNetsError
from simnets.models import ImageClassifier
from simnets.training.evaluate import scores_of


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one picture, (name, probability), best first."""

    path: Path
    top: tuple[tuple[str, float], ...]


def predict(model: ImageClassifier, paths: Sequence[str | Path], top: int = 5) -> list[Prediction]:
    """The `top` likeliest classes of each picture (PNG, JPEG, …, of any size).

    >>> predict(simnets.load("model.safetensors"), ["cat.jpg"], top=1)  # doctest: +SKIP
    [Prediction(path=PosixPath('cat.jpg'), top=(('cat', 0.93),))]
    """
    if top < 1:
        raise SimNetsError(f"top is {top}; expected at least 1")
    if len(model.spec.input_shape) != 3:
        raise SimNetsError(f"the network takes vectors of shape {model.spec.input_shape}, not pictures")
    channels, height, width = model.spec.input_shape
    images = torch.stack([read_image(path, (height, width), channels) for path in paths])
    probabilities, classes = scores_of(model, images).softmax(1).topk(min(top, len(model.classes)))
    return [
        Prediction(Path(path), tuple((model.classes[c], p) for c, p in zip(names, values, strict=True)))
        for path, names, values in zip(paths, classes.tolist(), probabilities.tolist(), strict=True)
    ]
