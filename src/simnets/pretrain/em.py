"""The steps of EM for the generalized Gaussian mixture, on tensors (section 5).

All sums over rows are formed in chunks, accumulated in float64, and added over all processes. Each part of
the M-step (means, then shape, then scales) does not lower the expected complete log-likelihood, so no
iteration lowers the likelihood: generalised EM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import digamma, polygamma
from torch import Tensor

from simnets.pretrain.density import MixtureDensity, log_peak
from simnets.pretrain.distributed import all_sum
from simnets.pretrain.medians import SortedColumns
from simnets.pretrain.rows import chunks

SHAPE_BOUNDS = (0.2, 20.0)
_PASS_NUMBERS = 1 << 20


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
    least = _least_logarithm(dtype)
    step = max(256, _PASS_NUMBERS // (2 * d + n))
    # One buffer for all chunks: fresh memory for each costs a fifth of the time
    all_features, all_joint = (y.new_empty(min(step, len(y)), w, dtype=dtype) for w in (2 * d, n))
    for chunk in torch.split(y, step):
        features, joint = all_features[: len(chunk)], all_joint[: len(chunk)]
        torch.sub(chunk, shift, out=features[:, d:])
        torch.square(features[:, d:], out=features[:, :d])
        torch.addmm(offset, features, matrix, out=joint)
        top = joint.amax(1, keepdim=True)
        total = joint.sub_(top).clamp_min_(least).exp_().sum(1, keepdim=True)
        likelihoods[done : done + len(chunk)] = total.log().add_(top).squeeze(1)
        done += len(chunk)
        joint.div_(total)
        count += joint.sum(0)
        both += joint.T @ features
    all_sum(count, both)
    sums = GaussianSums(count, both[:, d:], both[:, :d])
    if not exact and sums.cancelled():
        return gaussian_pass(y, density, centre, exact=True)
    return likelihoods, sums


def _least_logarithm(dtype: torch.dtype) -> float:
    """Below it exp gives numbers that are as good as 0, but subnormal, at ten times the cost."""
    return math.log(torch.finfo(dtype).tiny) + 5


def responsibilities(y: Tensor, density: MixtureDensity) -> tuple[Tensor, Tensor]:
    """E-step: log P(y) of each row (N,) in float64, and r_l = P(l | y), (N, n), in the dtype of y."""
    n, d = density.means.shape
    likelihoods = y.new_empty(len(y), dtype=torch.float64)
    result = y.new_empty(len(y), n)
    least = _least_logarithm(y.dtype)
    done = 0
    for chunk in chunks(y, n * d):
        joint = density.log_joint(chunk)
        total = torch.logsumexp(joint, 1, keepdim=True)
        part = slice(done, done + len(chunk))
        likelihoods[part] = total.squeeze(1)
        result[part] = (joint - total).clamp_min_(least).exp_()
        done += len(chunk)
    return likelihoods, result


# Sums over rows about given means, (n, d) each, with D = |y − μ|
MEAN_SUMS = ("power", "curvature", "pull")  # Σ r·D^β, Σ r·D^(β−2), Σ r·D^(β−2)·(y − μ)
SHAPE_SUMS = ("power", "log1", "log2")  # Σ r·D^β, Σ r·D^β·log D, Σ r·D^β·log² D
ALL_SUMS = (*MEAN_SUMS, "log1", "log2")


def power_sums(
    y: Tensor, r: Tensor, means: Tensor, shape: float, nearest: Tensor, wanted: Sequence[str]
) -> dict[str, Tensor]:
    """The wanted sums by name. Below shape 2, D^(β−2) is taken at no less than `nearest` (n, d): without
    that, a row that coincides with a mean would hold it fast."""
    n, d = means.shape
    sums = {name: y.new_zeros(n, d, dtype=torch.float64) for name in wanted}
    mu, near = means.to(y.dtype).unsqueeze(1), nearest.to(y.dtype).unsqueeze(1)
    tiny = torch.finfo(y.dtype).tiny
    for rows, weights in zip(chunks(y, n * d), chunks(r, n * d), strict=True):
        weights = weights.T.contiguous().unsqueeze(1)
        difference = rows - mu
        terms = {"power": difference.abs()}
        if shape != 1 or len(sums) > 1:
            log = terms["power"].clamp_min(tiny).log_()
            if "curvature" in sums:
                terms["curvature"] = torch.maximum(log, near.log()).mul_(shape - 2).exp_()
                terms["pull"] = difference.mul_(terms["curvature"])
            if "log1" in sums:
                terms["power"] = (shape * log).exp_()
                terms["log1"] = terms["power"] * log
                terms["log2"] = log.mul_(terms["log1"])
            else:
                terms["power"] = log.mul_(shape).exp_()
        for name, total in sums.items():
            total += torch.bmm(weights, terms[name]).squeeze(1)
    all_sum(*sums.values())
    return sums


def profiled_scales(power: Tensor, count: Tensor, shape: float, floor: Tensor) -> Tensor:
    """α = (β·Σ r·D^β / Σ r)^(1/β), the maximum-likelihood scale, at no less than the floor."""
    mean = power / count.clamp_min(1e-300).unsqueeze(1)
    return torch.maximum((shape * mean) ** (1 / shape), floor)


def expected_likelihood(power: Tensor, count: Tensor, scales: Tensor, shape: float) -> float:
    """Σ r·log p(y | l), the part of the expected complete log-likelihood that depends on α and β."""
    d = power.shape[1]
    constants = count.sum() * d * log_peak(shape) - (count.unsqueeze(1) * scales.log()).sum()
    return float(constants - (power * scales**-shape).sum())


def moved_means(means: Tensor, sums: dict[str, Tensor], shape: float) -> Tensor:
    """One step towards the root of Σ r·|y − μ|^(β−1)·sign(y − μ) = 0.

    Up to shape 2 the step of iteratively reweighted least squares, which minimises a quadratic upper
    bound of Σ r·|y − μ|^β and so never raises it, convex or not; above 2 Newton's step.
    """
    step = sums["pull"] / sums["curvature"].clamp_min(1e-300)
    return means + step / max(1.0, shape - 1)


def shape_step(sums: dict[str, Tensor], count: Tensor, shape: float) -> float:
    """Newton's step for log β on the expected log-likelihood with the scales profiled out, at most ±0.5.

    Q(β) = Σ_lt N_l·(log β − log 2Γ(1/β) − (log(β·A_lt) + 1)/β) with A_lt = Σ r·D^β / N_l.
    """
    usable = (sums["power"] > 0) & (count.unsqueeze(1) > 0)
    share = torch.where(usable, count.unsqueeze(1), 0.0)
    total = share.sum()
    power = torch.where(usable, sums["power"], 1.0)
    log_mean = torch.log(power / count.clamp_min(1e-300).unsqueeze(1))

    def average(table: Tensor) -> float:
        return float((share * table).sum() / total)

    ratio1, ratio2 = sums["log1"] / power, sums["log2"] / power
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
    y: Tensor,
    r: Tensor,
    density: MixtureDensity,
    floor: Tensor,
    *,
    learn_shape: bool,
    columns: SortedColumns | None,
) -> MixtureDensity:
    """M-step at any shape: means, then (where it is learned) the shape, then the scales.

    A mean moves only where Σ r·D^β does not rise, the shape only where the expected log-likelihood does
    not fall. `columns` are the rows sorted by each coordinate, given where the shape is fixed at 1.
    """
    count = r.sum(0, dtype=torch.float64)
    all_sum(count)
    shape, means, nearest = density.shape, density.means, 1e-4 * density.scales
    shape_sums = SHAPE_SUMS if learn_shape else ("power",)
    if columns is not None:
        means = columns.medians(r, count)
        sums = power_sums(y, r, means, shape, nearest, ("power",))
    else:
        before = power_sums(y, r, means, shape, nearest, ALL_SUMS if learn_shape else MEAN_SUMS)
        moved = moved_means(means, before, shape)
        sums = power_sums(y, r, moved, shape, nearest, shape_sums)
        better = sums["power"] <= before["power"]
        means = torch.where(better, moved, means)
        sums = {name: torch.where(better, after, before[name]) for name, after in sums.items()}
    scales = profiled_scales(sums["power"], count, shape, floor)
    if learn_shape:
        value = expected_likelihood(sums["power"], count, scales, shape)
        proposal = shape_step(sums, count, shape)
        for _ in range(6):
            power = power_sums(y, r, means, proposal, nearest, ("power",))["power"]
            new_scales = profiled_scales(power, count, proposal, floor)
            if expected_likelihood(power, count, new_scales, proposal) >= value:
                shape, scales = proposal, new_scales
                break
            proposal = math.sqrt(proposal * shape)
    return MixtureDensity(count / count.sum(), means, scales, shape)
