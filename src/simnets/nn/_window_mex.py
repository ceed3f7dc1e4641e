"""MEX over the windows of images for a finite β, exact at any range of values.

With M the maximum of a window (for β < 0 its minimum), n its count of locations and d = x − M,

    MEX = M + log1p(q)/β,   q = (1/n)·Σ expm1(β·d),

which neither overflows, nor underflows far below the map's own maximum (1 + q ≥ 1/n), nor cancels as β → 0.
The sums run over the kernel's positions, each a strided view of the image: no window is ever written out, and
the memory is that of a few outputs. A position counts only in those windows in which it lies within the
image, so nothing is padded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# With this β, which can be divided by, MEX is the mean to the last digit.
SMALLEST_BETA = 1e-20
# Where mean (β·d)² is below this, dMEX/dβ is taken from its series; what that leaves out is of this size.
SERIES_UP_TO = 1e-6


def window_mex(
    x: Tensor,
    beta: float | Tensor,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    ceil_mode: bool,
) -> Tensor:
    """MEX_β of each window of x (N, C, H, W), β finite; locations outside of the image are absent.

    Once differentiable in x and β. At β = 0 it is the mean, and its derivative for β half the variance. Where
    the result is infinite the gradient is 0.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    # the channels are inside of every loop, so they should lie side by side
    work = x.to(dtype).contiguous(memory_format=torch.channels_last)
    if isinstance(beta, Tensor):
        sign: float | Tensor = torch.where(beta.detach() < 0, -1.0, 1.0).to(dtype)
        scalar = beta.to(dtype)
    else:
        sign = math.copysign(1.0, beta)
        scalar = torch.full((), beta, dtype=dtype, device=x.device)
    extreme = sign * F.max_pool2d(sign * work.detach(), kernel_size, stride, padding, ceil_mode=ceil_mode)
    # compilers see one operator, and exported graphs plain torch
    function = _forward if torch.compiler.is_exporting() else _window_mex
    result = function(work, scalar, extreme, list(kernel_size), list(stride), list(padding))[0]
    channels_last = x.is_contiguous(memory_format=torch.channels_last)
    return result.to(x.dtype).contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )


