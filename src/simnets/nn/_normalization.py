"""Batch normalisation of W·x that exists only while a network is trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def neutral_norm(filters: Tensor, bias: Tensor, *, training: bool) -> nn.BatchNorm2d:
    """For W·x, in front of a bias of 0. In evaluation running averages stand for the batch; they start so
    that W·x becomes W·x + `bias`.
    """
    norm = new_norm(filters, training=training)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(-bias)
    norm.running_var.fill_(1 - norm.eps)
    return norm


def new_norm(filters: Tensor, *, training: bool) -> nn.BatchNorm2d:
    """With mean 0 and variance 1, on the device of the filters and with their precision."""
    norm = nn.BatchNorm2d(len(filters), affine=False)
    return norm.to(filters.device, filters.dtype).train(training)


def normalised(norm: nn.BatchNorm2d, y: Tensor, bias: Tensor) -> Tensor:
    """`norm` of y, and `bias` (d,) more, in one pass. Added afterwards, a bias in full precision would make
    float32 of a bfloat16 y, and slow all that follows.
    """
    statistics = norm.running_mean, norm.running_var
    return F.batch_norm(y, *statistics, None, bias, norm.training, norm.momentum or 0.0, norm.eps)


def folded(norm: nn.BatchNorm2d, filters: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Filters and bias with which nothing changes when the normalisation goes; on the CPU, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    # on the CPU: not every device has float64
    mean, variance = (v.to("cpu", torch.float64) for v in (norm.running_mean, norm.running_var))
    factor = (variance + norm.eps).rsqrt()
    filters, bias = (value.detach().to("cpu", torch.float64) for value in (filters, bias))
    return filters * factor.view(-1, 1, 1, 1), bias - mean * factor
