"""What every layer must do, whatever it computes: each layer's tests inherit these."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.func import functional_call

from simnets.errors import SimNetsError
from simnets.nn._parameters import Layer

F64 = torch.float64


class LayerContract:
    """A subclass says how to make the layer and its input, and what is to come out."""

    variants: ClassVar[dict[str, dict[str, Any]]] = {"default": {}}
    traced: ClassVar[tuple[str, ...]] = ("default",)  # variants that are also compiled and exported
    random = True  # whether reset_parameters draws anything

    def make(self, **options: Any) -> Any:
        raise NotImplementedError

    def input(self, count: int = 2, dtype: torch.dtype = F64) -> Tensor:
        raise NotImplementedError

    def expected(self, layer: Any, x: Tensor) -> Tensor:
        """The formula with loops and the reference operators."""
        raise NotImplementedError

    def made(self, variant: dict[str, Any], dtype: torch.dtype = F64) -> Any:
        """A layer whose parameters are all random, those that start as constants too."""
        layer = self.make(**{"dtype": dtype, **variant})
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return layer

    # ── values ───────────────────────────────────────────────────────────────────────────────────────

    def test_forward_is_the_formula(self, variant: dict[str, Any]) -> None:
        layer, x = self.made(variant), self.input()
        torch.testing.assert_close(layer(x), self.expected(layer, x), rtol=1e-10, atol=1e-10)

    def test_forward_in_float32(self, variant: dict[str, Any]) -> None:
        layer, x = self.made(variant, torch.float32), self.input(dtype=torch.float32)
        result = layer(x)
        assert result.dtype == torch.float32
        expected = self.expected(copy.deepcopy(layer).double(), x.double())
        torch.testing.assert_close(result.double(), expected, rtol=2e-5, atol=2e-5)

    def test_gradients(self, variant: dict[str, Any]) -> None:
        layer, x = self.made(variant), self.input()
        learned = {name: value for name, value in layer.named_parameters() if value.requires_grad}

        def function(x: Tensor, *values: Tensor) -> Tensor:
            return functional_call(layer, dict(zip(learned, values, strict=True)), (x,))

        nan = x.isnan()
        x = x.nan_to_num().requires_grad_()

        def with_missing(x: Tensor, *values: Tensor) -> Tensor:
            return function(torch.where(nan, torch.nan, x), *values)

        assert torch.autograd.gradcheck(with_missing, (x, *learned.values()), fast_mode=True)

    def test_empty_batch(self, variant: dict[str, Any]) -> None:
        layer = self.made(variant)
        assert layer(self.input()[:0]).shape == (0, *layer(self.input()).shape[1:])

    # ── copying and saving ───────────────────────────────────────────────────────────────────────────

    def test_state_dict_round_trip(self, variant: dict[str, Any]) -> None:
        """Through a file's bytes: all of the state is tensors, and all of it is there."""
        layer, x = self.made(variant), self.input()
        other = self.make(**{"dtype": F64, **variant})
        other.load_state_dict(load(save({k: v.contiguous() for k, v in layer.state_dict().items()})))
        assert torch.equal(other(x).nan_to_num(), layer(x).nan_to_num())

    def test_deepcopy_is_independent(self, variant: dict[str, Any]) -> None:
        layer, x = self.made(variant), self.input()
        before = layer(x)
        twin = copy.deepcopy(layer)
        assert torch.equal(twin(x).nan_to_num(), before.nan_to_num())
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1.0)
        for module in twin.modules():
            for number in getattr(module, "_numbers", {}):
                setattr(module, number, 0.7)
        assert torch.equal(layer(x).nan_to_num(), before.nan_to_num())

    def test_the_same_seed_gives_the_same_parameters(self, variant: dict[str, Any]) -> None:
        def state(seed: int) -> list[Tensor]:
            torch.manual_seed(seed)
            return list(self.make(**variant).state_dict().values())

        assert all(map(torch.equal, state(1), state(1)))
        if self.random:
            assert not all(map(torch.equal, state(1), state(2)))

    # ── compilers ────────────────────────────────────────────────────────────────────────────────────

    def test_compiles_whole_with_a_dynamic_batch(self, traced_variant: dict[str, Any]) -> None:
        layer = self.made(traced_variant)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        for count, stance in ((3, "default"), (5, "fail_on_recompile")):
            x = self.input(count).requires_grad_()
            torch._dynamo.mark_dynamic(x, 0)
            with torch.compiler.set_stance(stance):
                result = compiled(x)
            expected = layer(x)
            torch.testing.assert_close(result, expected)
            gradients = [torch.autograd.grad(output.sum(), x)[0] for output in (result, expected)]
            torch.testing.assert_close(*gradients)

    def test_exports_with_a_dynamic_batch(self, traced_variant: dict[str, Any]) -> None:
        layer = self.made(traced_variant)
        dynamic = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(layer, (self.input(3),), dynamic_shapes=dynamic).module()
        x = self.input(5)
        torch.testing.assert_close(program(x), layer(x))

    # ── construction ─────────────────────────────────────────────────────────────────────────────────

    def test_device_and_dtype(self, variant: dict[str, Any]) -> None:
        for parameter in self.make(**{**variant, "dtype": torch.bfloat16}).parameters():
            assert parameter.dtype == torch.bfloat16
        if "p_mode" not in variant and "beta_mode" not in variant:
            for parameter in self.make(**{**variant, "device": "meta"}).parameters():
                assert parameter.is_meta

    def test_repr_is_one_readable_line_for_each_layer(self, variant: dict[str, Any]) -> None:
        layer = self.make(**variant)
        for module in layer.modules():
            line = module.extra_repr()
            assert "\n" not in line
            assert "tensor" not in line
            if isinstance(module, Layer):
                for name, mode in module._modes.items():
                    assert mode == "none" or name in line or (name == "p" and module.kind == "linear")


class ImageLayerContract(LayerContract):
    """What every layer of maps (N, C, H, W) must do besides; rows have one memory format."""

    def test_channels_last_stays_so(self, variant: dict[str, Any]) -> None:
        layer, x = self.made(variant), self.input()
        result = layer(x.contiguous(memory_format=torch.channels_last))
        assert result.ndim == 2 or result.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(result, layer(x))


def shared_family(source: nn.Module, sharer: nn.Module, name: str) -> None:
    """The sharer's family is the source's, and stays so through assignment, conversion and copying."""
    raw = name if name in dict(source.named_parameters()) else f"raw_{name}"
    pair = nn.ModuleList([source, sharer])
    for both in (pair, copy.deepcopy(pair), copy.deepcopy(pair).to(torch.bfloat16)):
        first, second = both
        assert getattr(first, raw) is getattr(second, raw)
        value = torch.full_like(getattr(first, name), 0.25)
        setattr(first, name, value)
        torch.testing.assert_close(getattr(second, name), value)


def refused(message: str) -> Any:
    """Bad input gives one line that says what is wrong."""
    return pytest.raises(SimNetsError, match=f"^[^\n]*{message}[^\n]*$")
