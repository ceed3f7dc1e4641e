"""The similarity operator: checks its arguments and picks a way to compute it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.ops import _expanded, reference
from simnets.ops._broadcast import broadcast
from simnets.ops._compiler import is_available
from simnets.ops._eager import values_are_at_hand
from simnets.ops._lp_kernel import lp_similarity

KINDS = ("lp", "linear")
METHODS = ("auto", "reference", "expanded", "fused")
NAN_POLICIES = ("propagate", "omit")
# Up to so many templates, matrix products are not busy enough to pay for the passes over memory around them.
# Without weights there is one product less.
FEW_TEMPLATES, FEW_WITHOUT_WEIGHTS = 64, 32


def similarity(
    x: Tensor,
    templates: Tensor,
    weights: Tensor | None = None,
    p: float | Tensor = 2.0,
    *,
    kind: str = "lp",
    method: str = "auto",
    nan_policy: str = "propagate",
) -> Tensor:
    """Similarity of x to every template: u·φ(x, z), section 2 of the paper.

    φ_lin(x, z)_i = x_i·z_i for kind="linear", and φ_ℓp(x, z)_i = −|x_i − z_i|^p, p > 0, for kind="lp".

    Args:
        x: (..., d).
        templates: z, (n, d), with x's dtype and device.
        weights: u ≥ 0, (n, d), or None for ones.
        p: the order, a number or a tensor of one element, which may be learned. Not used by kind="linear".
        kind: "lp" or "linear".
        method: "reference" writes the formula out, with an intermediate of size batch × n × d.
            "expanded" (p = 2 and linear) multiplies out the square into matrix products. x and z are
            taken relative to the templates' mean, so an offset that they share does no harm (at an offset of
            100 and a spread of 1 the relative error in float32 is below 1e-4). Where x almost equals z, the
            error is relative to Σ u·(|x|² + |z|²), and the result may exceed 0 by that little; an infinite
            coordinate gives NaN where the formula has −∞.
            "fused" serves every p with no such intermediate, forward or backward, and with no cancellation:
            a compiled kernel on the CPU, blocks of plain PyTorch elsewhere.
            "auto" takes the fastest: "expanded" for the linear form and for p = 2 that is not learned, unless
            the templates are few (64; 32 without weights) and the kernel is there; "fused" for all else.
        nan_policy: with "omit" a NaN coordinate of x is left out of the sum, and its gradient is 0.

    Returns:
        (..., n), in x's dtype. float16 and bfloat16 are computed in float32; under autocast everything is,
        and the result is float32.

    Gradients exist with respect to x, z, u and p. At zero distance those of x, z and p are 0 for every p; for
    p ≤ 1, where there is no derivative, that is the subgradient which is chosen. Second derivatives need
    method="reference" or "expanded". While exporting (torch.export, ONNX) "fused" is written out in
    plain operators. The values of p and u are checked on the CPU and in eager mode only.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [1.0, 3.0]])
        >>> z = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
        >>> similarity(x, z, p=1.0)
        tensor([[ 0., -2.],
                [-4., -2.]])
    """
    for name, value, known in (
        ("kind", kind, KINDS),
        ("method", method, METHODS),
        ("nan_policy", nan_policy, NAN_POLICIES),
    ):
        if value not in known:
            raise SimNetsError(f"{name} must be one of {', '.join(known)}; got {value!r}")
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):
        # Powers need the range of float32, so as torch.cdist and torch.pow under autocast.
        with torch.autocast(x.device.type, enabled=False):
            x, templates = _widened(x), _widened(templates)
            weights = None if weights is None else _widened(weights)
            return similarity(x, templates, weights, p, kind=kind, method=method, nan_policy=nan_policy)
    _check_tensors(x, templates, weights)
    x, templates = _widened(x), _widened(templates)
    weights = None if weights is None else _widened(weights)
    omit_nan = nan_policy == "omit"

    if kind == "linear":
        if method == "reference":
            out = reference.similarity(x, templates, weights, kind=kind, nan_policy=nan_policy)
        else:
            out = _expanded.linear(x, templates, weights, omit_nan)
        return out.to(dtype)

    p = _checked_order(p)
    square = _is_two(p)
    if method == "auto":
        method = _fastest(x, templates, weights) if square else "fused"
    if method == "expanded":
        if not square:
            raise SimNetsError(f"method='expanded' needs p = 2 that is not learned; got p = {p}; use 'fused'")
        out = _expanded.squared(x, templates, weights, omit_nan)
    elif method == "reference":
        out = reference.similarity(x, templates, weights, p, nan_policy=nan_policy)
    elif torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export():
        out = broadcast(x, templates, weights, p, omit_nan)
    else:
        if not isinstance(p, Tensor):
            p = torch.full((), p, dtype=torch.float64)
        out = lp_similarity(x, templates, weights, p, omit_nan)
    return out.to(dtype)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _check_tensors(x: Tensor, templates: Tensor, weights: Tensor | None) -> None:
    if not x.is_floating_point():
        raise SimNetsError(f"x must be floating point; got {x.dtype}; convert it, for example with x.float()")
    if x.ndim == 0:
        raise SimNetsError("x must have shape (..., d); got a tensor without dimensions")
    if templates.ndim != 2 or templates.shape[1] != x.shape[-1]:
        raise SimNetsError(
            f"templates must have shape (n, d) with d = {x.shape[-1]}, the last size of x; "
            f"got {tuple(templates.shape)}"
        )
    if weights is not None and weights.shape != templates.shape:
        raise SimNetsError(
            f"weights must have the shape of templates, {tuple(templates.shape)}; got {tuple(weights.shape)}"
        )
    for name, tensor in (("templates", templates), ("weights", weights)):
        if tensor is not None and (tensor.dtype != x.dtype or tensor.device != x.device):
            raise SimNetsError(
                f"{name} must have x's dtype and device, {x.dtype} on {x.device}; "
                f"got {tensor.dtype} on {tensor.device}"
            )
    if (
        weights is not None
        and values_are_at_hand(weights)
        and weights.numel()
        and bool((least := weights.min()) < 0)
    ):
        raise SimNetsError(f"weights must not be negative; the smallest is {least.item():g}")


def _checked_order(p: float | Tensor) -> float | Tensor:
    """p as a Python float, or as a tensor without dimensions."""
    if isinstance(p, Tensor):
        if p.numel() != 1 or not p.is_floating_point():
            raise SimNetsError(
                f"p must be a number or a floating-point tensor of one element; "
                f"got a tensor of {p.dtype} with shape {tuple(p.shape)}"
            )
        p = p.reshape(())
        if not values_are_at_hand(p):
            return p
        value = p.item()
    else:
        try:
            p = value = float(p)
        except (TypeError, ValueError):
            raise SimNetsError(f"p must be a number or a tensor of one element; got {p!r}") from None
    if not 0 < value < math.inf:
        raise SimNetsError(f"p must be positive and finite; got {value}")
    return p


def _is_two(p: float | Tensor) -> bool:
    """Whether p is 2 and stays 2. While a graph is captured, only a number can be known to."""
    if not isinstance(p, Tensor):
        return p == 2
    return not p.requires_grad and values_are_at_hand(p) and p.item() == 2


def _fastest(x: Tensor, templates: Tensor, weights: Tensor | None) -> str:
    """For p = 2. The kernel saves passes over x, matrix products save arithmetic."""
    few = templates.shape[0] <= (FEW_WITHOUT_WEIGHTS if weights is None else FEW_TEMPLATES)
    if few and values_are_at_hand(x) and is_available(x.dtype):
        return "fused"
    return "expanded"
