"""`MexPool2d`: the local pooling of section 4.3."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from layer_contract import F64, ImageLayerContract, refused
from torch import Tensor

from simnets.nn import MexPool2d
from simnets.ops import reference


class TestMexPool2d(ImageLayerContract):
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "maximum": {},
        "minimum": {"beta": -math.inf, "padding": 1},
        "mean": {"beta": 0.0, "padding": 1, "ceil_mode": True},
        "finite": {"beta": 1.5},
        "padded": {"beta": -0.7, "padding": 1},
        "ceil": {"beta": 2.0, "padding": (1, 0), "ceil_mode": True, "kernel_size": (3, 2), "stride": (3, 3)},
        "learned": {"beta": 0.8, "beta_mode": "learned", "padding": 1, "ceil_mode": True},
        "learned_at_zero": {"beta": 0.0, "beta_mode": "learned"},
    }
    traced = ("maximum", "learned")
    random = False

    def make(self, **options: Any) -> MexPool2d:
        return MexPool2d(**{"kernel_size": 3, "stride": 2, **options})

    def made(self, variant: dict[str, Any], dtype: torch.dtype = F64) -> Any:
        return self.make(**{"dtype": dtype, **variant})  # β as it is given: zero is a hard case

    def input(self, count: int = 2, dtype: torch.dtype = F64) -> Tensor:
        return torch.randn(count, 2, 6, 8, dtype=dtype)

    def expected(self, layer: MexPool2d, x: Tensor) -> Tensor:
        """Window by window; torch's own max pooling says which windows there are."""
        window = layer.kernel_size, layer.stride, layer.padding
        shape = F.max_pool2d(x, *window, ceil_mode=layer.ceil_mode).shape
        result = x.new_empty(shape)
        for i, j in itertools.product(range(shape[2]), range(shape[3])):
            top, left = i * layer.stride[0] - layer.padding[0], j * layer.stride[1] - layer.padding[1]
            rows = slice(max(top, 0), top + layer.kernel_size[0])
            columns = slice(max(left, 0), left + layer.kernel_size[1])
            result[:, :, i, j] = reference.mex(x[:, :, rows, columns].flatten(2), layer.beta.detach().to(x))
        return result


GEOMETRIES = [
    (size, kernel, stride, padding, ceil_mode)
    for size, kernel, stride in itertools.product((4, 5, 7), (1, 2, 3, 4), (1, 2, 3, 5))
    for ceil_mode in (False, True)
    for padding in range(kernel // 2 + 1)
    if kernel <= size + 2 * padding
]


def test_every_geometry_has_the_windows_of_torch() -> None:
    for size, kernel, stride, padding, ceil_mode in GEOMETRIES:
        x = torch.randn(1, 1, size, 4, dtype=F64)
        window = (kernel, 1), (stride, 1), (padding, 0)
        expected = F.avg_pool2d(x.exp(), *window, ceil_mode, count_include_pad=False).log()
        result = MexPool2d(*window, beta=1.0, ceil_mode=ceil_mode)(x)
        torch.testing.assert_close(result, expected, msg=str((size, kernel, stride, padding, ceil_mode)))


def test_maximum_and_mean_are_those_of_torch() -> None:
    x = torch.randn(2, 3, 9, 9)
    assert torch.equal(MexPool2d(3, 2, 1)(x), F.max_pool2d(x, 3, 2, 1))
    mean = F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
    assert torch.equal(MexPool2d(3, 2, 1, beta=0.0)(x), mean)
    assert torch.equal(MexPool2d(2)(x), F.max_pool2d(x, 2))


@pytest.mark.parametrize("beta", [1e-6, 1.0, 1e3])
def test_values_of_every_range_in_one_map(beta: float) -> None:
    """Each window has its own scale: what is far below the map's maximum does not underflow."""
    x = torch.randn(1, 2, 8, 8) + torch.linspace(-2e4, 2e4, 8)[:, None]
    pool = MexPool2d(2, beta=beta)
    windows = F.unfold(x.double(), 2, stride=2).view(1, 2, 4, 16)
    expected = reference.mex(windows, beta, dim=2).view(1, 2, 4, 4)
    torch.testing.assert_close(pool(x).double(), expected, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("beta", [0.0, 1e-9, -1e-4, 1e-3, 0.1])
def test_the_gradient_of_a_small_beta_does_not_cancel(beta: float) -> None:
    """dMEX/dβ = variance/2 + β·(third central moment)/3 + …, in float32 and beside a large mean."""
    pool, x = MexPool2d(3, beta=beta, beta_mode="learned"), torch.randn(2, 3, 9, 9)
    pool(x + 10).sum().backward()
    windows = F.unfold((x + 10).double(), 3, stride=3).view(2, 3, 9, 9)
    b = torch.tensor(beta, dtype=F64)
    c = windows - windows.mean(2, keepdim=True)
    if beta == 0.1:  # ordinary: the formula itself
        b.requires_grad_()
        ((b * c).exp().mean(2).log() / b).sum().backward()
        expected = b.grad
    else:
        expected = (c.square().mean(2) / 2 + b * c.pow(3).mean(2) / 3).sum()
    torch.testing.assert_close(pool.raw_beta.grad.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("beta_mode", ["frozen", "learned"])
def test_minus_infinity_is_probability_zero(beta_mode: str) -> None:
    pool = MexPool2d(2, beta=1.5, beta_mode=beta_mode)
    x = torch.tensor([[0.3, -math.inf, -math.inf, -math.inf], [1.0, 2.0, -math.inf, -math.inf]])
    x = x.view(1, 1, 2, 4).requires_grad_()
    result = pool(x)
    some = math.log((math.exp(1.5 * 0.3) + math.exp(1.5) + math.exp(3.0)) / 4) / 1.5
    torch.testing.assert_close(result.flatten(), torch.tensor([some, -math.inf]))
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad[..., :2].sum() == pytest.approx(1)
    assert (x.grad[..., 2:] == 0).all()
    if beta_mode == "learned":
        assert pool.raw_beta.grad.isfinite()


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_infinity_and_nan_propagate(value: float) -> None:
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 0, 0] = value
    x.requires_grad_()
    result = MexPool2d(2, beta=1.5)(x).flatten()
    torch.testing.assert_close(result, torch.tensor([value, 0.0, 0.0, 0.0]), equal_nan=True)
    result.sum().backward()
    assert x.grad is not None
    assert (x.grad[..., 2:] == 0.25).all()
    if value == math.inf:
        assert (x.grad[..., :2, :2] == 0).all()


def test_beta_is_learned() -> None:
    pool = MexPool2d(3, 2, beta=0.0, beta_mode="learned")
    x = torch.randn(4, 3, 9, 9)
    target = F.max_pool2d(x, 3, 2)
    optimizer = torch.optim.Adam(pool.parameters(), lr=0.3)
    losses = []
    for _ in range(20):
        loss = (pool(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    assert pool.beta > 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 0}, "kernel_size=0"),
        ({"stride": 0}, "stride=0"),
        ({"padding": 2}, r"padding=2: expected at most half of kernel_size \(3, 3\)"),
        ({"beta": math.nan}, "beta: expected values a number"),
        ({"beta": math.inf, "beta_mode": "learned"}, "beta: expected values finite"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with refused(message):
        MexPool2d(**{"kernel_size": 3, **options})


def test_bad_x() -> None:
    with refused(r"x: expected images of shape \(N, C, H, W\), got \(3, 4\)"):
        MexPool2d(2)(torch.zeros(3, 4))
    with refused("x: maps of 2×2"):
        MexPool2d(3)(torch.zeros(1, 1, 2, 2))
