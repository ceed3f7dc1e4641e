import pytest
import torch
from torch import nn

from simnets.training.divergence import TrainingDiverged, first_non_finite, require_finite


class Log(nn.Module):
    def forward(self, x):
        return x.log()


class Root(nn.Module):
    """Finite at 0, with a gradient 0·∞ there."""

    def forward(self, x):
        return x.abs().sqrt()


def network(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *middle, nn.Linear(4, 2))


def test_names_the_layer_whose_output_failed_first():
    model = network(Log(), nn.ReLU())
    found = first_non_finite(model, lambda: model(torch.ones(3, 4)).sum())
    assert found == "the output of 1 (Log)"


def test_names_the_parameter():
    model = network()
    with torch.no_grad():
        model[1].bias[0] = torch.nan
    assert first_non_finite(model, lambda: model(torch.ones(3, 4)).sum()) == "the parameter 1.bias"
    with pytest.raises(TrainingDiverged, match=r"1\.bias"):
        require_finite(model)


def test_names_the_gradient_nearest_to_where_it_failed():
    model = network(Root())
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
    # The layer after the root is spared, the one before it is hit, its bias before its weight.
    found = first_non_finite(model, lambda: model(torch.ones(3, 4)).sum())
    assert found == "the gradient of 0.bias"


def test_hooks_are_removed_and_gradients_untouched():
    model = network()
    require_finite(model)
    first_non_finite(model, lambda: model(torch.ones(3, 4)).sum())
    assert all(not module._forward_hooks for module in model.modules())
    assert all(value.grad is None for value in model.parameters())
