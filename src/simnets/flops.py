"""What a network costs, by the paper's accounting (section 6).

A multiply-add counts 2, a coordinate of an ℓp similarity 4 (difference, power, weight, sum), an exponential
or a logarithm 10, a comparison (pooling, ReLU) or an addition 1. A bias is the last addition of its
multiply-adds. What folds into its neighbours at run time costs nothing: pixel and batch normalisation, λ,
preconditioners.

The paper does not say how it counts an ℓ2 coordinate, nor the padding of its two-layer network, for which it
states 14.2 M. The convolutions and similarities of `simnet2` cost 16.6 M, and 14.3 M with one multiply-add an
ℓ2 coordinate (`lp_cost=2`); its pooling and MEX add 0.2 M.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.models.base import ImageClassifier
from simnets.models.normalizable_conv import NormalizableConv2d
from simnets.models.registry import ENTRIES, create_model
from simnets.models.resnet8 import ResidualBlock
from simnets.models.simnet import SimNet
from simnets.nn import (
    ConvSimilarity2d,
    GlobalMexPool2d,
    Mex,
    Mex2d,
    MexPool2d,
    MultiplicativeGaussianNoise,
    Similarity,
    Similarity2d,
)

MULTIPLY_ADD = 2
LP_COORDINATE = 4
EXP_OR_LOG = 10
INFINITY = float("inf")
CORE = ("convolution", "dense", "similarity")


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs for one image, and how many numbers of it were learned."""

    name: str
    kind: str
    output: tuple[int, ...]
    params: int
    flops: int
    coordinates: int = 0


@dataclass(frozen=True)
class Cost:
    """The cost of a network, layer by layer, for one image of `input_shape`."""

    layers: tuple[LayerCost, ...]
    input_shape: tuple[int, ...]
    lp_cost: int

    @property
    def params(self) -> int:
        """Learned numbers; running statistics of batch normalisation count, for they come from data too."""
        return sum(layer.params for layer in self.layers)

    @property
    def flops(self) -> int:
        """Floating-point operations for one image, everything counted."""
        return sum(layer.flops for layer in self.layers)

    @property
    def core_flops(self) -> int:
        """Those of convolutions, dense layers and similarities only: no pooling, ReLU or MEX."""
        return sum(layer.flops for layer in self.layers if layer.kind in CORE)

    def table(self, title: str | None = None) -> Table:
        """A row a layer, the totals, and below them how it was counted."""
        table = Table(title=title, caption=self.caption(), title_justify="left", caption_justify="left")
        table.add_column("layer")
        table.add_column("kind")
        table.add_column("output")
        table.add_column("parameters", justify="right")
        table.add_column("FLOPs", justify="right")
        for layer in self.layers:
            shape = "×".join(str(n) for n in layer.output)
            table.add_row(layer.name, layer.kind, shape, f"{layer.params:,}", f"{layer.flops:,}")
        table.add_section()
        table.add_row("without pooling, ReLU, MEX", "", "", "", f"{self.core_flops:,}")
        table.add_row("total", "", "", f"{self.params:,}", f"{self.flops:,}")
        return table

    def __rich__(self) -> Table:
        return self.table()

    def caption(self) -> str:
        """How the numbers were counted; with similarities, also what the other reading of ℓp gives."""
        text = (
            f"2 per multiply-add, {self.lp_cost} per coordinate of an ℓp similarity, {EXP_OR_LOG} per exp or "
            "log, 1 per comparison or addition."
        )
        if coordinates := sum(layer.coordinates for layer in self.layers):
            other = MULTIPLY_ADD if self.lp_cost == LP_COORDINATE else LP_COORDINATE
            change = (other - self.lp_cost) * coordinates
            text += (
                f" At {other} per coordinate: {(self.flops + change) / 1e6:.2f} M in all, "
                f"{(self.core_flops + change) / 1e6:.2f} M for convolutions and similarities. The paper does "
                "not say which; its two-layer network, whose padding it leaves open too, has 14.2 M there."
            )
        return text


