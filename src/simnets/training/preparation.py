"""What SimNets need around the loop: their start, their learning rates, their constraints, their folding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from simnets.data import ImageDataset
from simnets.models.simnet import SimNet
from simnets.training.recipe import Recipe


def prepare(
    model: nn.Module,
    dataset: ImageDataset,
    recipe: Recipe,
    *,
    seed: int,
    report: Callable[[str], None],
) -> None:
    """Set the starting values in place, once before the first step."""
    if isinstance(model, SimNet):
        generator = torch.Generator().manual_seed(seed)
        for name, value in model.named_parameters():
            if "offsets" in name:
                with torch.no_grad():
                    value.add_(torch.randn(value.shape, generator=generator), alpha=0.1)


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Learned parameters in groups, each with its own "lr" (at its peak)."""
    factors = {"templates": recipe.template_lr, "weights": recipe.weight_lr, "offsets": recipe.offset_lr}
    groups: dict[float, list[nn.Parameter]] = {}
    for name, value in model.named_parameters():
        if value.requires_grad:
            factor = next((f for key, f in factors.items() if key in name.rsplit(".", 1)[-1]), 1.0)
            groups.setdefault(factor if isinstance(model, SimNet) else 1.0, []).append(value)
    return [{"params": values, "lr": recipe.lr * factor} for factor, values in groups.items()]


def after_step(model: nn.Module, recipe: Recipe) -> None:
    """Restore constraints after a step of the optimiser."""


def finish(model: nn.Module, recipe: Recipe) -> None:
    """Fold what only training needs into the paper's parameters."""
    if isinstance(model, SimNet):
        model.fold()
