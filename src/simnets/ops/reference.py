"""The paper's two operators, written out as they stand there: the oracle of every test.

Nothing here is fast, and everything broadcasts; the paths that people use are in `_similarity.py`
and `_mex.py`, and each of them is tested against this file, which is itself tested against mpmath.
"""

from __future__ import annotations

import torch
from torch import Tensor


def similarity(
    x: Tensor,
    templates: Tensor,
    weights: Tensor | None = None,
    p: float | Tensor = 2.0,
    *,
    kind: str = "lp",
    nan_policy: str = "propagate",
) -> Tensor:
    """Section 2, similarity operator: u·φ(x, z), for every template z_l with weights u_l.

    φ_lin(x, z)_i = x_i z_i and φ_lp(x, z)_i = −|x_i − z_i|^p.
    x (..., d), templates (n, d), weights (n, d) or None for ones → (..., n).
    With nan_policy="omit" a NaN coordinate of x is left out of the sum.
    """
    known = ~x.isnan() if nan_policy == "omit" else None
    if known is not None:
        x = torch.where(known, x, 0.0)  # or NaN·0 would be in the gradients
    if kind == "linear":
        phi = x.unsqueeze(-2) * templates
    else:
        difference = (x.unsqueeze(-2) - templates).abs()
        # |0|^p = 0 with derivative 0 for every p > 0: the documented subgradient (p ≤ 1 has none of its own)
        at_zero = difference == 0
        phi = -torch.where(at_zero, 0.0, torch.where(at_zero, 1.0, difference) ** p)
    if weights is not None:
        phi = weights * phi
    if known is not None:
        phi = torch.where(known.unsqueeze(-2), phi, 0.0)
    return phi.sum(-1)


def mex(x: Tensor, beta: float | Tensor = 1.0, offsets: Tensor | None = None, *, dim: int = -1) -> Tensor:
    """Section 2, equation 1: MEX_β{c_i} = (1/β)·log((1/n)·Σ_i exp(β·c_i)), for finite β ≠ 0.

    Without offsets c = x along `dim`, which is reduced; with offsets b (k, n), c_ri = x_i + b_ri and
    `dim` becomes k. β = 0 is the mean, β = ±∞ the maximum and the minimum.
    """
    c = x.movedim(dim, -1)
    if offsets is not None:
        c = c.unsqueeze(-2) + offsets
    value = float(beta)
    if value == 0:
        result = c.mean(-1)
    elif value == float("inf"):
        result = c.amax(-1)
    elif value == float("-inf"):
        result = c.amin(-1)
    else:
        result = (torch.logsumexp(beta * c, -1) - torch.log(torch.tensor(c.shape[-1], dtype=c.dtype))) / beta
    return result if offsets is None else result.movedim(-1, dim)
