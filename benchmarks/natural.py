"""What rows a part at a time save: `python benchmarks/natural.py`, one thread, half a minute.

Similarities in natural coordinates, −Σ u·y² + Σ v·y, of maps as they are in `simnet2` (both layers) and in
`simnet3_compact`, in float32, forward and backward: as two convolutions, the formula as it stands, and as
`simnets.nn` computes them. And patches of equal contrast, with their means taken from the maps, the formula
as it stands, and from the filters. Medians of interleaved rounds, and their ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from simnets.nn._contrast import contrast_convolution
from simnets.nn._maps import natural_maps
from simnets.nn.similarity import Similarity
from simnets.training.memory import keep_memory

SHAPES = ((100, 32, 28, 32), (100, 64, 9, 64), (100, 10, 32, 10))  # images, channels, side, templates
WARM, ROUNDS = 3, 25


def two_convolutions(layer: Similarity, y: Tensor) -> Tensor:
    assert layer.weights is not None
    v, u = layer.templates[:, :, None, None], layer.weights[:, :, None, None]
    return F.conv2d(y, v) - F.conv2d(y * y, u)


def plain_contrast(
    x: Tensor, filters: Tensor, bias: Tensor, contrast: float, stride: tuple[int, int]
) -> Tensor:
    window = (filters.shape[2], filters.shape[3])
    mean = F.avg_pool2d(x.mean(1, keepdim=True), window, stride)
    variance = F.avg_pool2d(x.square().mean(1, keepdim=True), window, stride) - mean.square()
    y = F.conv2d(x, filters, None, stride) - mean * filters.sum((1, 2, 3)).view(-1, 1, 1)
    return y * (variance + contrast).rsqrt() + bias.view(-1, 1, 1)


def compare(title: str, learned: list[Tensor], **ways: Callable[[], Tensor]) -> None:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(WARM + ROUNDS):
        for name, way in ways.items():
            started = time.perf_counter()
            out = way()
            torch.autograd.grad(out, learned, torch.ones_like(out))
            times[name].append(time.perf_counter() - started)
    plain, fast = (1e3 * statistics.median(taken[WARM:]) for taken in times.values())
    print(f"{title}: {plain:.1f} ms, {fast:.1f} ms, ratio {plain / fast:.2f}")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_memory()
    for images, d, side, n in SHAPES:
        layer = Similarity(d, n)
        y = torch.randn(images, d, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
        compare(
            f"{images}×{d}×{side}×{side} to {n} templates",
            [y, *layer.parameters()],
            plain=lambda layer=layer, y=y: two_convolutions(layer, y),
            fast=lambda layer=layer, y=y: natural_maps(layer, y),
        )
    x = torch.randn(100, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    filters, bias = torch.randn(32, 3, 5, 5, requires_grad=True), torch.randn(32, requires_grad=True)
    compare(
        "patches of equal contrast, 100×3×32×32 to 32 channels",
        [filters, bias],
        plain=lambda: plain_contrast(x, filters, bias, 0.1, (1, 1)),
        fast=lambda: contrast_convolution(x, filters, bias, 0.1, (1, 1)),
    )


if __name__ == "__main__":
    main()
