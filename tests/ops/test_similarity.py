"""Every way to compute the similarity, against the formula in float64 and against mpmath."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from similarity_engines import ENGINES, use_engine
from torch import Tensor

from simnets import SimNetsError, similarity
from simnets.ops import reference
from simnets.ops._similarity import _fastest

ORDERS = (1e-3, 0.3, 0.5, 0.7, 1.0, 1.3, 1.5, 2.0, 2.5, 3.0, 4.0, 5.2)
# Relative to the largest entry. Half precision: one rounding of the result.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
INFINITY, NAN = math.inf, math.nan


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_engine(request.param, monkeypatch)
    return str(request.param)


def example(
    shape: tuple[int, ...] = (19,),
    n: int = 21,
    d: int = 13,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, d, generator=generator, dtype=torch.float64)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64)
    u = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return x.to(dtype), z.to(dtype), u.to(dtype)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert actual.shape == expected.shape
    if expected.numel():
        scale = max(expected.abs().max().item(), 1e-30)
        assert (actual.double() - expected.double()).abs().max().item() <= tolerance * scale


def gradients(
    method: str, x: Tensor, z: Tensor, u: Tensor | None, p: float | Tensor, **kwargs: str
) -> list[Tensor]:
    """Value and gradients of x, z, u and p (where it is learned), for one random direction."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, z, u) if t is not None]
    order = p.detach().clone().requires_grad_() if isinstance(p, Tensor) else p
    weights = leaves[2] if u is not None else None
    out = similarity(leaves[0], leaves[1], weights, order, method=method, **kwargs)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(
        out
    )
    wanted = [*leaves, order] if isinstance(order, Tensor) else leaves
    return [out.detach(), *torch.autograd.grad(out, wanted, direction)]


# ---- values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1e-3, 0.5, 1.0, 1.5, 2.0, 3.3])
@pytest.mark.parametrize("method", ["reference", "fused"])
def test_agrees_with_mpmath(method: str, p: float, engine: str) -> None:
    x, z, u = example((3,), n=2, d=4)
    expected = [
        [
            -mpmath.fsum(
                mpmath.mpf(u[l, i].item()) * abs(mpmath.mpf(x[b, i].item()) - mpmath.mpf(z[l, i].item())) ** p
                for i in range(4)
            )
            for l in range(2)
        ]
        for b in range(3)
    ]
    actual = similarity(x, z, u, p, method=method)
    for b in range(3):
        for l in range(2):
            assert abs(actual[b, l].item() - expected[b][l]) <= 1e-14 * abs(expected[b][l])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("p", ORDERS)
def test_fused_is_the_formula(p: float, weighted: bool, dtype: torch.dtype, engine: str) -> None:
    x, z, u = example(dtype=dtype)
    weights = u if weighted else None
    expected = reference.similarity(x.double(), z.double(), None if weights is None else weights.double(), p)
    actual = similarity(x, z, weights, p, method="fused")
    assert actual.dtype == dtype
    assert_close(actual, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    ("kind", "method"), [("lp", "expanded"), ("linear", "expanded"), ("linear", "fused")]
)
def test_expanded_is_the_formula(kind: str, method: str, weighted: bool, dtype: torch.dtype) -> None:
    x, z, u = example(dtype=dtype)
    weights = u if weighted else None
    expected = reference.similarity(
        x.double(), z.double(), None if weights is None else weights.double(), kind=kind
    )
    actual = similarity(x, z, weights, kind=kind, method=method)
    assert actual.dtype == dtype
    assert_close(actual, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (2, 0, 3), (130,)])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (8, 8), (9, 7), (33, 17), (0, 3), (3, 0)])
@pytest.mark.parametrize("method", ["expanded", "fused"])
def test_every_shape(method: str, n: int, d: int, shape: tuple[int, ...], engine: str) -> None:
    x, z, u = example(shape, n, d)
    expected = gradients("reference", x, z, u, 2.0)
    actual = gradients(method, x, z, u, 2.0)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, 1e-12)


