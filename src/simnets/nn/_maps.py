"""Similarity maps by convolution, for the linear form and for p = 2: no patches, no rows, no copies."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from simnets.nn._autocast import full_precision
from simnets.nn.similarity import Similarity


def convolves(layer: Similarity) -> bool:
    """Whether the layer's similarities to patches are sums of convolutions."""
    p = layer.order
    return (
        (layer.kind == "linear" or (isinstance(p, float) and p == 2.0))
        and layer.nan_policy == "propagate"
        and layer.method in ("auto", "expanded")
    )


@full_precision
def similarity_maps(
    layer: Similarity,
    x: Tensor,
    center: Tensor | None = None,
    kernel_size: tuple[int, int] = (1, 1),
    stride: tuple[int, int] = (1, 1),
) -> Tensor:
    """s_l of every patch of x + center, (N, C, H, W) → (N, n, H', W'), section 2; keeps x's memory format.

    Linear: one convolution with u·z. p = 2: −Σ u (x − z)² = Σ 2uz·x − Σ u·x² − Σ u·z², two convolutions, of x
    and of x². The three terms cancel when x and z are large beside their difference, so the caller takes
    `center` (C,) away from x first, and it is taken away from the templates here.
    """
    shape = (layer.out_features, -1, *kernel_size)
    filters = layer.templates.reshape(shape)
    weights = layer.weights
    if weights is not None:
        weights = weights.reshape(shape)
    constants = layer.constants()
    if layer.kind == "linear":
        return F.conv2d(x, filters if weights is None else weights * filters, constants, stride)
    # nothing is gained, and the cancellation cannot be afforded, below float32
    dtype = torch.promote_types(x.dtype, torch.float32)
    result_dtype, x, filters = x.dtype, x.to(dtype), filters.to(dtype)
    if center is not None:
        filters = filters - center.to(dtype).view(-1, 1, 1)
    # without weights every template has the same Σ x²: one output channel, broadcast
    weights = torch.ones_like(filters[:1]) if weights is None else weights.to(dtype)
    cross = 2 * weights * filters
    bias = -0.5 * (cross * filters).sum((1, 2, 3))
    if constants is not None:
        bias = bias + constants
    return (F.conv2d(x, cross, bias, stride) - F.conv2d(x * x, weights, None, stride)).to(result_dtype)


@full_precision
def natural_maps(layer: Similarity, y: Tensor) -> Tensor:
    """Σ v·y − Σ u·y² (+ b), where `templates` are v = 2u∘z: `ConvSimilarity2d.to_natural`."""
    assert layer.weights is not None
    v, u = layer.templates[:, :, None, None], layer.weights[:, :, None, None]
    return F.conv2d(y, v, layer.bias) - F.conv2d(y * y, u)
