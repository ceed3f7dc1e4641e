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

    As W·m_ij = 0 for filters whose own mean is taken away, it is a convolution with these, and two means of
    pixels; no patches.
    """
    # nothing changes when all pixels of an image move together, and near 0 less cancels
    x = x - x.mean((1, 2, 3), keepdim=True)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    moments = torch.stack([wide.mean(1), wide.square().mean(1)], 1)
    mean, square = F.avg_pool2d(moments, (filters.shape[2], filters.shape[3]), stride).chunk(2, 1)
    inverse = ((square - mean.square()).clamp_min(0) + contrast).rsqrt()
    y = F.conv2d(x, filters - filters.mean((1, 2, 3), keepdim=True), None, stride)
    inverse = inverse.to(y.dtype)
    return y * inverse if bias is None else torch.addcmul(bias.to(y.dtype).view(-1, 1, 1), y, inverse)