def test_strides_do_not_matter(engine: str) -> None:
    x, z, u = example((6, 5), n=4, d=3)
    expected = reference.similarity(x, z, u, 1.3)
    x = x.movedim(-1, 0).contiguous().movedim(0, -1)
    z, u = z.T.contiguous().T, torch.cat([u, u], 1)[:, :3]
    assert_close(similarity(x, z, u, 1.3), expected, 1e-13)


@pytest.mark.parametrize("p", [0.001, 0.3, 0.999, 1.3, 2.5, 7.2, 100.0])
def test_power_is_accurate_over_the_whole_range(p: float, engine: str) -> None:
    """float32, from the smallest subnormal to the largest number; |a|^p alone, as a sum of one term."""
    generator = torch.Generator().manual_seed(0)
    wide = 2.0 ** (torch.rand(20_000, generator=generator, dtype=torch.float64) * 277 - 149)
    near_one = 1 + 1e-3 * torch.randn(5_000, generator=generator, dtype=torch.float64)
    a = torch.cat([wide, near_one]).float()
    actual = -similarity(a[:, None], torch.zeros(1, 1), p=p, method="fused").double()[:, 0]
    expected = a.double() ** p
    normal = (expected > 2.0**-126) & (expected < 2.0**127)
    # A relative error of ε in a is one of p·ε in the power: half a unit in the last place of a is 6e-8.
    # torch.pow, which the chunked engine uses, rounds p to float32 on top of that.
    limit = 1e-6 if engine == "compiled" else 5e-6
    assert ((actual - expected)[normal] / expected[normal]).abs().max() < limit * max(1.0, p / 4)
    assert (actual - expected)[expected <= 2.0**-126].abs().sum() <= 1e-40
    assert torch.all(actual[expected >= 2.0**128.1] == INFINITY)


def test_exact_values_of_special_distances(engine: str) -> None:
    x = torch.tensor([[0.0, 1.0, -1.0, INFINITY, -INFINITY]]).T.contiguous()
    for p in (1e-3, 0.5, 0.7, 1.0, 1.5, 2.7):
        out = -similarity(x, torch.zeros(1, 1), p=p, method="fused")[:, 0]
        assert out.tolist() == [0.0, 1.0, 1.0, INFINITY, INFINITY]


@pytest.mark.parametrize("p", [0.5, 0.7, 1.0, 1.5, 2.0, 2.7])
def test_not_finite_inputs_propagate_as_in_the_formula(p: float, engine: str) -> None:
    x, z, u = example((6,), n=5, d=9, dtype=torch.float32)
    x[1, 2], x[2, 3], x[3, 0] = NAN, INFINITY, -INFINITY
    z[4, 5], z[3, 1] = NAN, INFINITY
    actual, expected = similarity(x, z, u, p, method="fused"), reference.similarity(x, z, u, p)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert expected.isnan().any()
    assert expected.isinf().any()


def test_expanded_keeps_what_is_not_finite_in_its_row_and_column() -> None:
    x, z, u = example((4,), n=3)
    clean = similarity(x, z, u, method="expanded")
    x[1, 0], z[2, 0] = NAN, INFINITY
    out = similarity(x, z, u, method="expanded")
    assert out[1].isnan().all()
    assert not out[[0, 2, 3], 2].isfinite().any()
    rows = torch.tensor([0, 2, 3])
    assert_close(out[rows, :2], clean[rows, :2], 1e-13)


@pytest.mark.parametrize("weighted", [True, False])
def test_expanded_is_accurate_under_a_common_offset(weighted: bool) -> None:
    x, z, u = example((500,), n=40, d=64)
    x, z, u = (x + 100).float(), (z + 100).float(), u.float()
    weights = u if weighted else None
    exact = reference.similarity(x.double(), z.double(), None if weights is None else u.double())
    out = similarity(x, z, weights, method="expanded")
    assert ((out - exact) / exact).abs().max() < 1e-4
    # The naive expansion, without the centre, is far worse: the offset is what the test is about.
    w = u if weighted else torch.ones_like(u)
    naive = 2 * x @ (w * z).T - (x * x) @ w.T - (w * z * z).sum(-1)
    assert ((naive - exact) / exact).abs().max() > 1e-3
    wide = [t.double() for t in (x, z, w)]
    for a, e in zip(gradients("expanded", x, z, w, 2.0), gradients("reference", *wide, 2.0), strict=True):
        assert_close(a, e, 1e-4)


