"""Keeps the operators out of automatic mixed precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Forward = TypeVar("Forward", bound=Callable[..., Tensor])


def full_precision(forward: Forward) -> Forward:
    """Under `torch.autocast`, run a function of a layer and x in the layer's own precision.

    Differences of squares and logarithms of sums do not survive the 8 bits of bfloat16; the convolutions in
    front of them, where the time goes, do.
    """

    @functools.wraps(forward)
    def wrapped(layer: torch.nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return forward(layer, x, *args, **kwargs)
        with torch.autocast(x.device.type, enabled=False):
            if x.dtype in (torch.float16, torch.bfloat16):
                x = x.float()
            return forward(layer, x, *args, **kwargs)

    return cast(Forward, wrapped)
