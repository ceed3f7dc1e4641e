"""`MultiplicativeGaussianNoise`: the regulariser of section 6.3."""

from __future__ import annotations

import math

import pytest
import torch
from layer_contract import refused

from simnets.nn import MultiplicativeGaussianNoise


def test_noise_multiplies_with_a_mean_of_one_and_a_deviation_of_sigma() -> None:
    noise = MultiplicativeGaussianNoise(0.3)
    x = torch.full((200, 500), 2.0)
    factors = noise(x) / x
    assert factors.mean().item() == pytest.approx(1, abs=5e-3)
    assert factors.std().item() == pytest.approx(0.3, abs=5e-3)
    assert torch.equal(noise(torch.zeros(3)), torch.zeros(3))


def test_each_element_has_its_own_noise_which_the_seed_decides() -> None:
    noise, x = MultiplicativeGaussianNoise(0.3), torch.ones(4, 5)
    torch.manual_seed(3)
    first, second = noise(x), noise(x)
    assert first.unique().numel() == 20
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(noise(x), first)


def test_the_gradient_is_multiplied_too() -> None:
    x = torch.ones(50, requires_grad=True)
    result = MultiplicativeGaussianNoise(0.3)(x)
    result.sum().backward()
    torch.testing.assert_close(x.grad, result.detach())


def test_evaluation_and_sigma_zero_are_the_identity() -> None:
    x = torch.randn(3, 4)
    assert MultiplicativeGaussianNoise(0.3).eval()(x) is x
    assert MultiplicativeGaussianNoise(0.0)(x) is x


def test_channels_last_stays_so() -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert MultiplicativeGaussianNoise(0.3)(x).is_contiguous(memory_format=torch.channels_last)


def test_compiles_and_exports() -> None:
    noise, x = MultiplicativeGaussianNoise(0.3), torch.ones(4, 5)
    compiled = torch.compile(noise, backend="aot_eager", fullgraph=True)
    assert (compiled(x) != x).all()
    noise.eval()
    assert torch.equal(compiled(x), x)
    assert torch.equal(torch.export.export(noise, (x,)).module()(x), x)
    assert repr(noise) == "MultiplicativeGaussianNoise(sigma=0.3)"
    assert noise.state_dict() == {}


@pytest.mark.parametrize("sigma", [-0.1, math.nan, math.inf])
def test_bad_sigma(sigma: float) -> None:
    with refused(f"sigma={sigma}: expected a finite number >= 0"):
        MultiplicativeGaussianNoise(sigma)
