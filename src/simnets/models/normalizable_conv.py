"""`NormalizableConv2d`: a ConvNet's convolution that can be trained as a SimNet's can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simnets.nn._normalization import folded, neutral_norm, new_norm, normalised


class NormalizableConv2d(nn.Conv2d):
    """torch's convolution with a bias, whose W·x may be normalised over each batch while training.

    See `ConvSimilarity2d.normalize`: what comes out at the end is a plain convolution.
    """

    bias: nn.Parameter

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, padding: int = 0) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=padding)
        self.batch_norm: nn.BatchNorm2d | None = None

    @torch.no_grad()
    def normalize(self) -> None:
        """Bring each channel of W·x to mean 0 and variance 1 from now on, over a batch while training."""
        self.batch_norm = neutral_norm(self.weight, self.bias, training=self.training)
        self.bias.zero_()

    @torch.no_grad()
    def fold(self) -> None:
        """Write `batch_norm` into `weight` and `bias`."""
        if self.batch_norm is not None:
            weight, bias = folded(self.batch_norm, self.weight, self.bias)
            self.weight.copy_(weight)
            self.bias.copy_(bias)
            self.batch_norm = None

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_norm is None:
            return super().forward(x)
        y = F.conv2d(x, self.weight, None, self.stride, self.padding)
        return normalised(self.batch_norm, y, self.bias)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        normalised = f"{prefix}batch_norm.running_mean" in state_dict
        self.batch_norm = new_norm(self.weight, training=self.training) if normalised else None
        super()._load_from_state_dict(state_dict, prefix, *args)
