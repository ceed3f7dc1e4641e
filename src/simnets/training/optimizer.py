"""The optimisers of a recipe, each a `torch.optim.Optimizer` whose state is tensors and numbers only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simnets.training.recipe import Recipe

# Newton–Schulz coefficients of Muon: five rounds bring all singular values near 1 (0.7 to 1.2).
_QUINTIC = (3.4445, -4.7750, 2.0315)
_MOMENTUM = 0.95


def make_optimizer(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum (section 6.1), AdamW, or Muon for filters beside AdamW for the rest."""
    if recipe.optimizer == "sgd":
        momentum = recipe.momentum
        return torch.optim.SGD(
            groups,
            lr=recipe.lr,
            momentum=momentum,
            nesterov=momentum > 0,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
    options: dict[str, Any] = {"betas": recipe.betas, "weight_decay": recipe.weight_decay}
    kind = MuonAdamW if recipe.optimizer == "muon" else torch.optim.AdamW
    return kind(groups, lr=recipe.lr, fused=True, **options)


def orthogonalised(matrix: Tensor) -> Tensor:
    """The nearest matrix with (nearly) equal singular values, U·Vᵀ of the decomposition U·S·Vᵀ."""
    a, b, c = _QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / x.norm().clamp_min(1e-12)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class MuonAdamW(torch.optim.AdamW):
    """AdamW, except that groups with `orthogonal=True` take Muon's step (Jordan et al., 2024).

    There the update is the momentum's polar factor: every direction of the filter bank moves equally far,
    and the group's learning rate is that distance. Filters of any rank are seen as matrices (outputs, rest).
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if closure is not None:
            raise NotImplementedError("MuonAdamW takes no closure")
        gradients: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            if not group.get("orthogonal", False):
                continue
            for value in group["params"]:
                if value.grad is not None:
                    self._orthogonal_step(value, group)
                    gradients.append((value, value.grad))
                    value.grad = None  # AdamW passes over what has no gradient
        super().step()
        for value, gradient in gradients:
            value.grad = gradient
        return None

    def _orthogonal_step(self, value: Tensor, group: dict[str, Any]) -> None:
        assert value.grad is not None
        state = self.state[value]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(value)
            state["step"] = torch.zeros(())  # never used, but AdamW looks for one when it restores a state
        momentum: Tensor = state["momentum"].mul_(_MOMENTUM).add_(value.grad)
        ahead = value.grad.add(momentum, alpha=_MOMENTUM).flatten(1)  # Nesterov
        scale = max(1.0, ahead.shape[0] / ahead.shape[1]) ** 0.5
        value.mul_(1 - group["lr"] * group["weight_decay"])
        value.add_(orthogonalised(ahead).view_as(value), alpha=-group["lr"] * scale)