def _forward(
    x: Tensor, beta: Tensor, extreme: Tensor, kernel_size: list[int], stride: list[int], padding: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """MEX, and what the gradient is made of: M, and Σ exp(β·d)."""
    beta = torch.where(beta.abs() < SMALLEST_BETA, SMALLEST_BETA, beta)
    # an infinite M cannot be taken away; then expm1(β·x) is −1 or ∞ by itself, as the formula has it
    shift = torch.where(extreme.isinf(), 0.0, extreme)
    total = torch.zeros_like(shift)
    for inside, windows in _positions(x, shift, kernel_size, stride, padding):
        total[windows].add_((x[inside] - shift[windows]).mul_(beta).expm1_())
    count = _counts(x, shift, kernel_size, stride, padding)
    q = total / count
    return shift + q.log1p() / beta, shift, (1 + q) * count


def _positions(
    x: Tensor, windows: Tensor, kernel_size: list[int], stride: list[int], padding: list[int]
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """For each position of the kernel: where it lies in the image, and in which windows it does so."""
    every = slice(None), slice(None)
    rows, columns = (
        _positions_along(x.shape[2 + i], windows.shape[2 + i], kernel_size[i], stride[i], padding[i])
        for i in range(2)
    )
    for row_inside, row_windows in rows:
        for column_inside, column_windows in columns:
            yield (*every, row_inside, column_inside), (*every, row_windows, column_windows)


def _positions_along(
    length: int, count: int, kernel: int, stride: int, padding: int
) -> list[tuple[slice, slice]]:
    pairs = []
    for position in range(kernel):
        offset = position - padding  # window w begins at w·stride − padding
        first = max(0, -(offset // stride))
        last = min(count - 1, (length - 1 - offset) // stride)
        if first <= last:
            inside = slice(first * stride + offset, last * stride + offset + 1, stride)
            pairs.append((inside, slice(first, last + 1)))
    return pairs


def _counts(
    x: Tensor, windows: Tensor, kernel_size: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    """n of each window, (H', W')."""
    counts = []
    for i in range(2):
        start = torch.arange(windows.shape[2 + i], device=x.device) * stride[i] - padding[i]
        counts.append((start + kernel_size[i]).clamp(max=x.shape[2 + i]) - start.clamp(min=0))
    return counts[0].unsqueeze(1) * counts[1]


def _backward(
    grad: Tensor,
    x: Tensor,
    beta: Tensor,
    result: Tensor,
    shift: Tensor,
    total: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    learned: bool,
) -> tuple[Tensor, Tensor]:
    """dMEX/dx_i = exp(β·d_i)/Σ exp(β·d), and the gradient for β if it is learned."""
    infinite = result.isinf()
    share = torch.where(infinite, 0.0, grad / total)
    grad_x = torch.zeros_like(x)
    for inside, windows in _positions(x, shift, kernel_size, stride, padding):
        # β·d ≤ 0 but where M is infinite, and there the share is 0
        weight = (x[inside] - shift[windows]).mul_(beta).clamp_(max=0.0).exp_()
        grad_x[inside].add_(weight.mul_(share[windows]))
    grad_beta = torch.zeros_like(beta)
    if learned:
        slope = _beta_slope(x.double(), beta.double(), shift.double(), kernel_size, stride, padding)
        grad_beta += torch.where(infinite | (grad == 0), 0.0, grad * slope).sum()
    return grad_x, grad_beta


def _beta_slope(
    x: Tensor, beta: Tensor, shift: Tensor, kernel_size: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    """dMEX/dβ of each window, in float64.

    It is KL(w ‖ 1/n)/β² = (Σ w·β·d − log(1 + q))/β² with the weights w = exp(β·d)/Σ exp(β·d), and for small
    β·d, where that cancels, variance/2 + β·(third central moment)/3.
    """
    sums = [torch.zeros_like(shift) for _ in range(5)]
    first, second, third, entropy, q = sums
    for inside, windows in _positions(x, shift, kernel_size, stride, padding):
        d = x[inside] - shift[windows]
        square = d * d
        first[windows].add_(d)
        second[windows].add_(square)
        third[windows].add_(square.mul_(d))
        t = d.mul_(beta)
        e = t.exp()
        entropy[windows].add_(torch.where(e > 0, t * e, 0.0))  # 0·log 0 = 0
        q[windows].add_(t.expm1_())
    count = _counts(x, shift, kernel_size, stride, padding)
    first, second, third, entropy, q = (value / count for value in sums)
    variance = second - first * first
    skew = third - 3 * first * second + 2 * first * first * first
    series = variance / 2 + beta * skew / 3
    divergence = entropy / (1 + q) - q.log1p()
    return torch.where(beta * beta * second < SERIES_UP_TO, series, divergence / (beta * beta))


_window_mex = torch.library.custom_op("simnets::window_mex", _forward, mutates_args=())
_window_mex_backward = torch.library.custom_op("simnets::window_mex_backward", _backward, mutates_args=())


@_window_mex.register_fake
def _(x: Tensor, beta: Tensor, extreme: Tensor, *geometry: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(extreme), torch.empty_like(extreme), torch.empty_like(extreme)


@_window_mex_backward.register_fake
def _(grad: Tensor, x: Tensor, beta: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(beta)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, beta, _, *ctx.geometry = inputs
    ctx.save_for_backward(x, beta, *output)


def _apply_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    learned = ctx.needs_input_grad[1]
    grad_x, grad_beta = _window_mex_backward(grad, *ctx.saved_tensors, *ctx.geometry, learned)
    return grad_x, grad_beta if learned else None, None, None, None, None


_window_mex.register_autograd(_apply_backward, setup_context=_setup)
