import dataclasses
import math

import pytest
import torch

from simnets.errors import SimNetsError
from simnets.training import RECIPES, Recipe, recipe_for
from simnets.training.schedule import rate


def test_paper_recipe_is_that_of_section_6_1():
    paper = RECIPES["paper"]
    assert (paper.batch_size, paper.momentum, paper.weight_decay, paper.lr) == (128, 0.9, 1e-4, 0.01)
    assert (paper.epochs, paper.optimizer, paper.schedule) == (300, "sgd", "steps")
    assert paper.pretrain
    ours = (paper.label_start, paper.precondition, paper.project, paper.clip)
    assert not any(ours)


def test_paper_rate_falls_by_ten_after_200_and_250_of_300_epochs():
    paper = RECIPES["paper"]
    steps = 390  # of an epoch

    def lr(step):
        return paper.lr * rate(paper, step / (300 * steps))

    assert lr(0) == lr(200 * steps - 1) == pytest.approx(0.01)
    assert lr(200 * steps) == lr(250 * steps - 1) == pytest.approx(0.001)
    assert lr(250 * steps) == lr(300 * steps - 1) == pytest.approx(0.0001)


def test_milestones_as_epochs_are_the_same_as_shares():
    in_epochs = dataclasses.replace(RECIPES["paper"], milestones=(200, 250))
    for progress in (0.0, 0.6, 199.9 / 300, 200 / 300, 0.8, 250 / 300, 0.99):
        assert rate(in_epochs, progress) == rate(RECIPES["paper"], progress)


def test_one_cycle_is_that_of_torch():
    recipe = Recipe(schedule="one-cycle", warmup=0.25)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    torch_cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.0, total_steps=101, pct_start=0.26, cycle_momentum=False, final_div_factor=1e12
    )
    # torch counts the last index of a phase, 0.26·101 − 1 ≈ 25 of 100, as its end
    for step in range(101):
        assert rate(recipe, step / 100) == pytest.approx(optimizer.param_groups[0]["lr"], abs=0.01)
        optimizer.step()
        if step < 100:
            torch_cycle.step()


def test_cosine_and_constant_rise_straight():
    cosine = Recipe(schedule="cosine", warmup=0.5)
    assert [rate(cosine, p) for p in (0, 0.25, 0.5, 0.75)] == pytest.approx([0, 0.5, 1, 0.5])
    assert rate(cosine, 1.0) == pytest.approx(0)
    constant = Recipe(schedule="constant", warmup=0.5)
    assert [rate(constant, p) for p in (0.25, 0.5, 1.0)] == [0.5, 1, 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("lr", 0.0),
        ("lr", math.nan),
        ("lr", math.inf),
        ("clip", -1.0),
        ("validation", -0.1),
        ("momentum", 1.0),
        ("ema", 1.0),
        ("label_smoothing", -0.1),
        ("warp", 0.5),
        ("betas", (0.9, 1.0)),
        ("milestones", (0.0,)),
        ("optimizer", "lbfgs"),
        ("schedule", "linear"),
    ],
)
def test_bad_values_are_refused_by_name(field, value):
    with pytest.raises(SimNetsError, match=field):
        Recipe(**{field: value})


def test_recipe_for_adapts_ours_only_and_takes_changes():
    assert recipe_for("fast", "svhn").flip is False
    assert recipe_for("fast", "cifar10").flip is True
    assert recipe_for("paper", "digits") == RECIPES["paper"]
    assert recipe_for("fast", "digits", epochs=3).epochs == 3
    assert recipe_for("fast", "cifar10", "simnet3_compact").energy > 0 == recipe_for("fast", "cifar10").energy
    assert recipe_for("fast", "cifar10", "simnet3_compact", energy=0.0).energy == 0
    assert recipe_for("paper", "cifar10", "simnet3_compact") == RECIPES["paper"]
    own = Recipe(epochs=7)
    assert recipe_for(own, "digits", "simnet3_compact") == own


def test_unknown_recipe_and_field_are_refused():
    with pytest.raises(SimNetsError, match=r"slow.*fast, paper"):
        recipe_for("slow", "digits")
    with pytest.raises(SimNetsError, match="speed"):
        recipe_for("fast", "digits", speed=3)
