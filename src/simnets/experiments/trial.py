"""A trial: one network, one data set, one seed, one schedule; and an experiment: trials with a question."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from simnets.training import Recipe, recipe_for

# Variants that are networks to use: in the README's table and, with their weights, in the box. Others are
# there to be compared.
FINAL_VARIANTS = ("", "distilled", "normalized", "warped", "strongly-warped")
# Of the others, those whose cost is what they are about: beside the final ones in the figure of operations.
COST_VARIANTS = ("equal-operations", "equal-parameters")


@dataclass(frozen=True)
class Trial:
    """One training on all training images, and one look at the test images.

    variant: what differs from the registered network and its tuned recipe, in a word; "" for nothing.
    options: fields of the network's specification that are changed.
    base, changes: the recipe, "fast" with the network's own values (`TUNED`) or "paper", and the fields of it
        that are changed.
    """

    network: str
    data: str = "cifar10"
    epochs: int = 100
    seed: int = 0
    variant: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    base: str = "fast"
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Tells trials apart, also as the name of a folder."""
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.network}{variant}-{self.data}-{self.epochs}epochs-seed{self.seed}"

    @property
    def recipe(self) -> Recipe:
        """The recipe with which this trial trains: all training images, nothing held out."""
        changes = {"validation": 0.0, "epochs": self.epochs} | self.changes
        return recipe_for(self.base, self.data, self.network, **changes)

    def with_seed(self, seed: int) -> Trial:
        """The same, from another start."""
        return replace(self, seed=seed)


@dataclass(frozen=True)
class Experiment:
    """Trials that answer one question of the paper.

    trials: with seed 0, in the order of their worth. seeds: how many seeds each is meant to have.
    paper: the accuracy, in percent, that the paper states for (network, variant, data).
    """

    name: str
    title: str
    trials: tuple[Trial, ...]
    paper: dict[tuple[str, str, str], float]
    seeds: int = 3
