"""`method="expanded"`: the similarities that are matrix products, p = 2 and linear."""

from __future__ import annotations

import torch
from torch import Tensor


def linear(x: Tensor, templates: Tensor, weights: Tensor | None, omit_nan: bool) -> Tensor:
    """Σ_i u_i·x_i·z_i = x·(u∘z)ᵀ."""
    if omit_nan:
        x = torch.where(x.isnan(), 0.0, x)
    return torch.nn.functional.linear(x, templates if weights is None else weights * templates)


def squared(x: Tensor, templates: Tensor, weights: Tensor | None, omit_nan: bool) -> Tensor:
    """−Σ_i u_i·(x_i − z_i)² = −u·y² + 2·(u∘z)·y − u·z², for y = x − m and z − m in place of x and z.

    The three terms cancel where x is near z, so their size decides the error. It is kept small by
    taking m, the mean of the templates, off both sides: what x and z have in common then costs nothing.
    The absolute error is a few units in the last place of Σ_i u_i·(y_i² + z_i²).
    """
    # The result does not depend on m, so no gradient goes there. A template that is not finite spoils its
    # own column only.
    m = templates.detach().mean(0).nan_to_num(0.0, 0.0, 0.0)
    z = templates - m
    y = (x - m).unsqueeze(0).flatten(0, -2)
    shape = (*x.shape[:-1], templates.shape[0])
    u_z = z if weights is None else weights * z
    if omit_nan:
        known = ~y.isnan()
        y = torch.where(known, y, 0.0)
        # The last term varies with the coordinates that are there: −Σ_i∈known u_i·z_i².
        out = torch.mm(y, 2 * u_z.T).addmm_(known.to(y.dtype), (u_z * z).T, alpha=-1)
    else:
        out = torch.addmm(-(u_z * z).sum(-1), y, 2 * u_z.T)
    if weights is None:  # then every template has the same Σ y²: no second product
        return out.sub_(y.square().sum(-1, keepdim=True)).view(shape)
    return out.addmm_(y.square(), weights.T, alpha=-1).view(shape)
