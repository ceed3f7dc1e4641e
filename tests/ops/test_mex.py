"""`mex` against mpmath and against the written-out formula: values, gradients, edges, errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import simnets
from simnets import SimNetsError, mex
from simnets.ops import _mex_kernels, reference

mpmath.mp.dps = 60
INF, NAN = math.inf, math.nan
FLOAT32, FLOAT64 = torch.float32, torch.float64


class Exact(NamedTuple):
    value: float
    weights: list[float]
    slope: float  # dMEX/dβ


def exact(c: list, beta: float) -> Exact:
    """Equation 1 and its derivatives in 60 digits."""
    n, b = len(c), mpmath.mpf(beta)
    if beta == 0:
        mean = mpmath.fsum(c) / n
        return Exact(float(mean), [1 / n] * n, float(mpmath.fsum((v - mean) ** 2 for v in c) / n / 2))
    e = [mpmath.exp(b * v) for v in c]
    total = mpmath.fsum(e)
    value = mpmath.log(total / n) / b
    weights = [v / total for v in e]
    expected = mpmath.fsum(w * v for w, v in zip(weights, c, strict=True))
    return Exact(float(value), [float(w) for w in weights], float((expected - value) / b))


def rows_of(x: Tensor, offsets: Tensor | None) -> list[list[list]]:
    """c as numbers of mpmath, [row][class][index]: the sums x + b are exact too."""
    rows = [[mpmath.mpf(v) for v in row] for row in x.detach().double().tolist()]
    if offsets is None:
        return [[row] for row in rows]
    b = [[mpmath.mpf(v) for v in row] for row in offsets.detach().double().tolist()]
    return [[[u + v for u, v in zip(row, r, strict=True)] for r in b] for row in rows]


def magnitude(x: Tensor, offsets: Tensor | None) -> float:
    return float(x.detach().abs().max()) + (0.0 if offsets is None else float(offsets.detach().abs().max()))


def check_exact(x: Tensor, beta: float, offsets: Tensor | None, tolerance: float) -> None:
    """Value and gradients, row by row, relative to the largest |x| + |b| and to the largest weight."""
    x, learned = x.clone().requires_grad_(), torch.tensor(beta, dtype=FLOAT64, requires_grad=True)
    b = None if offsets is None else offsets.clone().requires_grad_()
    y = mex(x, learned, b)
    y = y.unsqueeze(-1) if b is None else y
    for i, classes in enumerate(rows_of(x, b)):
        for r, c in enumerate(classes):
            truth = exact(c, beta)
            inputs = [x, learned] if b is None else [x, learned, b]
            by_x, by_beta, *by_b = torch.autograd.grad(y[i, r], inputs, retain_graph=True)
            assert abs(y[i, r].item() - truth.value) <= tolerance * magnitude(x, b)
            weights = torch.tensor(truth.weights, dtype=FLOAT64)
            assert (by_x[i] - weights).abs().max() <= tolerance * weights.max()
            assert by_x.count_nonzero() == by_x[i].count_nonzero()
            if by_b:
                assert (by_b[0][r] - weights).abs().max() <= tolerance * weights.max()
            assert abs(by_beta.item() - truth.slope) <= tolerance * truth.slope


BETAS = [sign * 10.0**power * 1.37 for power in range(-12, 13, 2) for sign in (1, -1)]


@pytest.mark.parametrize("beta", [0.3, -0.3, 1.0, 5.0, -40.0])
def test_the_reference_is_the_formula(beta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, b = (torch.randn(rows, 5, dtype=FLOAT64, generator=generator) for rows in (3, 4))
    pooled, with_offsets = reference.mex(x, beta), reference.mex(x, beta, b)
    for i in range(3):
        assert pooled[i].item() == pytest.approx(exact(rows_of(x, None)[i][0], beta).value, rel=1e-13)
        for r in range(4):
            c = rows_of(x, b)[i][r]
            assert with_offsets[i, r].item() == pytest.approx(exact(c, beta).value, rel=1e-13)


@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize("beta", [*BETAS, 0.0])
def test_every_beta_in_float32_is_within_1e_6_of_mpmath(beta: float, with_offsets: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x, b = torch.randn(2, 7, generator=generator), torch.randn(2, 7, generator=generator)
    check_exact(x, beta, b if with_offsets else None, 1e-6)


@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize(
    ("x_scale", "b_scale", "shift"), [(1e-3, 1e-3, 0), (1e4, 1e4, 0), (1, 3, 1000), (1e-3, 8, 0)]
)
@pytest.mark.parametrize("beta", [1e-5, -3e-2, 1.0, -25.0, 1e7])
def test_every_scale_is_within_1e_6_of_mpmath(
    x_scale: float, b_scale: float, shift: float, beta: float, with_offsets: bool
) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 6, generator=generator) * x_scale + shift
    b = torch.randn(2, 6, generator=generator) * b_scale
    check_exact(x, beta, b if with_offsets else None, 1e-6)


@pytest.mark.parametrize("beta", [1e-12, 1e-6, -1e-3, 0.0, 0.2, -3.0, 1e3])
@pytest.mark.parametrize("with_offsets", [False, True])
def test_float64_is_within_1e_12_of_mpmath(beta: float, with_offsets: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    x, b = (torch.randn(2, 6, generator=generator, dtype=FLOAT64) * 5 for _ in range(2))
    check_exact(x, beta, b if with_offsets else None, 1e-12)


def test_rows_of_different_scale_do_not_disturb_each_other() -> None:
    # one row whose form is that about the mean, one about the extreme, one that underflows
    x = torch.tensor([[1e-3, 2e-3, 3e-3, -1e-3], [0.0, -30.0, 5.0, 2.0], [0.0, -500.0, -5e3, -1e4]])
    b = torch.tensor([[1e-3, -1e-3, 0.0, 2e-3], [0.0, 1.0, -4.0, 2.0], [-1e4, -6e3, -4e3, 0.0]])
    for row in range(3):
        alone = mex(x[row : row + 1], 1.0)
        torch.testing.assert_close(mex(x, 1.0)[row : row + 1], alone, rtol=0, atol=0)
        for r in range(3):
            truth = exact(rows_of(x, b)[row][r], 1.0).value
            scale = float(x[row].abs().max() + b[r].abs().max())
            assert abs(mex(x, 1.0, b)[row, r].item() - truth) <= 1e-6 * scale


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("beta", [1.0, -30.0, 1e-3, 1e-12])
def test_many_rows_are_taken_some_after_another(
    beta: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rows near their mean, of large common offset, that underflow, and with impossible entries
    rows = [
        [0.0, 0.1, -0.1],
        [1e4, 1e4 + 1, 1e4 - 1],
        [0.0, -500.0, -5e3],
        [-INF, 0.0, 1.0],
        [3.0, 1.0, -2.0],
    ]
    x = torch.tensor(rows, dtype=dtype).mul(math.copysign(1.0, beta)).requires_grad_()
    b = torch.tensor([[0.0, 0.2, -0.1], [-400.0, 0.0, 3.0]], dtype=dtype, requires_grad=True)
    weights = torch.arange(1.0, 11.0, dtype=dtype).view(5, 2)

    def values_and_gradients() -> tuple[Tensor, ...]:
        y = mex(x, beta, b)
        finite = torch.where(y.isfinite(), y, 0.0)
        return y.detach(), *torch.autograd.grad((finite * weights).sum(), (x, b))

    whole = values_and_gradients()
    taken = []
    monkeypatch.setattr(_mex_kernels, "PART", 2)
    product = _mex_kernels._product
    monkeypatch.setattr(
        _mex_kernels, "_product", lambda some, *rest: taken.append(len(some)) or product(some, *rest)
    )
    for part, all_at_once in zip(values_and_gradients(), whole, strict=True):
        torch.testing.assert_close(part, all_at_once, rtol=1e-6, atol=1e-7)
    assert max(taken) == 2
    monkeypatch.undo()
    for row in (0, 1, 2, 4):
        for r in range(2):
            truth = exact(rows_of(x, b)[row][r], beta).value
            assert abs(whole[0][row, r].item() - truth) <= 1e-6 * magnitude(x[row], b[r])


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("beta", [1.0, -1.0, 30.0])
def test_largest_x_and_largest_b_1e4_apart(dtype: torch.dtype, beta: float) -> None:
    """Every product of exponentials underflows, at once or (gap 300) in float32 only."""
    for gap in (40.0, 300.0, 1e4):
        x = torch.tensor([[0.0, -gap, -gap / 2, -gap / 2 - 0.01]], dtype=dtype)
        b = torch.tensor([[-gap, 0.0, -gap / 2, -gap / 2], [0.0, -gap, -gap, -gap]], dtype=dtype)
        sign = math.copysign(1.0, beta)
        check_exact(x * sign, beta, b * sign, 1e-6)


def test_weights_keep_their_digits_where_large_exponents_cancel() -> None:
    """x and b sum to about −55 where neither is large: exp(x)·exp(b) knows its exponent to 55·2^−24 only."""
    generator = torch.Generator().manual_seed(6)
    x = -15 - 40 * torch.rand(1, 8, generator=generator)
    b = -55 - x + torch.rand(4, 8, generator=generator)
    x[:, 0], b[:, 0] = 0.0, -90.0
    x[:, 1], b[:, 1] = -90.0, 0.0
    check_exact(x, 1.1, b, 1e-6)


def test_rows_of_nothing_do_not_take_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: object) -> Tensor:
        raise AssertionError("computed again, although −∞ is all that there is")

    monkeypatch.setattr(_mex_kernels, "_again", slow)
    x = torch.tensor([[0.0, 1.0], [-INF, -INF]])
    assert mex(x, 1.0, torch.tensor([[-INF, -INF], [0.0, 0.0]])).isneginf().tolist() == [
        [True, False],
        [True, True],
    ]


# Paths: each layout, each dtype against the formula in float64.


def layouts(x: Tensor) -> dict[str, Tensor]:
    return {
        "NCHW": x,
        "channels-last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3),
        "strided": x.repeat_interleave(2, 3)[..., ::2],
        "expanded": x[:1].expand(x.shape),
    }


@pytest.mark.parametrize("beta", [0.7, -0.01, 0.0, INF, -INF, 80.0])
@pytest.mark.parametrize("layout", ["NCHW", "channels-last", "transposed", "strided", "expanded"])
@pytest.mark.parametrize("size", [4, 2])
def test_layouts(layout: str, beta: float, size: int) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(3, 6, size, size, generator=generator) * 4
    x = layouts(x)[layout].detach().requires_grad_()
    b = (torch.randn(5, 6, generator=generator) * 4).requires_grad_()
    for offsets, dim in ((b, 1), (None, 1), (None, (2, 3)), (None, (1, 3))):
        y = mex(x, beta, offsets, dim=dim)
        inputs = [x] if offsets is None else [x, b]
        truth = simnets.mex(
            x.double(), beta, None if offsets is None else b.double(), dim=dim, method="reference"
        )
        torch.testing.assert_close(y.double(), truth, rtol=1e-6, atol=3e-6)
        grad = torch.randn(y.shape, generator=generator)
        for ours, theirs in zip(
            torch.autograd.grad(y, inputs, grad),
            torch.autograd.grad(truth, inputs, grad.double()),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6)


def test_channels_last_stays_channels_last() -> None:
    x = torch.randn(2, 6, 4, 4).contiguous(memory_format=torch.channels_last)
    assert mex(x, 1.0, torch.randn(5, 6), dim=1).is_contiguous(memory_format=torch.channels_last)
    assert mex(x.contiguous(), 1.0, torch.randn(5, 6), dim=1).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("with_offsets", [False, True])
def test_half_precision_computes_in_float32(dtype: torch.dtype, with_offsets: bool) -> None:
    x = torch.linspace(-4, 4, 48).reshape(4, 12).to(dtype)
    b = torch.linspace(3, -3, 36).reshape(3, 12).to(dtype)
    offsets = b if with_offsets else None
    wide = mex(x.float(), 1.3, None if offsets is None else offsets.float())
    y = mex(x.requires_grad_(), 1.3, offsets)
    assert y.dtype == dtype
    assert torch.equal(y, wide.to(dtype))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype


def test_autocast_does_not_reach_inside() -> None:
    x, b = torch.randn(8, 16), torch.randn(3, 16)
    expected = mex(x, 1.0, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mex(x, 1.0, b), expected)
        half = mex(x.bfloat16(), 1.0, b)  # a layer's offsets stay float32 there
    assert half.dtype == torch.bfloat16


def test_empty_batch() -> None:
    for beta in (1.0, 0.01, 0.0, INF):
        x = torch.zeros(0, 4, 3, 3, requires_grad=True)
        y = mex(x, beta, torch.zeros(5, 4), dim=1)
        assert y.shape == (0, 5, 3, 3)
        y.sum().backward()
        assert mex(x, beta, dim=(1, 2)).shape == (0, 3)


class _Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.entries = max(self.entries, tensor.untyped_storage().nbytes() // 4)
        return result


@pytest.mark.parametrize("spread", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("beta", [1.0, 1e-3, INF])
def test_nothing_is_as_large_as_batch_times_k_times_n(beta: float, spread: float) -> None:
    batch, k, n = 3072, 96, 32
    x = (torch.randn(batch, n) * spread).requires_grad_()
    b = (torch.randn(k, n) * spread).requires_grad_()
    learned = torch.tensor(beta, requires_grad=True)
    with _Largest() as largest:
        torch.autograd.grad(mex(x, learned, b).sum(), [x, b, learned])
    # twice the output in float64, or a chunk of 2^18 in float64; the whole of c would be 9.4 million
    assert largest.entries <= max(2 * batch * max(k, n), 2 << 18)


# Gradients


HARD = {
    "ordinary": [[0.3, -1.2, 0.8, 2.0], [1.0, 0.1, -0.4, 0.2]],
    "ties": [[1.0, 1.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0]],
    "far apart": [[0.0, -50.0, -900.0, -1e4], [-1e4, 0.0, -300.0, 5.0]],
}


# near β = 0 numeric derivatives for β carry the third power of the distance, too much where it is far
@pytest.mark.parametrize(
    ("points", "beta"),
    [(points, beta) for points in HARD for beta in (0.9, -0.9, 12.0)]
    + [(points, beta) for points in ("ordinary", "ties") for beta in (1e-4, -1e-4, 0.0)],
)
@pytest.mark.parametrize("with_offsets", [False, True])
def test_gradcheck(points: str, beta: float, with_offsets: bool) -> None:
    x = torch.tensor(HARD[points], dtype=FLOAT64, requires_grad=True)
    b = x.detach().flip(1).neg().requires_grad_() if with_offsets else None
    learned = torch.tensor([beta], dtype=FLOAT64, requires_grad=True)
    inputs = (x, learned) if b is None else (x, learned, b)
    assert torch.autograd.gradcheck(mex, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("beta", [0.9, -0.9, 0.0, 1e-3])
@pytest.mark.parametrize("with_offsets", [False, True])
def test_second_derivatives(beta: float, with_offsets: bool) -> None:
    x = torch.tensor(HARD["ordinary"], dtype=FLOAT64, requires_grad=True)
    b = torch.randn(3, 4, dtype=FLOAT64, requires_grad=True) if with_offsets else None
    learned = torch.tensor(beta, dtype=FLOAT64, requires_grad=True)
    inputs = (x, learned) if b is None else (x, learned, b)
    assert torch.autograd.gradgradcheck(mex, inputs)


def test_gradient_with_a_graph_is_the_gradient_without() -> None:
    x = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF], [3.0, 2.0, 1e-3]], dtype=FLOAT64).requires_grad_()
    b, beta = torch.randn(2, 3, dtype=FLOAT64, requires_grad=True), torch.tensor(0.5, requires_grad=True)
    for offsets in (None, b):
        inputs = [x, beta] if offsets is None else [x, beta, b]
        y = mex(x, beta, offsets)
        for plain, graph in zip(
            torch.autograd.grad(y.sum(), inputs, retain_graph=True),
            torch.autograd.grad(y.sum(), inputs, create_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(plain, graph.detach(), rtol=1e-6, atol=1e-9)


def test_half_the_variance_is_the_slope_at_zero() -> None:
    x = torch.randn(1, 50, dtype=FLOAT64)
    for dtype in (FLOAT32, FLOAT64):
        beta = torch.zeros((), dtype=dtype, requires_grad=True)
        mex(x, beta).backward()
        assert beta.grad is not None
        assert beta.grad.item() == pytest.approx(x.var(correction=0).item() / 2, rel=1e-6)


@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize("beta", [INF, -INF])
def test_ties_share_the_gradient_as_in_amax(beta: float, with_offsets: bool) -> None:
    sign = math.copysign(1.0, beta)
    for learned in (False, True):
        x = (torch.tensor([[2.0, 1.0, 2.0, 2.0], [0.0, 5.0, 1.0, 5.0]]) * sign).requires_grad_()
        b = torch.zeros(2, 4, requires_grad=True) if with_offsets else None
        value = torch.tensor(beta, requires_grad=True) if learned else beta
        y = mex(x, value, b)
        assert y.flatten()[0] == 2 * sign
        y.sum().backward()
        classes = 2 if with_offsets else 1
        third, half = classes / 3, classes / 2
        expected = torch.tensor([[third, 0, third, third], [0, half, 0, half]])
        torch.testing.assert_close(x.grad, expected)
        if b is not None:
            torch.testing.assert_close(b.grad, expected.sum(0).expand(2, 4) / 2)
        if isinstance(value, Tensor):
            assert value.grad == 0


# Infinities and NaN


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize(
    ("row", "beta", "expected", "gradient"),
    [
        # −∞ has probability zero, and counts in n
        ([0.0, -INF], 1.0, -math.log(2), [1, 0]),
        ([0.0, 0.0, 0.0, -INF], 2.0, math.log(0.75) / 2, [1 / 3, 1 / 3, 1 / 3, 0]),
        ([0.0, -INF], INF, 0.0, [1, 0]),
        # all −∞: −∞ and no gradient
        ([-INF, -INF], 1.0, -INF, [0, 0]),
        ([-INF, -INF], 1e-3, -INF, [0, 0]),
        ([-INF, -INF], 0.0, -INF, [0, 0]),
        ([-INF, -INF], INF, -INF, [0, 0]),
        ([-INF, -INF], -INF, -INF, [0, 0]),
        ([-INF, -INF], -1.0, -INF, [0, 0]),
        # −∞ is the minimum, and makes the mean −∞
        ([0.0, -INF], -1.0, -INF, [0, 0]),
        ([0.0, -INF], -INF, -INF, [0, 0]),
        ([0.0, -INF], 0.0, -INF, [0, 0]),
        # +∞ propagates, and mirrors −∞: MEX_−β{−c} = −MEX_β{c}
        ([0.0, INF], 1.0, INF, [0, 0]),
        ([0.0, INF], 0.0, INF, [0, 0]),
        ([0.0, INF], INF, INF, [0, 0]),
        ([-INF, INF], 1.0, INF, [0, 0]),
        ([0.0, INF], -1.0, math.log(2), [1, 0]),
        ([INF, INF], -1.0, INF, [0, 0]),
        ([-INF, INF], -1.0, -INF, [0, 0]),
        # NaN
        ([0.0, NAN], 1.0, NAN, [NAN, NAN]),
        ([0.0, NAN], 1e-3, NAN, [NAN, NAN]),
        ([0.0, NAN], INF, NAN, [NAN, NAN]),
        ([-INF, INF], 0.0, NAN, None),
    ],
)
def test_infinities(
    row: list[float],
    beta: float,
    expected: float,
    gradient: list[float] | None,
    with_offsets: bool,
    learned: bool,
) -> None:
    # the second row shows that nothing spills over
    x = torch.tensor([row, [1.0] * len(row)], requires_grad=True)
    b = torch.zeros(2, len(row), requires_grad=True) if with_offsets else None
    value = torch.tensor(beta, requires_grad=True) if learned else beta
    y = mex(x, value, b)
    first = y[0, 0] if with_offsets else y[0]
    torch.testing.assert_close(first.detach(), torch.tensor(expected), equal_nan=True)
    assert (y[1] - 1).abs().max() < 1e-6
    torch.autograd.backward(first + y[1].sum())
    assert x.grad is not None
    assert x.grad[1].isfinite().all()
    if gradient is not None:
        torch.testing.assert_close(x.grad[0], torch.tensor(gradient, dtype=FLOAT32), equal_nan=True)
        if not math.isnan(expected):
            if b is not None:
                assert b.grad is not None
                assert b.grad.isfinite().all()
            if isinstance(value, Tensor):
                assert value.grad is not None
                assert value.grad.isfinite()


def test_infinite_offsets() -> None:
    x = torch.tensor([[0.0, 1.0, 2.0], [-INF, 0.0, -INF]], requires_grad=True)
    b = torch.tensor([[0.0, -INF, 0.0], [-INF, -INF, -INF], [0.0, 0.0, 0.0]], requires_grad=True)
    y = mex(x, 1.0, b)
    expected = reference.mex(x.double(), 1.0, b.double())
    assert expected[1, 0] == -INF  # every index is impossible in x or in b
    torch.testing.assert_close(y.double(), expected)
    y.clamp(min=-10).sum().backward()
    for tensor in (x, b):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
    assert b.grad[1].abs().max() == 0
    assert mex(torch.tensor([[INF, 0.0]]), 1.0, torch.tensor([[-INF, 0.0]])).isnan().all()


def test_beta_beyond_float32_and_below_it() -> None:
    x, b = torch.tensor([[1.0, 3.0, 3.0]]), torch.tensor([[0.0, 0.0, -1.0]])
    for beta in (1e39, 1e300, torch.tensor(1e39, dtype=FLOAT64)):
        assert mex(x, beta).item() == 3
        assert mex(x, beta, b).item() == 3
    for beta in (1e-39, -1e-300, 5e-324):
        assert mex(x, beta).item() == pytest.approx(7 / 3, rel=1e-6)
        assert mex(x.double(), beta, b.double()).item() == pytest.approx(2, rel=1e-15)


# Approximations


@pytest.mark.parametrize("beta", [0.05, 1.0, -3.0, 40.0])
@pytest.mark.parametrize("with_offsets", [False, True])
def test_fast_approximation(beta: float, with_offsets: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    x = (torch.randn(64, 20, generator=generator) * 3).requires_grad_()
    b = torch.randn(5, 20, generator=generator) if with_offsets else None
    fast, slow = (
        mex(x, beta, b, approximation="fast"),
        mex(x.double(), beta, None if b is None else b.double()),
    )
    assert (fast - slow).abs().max() <= 5e-6 / abs(beta) + 2e-6 * slow.detach().abs().max()
    if abs(beta) in (1, 3):  # at 0.05 nothing is far from the mean, and at 40 everything is the maximum
        assert not torch.equal(fast, mex(x, beta, b))
    (by_fast,) = torch.autograd.grad(fast.sum(), x)
    (by_slow,) = torch.autograd.grad(slow.sum(), x)
    torch.testing.assert_close(by_fast, by_slow, rtol=0, atol=2e-5)


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.ones(3, dtype=torch.int64)}, "x must be a floating-point tensor, not torch.int64"),
        ({"x": [1.0]}, "x must be a floating-point tensor, not list"),
        ({"x": torch.ones(3, 0)}, "x has no entries along dim -1"),
        ({"x": torch.tensor(1.0)}, "dim -1 does not exist"),
        ({"dim": 2}, "dim 2 does not exist"),
        ({"dim": (0, -2)}, "twice"),
        ({"beta": NAN}, "beta is NaN"),
        ({"beta": torch.tensor(NAN)}, "beta is NaN"),
        ({"beta": torch.ones(2)}, "beta must be a number or a floating-point tensor with one element"),
        ({"beta": torch.ones(1, dtype=torch.int64)}, "beta must be a number or a floating-point"),
        ({"beta": None}, "beta must be a number"),
        ({"offsets": torch.ones(2, 4)}, r"offsets must have the shape \(k, 3\)"),
        ({"offsets": torch.ones(3)}, r"offsets must have the shape \(k, 3\)"),
        ({"offsets": torch.ones(0, 3)}, r"offsets must have the shape \(k, 3\)"),
        ({"offsets": torch.ones(2, 3, dtype=FLOAT64)}, "offsets are torch.float64 and x is torch.float32"),
        ({"offsets": torch.ones(2, 3, dtype=torch.int32)}, "offsets must be a floating-point tensor"),
        ({"offsets": torch.ones(2, 3, device="meta")}, "offsets are on meta and x on cpu"),
        ({"offsets": torch.ones(2, 3), "dim": (0, 1)}, "offsets need a single dim"),
        ({"method": "matmul"}, "method must be"),
        ({"approximation": "fastest"}, "approximation must be"),
        ({"approximation": "fast", "method": "reference"}, "approximation has no effect"),
    ],
)
def test_errors_name_the_argument(arguments: dict, message: str) -> None:
    with pytest.raises(SimNetsError, match=message) as raised:
        mex(**({"x": torch.ones(2, 3)} | arguments))
    assert "\n" not in str(raised.value)


# Any shape, dtype and β


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    position=st.integers(0, 3),
    k=st.integers(0, 20),
    beta=st.one_of(
        st.floats(-1e12, 1e12),
        st.floats(-1e-2, 1e-2),
        st.sampled_from([0.0, INF, -INF, 1e-12, -1e-12, 1.0]),
    ),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, FLOAT32, FLOAT64]),
    spread=st.sampled_from([1e-2, 1.0, 50.0]),
    seed=st.integers(0, 2**31),
)
def test_any_shape_dtype_and_beta(
    shape: list[int], position: int, k: int, beta: float, dtype: torch.dtype, spread: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    dim = position % len(shape)
    x = (torch.randn(shape, generator=generator) * spread).to(dtype)
    b = (torch.randn(k, shape[dim], generator=generator) * spread).to(dtype) if k else None
    y = mex(x, beta, b, dim=dim)
    truth = reference.mex(x.double(), beta, None if b is None else b.double(), dim=dim)
    if abs(beta) < 1e-6 / spread:  # float64 cannot divide by such a β, but mean + β·variance/2 leaves 1e-12
        c = (
            x.double().movedim(dim, -1)
            if b is None
            else x.double().movedim(dim, -1).unsqueeze(-2) + b.double()
        )
        truth = c.mean(-1) + beta / 2 * c.var(-1, correction=0)
        truth = truth if b is None else truth.movedim(-1, dim)
    assert y.dtype == dtype
    assert y.shape == truth.shape
    scale = magnitude(x, b) + 1e-30
    slack = {torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(dtype, 0.0)
    assert ((y.double() - truth).abs() <= (1e-6 + slack) * scale).all()
