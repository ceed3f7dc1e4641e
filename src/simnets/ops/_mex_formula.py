"""MEX in plain differentiable torch operations, with nothing that depends on the data's values.

An exported graph is made of these, and so is the second derivative of `mex`. Both forms of
`_mex_kernels.py` are computed, and `torch.where` chooses between them. For a number |β| ≥ 0.1 the form about
the extreme stands alone: its absolute error is a few units in the last place of 1/β.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from simnets.ops._mex_kernels import MEAN_FORM_UP_TO, curve

SATURATION = 80.0  # exp(−80)² still is a float32, when both exponentials are scaled up by exp(38)
_SCALE = 38.0


def _extreme(c: Tensor, beta: float | Tensor, dims: tuple[int, ...]) -> Tensor:
    if isinstance(beta, Tensor):
        sign = torch.where(beta < 0, -1.0, 1.0).to(c.dtype)
        m = sign * (sign * c).amax(dims, keepdim=True)
    else:
        m = c.amax(dims, keepdim=True) if beta > 0 else c.amin(dims, keepdim=True)
    return m.detach()


def _clamped(m: Tensor) -> Tensor:
    largest = torch.finfo(m.dtype).max
    return m.clamp(-largest, largest)


def _prepared(beta: float | Tensor, x: Tensor) -> tuple[float | Tensor, float | Tensor, bool]:
    """β, a β that can be divided by, and whether the form about the mean may be needed."""
    if isinstance(beta, Tensor):
        beta = beta.reshape(()).to(x.device, x.dtype)
        tiny = beta.abs() < 1e8 * torch.finfo(x.dtype).tiny
        return beta, torch.where(tiny, 1.0, beta), True
    return beta, beta, abs(beta) < 0.1


# ONNX writes expm1 as exp − 1 and log1p as log(1 + ·), which is what they are there to avoid.


def _expm1(s: Tensor) -> Tensor:
    return s + s * s * curve(s)


def _log1p_ratio(q: Tensor) -> Tensor:
    """log(1 + q)/q, which is 1 at 0, from log(1 + q) = 2·atanh(q/(2 + q))."""
    v = q / (2 + q)
    small = v.abs() < 1e-3
    away = torch.where(small, 0.5, v)
    return 2 / (2 + q) * torch.where(small, 1 + v * v * (1 / 3 + v * v / 5), torch.atanh(away) / away)


def pooled(x: Tensor, beta: float | Tensor, dims: tuple[int, ...]) -> Tensor:
    """MEX over dims for finite β."""
    beta, divisor, small = _prepared(beta, x)
    extreme = _extreme(x, beta, dims)
    # Infinities are taken out before and put in after, so that no gradient meets one.
    infinite = extreme.isinf()
    m = torch.where(infinite, 0.0, extreme)
    c = torch.where(infinite, 0.0, x)
    absent = c.isinf()  # exp(β·x) = 0
    e = torch.where(absent, 0.0, (beta * (torch.where(absent, m, c) - m)).exp())
    y = torch.log(e.mean(dims, keepdim=True)) / divisor + m
    if small:
        mean = x.mean(dims, keepdim=True)
        near = (beta * (extreme - mean)).abs() <= MEAN_FORM_UP_TO
        deviation = torch.where(near, x - mean, 0.0)
        half = (deviation.square() * curve(beta * deviation)).mean(dims, keepdim=True)
        y = torch.where(near, mean + beta * half * _log1p_ratio(beta * beta * half), y)
    return torch.where(infinite, extreme, y).squeeze(dims)


def product(x: Tensor, b: Tensor, beta: float | Tensor) -> Tensor:
    """MEX with offsets for finite β; x (rows, n) or (A, n, B) as in `_mex_kernels.py`.

    Exponents end at −80: the result is exact where the index that decides MEX lies within 80/|β| of the
    largest x and of the largest b, and elsewhere it stays finite, but too large.
    """
    beta, divisor, small = _prepared(beta, x)
    n = x.shape[1]

    def along(value: Tensor) -> Tensor:
        return value if x.dim() == 3 else value.squeeze(1)

    def matmul(e: Tensor, e_b: Tensor) -> Tensor:
        return torch.matmul(e_b, e) if x.dim() == 3 else torch.matmul(e, e_b.T)

    def scaled_exponentials(c: Tensor, m: Tensor) -> Tensor:
        return (beta * (c - _clamped(m))).clamp(-SATURATION, 0.0).exp() * math.exp(_SCALE)

    m, m_b = _extreme(x, beta, (1,)), _extreme(b, beta, (1,))
    total = matmul(scaled_exponentials(x, m), scaled_exponentials(b, m_b))
    # A large total is scaled back before the log, whose digits would else go to 76; a small one underflows.
    large = total > 1
    back = 2 * _SCALE + math.log(n)
    log_mean = torch.where(large, total * math.exp(-back), total).log() - torch.where(large, 0.0, back)
    y = m + along(m_b) + log_mean / divisor
    if small:
        mean, mean_b = x.mean(1, keepdim=True), b.mean(1, keepdim=True)
        limit = MEAN_FORM_UP_TO / 2
        near_x, near_b = (beta * (m - mean)).abs() <= limit, (beta * (m_b - mean_b)).abs() <= limit
        e = torch.where(near_x, _expm1(beta * (x - mean)), 0.0)
        e_b = torch.where(near_b, _expm1(beta * (b - mean_b)), 0.0)
        q = e.mean(1, keepdim=True) + along(e_b.mean(1, keepdim=True)) + matmul(e, e_b) / n
        about = mean + along(mean_b) + q * _log1p_ratio(q) / divisor
        y = torch.where(near_x & along(near_b), about, y)
    return y


def max_plus(x: Tensor, b: Tensor, beta: float) -> Tensor:
    """β = ±∞ with offsets: one class after the other, so that nothing is larger than x."""
    column = (-1, 1) if x.dim() == 3 else (-1,)
    sums = (x + offsets.reshape(column) for offsets in b.unbind(0))
    return torch.stack([c.amax(1) if beta > 0 else c.amin(1) for c in sums], 1)
