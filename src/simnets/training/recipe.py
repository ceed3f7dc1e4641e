"""How a network is trained: one frozen dataclass, the paper's recipe (section 6.1) and ours.

    recipe = recipe_for("fast", "cifar10", epochs=40, lr=0.002)

Every field is an option of `simnets train`. Baselines use the same fields and ignore those that
concern SimNets alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simnets.errors import SimNetsError


def _require(condition: bool, name: str, given: object, expected: str) -> None:
    if not condition:
        raise SimNetsError(f"{name} is {given}; expected {expected}")


_NOT_NEGATIVE = (
    *("validation", "weight_decay", "clip", "shift", "cutout", "noise"),
    *("template_lr", "weight_lr", "offset_lr", "perplexity", "em", "energy", "class_energy"),
)


@dataclass(frozen=True)
class Recipe:
    """All choices of one training; two runs with equal recipe, data and seed give equal weights.

    The default of a field that is added is what was done before there was one.
    """

    name: str = "fast"
    """Where the values come from: the key in RECIPES."""

    epochs: int = 16
    """Passes over the training images."""
    batch_size: int = 100
    """Images in a step, over all processes together."""
    validation: float = 0.1
    """Training images held out to watch progress: how many, or a share if below 1; 0 trains on all."""

    optimizer: Literal["sgd", "adam", "muon"] = "muon"
    """sgd is SGD with Nesterov momentum (section 6.1); adam decouples its weight decay; muon is Muon for
    filters, templates, weights and offsets, and adam for the rest."""
    lr: float = 0.003
    """Learning rate at its peak."""
    filter_lr: float = 0.01
    """Learning rate of the filters at its peak (muon): how far each direction of the filter bank moves."""
    momentum: float = 0.9
    """Nesterov momentum (sgd)."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay of the two running averages (adam)."""
    weight_decay: float = 0.0
    """Pull of every learned weight towards 0."""
    schedule: Literal["steps", "one-cycle", "cosine", "constant"] = "one-cycle"
    """Shape of the learning rate over the run."""
    milestones: tuple[float, ...] = (2 / 3, 5 / 6)
    """When "steps" divides the rate by 10: epochs, or shares of the run if below 1."""
    warmup: float = 0.2
    """Share of the run in which the rate rises to its peak."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    label_smoothing: float = 0.1
    """Share of the target probability that is spread over all classes."""
    ema: float = 0.0
    """Decay of the running average of the weights, which is then what is evaluated and kept; 0 is off."""

    teachers: tuple[str, ...] = ()
    """Distillation: networks to learn from, as weights in the box ("caffe_quick-cifar10") or files."""
    teacher_share: float = 0.7
    """Share of the target that is the teachers' opinion of an image; the rest is its label."""

    flip: bool = True
    """Mirror half of the images, left to right."""
    shift: int = 4
    """Shift images by up to this many pixels."""
    border: Literal["zero", "reflect"] = "reflect"
    """What a shift uncovers: black, or the image mirrored."""
    warp: float = 0.0
    """Turn, zoom and shear half of the images: the entries of a matrix differ from the identity's by up to
    this much."""
    cutout: int = 0
    """Blank a random square of this many pixels a side."""
    noise: float = 0.0
    """σ of the multiplicative Gaussian noise in the conv→similarity layers (section 6.4)."""

    template_lr: float = 3.0
    """Learning rate of the templates z, as a multiple of lr, or of filter_lr (muon)."""
    weight_lr: float = 3.0
    """Learning rate of log u, as a multiple of lr, or of filter_lr (muon)."""
    offset_lr: float = 3.0
    """Learning rate of the offsets b, as a multiple of lr, or of filter_lr (muon)."""
    pretrain: bool = True
    """Start the similarity layers from the statistics of unlabelled patches (section 5)."""
    whitening: Literal["ica", "pca", "zca"] = "ica"
    """How pre-training starts the filters W."""
    em: int = 0
    """Rounds of EM in pre-training, at most; 0 keeps the k-means clusters that EM starts from."""
    precondition: bool = True
    """Learn the filters in whitened coordinates, W = V·A with A fixed; folded into W at the end."""
    project: bool = True
    """Keep each row of V at unit norm."""
    normalize: bool = False
    """Normalise the whitened channels over each batch (batch normalisation); folded into W at the end. A
    network of many layers needs it. Of the baselines, for Network in Network."""
    energy: float = 0.0
    """Before the last layer, start ℓ2 templates far away, so that similarities are a linear map plus this
    much of a quadratic one, and learn them in natural coordinates (v = 2u·z, u), folded into z at the end; 0
    starts them at clusters of patches. Networks of three and more layers need it."""
    label_start: bool = True
    """Start the offsets b from how often each template meets each class."""
    class_energy: float = 0.0
    """Share the last layer's ℓ2 templates among the classes, with label_start: each starts as a linear
    discriminant of its class plus this much of a quadratic term, learned in natural coordinates as with
    `energy`; 0 leaves them at clusters of patches that all classes share. Needs two templates a class."""
    learn_scale: bool = True
    """Learn a scale λ of the scores beside the paper's parameters; folded into u, b and β_c at the end."""
    perplexity: float = 25.0
    """How many templates share a patch at the start (perplexity of the posterior over templates); 0 leaves
    the weights u as the mixture has them, section 5 to the letter."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train, each with one line that names the field."""
        for name in ("epochs", "batch_size"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number of at least 1")
        for name in ("lr", "filter_lr"):
            _require(0 < getattr(self, name) < float("inf"), name, getattr(self, name), "a positive number")
        for name in _NOT_NEGATIVE:
            _require(0 <= getattr(self, name) < float("inf"), name, getattr(self, name), "0 or more")
        for name in ("momentum", "warmup", "label_smoothing", "ema"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "at least 0 and less than 1")
        _require(0 <= self.teacher_share <= 1, "teacher_share", self.teacher_share, "a number from 0 to 1")
        _require(0 <= self.warp < 0.5, "warp", self.warp, "at least 0 and less than 0.5")
        for beta in self.betas:
            _require(0 <= beta < 1, "betas", self.betas, "two numbers from 0 up to, not with, 1")
        for milestone in self.milestones:
            _require(milestone > 0, "milestones", self.milestones, "positive numbers")
        optimizers = ("sgd", "adam", "muon")
        _require(
            self.optimizer in optimizers, "optimizer", self.optimizer, " or ".join(map(repr, optimizers))
        )
        _require(self.border in ("zero", "reflect"), "border", self.border, "'zero' or 'reflect'")
        whitenings = ("ica", "pca", "zca")
        _require(
            self.whitening in whitenings, "whitening", self.whitening, " or ".join(map(repr, whitenings))
        )
        shapes = ("steps", "one-cycle", "cosine", "constant")
        _require(self.schedule in shapes, "schedule", self.schedule, " or ".join(map(repr, shapes)))


def plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as it comes back from a JSON file."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe)))
    return values


def recorded(values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe read from a JSON file, with the fields that have been added since: they had their defaults."""
    return plain(Recipe()) | dict(values)


RECIPES: dict[str, Recipe] = {
    # Section 6.1, to the letter; what the paper does not state (augmentation, clipping) is off.
    "paper": Recipe(
        name="paper",
        epochs=300,
        batch_size=128,
        validation=0.2,  # the paper's 10,000 of 50,000
        optimizer="sgd",
        lr=0.01,
        momentum=0.9,
        weight_decay=1e-4,
        schedule="steps",
        milestones=(2 / 3, 5 / 6),  # after 200 and 250 of 300 epochs
        warmup=0.0,
        clip=0.0,
        label_smoothing=0.0,
        flip=False,
        shift=0,
        template_lr=1.0,
        weight_lr=1.0,
        offset_lr=1.0,
        em=30,
        precondition=False,
        project=False,
        label_start=False,
        learn_scale=False,
        perplexity=0.0,
    ),
    "fast": Recipe(),
}

# What a data set needs that differs from natural photographs: digits may not be mirrored.
_ADAPTED: dict[str, dict[str, Any]] = {
    "svhn": {"flip": False},
    "digits": {"epochs": 30, "label_smoothing": 0.0, "flip": False, "shift": 1, "border": "zero"},
}

# What a network needs that differs from the defaults above, chosen on held-out training images by
# `benchmarks/proxies.py` (results/proxies.jsonl, docs/training_notes.md). `simnet3` is far too large for such
# a choice here; it and `simnet4` have what `simnet3_compact` needs. Those of `simnet2_plus` are the
# first that were tried, and `simnet3_compact_plus` took them over, where half of the rate is a tie.
_DEEP: dict[str, Any] = {"energy": 0.5, "template_lr": 1.0, "weight_lr": 1.0}
# 5 K parameters cannot memorise: what keeps larger networks from it only makes the task harder for these.
# In 16 epochs 0.005, 0.01 and 0.02 are a tie for the filters; with 0.02 a long run stands still at its peak.
_COMPACT: dict[str, Any] = {"filter_lr": 0.005, "label_smoothing": 0.0, "shift": 2}
_SEPARABLE: dict[str, Any] = {"filter_lr": 0.02, "template_lr": 1.0, "weight_lr": 1.0, "normalize": True}
TUNED: dict[str, dict[str, Any]] = {
    "caffe_quick": {"filter_lr": 0.02},
    # searched with 200 channels
    **{f"convnet1_{channels}": {"filter_lr": 0.04} for channels in (50, 100, 200, 400, 800, 1600, 3200)},
    # searched with 50 templates; those of order 1 have no templates of classes
    **{f"simnet1_{n}": {"class_energy": 2.0, "filter_lr": 0.02} for n in (50, 100, 200, 400, 800)},
    "convnet2": {"filter_lr": 0.04},
    "nin_compact": _COMPACT | {"lr": 0.01, "filter_lr": 0.02},
    "resnet8": {"filter_lr": 0.04},
    "simnet2_plus": _SEPARABLE,
    "simnet2": _DEEP | {"class_energy": 2.0},
    "simnet2_contrast": _DEEP | {"class_energy": 2.0},
    "simnet2_contrast_rectified": _DEEP | {"class_energy": 2.0},
    "simnet2_l1": {"template_lr": 1.0, "weight_lr": 1.0, "class_energy": 2.0},
    "simnet2_rectified": _DEEP,
    "simnet3": _DEEP,
    "simnet3_compact": _DEEP | _COMPACT,
    "simnet3_compact_rectified": _DEEP | _COMPACT | {"normalize": True},
    "simnet3_compact_plus": _COMPACT | _SEPARABLE | {"class_energy": 2.0},
    "simnet4": _DEEP,
}


def recipe_for(
    recipe: str | Recipe, data: str | Path, network: str = "", *, trained: bool = False, **changes: Any
) -> Recipe:
    """The recipe of that name, adapted to a known data set and network, with the changes asked for.

    >>> recipe_for("fast", "svhn").flip
    False
    >>> recipe_for("fast", "cifar10", "simnet3_compact").energy
    0.5

    Only our own recipe is adapted: `paper` stays the paper's, and a Recipe stays as given. A network that
    comes with weights (`trained`) keeps them: it is not pre-trained again.
    """
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise SimNetsError(f"recipe {recipe!r} is unknown; choose one of {', '.join(sorted(RECIPES))}")
        adapted = _ADAPTED.get(str(data), {}) | TUNED.get(network, {}) if recipe == "fast" else {}
        adapted = adapted | ({"pretrain": False, "label_start": False} if trained else {})
        recipe = dataclasses.replace(RECIPES[recipe], **adapted)
    unknown = set(changes) - {field.name for field in dataclasses.fields(Recipe)}
    if unknown:
        raise SimNetsError(f"{sorted(unknown)[0]!r} is not a field of a recipe; see `simnets train --help`")
    return dataclasses.replace(recipe, **changes)
