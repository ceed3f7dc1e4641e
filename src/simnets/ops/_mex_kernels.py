"""Values and gradients of MEX for one finite β: plain functions on tensors, without autograd.

With c = x, or c = x + b for offsets b, and m the largest c (for β < 0 the smallest), there are two forms:

    about the extreme   MEX = m + log(mean exp(β(c − m)))/β
    about the mean      MEX = c̄ + log1p(mean expm1(β(c − c̄)))/β      where |β|·(m − c̄) is at most ½

The first never overflows, but for small β it is log(1 − tiny)/β, and cancels; the second does not, and
tends to the mean as β → 0. Each is used where it is exact, row by row.

With offsets, exp(β(x + b)) = exp(βx)·exp(βb) makes the sum a matrix product. A product underflows where the
largest x and the largest b sit at different indices, and then its row is computed again: first in float64,
and what underflows even there, by the formula on c = x + b itself, a few rows at a time. Nothing is ever as
large as batch × k × n.

Layout of x here: (rows, n), or (A, n, B), so that a (N, C, H, W) image needs no copy; the axis of n is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from simnets.ops import approximations

MEAN_FORM_UP_TO = 0.5  # |β|·(m − c̄); both forms are exact to a few units in the last place around here
MEAN_FORM_FIRST = 0.1  # |β| below which it probably is all that is needed
EXACT_CHUNK = 1 << 18  # entries of c = x + b held at once: 2 MB in float64, about a core's cache
PART = 4096  # rows whose exponentials stay in the cache between one operation and the next


class Functions(NamedTuple):
    """The exp and the log that the form about the extreme uses."""

    exp: Callable[[Tensor], Tensor]
    log: Callable[[Tensor], Tensor]


FUNCTIONS = {
    "exact": Functions(torch.exp, torch.log),
    "fast": Functions(approximations.exp, approximations.log),
}


def extreme(c: Tensor, beta: float, dim: int | tuple[int, ...]) -> Tensor:
    return c.amax(dim, keepdim=True) if beta > 0 else c.amin(dim, keepdim=True)


def _finite(shift: Tensor) -> Tensor:
    """A shift of 0 where there is none: then exp(β·c) is 0, inf or NaN by itself, as the formula has it."""
    return torch.where(shift.isfinite(), shift, 0.0)


def _exponentials(c: Tensor, shift: Tensor, beta: float, f: Functions) -> Tensor:
    t = c - shift
    if beta != 1:
        t *= beta
    return t.exp_() if f.exp is torch.exp else f.exp(t)


def _as_mean(beta: float, dtype: torch.dtype) -> bool:
    """β so small that 1/β overflows: MEX is the mean to the last digit."""
    return abs(beta) < 1e8 * torch.finfo(dtype).tiny


# Without offsets: x is reduced over dims.


class Pooled(NamedTuple):
    y: Tensor
    shift: Tensor  # m, keeping dims
    total: Tensor  # Σ exp(β(x − m)), keeping dims


def pool(x: Tensor, beta: float, dims: tuple[int, ...], f: Functions) -> Pooled:
    n = math.prod(x.shape[d] for d in dims)
    shift = _finite(extreme(x, beta, dims))
    if abs(beta) < MEAN_FORM_FIRST:
        mean = x.mean(dims, keepdim=True)
        if bool(_near(shift - mean, beta, MEAN_FORM_UP_TO).all()):
            y, q = _about_mean(x, mean, beta, dims)
            return Pooled(y.squeeze(dims), shift, n * (1 + q) * torch.exp(beta * (mean - shift)))
    total = _exponentials(x, shift, beta, f).sum(dims, keepdim=True)
    y = f.log(total / n) / beta + shift
    if bool((total >= n * math.exp(-MEAN_FORM_UP_TO)).any()):  # by Jensen, no row elsewhere is near its mean
        mean = x.mean(dims, keepdim=True)
        near = _near(shift - mean, beta, MEAN_FORM_UP_TO)
        if bool(near.any()):
            y = torch.where(near, _about_mean(x, mean, beta, dims)[0], y)
    return Pooled(y.squeeze(dims), shift, total)


def _near(distance: Tensor, beta: float, limit: float) -> Tensor:
    return abs(beta) * distance.abs() <= limit


def _about_mean(x: Tensor, mean: Tensor, beta: float, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """MEX, and q = mean exp(β(x − x̄)) − 1."""
    if _as_mean(beta, x.dtype):
        return mean, torch.zeros_like(mean)
    q = _rise(x, mean, beta).mean(dims, keepdim=True)
    return mean + torch.log1p(q) / beta, q


def _rise(x: Tensor, mean: Tensor, beta: float) -> Tensor:
    return (x - mean).mul_(beta).expm1_()


def pool_gradient(
    grad: Tensor, x: Tensor, beta: float, dims: tuple[int, ...], shift: Tensor, total: Tensor, f: Functions
) -> Tensor:
    """dMEX/dx_i = exp(β(x_i − m))/Σ exp(β(x − m)); grad keeps dims, and is 0 where MEX is infinite."""
    e = _exponentials(x, shift, beta, f)
    e *= _share(grad, total)
    infinite = total.isinf()
    if bool(infinite.any()):
        e.masked_fill_(infinite, 0.0)  # not 0·inf
    return e


def _share(grad: Tensor, total: Tensor) -> Tensor:
    return torch.where(grad == 0, 0.0, grad / total)  # not 0/0


def pool_beta_gradient(grad: Tensor, x: Tensor, beta: float, dims: tuple[int, ...]) -> Tensor:
    """Σ grad·dMEX/dβ in float64; grad keeps dims."""
    n = math.prod(x.shape[d] for d in dims)
    c = x.double()
    shift = _finite(extreme(c, beta, dims))
    t = beta * (c - shift)
    e = t.exp()
    total = e.sum(dims, keepdim=True)
    # dMEX/dβ = KL(w ‖ 1/n)/β², w the weights of the gradient
    divergence = _dot_log(e, t, dims) / total - torch.log(total / n)
    slope = divergence / beta / beta if beta else divergence
    mean = c.mean(dims, keepdim=True)
    near = _near(shift - mean, beta, MEAN_FORM_UP_TO)
    if bool(near.any()):
        deviation = c - mean
        s = beta * deviation
        bend = curve(s)
        half = (deviation.square() * bend).mean(dims, keepdim=True)
        moment = (deviation.square() * (1 + s * bend)).mean(dims, keepdim=True)
        slope = torch.where(near, _slope_about_mean(half, moment, beta), slope)
    return _weighted_sum(grad, slope)


def _weighted_sum(grad: Tensor, slope: Tensor) -> Tensor:
    return torch.where(grad == 0, 0.0, grad * slope).sum()  # infinite results have no slope, and grad 0


def _dot_log(e: Tensor, t: Tensor, dims: tuple[int, ...]) -> Tensor:
    return torch.where(e > 0, e * t, 0.0).sum(dims, keepdim=True)  # 0·log 0 = 0


def curve(s: Tensor) -> Tensor:
    """(e^s − 1 − s)/s², which is ½ at 0."""
    small = s.abs() < (0.3 if s.dtype == torch.float32 else 0.03)
    away = torch.where(small, 1.0, s)
    series = torch.full_like(s, 1 / 40320)
    for factorial in (5040, 720, 120, 24, 6, 2):
        series = series * s + 1 / factorial
    return torch.where(small, series, (torch.expm1(away) - away) / (away * away))


def _slope_about_mean(half: Tensor, moment: Tensor, beta: float) -> Tensor:
    """dMEX/dβ without cancellation: at β = 0 half the variance.

    For s = β(c − c̄), half = mean(e^s − 1 − s)/β² → σ²/2 and moment = mean(s·(e^s − 1))/β² → σ²; neither
    form divides by β. KL(w ‖ 1/n) = moment·β²/(1 + q) − log(1 + q) with q = half·β² = mean e^s − 1.
    """
    q = half * beta * beta
    return moment / (1 + q) - half * torch.where(q == 0, 1.0, torch.log1p(q) / q)


# With offsets: x (rows, n) or (A, n, B) becomes (rows, k) or (A, k, B).


class Product(NamedTuple):
    y: Tensor
    shift: Tensor  # extreme of x, (rows, 1) or (A, 1, B)
    total: Tensor  # Σ_i exp(β(x_i − shift))·exp(β(b_ri − extreme of b_r)), the shape of y


def product(x: Tensor, b: Tensor, beta: float, f: Functions) -> Product:
    """MEX with offsets; many rows are taken some after another (`benchmarks/mex.py`)."""
    if not _in_parts(x):
        return _product(x, b, beta, f)
    parts = [_product(some, b, beta, f) for some in torch.split(x, PART)]
    return Product(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _in_parts(x: Tensor) -> bool:
    return x.dim() == 2 and len(x) > PART and x.device.type == "cpu"


def _matmul(e: Tensor, e_b: Tensor) -> Tensor:
    if e.dim() == 3:
        return torch.matmul(e_b, e)
    k = e_b.shape[0]
    if k < 16:  # matrix products with a thin side run at less than half speed
        padded = e_b.new_zeros(16, e_b.shape[1])
        padded[:k] = e_b
        return (e @ padded.T)[:, :k]
    return e @ e_b.T


def _along(value: Tensor, x: Tensor) -> Tensor:
    """A (k, 1) column of the offsets, so that it broadcasts against results."""
    return value if x.dim() == 3 else value.squeeze(1)


def _product(x: Tensor, b: Tensor, beta: float, f: Functions) -> Product:
    n = x.shape[1]
    m, m_b = extreme(x, beta, 1), extreme(b, beta, 1)
    shift, shift_b = _finite(m), _finite(m_b)
    if abs(beta) < MEAN_FORM_FIRST:
        mean, mean_b = x.mean(1, keepdim=True), b.mean(1, keepdim=True)
        if bool(_both_near(shift - mean, shift_b - mean_b, beta).all()):
            y, q = _product_about_mean(x, b, mean, mean_b, beta)
            scale = torch.exp(beta * (mean - shift)) * _along(torch.exp(beta * (mean_b - shift_b)), x)
            return Product(y, shift, n * (1 + q) * scale)
    total = _matmul(_exponentials(x, shift, beta, f), _exponentials(b, shift_b, beta, f))
    # extremes first: where x and b cancel, their sum is exact
    y = f.log(total / n).div_(beta).add_(shift + _along(shift_b, x))
    if total.numel() == 0:
        return Product(y, shift, total)
    smallest, largest = (float(v) for v in total.aminmax())  # NaN goes both ways
    if not largest < n * math.exp(-MEAN_FORM_UP_TO):
        mean, mean_b = x.mean(1, keepdim=True), b.mean(1, keepdim=True)
        near = _both_near(shift - mean, shift_b - mean_b, beta)
        if bool(near.any()):
            y = torch.where(near, _product_about_mean(x, b, mean, mean_b, beta)[0], y)
    if not (smallest >= _underflow(x.dtype, n) and largest < math.inf):
        rows = _lost(total, m, m_b, beta, _underflow(x.dtype, n))
        if bool(rows.any()):
            y.movedim(1, -1)[rows] = _again(_rows(x, rows), b, beta, x.dtype).to(y.dtype)
    return Product(y, shift, total)


def _both_near(distance: Tensor, distance_b: Tensor, beta: float) -> Tensor:
    limit = MEAN_FORM_UP_TO / 2
    return _near(distance, beta, limit) & _along(_near(distance_b, beta, limit), distance)


def _product_about_mean(
    x: Tensor, b: Tensor, mean: Tensor, mean_b: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """MEX, and q = mean exp(β(c − c̄)) − 1."""
    y = mean + _along(mean_b, x)
    if _as_mean(beta, x.dtype):
        return y, torch.zeros_like(y)
    e, e_b = _rise(x, mean, beta), _rise(b, mean_b, beta)
    # exp(s + t) − 1 = (e^s − 1) + (e^t − 1) + (e^s − 1)(e^t − 1)
    q = e.mean(1, keepdim=True) + _along(e_b.mean(1, keepdim=True), x) + _matmul(e, e_b) / x.shape[1]
    return y + torch.log1p(q) / beta, q


def _underflow(dtype: torch.dtype, n: int) -> float:
    """Below this total, products that underflowed could be missing from the sum."""
    return n * (1e-28 if dtype == torch.float32 else 1e-290)


def _unprecise(dtype: torch.dtype, n: int) -> float:
    """Below this total the weights, exp of large numbers that cancel, lose digits: |log total|·2^−24."""
    return 1e-7 if dtype == torch.float32 else _underflow(dtype, n)


def _lost(total: Tensor, m: Tensor, m_b: Tensor, beta: float, below: float) -> Tensor:
    """Rows with an entry that the matrix product cannot give; all of x or b at exp(β·c) = 0 is not one."""
    nothing = -math.copysign(math.inf, beta)
    impossible = (total == 0) & ((m == nothing) | _along(m_b == nothing, m))
    return (~((total >= below) & (total < math.inf)) & ~impossible).any(1)


def _rows(x: Tensor, chosen: Tensor) -> Tensor:
    return x.movedim(1, -1)[chosen].double()


def _again(x: Tensor, b: Tensor, beta: float, failed: torch.dtype) -> Tensor:
    """The rows x, which failed as a product in that dtype."""
    if failed != torch.float64:
        return product(x, b.double(), beta, FUNCTIONS["exact"]).y
    n = x.shape[1]
    y = x.new_empty(x.shape[0], b.shape[0])
    for rows, c in _chunks(x, b):
        shift = _finite(extreme(c, beta, -1))
        e = _exponentials(c, shift, beta, FUNCTIONS["exact"])
        y[rows] = (torch.log(e.sum(-1, keepdim=True) / n) / beta + shift).squeeze(-1)
    return y


def _chunks(x: Tensor, b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """c = x + b, (rows, k, n), few rows at a time."""
    step = max(1, EXACT_CHUNK // b.numel())
    for start in range(0, x.shape[0], step):
        yield slice(start, start + step), x[start : start + step, None] + b


def product_gradient(
    grad: Tensor, x: Tensor, b: Tensor, beta: float, shift: Tensor, total: Tensor, f: Functions
) -> tuple[Tensor, Tensor]:
    """Gradients of Σ grad·MEX for x and b: weights w_ri = exp(β(x_i − m))·exp(β(b_ri − m_r))/total_r."""
    if not _in_parts(x):
        return _product_gradient(grad, x, b, beta, shift, total, f)
    grad_x, grad_b = torch.empty_like(x), torch.zeros_like(b)
    parts = (torch.split(value, PART) for value in (grad_x, grad, x, shift, total))
    for into, of_y, of_x, m, t in zip(*parts, strict=True):
        some_x, some_b = _product_gradient(of_y, of_x, b, beta, m, t, f)
        into.copy_(some_x)
        grad_b += some_b
    return grad_x, grad_b


def _product_gradient(
    grad: Tensor, x: Tensor, b: Tensor, beta: float, shift: Tensor, total: Tensor, f: Functions
) -> tuple[Tensor, Tensor]:
    n, m_b = x.shape[1], extreme(b, beta, 1)
    e = _exponentials(x, shift, beta, f)
    e_b = _exponentials(b, _finite(m_b), beta, f)
    share = _share(grad, total)
    again = None
    smallest, largest = total.aminmax() if total.numel() else (math.inf, 0.0)
    if not (smallest >= _unprecise(x.dtype, n) and largest < math.inf):
        again = _lost(total, extreme(x, beta, 1), m_b, beta, _unprecise(x.dtype, n))
        # those rows are left out here and added below; e is emptied too, as 0·inf would be NaN
        share = share.masked_fill(again.unsqueeze(1), 0.0)
        e.masked_fill_(again.unsqueeze(1), 0.0)
        e_b = torch.where(e_b.isfinite(), e_b, 0.0)
    if x.dim() == 3:
        # the first is faster, but its (A, k, n) is smaller than x only for few classes
        few = b.shape[0] <= x.shape[2]
        grad_b = (
            torch.matmul(share, e.transpose(1, 2)).sum(0)
            if few
            else torch.tensordot(share, e, dims=([0, 2], [0, 2]))
        )
        grad_x = e.mul_(torch.matmul(e_b.T, share))
    else:
        grad_b = share.T @ e
        grad_x = e.mul_(share @ e_b)
    grad_b = grad_b * e_b
    if again is not None and bool(again.any()):
        rows_x, rows_b = _gradient_again(_rows(grad, again), _rows(x, again), b, beta, x.dtype)
        grad_x.movedim(1, -1)[again] = rows_x.to(x.dtype)
        grad_b = (grad_b + rows_b).to(b.dtype)
    return grad_x, grad_b


def _gradient_again(
    grad: Tensor, x: Tensor, b: Tensor, beta: float, failed: torch.dtype
) -> tuple[Tensor, Tensor]:
    exact = FUNCTIONS["exact"]
    b = b.double()
    if failed != torch.float64:
        _, shift, total = product(x, b, beta, exact)
        return product_gradient(grad, x, b, beta, shift, total, exact)
    grad_x, grad_b = torch.empty_like(x), torch.zeros_like(b)
    for rows, c in _chunks(x, b):
        shift = _finite(extreme(c, beta, -1))
        total = _exponentials(c, shift, beta, exact).sum(-1, keepdim=True)
        weighted = pool_gradient(grad[rows].unsqueeze(-1), c, beta, (-1,), shift, total, exact)
        grad_x[rows] = weighted.sum(1)
        grad_b += weighted.sum(0)
    return grad_x, grad_b


def product_beta_gradient(grad: Tensor, x: Tensor, b: Tensor, beta: float) -> Tensor:
    """Σ grad·dMEX/dβ in float64, as `pool_beta_gradient`, its means over c = x + b written as products."""
    n = x.shape[1]
    x, b, grad = x.double(), b.double(), grad.double()
    m, m_b = extreme(x, beta, 1), extreme(b, beta, 1)
    shift, shift_b = _finite(m), _finite(m_b)
    t, t_b = beta * (x - shift), beta * (b - shift_b)
    e, e_b = t.exp(), t_b.exp()
    total = _matmul(e, e_b)
    e_t, e_t_b = torch.where(e > 0, e * t, 0.0), torch.where(e_b > 0, e_b * t_b, 0.0)
    divergence = (_matmul(e_t, e_b) + _matmul(e, e_t_b)) / total - torch.log(total / n)
    slope = divergence / beta / beta if beta else divergence
    mean, mean_b = x.mean(1, keepdim=True), b.mean(1, keepdim=True)
    near = _both_near(shift - mean, shift_b - mean_b, beta)
    if bool(near.any()):
        slope = torch.where(near, _product_slope_about_mean(x - mean, b - mean_b, beta), slope)
    again = _lost(total, m, m_b, beta or 1.0, _underflow(x.dtype, n))
    if not bool(again.any()):
        return _weighted_sum(grad, slope)
    result = _weighted_sum(grad.masked_fill(again.unsqueeze(1), 0.0), slope)
    grad_rows = grad.movedim(1, -1)[again]
    for rows, c in _chunks(_rows(x, again), b):
        result += pool_beta_gradient(grad_rows[rows].unsqueeze(-1), c, beta, (-1,))
    return result


def _product_slope_about_mean(deviation: Tensor, deviation_b: Tensor, beta: float) -> Tensor:
    x, n = deviation, deviation.shape[1]
    s, s_b = beta * deviation, beta * deviation_b
    bend, bend_b = curve(s), curve(s_b)
    # (e^s − 1)/β, which is the deviation itself at β = 0
    rise, rise_b = deviation * (1 + s * bend), deviation_b * (1 + s_b * bend_b)
    half = (
        (deviation.square() * bend).mean(1, keepdim=True)
        + _along((deviation_b.square() * bend_b).mean(1, keepdim=True), x)
        + _matmul(rise, rise_b) / n
    )
    moment = (
        (deviation * rise).mean(1, keepdim=True)
        + _along((deviation_b * rise_b).mean(1, keepdim=True), x)
        + (_matmul(deviation * s.exp(), rise_b) + _matmul(rise, deviation_b * s_b.exp())) / n
    )
    return _slope_about_mean(half, moment, beta)


# β = 0 with offsets


def mean_plus(x: Tensor, b: Tensor) -> Tensor:
    return x.mean(1, keepdim=True) + _along(b.mean(1, keepdim=True), x)


# β = ±∞ with offsets: the largest (smallest) x_i + b_ri, a matrix product in which + is × and max is +.


def max_plus(x: Tensor, b: Tensor, beta: float) -> Tensor:
    y = x.new_empty(x.shape[0], b.shape[0], *x.shape[2:])
    for classes, c in _class_chunks(x, b):
        y[:, classes] = extreme(c, beta, 2).squeeze(2)
    return y


def max_plus_gradient(grad: Tensor, x: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Shared equally among the c that reach the extreme, as in torch.amax; 0 where that is infinite."""
    grad_x, grad_b = torch.zeros_like(x), torch.empty_like(b)
    grad = torch.where(y.isinf(), 0.0, grad)
    for classes, c in _class_chunks(x, b):
        reached = y[:, classes].unsqueeze(2)
        ties = c == reached  # none for NaN, whose gradient then is NaN as well
        share = ties * (grad[:, classes].unsqueeze(2) / ties.sum(2, keepdim=True))
        grad_x += share.sum(1)
        grad_b[classes] = share.sum(0) if x.dim() == 2 else share.sum((0, 3))
    return grad_x, grad_b


def _class_chunks(x: Tensor, b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """c = x + b, (rows, classes, n) or (A, classes, n, B), few classes at a time, at least one."""
    step = max(1, EXACT_CHUNK // max(1, x.numel()))
    for start in range(0, b.shape[0], step):
        offsets = b[start : start + step]
        yield (
            slice(start, start + step),
            x.unsqueeze(1) + (offsets if x.dim() == 2 else offsets.unsqueeze(-1)),
        )
