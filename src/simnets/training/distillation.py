"""Distillation: a network learns what larger ones make of an image, and not its label alone.

Not in the paper. The teachers are asked once, before the first step, about each training image as it is and
mirrored, so that they cost nothing in a step.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from simnets.data import ImageDataset
from simnets.errors import SimNetsError
from simnets.models import ImageClassifier, load
from simnets.models.registry import weights_file
from simnets.training.display import span
from simnets.training.evaluate import require_same_classes, scores_of
from simnets.training.recipe import Recipe


def load_teachers(recipe: Recipe, dataset: ImageDataset) -> dict[str, ImageClassifier]:
    """The networks that the recipe names, by the checksum of their weights; they must know the classes."""
    found: dict[str, ImageClassifier] = {}
    for name in recipe.teachers:
        path = weights_file(name, "one of teachers")
        teacher = load(path)
        try:
            require_same_classes(teacher, dataset)
        except SimNetsError as error:
            raise SimNetsError(f"teacher {name}: {error}") from None
        found[hashlib.sha256(path.read_bytes()).hexdigest()[:16]] = teacher
    return found


def soft_labels(
    teachers: Sequence[nn.Module],
    dataset: ImageDataset,
    recipe: Recipe,
    say: Callable[[str], None] = lambda text: None,
) -> Tensor:
    """(N, k) probabilities: the mean opinion of the teachers, and the label for the rest."""
    views = [dataset.images, dataset.images.flip(-1)] if recipe.flip else [dataset.images]
    opinions: list[Tensor] = []
    started = time.monotonic()
    for done, teacher in enumerate(teachers):
        left = (time.monotonic() - started) / done * (len(teachers) - done) if done else None
        when = "" if left is None else f", about {span(left)} left"
        say(f"asking teacher {done + 1} of {len(teachers)} about {len(dataset):,} images{when}")
        opinions += [scores_of(teacher, view).softmax(1) for view in views]
    labels = nn.functional.one_hot(dataset.labels.cpu(), len(dataset.classes)).float()
    return torch.lerp(labels, torch.stack(opinions).mean(0), recipe.teacher_share)
