"""Muon's step against the decomposition it approximates and against torch's own; AdamW stays AdamW."""

from __future__ import annotations

import copy

import pytest
import torch

from simnets.training.optimizer import MuonAdamW, make_optimizer, orthogonalised
from simnets.training.recipe import Recipe


@pytest.mark.parametrize("shape", [(8, 30), (30, 8), (12, 12)])
def test_orthogonalised_is_near_the_polar_factor(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape) * 1e-3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonalised(matrix)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    inside = u.T @ found @ v.T  # in the singular bases only the diagonal is left
    assert (inside - inside.diag().diag()).abs().max() < 1e-4


def _train(optimizer: torch.optim.Optimizer, value: torch.nn.Parameter, steps: int) -> None:
    torch.manual_seed(1)
    for _ in range(steps):
        value.grad = torch.randn(value.shape)
        optimizer.step()


def test_the_step_is_that_of_torchs_muon() -> None:
    torch.manual_seed(0)
    start = torch.randn(6, 20)
    ours, theirs = torch.nn.Parameter(start.view(6, 5, 2, 2).clone()), torch.nn.Parameter(start.clone())
    optimizer = MuonAdamW([{"params": [ours], "orthogonal": True}], lr=0.02, weight_decay=0.1)
    reference = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.95)
    torch.manual_seed(1)
    for _ in range(5):
        gradient = torch.randn(6, 20)
        ours.grad, theirs.grad = gradient.view_as(ours).clone(), gradient.clone()
        optimizer.step()
        reference.step()
    moved = (theirs - start).norm()
    assert (ours.detach().view(6, 20) - theirs).norm() < 0.02 * moved  # torch iterates in bfloat16
    assert torch.equal(ours.grad, gradient.view_as(ours))


def test_other_groups_are_adamw() -> None:
    start = torch.randn(7)
    ours, filters, theirs = (torch.nn.Parameter(t) for t in (start.clone(), torch.randn(3, 4), start.clone()))
    optimizer = MuonAdamW([{"params": [ours]}, {"params": [filters], "orthogonal": True}], lr=0.01)
    reference = torch.optim.AdamW([theirs], lr=0.01)
    for step in range(4):
        ours.grad = theirs.grad = torch.full((7,), float(step + 1))
        filters.grad = torch.randn(3, 4)
        optimizer.step()
        reference.step()
    assert torch.equal(ours, theirs)


def test_state_goes_on_where_it_was() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(3, 5))], "orthogonal": True}]
    whole = make_optimizer(groups, Recipe(optimizer="muon"))
    value = groups[0]["params"][0]
    _train(whole, value, 3)
    other = torch.nn.Parameter(value.detach().clone())
    second = make_optimizer([{"params": [other], "orthogonal": True}], Recipe(optimizer="muon"))
    second.load_state_dict(copy.deepcopy(whole.state_dict()))  # loading alone would share the buffers
    _train(whole, value, 2)
    _train(second, other, 2)
    assert torch.equal(value, other)


@pytest.mark.parametrize(("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.AdamW)])
def test_recipes_choose_the_optimizer(name: str, kind: type) -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(3))]}]
    assert type(make_optimizer(groups, Recipe(optimizer=name))) is kind
