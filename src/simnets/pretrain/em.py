"""The steps of EM for the generalized Gaussian mixture, on tensors (section 5).

All sums over rows are formed in chunks, accumulated in float64, and added over all processes. Each part of
the M-step (means, then shape, then scales) does not lower the expected complete log-likelihood, so no
iteration lowers the likelihood: generalised EM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.special import digamma, polygamma
from torch import Tensor

from simnets.pretrain.density import MixtureDensity, log_peak
from simnets.pretrain.distributed import all_min, all_sum
from simnets.pretrain.rows import chunks

SHAPE_BOUNDS = (0.2, 20.0)
_BLOCK = 256
_BISECTIONS = 50


@dataclass
class GaussianSums:
    """What the M-step at shape 2 needs: Σ r, Σ r·y and Σ r·y², y taken about a common centre."""

    count: Tensor
    first: Tensor
    second: Tensor

    def cancelled(self) -> bool:
        """Whether a variance is what little is left of the difference of two large numbers."""
        lost = self.second * self.count.unsqueeze(1) - self.first.square()
        return bool((lost < 1e-3 * self.second * self.count.unsqueeze(1)).any())

    def density(self, centre: Tensor, floor: Tensor) -> MixtureDensity:
        count = self.count.clamp_min(1e-300).unsqueeze(1)
        means = self.first / count
        variance = (self.second / count - means.square()).clamp_min(0)
        scales = torch.maximum((2 * variance).sqrt(), floor)
        return MixtureDensity(self.count / self.count.sum(), means + centre, scales, 2.0)


def gaussian_pass(
    y: Tensor, density: MixtureDensity, centre: Tensor, *, exact: bool = False
) -> tuple[Tensor, GaussianSums]:
    """E-step and the sums of the M-step at shape 2 in one pass of matrix products; log P(y) of each row too.

    log P(y ∧ l) = [y², y]·[−u, 2uμ]ᵀ + const, and the sums are rᵀ·[y², y], y about `centre`. In float32 that
    is good to 1e-3 as long as components are not narrow beside their distance from the centre; where they
    are, before or after this pass, the products are in float64 (always with `exact`).
    """
    means = density.means - centre
    u = density.similarity_weights
    constants = density.constants - (u * means.square()).sum(1)
    # The expanded square loses |u·μ²|·1e-7 in float32
    exact = exact or y.dtype == torch.float64 or float((u * means.square()).max()) > 1e4
    dtype = torch.float64 if exact else y.dtype
    matrix = torch.cat([-u, 2 * u * means], 1).T.to(dtype).contiguous()
    n, d = means.shape
    likelihoods = y.new_empty(len(y), dtype=torch.float64)
    count, both = y.new_zeros(n, dtype=torch.float64), y.new_zeros(n, 2 * d, dtype=torch.float64)
    shift, offset, done = centre.to(dtype), constants.to(dtype), 0
    for chunk in chunks(y, 2 * d + n):
        features = chunk.new_empty(len(chunk), 2 * d, dtype=dtype)
        torch.sub(chunk, shift, out=features[:, d:])
        torch.square(features[:, d:], out=features[:, :d])
        joint = torch.addmm(offset, features, matrix)
        top = joint.amax(1, keepdim=True)
        total = joint.sub_(top).exp_().sum(1, keepdim=True)
        likelihoods[done : done + len(chunk)] = (total.log() + top).squeeze(1)
        done += len(chunk)
        joint.div_(total)
        count += joint.sum(0, dtype=torch.float64)
        both += joint.T @ features
    all_sum(count, both)
    sums = GaussianSums(count, both[:, d:], both[:, :d])
    if not exact and sums.cancelled():
        return gaussian_pass(y, density, centre, exact=True)
    return likelihoods, sums


def responsibilities(y: Tensor, density: MixtureDensity) -> tuple[Tensor, Tensor]:
    """E-step: log P(y) of each row (N,) in float64, and r_l = P(l | y), (N, n), in the dtype of y."""
    n, d = density.means.shape
    likelihoods = y.new_empty(len(y), dtype=torch.float64)
    result = y.new_empty(len(y), n)
    done = 0
    for chunk in chunks(y, n * d):
        joint = density.log_joint(chunk)
        total = torch.logsumexp(joint, 1, keepdim=True)
        part = slice(done, done + len(chunk))
        likelihoods[part] = total.squeeze(1)
        result[part] = (joint - total).exp_()
        done += len(chunk)
    return likelihoods, result


@dataclass
class PowerSums:
    """Sums over rows about given means, (n, d) each, D = |y − μ|.

    power Σ r·D^β, curvature Σ r·D^(β−2), pull Σ r·D^(β−2)·(y − μ), and with logarithms, for the shape,
    log1 Σ r·D^β·log D, log2 Σ r·D^β·log² D.
    """

    power: Tensor
    curvature: Tensor
    pull: Tensor
    log1: Tensor
    log2: Tensor


def power_sums(y: Tensor, r: Tensor, means: Tensor, shape: float, nearest: Tensor) -> PowerSums:
    """The sums of `PowerSums`. Below shape 2, D^(β−2) is taken at no less than `nearest` (n, d): without
    that, a row that coincides with a mean would hold it fast."""
    n, d = means.shape
    sums = [y.new_zeros(n, d, dtype=torch.float64) for _ in range(5)]
    mu, near = means.to(y.dtype).unsqueeze(1), nearest.to(y.dtype).unsqueeze(1)
    tiny = torch.finfo(y.dtype).tiny
    for rows, weights in zip(chunks(y, n * d), chunks(r, n * d), strict=True):
        difference = rows - mu
        distance = difference.abs()
        log = distance.clamp_min(tiny).log_()
        power = (shape * log).exp_()
        curvature = torch.maximum(distance, near).pow_(shape - 2)
        row = weights.T.unsqueeze(1)
        log1 = power * log
        terms = (power, curvature, difference.mul_(curvature), log1, log.mul_(log1))
        for total, term in zip(sums, terms, strict=True):
            total += torch.bmm(row, term).squeeze(1)
    all_sum(*sums)
    return PowerSums(*sums)


def weighted_medians(y: Tensor, r: Tensor, total: Tensor, order: Tensor) -> Tensor:
    """The weighted median of each coordinate under each component, (n, d): the means at shape 1.

    `order` (N, d) sorts each column of y; `total` (n,) is Σ r over all processes. By bisection on the
    value, with weights summed beforehand in blocks of sorted rows: only sums cross processes, and no
    N × n × d products are formed. A median is the smallest y with at least half the weight at or below it.
    """
    rows, n, d = len(y), r.shape[1], y.shape[1]
    columns = order.T.contiguous()
    values = y.T.contiguous().gather(1, columns)
    # below[b, t, l]: the weight of component l in the first b blocks of column t
    below = y.new_zeros(-(-rows // _BLOCK) + 1, d, n, dtype=torch.float64)
    place = torch.arange(rows, device=y.device) // _BLOCK
    block = torch.empty_like(place)
    for t in range(d):
        block[columns[t]] = place
        below[1:, t] = r.new_zeros(len(below) - 1, n).index_add_(0, block, r)
    below = below.cumsum_(0)
    column = torch.arange(d, device=y.device).unsqueeze(1)
    component = torch.arange(n, device=y.device)
    inside = torch.arange(_BLOCK, device=y.device)

    def weight_up_to(threshold: Tensor) -> Tensor:
        position = torch.searchsorted(values, threshold.to(values.dtype), right=True)
        full = position // _BLOCK
        index = (full * _BLOCK).unsqueeze(2) + inside
        row = columns[column.unsqueeze(2), index.clamp_max(rows - 1)]
        part = r[row, component.unsqueeze(1)].double() * (index < position.unsqueeze(2))
        weight = below[full, column, component] + part.sum(2)
        all_sum(weight)
        return weight

    ends = torch.stack([values[:, 0], -values[:, -1]]).double()
    all_min(ends)
    low = (ends[0] - 1).unsqueeze(1).repeat(1, n)
    high = -ends[1].unsqueeze(1).repeat(1, n)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        enough = weight_up_to(middle) >= total / 2
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    # The bracket is now narrower than the gap between rows: the first row above `low` is the median
    first = torch.searchsorted(values, low.to(values.dtype), right=True)
    found = values.gather(1, first.clamp_max(rows - 1)).double()
    found = torch.where(first < rows, found, math.inf)
    all_min(found)
    return torch.minimum(found, high).T.contiguous()


def profiled_scales(power: Tensor, count: Tensor, shape: float, floor: Tensor) -> Tensor:
    """α = (β·Σ r·D^β / Σ r)^(1/β), the maximum-likelihood scale, at no less than the floor."""
    mean = power / count.clamp_min(1e-300).unsqueeze(1)
    return torch.maximum((shape * mean) ** (1 / shape), floor)


def expected_likelihood(power: Tensor, count: Tensor, scales: Tensor, shape: float) -> float:
    """Σ r·log p(y | l), the part of the expected complete log-likelihood that depends on α and β."""
    d = power.shape[1]
    constants = count.sum() * d * log_peak(shape) - (count.unsqueeze(1) * scales.log()).sum()
    return float(constants - (power * scales**-shape).sum())


def moved_means(means: Tensor, sums: PowerSums, shape: float) -> Tensor:
    """One step towards the root of Σ r·|y − μ|^(β−1)·sign(y − μ) = 0.

    Up to shape 2 the step of iteratively reweighted least squares, which minimises a quadratic upper
    bound of Σ r·|y − μ|^β and so never raises it, convex or not; above 2 Newton's step.
    """
    step = sums.pull / sums.curvature.clamp_min(1e-300)
    return means + step / max(1.0, shape - 1)


def shape_step(sums: PowerSums, count: Tensor, shape: float) -> float:
    """Newton's step for log β on the expected log-likelihood with the scales profiled out, at most ±0.5.

    Q(β) = Σ_lt N_l·(log β − log 2Γ(1/β) − (log(β·A_lt) + 1)/β) with A_lt = Σ r·D^β / N_l.
    """
    usable = (sums.power > 0) & (count.unsqueeze(1) > 0)
    share = torch.where(usable, count.unsqueeze(1), 0.0)
    total = share.sum()
    power = torch.where(usable, sums.power, 1.0)
    log_mean = torch.log(power / count.clamp_min(1e-300).unsqueeze(1))

    def average(table: Tensor) -> float:
        return float((share * table).sum() / total)

    ratio1, ratio2 = sums.log1 / power, sums.log2 / power
    a, a1 = average(torch.where(usable, log_mean, 0.0)), average(ratio1)
    a2 = average(ratio2 - ratio1.square())
    b, inverse = shape, 1 / shape
    psi, psi1 = float(digamma(inverse)), float(polygamma(1, inverse))
    slope = inverse + (psi + math.log(b) + a) * inverse**2 - a1 * inverse
    bend = (
        -(inverse**2) - 2 * psi * inverse**3 - psi1 * inverse**4
        + (inverse + a1) * inverse**2 - 2 * (math.log(b) + a) * inverse**3 - a2 * inverse + a1 * inverse**2
    )  # fmt: skip
    slope, bend = b * slope, b * b * bend + b * slope
    step = -slope / bend if bend < 0 else math.copysign(0.5, slope)
    low, high = SHAPE_BOUNDS
    return min(max(b * math.exp(min(max(step, -0.5), 0.5)), low), high)


def general_step(
    y: Tensor, r: Tensor, density: MixtureDensity, floor: Tensor, *, learn_shape: bool, order: Tensor | None
) -> MixtureDensity:
    """M-step at any shape: means, then (where it is learned) the shape, then the scales.

    A mean moves only where Σ r·D^β does not rise, the shape only where the expected log-likelihood does
    not fall. `order` sorts the columns of y, and is given where the shape is fixed at 1.
    """
    count = r.sum(0, dtype=torch.float64)
    all_sum(count)
    shape, means = density.shape, density.means
    nearest = 1e-4 * density.scales
    if order is not None:
        means = weighted_medians(y, r, count, order)
        sums = power_sums(y, r, means, shape, nearest)
    else:
        before = power_sums(y, r, means, shape, nearest)
        moved = moved_means(means, before, shape)
        sums = power_sums(y, r, moved, shape, nearest)
        better = sums.power <= before.power
        means = torch.where(better, moved, means)
        sums = PowerSums(
            *(
                torch.where(better, after, old)
                for after, old in zip(vars(sums).values(), vars(before).values(), strict=True)
            )
        )
    scales = profiled_scales(sums.power, count, shape, floor)
    if learn_shape:
        value = expected_likelihood(sums.power, count, scales, shape)
        proposal = shape_step(sums, count, shape)
        for _ in range(6):
            power = power_sums(y, r, means, proposal, nearest).power
            new_scales = profiled_scales(power, count, proposal, floor)
            if expected_likelihood(power, count, new_scales, proposal) >= value:
                shape, scales = proposal, new_scales
                break
            proposal = math.sqrt(proposal * shape)
    return MixtureDensity(count / count.sum(), means, scales, shape)