def count_cost(
    model: nn.Module, input_shape: tuple[int, ...] | None = None, *, lp_cost: int = LP_COORDINATE
) -> Cost:
    """Parameters and FLOPs of `model` for one image, found by running it once on zeros.

    lp_cost: 4 as the paper's own numbers imply, or 2 for one multiply-add a coordinate.

    Example:
        >>> import simnets
        >>> cost = simnets.count_cost(simnets.create_model("caffe_quick"), (3, 32, 32))
        >>> cost.params, f"{cost.flops / 1e6:.1f} M"
        (145578, '24.8 M')
    """
    if lp_cost not in (MULTIPLY_ADD, LP_COORDINATE):
        raise SimNetsError(f"lp_cost is {lp_cost}, expected {LP_COORDINATE} or {MULTIPLY_ADD}")
    if input_shape is None:
        if not isinstance(model, ImageClassifier):
            raise SimNetsError("input_shape is missing; it is needed for a module that has no specification")
        input_shape = model.spec.input_shape
    calls = _calls(model, tuple(input_shape))
    layers, seen = [], set[int]()
    for name, module, x, y in calls:
        for part in _COSTS[type(module)](module, x, y, lp_cost):
            new = [tensor for tensor in part.learned if id(tensor) not in seen]  # shared ones count once
            seen.update(id(tensor) for tensor in new)
            params = sum(tensor.numel() for tensor in new)
            label = name.removesuffix(".conv_similarity") + part.suffix
            output = part.output or y[1:]
            layers.append(LayerCost(label, part.kind, output, params, part.flops, part.coordinates))
    return Cost(tuple(layers), tuple(input_shape), lp_cost)


Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Part:
    """One row that a module gives: its FLOPs, and the tensors that were learned."""

    kind: str
    flops: int
    learned: Sequence[Tensor] = ()
    suffix: str = ""
    coordinates: int = 0
    output: Shape | None = None  # where it is not the module's


