"""When the loss stops being a number: find where that began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from simnets.errors import SimNetsError


class TrainingDiverged(SimNetsError):
    """The loss or a gradient became NaN or infinite."""


def first_non_finite(model: nn.Module, forward: Callable[[], Tensor]) -> str:
    """Name what went wrong first: a parameter, else a layer's output, else a gradient.

    `forward` computes the loss of the step once more, through `model`. Gradients are looked at from the
    last layer to the first, the order in which they are computed.
    """
    for name, value in model.named_parameters():
        if value.requires_grad and not value.isfinite().all():
            return f"the parameter {name}"
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
        # Hooks run as each layer finishes, inner layers before the one around them.
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not output.isfinite().all():
                found.append(f"the output of {name or 'the network'} ({type(module).__name__})")

        return hook

    handles = [module.register_forward_hook(look(name)) for name, module in model.named_modules()]
    try:
        with torch.enable_grad():
            loss = forward()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    if not loss.isfinite():
        return "the loss"
    learned = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    # Not loss.backward(): that would set off the exchange of gradients between processes.
    gradients = torch.autograd.grad(loss, [value for _, value in learned], allow_unused=True)
    for (name, _), gradient in reversed(list(zip(learned, gradients, strict=True))):
        if gradient is not None and not gradient.isfinite().all():
            return f"the gradient of {name}"
    return "the gradient of another process"


def require_finite(model: nn.Module) -> None:
    """Raise if a learned value is not a finite number: such a state must never become a checkpoint."""
    learned = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if not torch.stack([value.detach().isfinite().all() for value in learned.values()]).all():
        name = next(name for name, value in learned.items() if not value.isfinite().all())
        raise TrainingDiverged(f"the parameter {name} became NaN or infinite")
