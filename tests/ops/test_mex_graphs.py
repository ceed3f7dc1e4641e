"""`mex` inside torch.compile, torch.export and ONNX: same results, no graph breaks, any batch."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from simnets import mex
from simnets.ops import _mex, reference

INF = math.inf


class Classify(nn.Module):
    """Offsets and a learned or fixed β, as the layers have them."""

    def __init__(self, beta: float, learned: bool, offsets: bool = True, dim: int = 1) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.beta = nn.Parameter(torch.tensor(beta)) if learned else beta
        self.offsets = nn.Parameter(torch.randn(5, 6, generator=generator)) if offsets else None
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return mex(x, self.beta, self.offsets, dim=self.dim)


def images(batch: int) -> Tensor:
    return torch.randn(batch, 6, 3, 3, generator=torch.Generator().manual_seed(batch))


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize(
    ("beta", "learned"), [(0.8, False), (0.8, True), (0.0, True), (-INF, True), (INF, False)]
)
def test_compile_without_breaks_and_with_any_batch(beta: float, learned: bool, offsets: bool) -> None:
    torch._dynamo.reset()
    model = Classify(beta, learned, offsets)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch in (2, 5):
        x = images(batch).requires_grad_()
        inputs = [x, *model.parameters()]
        ours = torch.autograd.grad(compiled(x).square().sum(), inputs, allow_unused=True)
        plain = torch.autograd.grad(model(x).square().sum(), inputs, allow_unused=True)
        torch.testing.assert_close(compiled(x), model(x))
        for a, b in zip(ours, plain, strict=True):
            torch.testing.assert_close(a, b)


def test_compiled_product_that_underflows() -> None:
    torch._dynamo.reset()
    x = torch.tensor([[0.0, -1e4], [0.0, -200.0], [0.0, -1.0]], requires_grad=True)
    b = torch.tensor([[-1e4, 0.0], [-200.0, 0.0], [1.0, 2.0]], requires_grad=True)
    compiled = torch.compile(mex, backend="aot_eager", fullgraph=True, dynamic=True)
    y, truth = compiled(x, 1.0, b), reference.mex(x.double(), 1.0, b.double())
    torch.testing.assert_close(y.double(), truth)
    for a, c in zip(
        torch.autograd.grad(y.sum(), [x, b]), torch.autograd.grad(truth.sum(), [x, b]), strict=True
    ):
        torch.testing.assert_close(a, c)


@pytest.mark.parametrize("offsets", [False, True])
def test_operator_registration(offsets: bool) -> None:
    """Shapes, strides, aliasing and autograd of the operator that compiled graphs see."""
    x = torch.randn(3, 6, 9, requires_grad=True)
    beta = torch.tensor(0.5, requires_grad=True)
    b = torch.randn(5, 6, requires_grad=True) if offsets else None
    for layout in (x, x.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()):
        torch.library.opcheck(_mex._mex_op, (layout, beta, b, [1], "exact"))


def exported(model: nn.Module, example: Tensor) -> nn.Module:
    program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    assert not [node for node in program.graph.nodes if "simnets" in str(node.target)]
    return program.module()


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("beta", [0.8, -1e-3, 0.0, INF, -INF])
def test_export(beta: float, offsets: bool) -> None:
    model = Classify(beta, learned=False, offsets=offsets)
    torch.testing.assert_close(exported(model, images(2))(images(7)), model(images(7)), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("offsets", [False, True])
def test_export_with_learned_beta(offsets: bool) -> None:
    """One graph for every finite β, that is read when the graph runs."""
    model = Classify(0.3, learned=True, offsets=offsets, dim=-1)
    graph = exported(model, images(2).movedim(1, -1))
    x = images(7).movedim(1, -1)
    for beta in (0.8, -2.0, 0.05, 1e-4, 0.0, -1e-9):
        with torch.no_grad():
            graph.beta.fill_(beta)
            model.beta.fill_(beta)
        torch.testing.assert_close(graph(x), model(x), rtol=1e-6, atol=2e-6)


def test_export_saturates_instead_of_underflowing() -> None:
    """Exact up to differences of 80/|β|, finite and above the truth beyond; −∞ and NaN as elsewhere."""

    class Offsets(nn.Module):
        def forward(self, x: Tensor, b: Tensor) -> Tensor:
            return mex(x, 1.0, b)

    x = torch.tensor([[0.0, -70.0], [0.0, -1e4], [-INF, -INF], [math.nan, 0.0]])
    b = torch.tensor([[-70.0, 0.0], [-1e4, 0.0], [1.0, 2.0]])
    y = torch.export.export(Offsets(), (x, b)).module()(x, b)
    truth = mex(x, 1.0, b)
    torch.testing.assert_close(y[0, 0], truth[0, 0])
    assert truth[1, 1] == -1e4
    assert -81 < y[1, 1] < -79
    assert (y[2] == -INF).all()
    assert y[3].isnan().all()
    torch.testing.assert_close(y[:2, 2], truth[:2, 2])


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offsets = nn.Parameter(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)))
        self.beta = nn.Parameter(torch.tensor(1e-3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            mex(x, self.beta, self.offsets, dim=1),
            mex(x, INF, self.offsets, dim=1),
            mex(x, self.beta, dim=(2, 3)),
        )


def test_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = Everything().eval()
    path = tmp_path / "mex.onnx"
    dynamic = ({0: torch.export.Dim("batch", min=1)},)
    torch.onnx.export(model, (images(2),), str(path), dynamo=True, verbose=False, dynamic_shapes=dynamic)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    results = session.run(None, {session.get_inputs()[0].name: images(7).numpy()})
    for ours, expected in zip(results, model(images(7)), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), expected.detach(), rtol=2e-6, atol=2e-6)
