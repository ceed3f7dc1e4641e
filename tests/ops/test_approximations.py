"""The ten-operation exp and log: their stated errors hold over all of float32."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simnets.ops import approximations

# Every 2011th bit pattern: two million float32 numbers of every sign and exponent.
EVERY_FLOAT32 = torch.arange(-(2**31), 2**31, 2011).to(torch.int32).view(torch.float32)
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def test_exp_error_over_all_of_float32() -> None:
    dense = torch.linspace(-103.0, 88.376, 500_000)
    x = torch.cat([EVERY_FLOAT32[EVERY_FLOAT32.abs() < 88.376], dense])
    expected = x.double().exp()
    error = (approximations.exp(x).double() - expected).abs()
    normal = expected >= SMALLEST_NORMAL
    assert (error / expected)[normal].max() <= approximations.EXP_RELATIVE_ERROR
    assert error[~normal].max() <= SMALLEST_NORMAL * approximations.EXP_RELATIVE_ERROR
    assert (error / expected)[x.abs() <= 1].max() <= 7e-7


def test_exp_ends_of_the_range() -> None:
    x = torch.tensor([-math.inf, -3e38, -105.0, 0.0, 89.0, 3e38, math.inf])
    assert approximations.exp(x).tolist() == [0.0, 0.0, 0.0, 1.0, math.inf, math.inf, math.inf]
    assert approximations.exp(torch.tensor(math.nan)).isnan()


def test_log_error_over_all_of_float32() -> None:
    x = EVERY_FLOAT32[(EVERY_FLOAT32 > 0) & EVERY_FLOAT32.isfinite()]
    error = (approximations.log(x).double() - x.double().log()).abs()
    assert error.max() <= approximations.LOG_ABSOLUTE_ERROR
    near_one = torch.linspace(0.4, 2.5, 300_000)
    assert (approximations.log(near_one).double() - near_one.double().log()).abs().max() <= 2e-6


def test_log_ends_of_the_range() -> None:
    x = torch.tensor([0.0, math.inf])
    assert approximations.log(x).tolist() == [-math.inf, math.inf]
    assert approximations.log(torch.tensor([-1.0, -math.inf, math.nan])).isnan().all()


@pytest.mark.parametrize("function", [approximations.exp, approximations.log])
def test_float64(function) -> None:
    x = torch.linspace(0.01, 700.0, 10_001, dtype=torch.float64)
    exact = torch.exp(x) if function is approximations.exp else torch.log(x)
    scale = exact if function is approximations.exp else 1.0
    assert ((function(x) - exact) / scale).abs().max() <= 2e-6


@pytest.mark.parametrize("function", [approximations.exp, approximations.log])
def test_derivative(function) -> None:
    x = torch.linspace(0.2, 9.0, 1001, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    exact = torch.exp(x) if function is approximations.exp else 1 / x
    assert ((gradient - exact) / exact).abs().max() <= 2e-4


class _Arithmetic(TorchDispatchMode):
    """Counts arithmetic operations: everything but comparisons, selects, clamps and type conversions."""

    FREE = (
        "clamp",
        "where",
        "eq",
        "gt",
        "lt",
        "bitwise_and",
        "_to_copy",
        "scalar_tensor",
        "lift_fresh",
        "detach",
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        # 2^i is not a power but an addition to the exponent, counted together with the product it is in
        if name not in self.FREE and name != "exp2":
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("function", [approximations.exp, approximations.log])
def test_at_most_ten_operations(function) -> None:
    x = torch.ones(3)
    with _Arithmetic() as arithmetic:
        function(x)
    assert arithmetic.count <= 10
