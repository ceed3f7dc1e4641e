"""Running average of the weights: evaluated and kept instead of the last step's, it removes step noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Average:
    """a ← a + (1 − decay)·(w − a) for every learned tensor; the rest (buffers, fixed values) is copied.

    The decay rises with the steps, min(decay, (1 + t)/(10 + t)), so that the start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        # Not the state dict, in which a parameter that two layers share stands twice.
        self.present: dict[str, Tensor] = {
            **{name: value.detach() for name, value in model.named_parameters()},
            **dict(model.named_buffers()),
        }
        self.values = {name: value.clone() for name, value in self.present.items()}
        learned = {name for name, value in model.named_parameters() if value.requires_grad}
        self._learned = [name for name in self.values if name in learned]
        # Fixed values may be infinite (β of a max pooling), and ∞ − ∞ is not a number: copy them.
        self._copied = [name for name in self.values if name not in learned]

    def update(self) -> None:
        """Take in the model's present weights."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        values, present = ([held[name] for name in self._learned] for held in (self.values, self.present))
        torch._foreach_lerp_(values, present, 1 - decay)
        for name in self._copied:
            self.values[name].copy_(self.present[name])

    def swap(self) -> None:
        """Exchange the averaged and the present weights; a second call exchanges them back."""
        for name, value in self.present.items():
            present = value.clone()
            value.copy_(self.values[name])
            self.values[name].copy_(present)
