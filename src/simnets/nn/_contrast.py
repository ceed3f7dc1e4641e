"""Patches of equal contrast: each patch's mean is taken away, and what is left divided by its deviation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def equalised(rows: Tensor, contrast: float) -> Tensor:
    """(x − m) / √(v + contrast) of each row (…, k), with its mean m and variance v."""
    centred = rows - rows.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + contrast).rsqrt()


def contrast_convolution(
    x: Tensor, filters: Tensor, bias: Tensor | None, contrast: float, stride: tuple[int, int]
) -> Tensor:
    """W·(x_ij − m_ij) / √(v_ij + contrast) + a of every patch x_ij, with its mean m_ij and variance v_ij.

    The same as (W·x_ij − m_ij·W·1) / √(v_ij + contrast) + a: a convolution and two means, no patches.
    """
    # nothing changes when all pixels of an image move together, and near 0 less cancels
    x = x - x.mean((1, 2, 3), keepdim=True)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    window = (filters.shape[2], filters.shape[3])
    mean = F.avg_pool2d(wide.mean(1, keepdim=True), window, stride)
    square = F.avg_pool2d(wide.square().mean(1, keepdim=True), window, stride)
    inverse = ((square - mean.square()).clamp_min(0) + contrast).rsqrt()
    y = F.conv2d(x, filters, None, stride)
    sums = filters.sum((1, 2, 3)).view(-1, 1, 1)
    y = (y - mean.to(y.dtype) * sums.to(y.dtype)) * inverse.to(y.dtype)
    return y if bias is None else y + bias.to(y.dtype).view(-1, 1, 1)
