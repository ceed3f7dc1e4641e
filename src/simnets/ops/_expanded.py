"""`method="expanded"`: the similarities that are matrix products, p = 2 and linear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from simnets.ops._eager import values_are_at_hand

# Numbers of x or of the result in a block of rows, for each thread: about what a second-level cache holds.
BLOCK = 2**17


def linear(x: Tensor, templates: Tensor, weights: Tensor | None, omit_nan: bool) -> Tensor:
    """Σ_i u_i·x_i·z_i = x·(u∘z)ᵀ."""
    if omit_nan:
        x = torch.where(x.isnan(), 0.0, x)
    return torch.nn.functional.linear(x, templates if weights is None else weights * templates)


def squared(x: Tensor, templates: Tensor, weights: Tensor | None, omit_nan: bool) -> Tensor:
    """−Σ_i u_i·(x_i − z_i)² = −u·y² + 2·(u∘z)·y − u·z², for y = x − m and z − m in place of x and z.

    The three terms cancel where x is near z, so their size decides the error. It is kept small by
    taking m, the mean of the templates, off both sides: what x and z have in common then costs nothing.
    The absolute error is a few units in the last place of Σ_i u_i·(y_i² + z_i²). Where the mean is within
    one standard deviation of 0 in every coordinate, there is nothing to gain, and the pass over x is saved.
    """
    # The result does not depend on m, so no gradient goes there.
    m = templates.detach().mean(0)
    if not values_are_at_hand(x) or (2 * m.square() > templates.detach().square().mean(0)).any():
        m = m.nan_to_num(0.0, 0.0, 0.0)  # so that a template that is not finite spoils its own column only
        x, templates = x - m, templates - m
    y = x.unsqueeze(0).flatten(0, -2)
    if omit_nan or not values_are_at_hand(x):
        out = _products(y, templates, weights, omit_nan)
    else:
        out = _Blocked.apply(y, templates, weights)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], templates.shape[0])


def _products(y: Tensor, z: Tensor, u: Tensor | None, omit_nan: bool) -> Tensor:
    """The expansion for (rows, d), in operators that a graph can hold."""
    u_z = z if u is None else u * z
    if omit_nan:
        known = ~y.isnan()
        y = torch.where(known, y, 0.0)
        # The last term varies with the coordinates that are there: −Σ_i∈known u_i·z_i².
        out = torch.mm(y, 2 * u_z.T).addmm(known.to(y.dtype), (u_z * z).T, alpha=-1)
    else:
        out = torch.addmm(-(u_z * z).sum(-1), y, 2 * u_z.T)
    if u is None:  # then every template has the same Σ y²: no second product
        return out - y.square().sum(-1, keepdim=True)
    return out.addmm(y.square(), u.T, alpha=-1)


class _Blocked(torch.autograd.Function):
    """The same by blocks of rows: y² and its like stay in the cache, and backward needs nothing but y."""

    @staticmethod
    def forward(y: Tensor, z: Tensor, u: Tensor | None) -> Tensor:
        u_z = z if u is None else u * z
        constant, factor = -(u_z * z).sum(-1), 2 * u_z.T
        out = y.new_empty(y.shape[0], z.shape[0])
        for y_rows, out_rows, square in _blocks(z, y, out):
            torch.addmm(constant, y_rows, factor, out=out_rows)
            torch.mul(y_rows, y_rows, out=square)
            if u is None:
                out_rows.sub_(square.sum(-1, keepdim=True))
            else:
                out_rows.addmm_(square, u.T, alpha=-1)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (y, z, u), needed = grads, ctx.saved_tensors, ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody wants second derivatives: operators that have them
            wanted = [tensor for tensor, need in zip((y, z, u), needed, strict=True) if need]
            second = iter(torch.autograd.grad(_products(y, z, u, False), wanted, grad, create_graph=True))
            return tuple(next(second) if need else None for need in needed)
        by_y = torch.empty_like(y)
        # Σ grad·y and Σ grad·y² over the rows; with Σ grad they make the gradients of z and u.
        grad_y, grad_square = torch.zeros_like(z), torch.zeros_like(z)
        u_z = z if u is None else u * z
        for y_rows, grad_rows, by_y_rows, scratch in _blocks(z, y, grad, by_y):
            if needed[2]:
                torch.mul(y_rows, y_rows, out=scratch)
                grad_square.addmm_(grad_rows.T, scratch)
            if needed[1] or needed[2]:
                grad_y.addmm_(grad_rows.T, y_rows)
            if needed[0]:  # 2·(grad·(u∘z) − y∘(grad·u))
                if u is None:
                    torch.mul(y_rows, grad_rows.sum(-1, keepdim=True), out=scratch)
                else:
                    torch.mm(grad_rows, u, out=scratch).mul_(y_rows)
                torch.addmm(scratch, grad_rows, u_z, beta=-2, alpha=2, out=by_y_rows)
        total = grad.sum(0).unsqueeze(-1)
        by_z = 2 * (grad_y - z * total)
        by_u = z * (2 * grad_y - z * total) - grad_square
        found = (by_y, by_z if u is None else by_z * u, by_u)
        return tuple(tensor if need else None for tensor, need in zip(found, needed, strict=True))


def _blocks(z: Tensor, y: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of y and of the others, and room for something of the shape of y's."""
    size = max(64, BLOCK * torch.get_num_threads() // max(1, *z.shape))
    scratch = y.new_empty(min(size, y.shape[0]), y.shape[1])
    for parts in zip(*(torch.split(tensor, size) for tensor in (y, *others)), strict=True):
        yield *parts, scratch[: parts[0].shape[0]]
