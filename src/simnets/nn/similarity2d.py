"""`Similarity2d`: the similarity operator on the patches of images."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from simnets.nn._images import Size, check_images, check_window, pad, pair, patches
from simnets.nn._maps import convolves, similarity_maps
from simnets.nn.similarity import Similarity, SimilarityOptions

# Added to a patch's standard deviation, so that a flat patch becomes 0.
NORMALIZATION_EPS = 1e-5


class Similarity2d(nn.Module):
    """Similarity of every patch x_ij to n templates, the first layer of SimNet MLPConv: section 4.1.

    s_lij = Σ_t u_lt·φ(x_ijt, z_lt), (N, C, H, W) → (N, n, H', W'), where x_ij (C·kh·kw,) is the patch at ij.

    Args:
        in_channels, out_channels: C and n.
        kernel_size, stride, padding: of the patches, an int or (rows, columns).
        padding_value: the out-of-image value: any number, ±inf, or NaN, which with nan_policy "omit" says
            that what lies outside of the image is missing data.
        normalize_patches: take each patch's mean away and divide by its standard deviation + 1e-5
            (of the coordinates that are there, where NaN is omitted).
        **options: those of `Similarity`. A layer to share with is a `Similarity2d` or a `Similarity`.

    Attributes: `similarity`, the `Similarity` of C·kh·kw features, ordered as in a convolution's filters
    (C, kh, kw), which holds templates, weights, p and bias.

    Example:
        >>> layer = Similarity2d(3, 8, kernel_size=5, padding=2)
        >>> layer(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 8, 32, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        *,
        stride: Size = 1,
        padding: Size = 0,
        padding_value: float = 0.0,
        normalize_patches: bool = False,
        **options: Unpack[SimilarityOptions],
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = pair("kernel_size", kernel_size, 1)
        self.stride = pair("stride", stride, 1)
        self.padding = pair("padding", padding, 0)
        self.padding_value = float(padding_value)
        self.normalize_patches = normalize_patches
        if math.isinf(self.padding_value) and options.get("kind", "lp") == "lp":
            options.setdefault("method", "fused")  # multiplied out, (x − z)² would be ∞ − ∞
        self.similarity = Similarity(in_channels * math.prod(self.kernel_size), out_channels, **options)

    def reset_parameters(self) -> None:
        self.similarity.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        check_images(x, self.in_channels)
        check_window(x, self.kernel_size, self.padding)
        x = pad(x, self.padding, self.padding_value)
        layer = self.similarity
        if convolves(layer) and not self.normalize_patches:
            if layer.kind == "linear":
                return similarity_maps(layer, x, None, self.kernel_size, self.stride)
            # similarities do not change when x and z move together, so no gradient runs through the centre
            center = layer.templates.detach().view(self.out_channels, self.in_channels, -1).mean((0, 2))
            return similarity_maps(layer, x - center.view(-1, 1, 1), center, self.kernel_size, self.stride)
        rows = patches(x, self.kernel_size, self.stride)
        if self.normalize_patches:
            rows = normalize(rows, omit_nan=layer.nan_policy == "omit")
        result: Tensor = layer(rows)
        return result.permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        words = [
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        ]
        if self.padding != (0, 0):
            words.append(f"padding={self.padding}, padding_value={self.padding_value:g}")
        if self.normalize_patches:
            words.append("normalize_patches")
        return ", ".join(words)


def normalize(rows: Tensor, *, omit_nan: bool = False) -> Tensor:
    """(x − mean) / (standard deviation + 1e-5) of each row; a flat row becomes 0, with a finite gradient."""
    observed = ~rows.isnan() if omit_nan else torch.ones_like(rows, dtype=torch.bool)
    count = observed.sum(-1, keepdim=True).clamp(min=1).to(rows.dtype)
    # what is missing is 0 while sums are taken: a NaN would reach the gradient even with a weight of 0
    mean = torch.where(observed, rows, 0.0).sum(-1, keepdim=True) / count
    centered = torch.where(observed, rows - mean, 0.0)
    # the norm's gradient at 0 is 0, where that of the square root of a variance is NaN
    deviation = torch.linalg.vector_norm(centered, dim=-1, keepdim=True) / count.sqrt()
    return torch.where(observed, centered / (deviation + NORMALIZATION_EPS), torch.nan)