def _learned(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _conv(module: nn.Conv2d, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    flops = MULTIPLY_ADD * math.prod(y) * math.prod(module.weight.shape[1:])
    return [_Part("convolution", flops, _learned(module))]


def _dense(module: nn.Linear, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    return [_Part("dense", MULTIPLY_ADD * math.prod(y) * module.in_features, _learned(module))]


def _relu(module: nn.ReLU, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    return [_Part("ReLU", math.prod(y))]


def _norm(module: nn.BatchNorm2d, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    statistics = [t for t in (module.running_mean, module.running_var) if t is not None]
    return [_Part("normalisation", 0, _learned(module) + statistics)]


def _residual(module: ResidualBlock, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    return [_Part("addition", math.prod(y))]


def _pool(module: nn.MaxPool2d | nn.AvgPool2d, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    size = module.kernel_size
    window = math.prod(size) if isinstance(size, tuple) else size**2
    beta = INFINITY if isinstance(module, nn.MaxPool2d) else 0.0
    return [_Part("pooling", _mex_pooling(beta, window, x, y))]


def _global_average(module: nn.AdaptiveAvgPool2d, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    if module.output_size not in (1, (1, 1)):
        raise SimNetsError(f"cost of an adaptive pooling to {module.output_size} is not known, only to 1×1")
    return [_Part("pooling", _mex_pooling(0.0, math.prod(x[2:]), x, y))]


def _mex_pool(module: MexPool2d, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    window = math.prod(module.kernel_size)
    return [_Part("pooling", _mex_pooling(module.beta.item(), window, x, y), _learned(module))]


def _global_mex(module: GlobalMexPool2d, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    return [_Part("pooling", _mex_pooling(module.beta.item(), math.prod(x[2:]), x, y), _learned(module))]


def _mex_pooling(beta: float, window: int, x: Shape, y: Shape) -> int:
    """MEX_β over `window` values for each output: exp of each input once, additions, log of each output."""
    if math.isinf(beta):
        return math.prod(y) * (window - 1)
    if beta == 0:
        return math.prod(y) * window  # window − 1 additions and a division
    return EXP_OR_LOG * math.prod(x) + math.prod(y) * (window - 1 + EXP_OR_LOG)


def _mex(module: Mex | Mex2d, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    """Σ_l exp(β·b_rl)·exp(β·x_l): exp of each input once, a multiply-add an offset, log of each output."""
    inputs, outputs = math.prod(x), math.prod(y)
    n = module.in_features if isinstance(module, Mex) else module.in_channels
    beta = module.beta.item()
    if math.isinf(beta):
        flops = outputs * (2 * n - 1)  # n additions and n − 1 comparisons
    elif beta == 0:
        flops = inputs + outputs  # one mean for all classes; an offset's mean is a constant
    else:
        flops = EXP_OR_LOG * inputs + MULTIPLY_ADD * n * outputs + EXP_OR_LOG * outputs
    return [_Part("MEX", flops, _learned(module))]


def _similarity(module: Similarity | Similarity2d, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    inner = module.similarity if isinstance(module, Similarity2d) else module
    return [_similarity_part(inner, y, lp_cost)]


def _similarity_part(module: Similarity, y: Shape, lp_cost: int, suffix: str = "") -> _Part:
    coordinates = math.prod(y) * module.in_features
    if module.kind == "linear":
        return _Part("similarity", MULTIPLY_ADD * coordinates, _learned(module), suffix)
    cost = lp_cost
    assert module.p is not None
    p = module.p.item()
    if not any(math.isclose(p, easy, rel_tol=1e-6) for easy in (1, 2)):
        cost += 2 * EXP_OR_LOG  # |t|^p = exp(p·log|t|)
    return _Part("similarity", cost * coordinates, _learned(module), suffix, coordinates)


def _conv_similarity(module: ConvSimilarity2d, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    d = module.similarity.in_features
    positions = math.prod(y) // y[1]
    inner = {id(parameter) for parameter in module.similarity.parameters()}
    whitening = [parameter for parameter in _learned(module) if id(parameter) not in inner]
    flops = MULTIPLY_ADD * positions * d * math.prod(module.filters.shape[1:])
    if module.contrast:
        # sums of x and x² over channels, then over windows; a root; its product with each channel of y
        # (filters whose own mean is taken away, once, need no patch's mean)
        window = math.prod(module.kernel_size)
        flops += 3 * math.prod(x) + positions * (2 * window + EXP_OR_LOG + d)
    return [
        _Part("convolution", flops, whitening, ".whiten", output=(d, *y[2:])),
        _similarity_part(module.similarity, y, lp_cost, ".similarity"),
    ]


def _nothing(module: nn.Module, x: Shape, y: Shape, lp_cost: int) -> list[_Part]:
    return []


_COSTS: dict[type[nn.Module], Callable[[Any, Shape, Shape, int], list[_Part]]] = {
    **dict.fromkeys((nn.Conv2d, NormalizableConv2d), _conv),
    nn.Linear: _dense,
    nn.ReLU: _relu,
    nn.BatchNorm2d: _norm,
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.AdaptiveAvgPool2d: _global_average,
    ResidualBlock: _residual,
    MexPool2d: _mex_pool,
    GlobalMexPool2d: _global_mex,
    Mex: _mex,
    Mex2d: _mex,
    Similarity: _similarity,
    Similarity2d: _similarity,
    ConvSimilarity2d: _conv_similarity,
    **dict.fromkeys((nn.Identity, nn.Flatten, nn.Dropout, MultiplicativeGaussianNoise), _nothing),
}
# their parts are counted by themselves
_CONTAINERS = (ResidualBlock,)


def _counted(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that have a cost; one whose cost is not known is refused, for 0 would be a lie."""

    def visit(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        known = type(module) in _COSTS
        if known:
            yield name, module
        if known and not isinstance(module, _CONTAINERS):
            return
        children = list(module.named_children())
        # the λ of a SimNet in training folds into its layers
        own = any(True for _ in module.parameters(recurse=False)) and not isinstance(module, SimNet)
        if not known and (own or not children):
            raise SimNetsError(f"cost of {name or 'the model'} is not known: it is a {type(module).__name__}")
        for child_name, child in children:
            yield from visit(f"{name}.{child_name}" if name else child_name, child)

    yield from visit("", model)


def _calls(model: nn.Module, input_shape: Shape) -> list[tuple[str, nn.Module, Shape, Shape]]:
    """Every counted module in the order of its calls, with the shapes that went in and came out."""
    calls: list[tuple[str, nn.Module, Shape, Shape]] = []
    modes = {module: module.training for module in model.modules()}
    handles = []
    parameter = next(model.parameters(), torch.zeros(()))
    images = torch.zeros(1, *input_shape, dtype=parameter.dtype, device=parameter.device)
    try:
        for name, module in _counted(model):

            def hook(module: nn.Module, args: Any, output: Tensor, name: str = name) -> None:
                calls.append((name, module, tuple(args[0].shape), tuple(output.shape)))

            handles.append(module.register_forward_hook(hook))
        with torch.no_grad():
            model.eval()(images)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    return calls


@dataclass(frozen=True)
class Overview:
    """A registered network's line in the list of models."""

    name: str
    summary: str
    params: int
    flops: int
    core_flops: int


def models_overview(num_classes: int = 10) -> list[Overview]:
    """Every registered network with its parameters and its cost, for 32×32 colour images."""
    lines = []
    for name, entry in ENTRIES.items():
        cost = count_cost(create_model(name, num_classes))
        lines.append(Overview(name, entry.summary, cost.params, cost.flops, cost.core_flops))
    return lines


def markdown_table(lines: Sequence[Overview]) -> str:
    """The list of models as it stands in docs/models.md."""
    rows = [
        "| name | network | parameters | MFLOPs | without pooling, ReLU, MEX |",
        "|---|---|---:|---:|---:|",
    ]
    for x in lines:
        costs = f"{x.flops / 1e6:.2f} | {x.core_flops / 1e6:.2f}"
        rows.append(f"| `{x.name}` | {x.summary} | {x.params:,} | {costs} |")
    return "\n".join(rows)
