"""The learning rate as a pure function of progress, so that a resumed run needs no stored schedule."""

from __future__ import annotations

import math

from simnets.training.recipe import Recipe

_START = 1 / 25  # one-cycle begins at this share of the peak


def rate(recipe: Recipe, progress: float) -> float:
    """Factor on the learning rate when a share `progress` in [0, 1] of the run is done.

    steps      1, then a tenth more off at each milestone (section 6.1)
    one-cycle  half a cosine from 1/25 up to 1 during the warm-up, half a cosine down to 0
    cosine     a straight warm-up, half a cosine down to 0
    constant   a straight warm-up, then 1

    >>> rate(Recipe(schedule="steps", warmup=0, milestones=(0.5,)), 0.75)
    0.1
    """
    if progress < recipe.warmup:
        rise = progress / recipe.warmup
        return _between(_START, 1.0, rise) if recipe.schedule == "one-cycle" else rise
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "steps":
        shares = (m if m < 1 else m / recipe.epochs for m in recipe.milestones)
        return float(10.0 ** -sum(progress >= share for share in shares))
    return _between(1.0, 0.0, (progress - recipe.warmup) / (1 - recipe.warmup))


def _between(start: float, end: float, share: float) -> float:
    """Half a cosine from start (share 0) to end (share 1)."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
