"""The similarity inside torch.compile, torch.export and ONNX."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn

from simnets import similarity
from simnets.ops import _lp_kernel, reference


class Layer(nn.Module):
    def __init__(self, p: float | Tensor, nan_policy: str = "propagate", method: str = "auto") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.z = nn.Parameter(torch.randn(6, 5, generator=generator))
        self.u = nn.Parameter(torch.rand(6, 5, generator=generator))
        self.p = nn.Parameter(p) if isinstance(p, Tensor) else p
        self.nan_policy, self.method = nan_policy, method

    def forward(self, x: Tensor) -> Tensor:
        return similarity(x, self.z, self.u, self.p, nan_policy=self.nan_policy, method=self.method)

    def formula(self, x: Tensor) -> Tensor:
        return reference.similarity(x, self.z, self.u, self.p, nan_policy=self.nan_policy)


def batch(size: int, nan_policy: str = "propagate") -> Tensor:
    x = torch.randn(size, 3, 5, generator=torch.Generator().manual_seed(size))
    if nan_policy == "omit":
        x[0, 0, 0] = torch.nan
    return x


CASES = [
    (1.0, "propagate"),
    (1.3, "omit"),
    (2.0, "propagate"),
    (2.0, "omit"),
    (torch.tensor(0.8), "propagate"),
]


@pytest.mark.parametrize(("p", "nan_policy"), CASES)
def test_compiles_into_one_graph_for_every_batch(p: float | Tensor, nan_policy: str) -> None:
    torch._dynamo.reset()
    layer = Layer(p, nan_policy)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    compiled(batch(8, nan_policy).requires_grad_())
    graphs = counter.frame_count
    for size in (4, 9, 6):
        x = batch(size, nan_policy).requires_grad_()
        grads = []
        for run in (compiled, layer.formula):
            out = run(x)
            grads.append([out, *torch.autograd.grad(out.square().mean(), [x, *layer.parameters()])])
        for actual, expected in zip(*grads, strict=True):
            torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)
    assert counter.frame_count == graphs


def test_the_operators_keep_the_promises_of_the_dispatcher() -> None:
    layer = Layer(torch.tensor(1.3))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(
        _lp_kernel.lp_similarity, (batch(4), layer.z, layer.u, layer.p, False), test_utils=checks
    )
    torch.library.opcheck(
        _lp_kernel.lp_similarity, (batch(4), layer.z, None, torch.tensor(0.5), True), test_utils=checks
    )


@pytest.mark.parametrize("method", ["auto", "fused"])
@pytest.mark.parametrize(
    ("p", "nan_policy"), [*CASES, (0.5, "propagate"), (1.5, "propagate"), (3.0, "propagate")]
)
def test_exports_as_plain_operators(p: float | Tensor, nan_policy: str, method: str) -> None:
    layer = Layer(p, nan_policy, method)
    dynamic = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(layer, (batch(4, nan_policy),), dynamic_shapes=dynamic)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert names
    assert not any("simnets" in name for name in names)
    x = batch(7, nan_policy)
    torch.testing.assert_close(program.module()(x), layer.formula(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.5, torch.tensor(0.8)])
def test_an_exported_program_has_the_subgradient_too(p: float | Tensor) -> None:
    layer = Layer(p)
    module = torch.export.export(layer, (batch(4),)).module()
    x = batch(4)
    x[0, 0] = layer.z[0].detach()
    x.requires_grad_()
    out = module(x)
    assert out[0, 0, 0] == 0
    (grad,) = torch.autograd.grad(out[0, 0, 0], x)
    assert torch.all(grad == 0)


def test_runs_in_onnx_runtime(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    # One model for a plain power, the square root, the learned order and the matrix products.
    layers = nn.Sequential()
    for p in (1.3, 1.5, torch.tensor(0.8), 2.0, 1.0):
        layers.append(Layer(p))
    model = _Sum(layers)
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(
            model,
            (batch(4),),
            path,
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = batch(7)
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = torch.stack([layer.formula(x) for layer in layers]).sum(0)
    torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-4, atol=1e-4)


class _Sum(nn.Module):
    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([layer(x) for layer in self.layers]).sum(0)