# ---- missing data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "method", "p"),
    [
        ("linear", "auto", 2.0),
        ("lp", "expanded", 2.0),
        *(("lp", "fused", p) for p in (0.5, 0.7, 1.0, 2.0, 2.7)),
    ],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_omitted_coordinates_are_as_if_they_did_not_exist(
    kind: str, method: str, p: float, weighted: bool, engine: str
) -> None:
    x, z, u = example((40,), n=9, d=11)
    missing = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    missing[0], missing[1] = True, False
    holes = x.masked_fill(missing, NAN)
    weights = u if weighted else None
    actual = gradients(method, holes, z, weights, p, kind=kind, nan_policy="omit")
    plain = gradients("reference", holes, z, weights, p, kind=kind, nan_policy="omit")
    for b in range(40):
        kept = ~missing[b]
        row = reference.similarity(
            x[b, kept], z[:, kept], None if weights is None else u[:, kept], p, kind=kind
        )
        assert_close(actual[0][b], row, 1e-12)
    assert torch.all(actual[1][missing] == 0)
    for a, e in zip(actual, plain, strict=True):
        assert e.isfinite().all()
        assert_close(a, e, 1e-12)


# ---- gradients ------------------------------------------------------------------------------------------


def away_from_kinks(p: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, z, u = example((5,), n=4, d=10, seed=3)
    difference = x.unsqueeze(1) - z
    assert difference.abs().min() > 1e-4  # gradcheck moves by 1e-6
    order = torch.tensor(p, dtype=torch.float64)
    return x.requires_grad_(), z.requires_grad_(), u.requires_grad_(), order.requires_grad_()


@pytest.mark.parametrize("p", [1e-3, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
@pytest.mark.parametrize("learned", [True, False])
def test_gradcheck_fused(p: float, learned: bool, engine: str) -> None:
    x, z, u, order = away_from_kinks(p)
    if learned:
        run = lambda *leaves: similarity(*leaves, method="fused")  # noqa: E731
        assert torch.autograd.gradcheck(run, (x, z, u, order), rtol=1e-4, atol=1e-6)
    else:
        run = lambda *leaves: similarity(*leaves, p, method="fused")  # noqa: E731
        assert torch.autograd.gradcheck(run, (x, z, u), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["lp", "linear"])
@pytest.mark.parametrize("nan_policy", ["propagate", "omit"])
def test_gradcheck_expanded(kind: str, nan_policy: str) -> None:
    x, z, u, _ = away_from_kinks(2.0)
    for leaves in ((x, z, u), (x, z)):
        run = lambda *t: similarity(*t, kind=kind, method="expanded", nan_policy=nan_policy)  # noqa: E731
        assert torch.autograd.gradcheck(run, leaves)
        assert torch.autograd.gradgradcheck(run, leaves)


@pytest.mark.parametrize("p", [1e-3, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, "learned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_the_formula(p: float | str, dtype: torch.dtype, engine: str) -> None:
    """More rows than a block of the kernel, sizes that are no multiples of anything."""
    x, z, u = example((203,), n=35, d=21, dtype=dtype)
    u[1], x[2, 3] = 0.0, z[4, 3]
    orders: list[float | Tensor] = (
        [p] if isinstance(p, float) else [torch.tensor(o, dtype=dtype) for o in (0.8, 1.0, 2.3)]
    )
    for order in orders:
        expected = gradients("reference", x.double(), z.double(), u.double(), order)
        for a, e in zip(gradients("fused", x, z, u, order), expected, strict=True):
            assert_close(a, e, 1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (0, 3), (1, 2, 3)])
def test_any_subset_of_gradients(needed: tuple[int, ...], engine: str) -> None:
    tensors = [t.detach() for t in away_from_kinks(1.4)]
    grads = []
    for method in ("reference", "fused"):
        leaves = [t.clone().requires_grad_(k in needed) for k, t in enumerate(tensors)]
        out = similarity(*leaves, method=method)
        grads.append(torch.autograd.grad(out.sum(), [leaves[k] for k in needed]))
    for a, e in zip(*grads, strict=True):
        assert_close(a, e, 1e-12)


@pytest.mark.parametrize("p", [1e-3, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("method", ["reference", "fused"])
def test_the_subgradient_at_zero_distance_is_zero(method: str, p: float, learned: bool, engine: str) -> None:
    z = torch.randn(3, 5, dtype=torch.float64)
    x = torch.stack([z[0], z[1] + 1.0])
    u = torch.rand(3, 5, dtype=torch.float64)
    u[2] = 0.0
    order = torch.tensor([p], dtype=torch.float64) if learned else p
    x, z, u = (t.requires_grad_() for t in (x, z, u))
    if isinstance(order, Tensor):
        order.requires_grad_()
    out = similarity(x, z, u, order, method=method)
    assert out[0, 0] == 0
    wanted = [x, z, u, order] if isinstance(order, Tensor) else [x, z, u]
    for grad in torch.autograd.grad(out[0, 0], wanted, retain_graph=True):
        assert torch.all(grad == 0)
    for grad in torch.autograd.grad(out.sum(), wanted):
        assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1e-3, 0.5, 0.7, 0.999])
def test_small_orders_and_tiny_distances_stay_finite(p: float, dtype: torch.dtype, engine: str) -> None:
    smallest = torch.finfo(dtype).smallest_normal
    x = torch.tensor([[0.0, smallest, smallest / 2**20, 1e-3, -smallest, 1.0]], dtype=dtype)
    z, u = torch.zeros(2, 6, dtype=dtype), torch.ones(2, 6, dtype=dtype)
    u[1] = 0.0
    order = torch.tensor(p, dtype=dtype)
    for tensor in gradients("fused", x, z, u, order):
        assert tensor.isfinite().all()
    expected = -(x.double().abs()[:, 1:] ** order.double()).sum()
    assert_close(similarity(x, z, u, order, method="fused")[0, :1], expected.reshape(1), 1e-6)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 40),
    n=st.integers(1, 20),
    d=st.integers(1, 20),
    p=st.one_of(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 4.0]), st.floats(0.05, 6.0)),
    double=st.booleans(),
    weighted=st.booleans(),
    learned=st.booleans(),
    chunked=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_fused_is_the_formula_for_anything(
    rows: int, n: int, d: int, p: float, double: bool, weighted: bool, learned: bool, chunked: bool, seed: int
) -> None:
    x, z, u = example((rows,), n, d, torch.float64 if double else torch.float32, seed)
    x[torch.rand(x.shape) < 0.05] = z[0, 0]  # zero distances
    order = torch.tensor(p, dtype=x.dtype) if learned else p
    weights = u if weighted else None
    wide = [x.double(), z.double(), None if weights is None else u.double()]
    expected = gradients("reference", *wide, order)
    with pytest.MonkeyPatch.context() as patch:
        use_engine("chunked" if chunked else "compiled", patch)
        actual = gradients("fused", x, z, weights, order)
    for a, e in zip(actual, expected, strict=True):
        # For p < 1 the slope near zero distance magnifies the rounding of x − z.
        assert_close(a, e, 1e-10 if double else 2e-4)


# ---- choosing and checking ------------------------------------------------------------------------------


def test_auto_takes_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    use_engine("compiled", monkeypatch)
    x, z, u = example(dtype=torch.float32, n=33)
    many = example(n=65, dtype=torch.float32)
    assert _fastest(x, z, u) == "fused"
    assert _fastest(x, z, None) == "expanded"
    assert _fastest(x, z[:32], None) == "fused"
    assert _fastest(*many) == "expanded"
    monkeypatch.setenv("SIMNETS_NO_COMPILER", "1")
    assert _fastest(x, z, u) == "expanded"


def graph_name(out: Tensor) -> str:
    return type(out.grad_fn).__name__


def test_auto_goes_the_way_that_serves_p(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMNETS_NO_COMPILER", "1")
    x, z, u = (t.requires_grad_() for t in example())
    two = torch.tensor(2.0)
    kernel = graph_name(similarity(x, z, u, 1.5))
    assert "lp_similarity" in kernel
    assert graph_name(similarity(x, z, u)) != kernel
    assert graph_name(similarity(x, z, u, two)) != kernel
    assert graph_name(similarity(x, z, u, two.clone().requires_grad_())) == kernel
    assert graph_name(similarity(x, z, u, torch.tensor(1.0))) == kernel


@pytest.mark.parametrize(
    "p", [torch.tensor([1.3]), torch.tensor([[1.3]]), torch.tensor(1.3, dtype=torch.float64)]
)
def test_p_of_one_element_in_any_shape(p: Tensor) -> None:
    x, z, u = example(dtype=torch.float32)
    p = p.clone().requires_grad_()
    for method in ("reference", "fused"):
        out = similarity(x, z, u, p, method=method)
        assert out.dtype == torch.float32
        (grad,) = torch.autograd.grad(out.sum(), p)
        assert grad.shape == p.shape
        assert grad.dtype == p.dtype


def test_autocast_computes_in_float32() -> None:
    x, z, u = example(dtype=torch.float32)
    half = x.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for p in (1.5, 2.0):
            for method in ("auto", "reference", "fused"):
                out = similarity(half, z, u, p, method=method)
                assert out.dtype == torch.float32
                assert_close(out, reference.similarity(half.double(), z.double(), u.double(), p), 1e-5)
        assert similarity(half, z, u, kind="linear").dtype == torch.float32


X, Z, U = torch.zeros(4, 3), torch.zeros(2, 3), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("arguments", "keywords", "words"),
    [
        ((X, Z), {"kind": "cosine"}, ["kind", "cosine", "lp", "linear"]),
        ((X, Z), {"method": "fast"}, ["method", "fast", "fused"]),
        ((X, Z), {"nan_policy": "raise"}, ["nan_policy", "raise", "omit"]),
        ((X, Z, U, 0.0), {}, ["p", "positive", "0.0"]),
        ((X, Z, U, -1.0), {}, ["p", "positive", "-1.0"]),
        ((X, Z, U, NAN), {}, ["p", "nan"]),
        ((X, Z, U, INFINITY), {}, ["p", "inf"]),
        ((X, Z, U, torch.tensor(-0.5)), {}, ["p", "-0.5"]),
        ((X, Z, U, torch.tensor(NAN)), {}, ["p", "nan"]),
        ((X, Z, U, torch.tensor([1.0, 2.0])), {}, ["p", "one element", "(2,)"]),
        ((X, Z, U, torch.tensor(1)), {}, ["p", "floating", "int64"]),
        ((X, Z, U, "two"), {}, ["p", "number", "two"]),
        ((X, Z, -U), {}, ["weights", "negative", "-1"]),
        ((X, Z, U[:1]), {}, ["weights", "(2, 3)", "(1, 3)"]),
        ((X, Z, U.double()), {}, ["weights", "float64", "float32"]),
        ((X, Z.double()), {}, ["templates", "float64", "float32"]),
        ((X, Z.to("meta")), {}, ["templates", "meta", "cpu"]),
        ((X, Z[:, :2]), {}, ["templates", "d = 3", "(2, 2)"]),
        ((X, Z[0]), {}, ["templates", "(3,)"]),
        ((X.long(), Z), {}, ["x", "int64"]),
        ((torch.tensor(1.0), Z), {}, ["x", "(..., d)"]),
        ((X, Z, U, 1.5), {"method": "expanded"}, ["expanded", "p = 2", "1.5", "fused"]),
        ((X, Z, U, torch.tensor(2.0, requires_grad=True)), {"method": "expanded"}, ["expanded", "learned"]),
    ],
)
def test_bad_input_is_named(
    arguments: tuple[object, ...], keywords: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(SimNetsError) as caught:
        similarity(*arguments, **keywords)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_the_docstring_example() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    z = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert similarity(x, z, p=1.0).tolist() == [[0.0, -2.0], [-4.0, -2.0]]
