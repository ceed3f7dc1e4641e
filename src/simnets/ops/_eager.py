"""When a tensor's numbers may be looked at."""

from __future__ import annotations

import torch
from torch import Tensor


def values_are_at_hand(tensor: Tensor) -> bool:
    """Whether a value can be read now: not while a graph is captured, nor where reading means waiting."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
