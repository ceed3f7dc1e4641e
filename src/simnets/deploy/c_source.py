"""The text of a C file that computes what an inference copy of a network computes.

A network is a chain of layers. Each looks at a window of rows and gives one row, and each keeps just the rows
of its window, in a ring; so the working memory grows with the width of an image, not with its size. Rows are
asked for from the end: a layer that needs its next row has the layer before compute it. Rows have their
channels side by side, so that a row of a patch is one contiguous vector, and weights have their outputs side
by side, so that compilers vectorise the innermost loops.

The C itself is in c/kernels.c, in parts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from simnets.deploy.c_int8 import coded
from simnets.deploy.inference import (
    ContrastConvolution,
    GeneralMex,
    InferenceNetwork,
    LpSimilarity,
    ProductMex,
    Scores,
    SquaredSimilarity,
)
from simnets.errors import SimNetsError
from simnets.models import CaffeQuick, ConvNet1, ConvNet2, NiN
from simnets.nn import MexPool2d

KERNELS = Path(__file__).with_name("c") / "kernels.c"
# So near to 0 that β·(c − M) might vanish in float32; MEX then is the mean, to all digits.
SMALLEST_BETA = 1e-20
POWERS = {0.5: "sqrtf(d)", 1.0: "d", 1.5: "d * sqrtf(d)", 2.0: "d * d", 3.0: "d * d * d"}

Shape = tuple[int, int, int]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Source:
    """A C file. weights: bytes of its constant arrays. memory: bytes of its working memory."""

    text: str
    weights: int
    memory: int


def c_source(network: InferenceNetwork, *, int8: bool = False) -> Source:
    """`network` as C99. With int8, its weights must have been `rounded`."""
    if any(bool(parameter.isnan().any()) for parameter in network.parameters()):
        raise SimNetsError("model cannot be exported: some of its weights are not a number")
    return _Writer(network, int8).source()


# ── what is computed ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Products:
    """constant + Σ filters·x, where x is squared for a second term: convolutions and ℓ2 similarities.

    depthwise: each channel by itself. contrast: what the patch is brought to before.
    """

    terms: dict[str, Tensor]
    constant: Tensor
    depthwise: bool = False
    contrast: _Contrast | None = None


@dataclass(frozen=True)
class _Contrast:
    """scale·x + shift for each channel, then mean 0 and variance v / (v + added) for the whole patch."""

    scale: Tensor
    shift: Tensor
    added: float


@dataclass(frozen=True)
class _Lp:
    """constant − Σ u·|x − z|^p."""

    templates: Tensor
    weights: Tensor
    p: float
    constant: Tensor


@dataclass(frozen=True)
class _Pool:
    """MEX_β over the window."""

    beta: float


@dataclass(frozen=True)
class _Relu:
    """max(x, 0)."""


_Operation = _Products | _Lp | _Pool | _Relu


@dataclass
class _Layer:
    """A window that moves over an input, and operations on what it sees, each with its output channels."""

    name: str
    input: Shape
    kernel: Pair
    stride: Pair
    padding: int
    grid: Pair
    operations: list[tuple[_Operation, int]] = field(default_factory=list)

    @property
    def output(self) -> Shape:
        return (self.operations[-1][1], *self.grid)

    @property
    def row(self) -> int:
        """Values in a row of the input, with its padding."""
        return (self.input[2] + 2 * self.padding) * self.input[0]

    def end(self, axis: int, first: str) -> str:
        """Where a window ends that begins at `first`; with ceil_mode the last one ends outside."""
        size = self.input[1 + axis] + 2 * self.padding
        end = f"{first} + {self.kernel[axis]}"
        inside = (self.grid[axis] - 1) * self.stride[axis] + self.kernel[axis] <= size
        return end if inside else f"{end} < {size} ? {end} : {size}"

    def described(self) -> str:
        words = {"filters": "convolution", "cross": "l2 similarity"}
        parts = []
        for operation, _ in self.operations:
            match operation:
                case _Products():
                    kind = words[next(iter(operation.terms))]
                    kind = f"depthwise {kind}" if operation.depthwise else kind
                    parts.append(f"{kind} of equal contrast" if operation.contrast else kind)
                case _Lp():
                    parts.append(f"lp similarity, p = {operation.p:g}")
                case _Pool():
                    parts.append(f"MEX pooling, beta = {operation.beta:g}")
                case _Relu():
                    parts.append("ReLU")
        shapes = " -> ".join("x".join(map(str, shape)) for shape in (self.input, self.output))
        return f"{self.kernel[0]}x{self.kernel[1]} {', '.join(parts)}; {shapes}."


def _chain(network: InferenceNetwork) -> list[nn.Module]:
    """The modules without parts, in the order of computation."""
    body = network.body
    if isinstance(body, Scores) and not isinstance(body.network, CaffeQuick | ConvNet1 | ConvNet2 | NiN):
        kind = type(body.network).__name__
        raise SimNetsError(f"model is a {kind}, which cannot be exported to C: it is no chain of layers")
    return [module for module in body.modules() if not list(module.children())]


def _layers(chain: list[nn.Module], shape: Shape) -> list[_Layer]:
    layers: list[_Layer] = []
    for module in chain:
        if isinstance(module, nn.Flatten | nn.Dropout):
            continue
        operation, channels, kernel, stride, padding = _operation(module, shape)
        pointwise = bool(layers) and (kernel, stride, padding) == ((1, 1), (1, 1), 0)
        # what follows pooling at once has a window of its own, unless it changes the values in place
        after_pool = bool(layers) and isinstance(layers[-1].operations[0][0], _Pool)
        if not isinstance(operation, _Relu) and (not pointwise or after_pool):
            ceil = bool(getattr(module, "ceil_mode", False))
            rows, columns = (
                _windows(shape[1 + i] + 2 * padding, kernel[i], stride[i], ceil) for i in range(2)
            )
            name = f"layer{len(layers) + 1}"
            layers.append(_Layer(name, shape, kernel, stride, padding, (rows, columns)))
        layers[-1].operations.append((operation, channels))
        shape = layers[-1].output
    return layers


def _operation(module: nn.Module, shape: Shape) -> tuple[_Operation, int, Pair, Pair, int]:
    """What a module computes, the channels of its output, its window, stride and padding."""
    operation: _Operation
    stride, padding = (1, 1), 0
    if isinstance(module, nn.Conv2d | nn.Linear):
        depthwise = isinstance(module, nn.Conv2d) and module.groups > 1
        filters = module.weight if depthwise else _filters(module.weight, shape)
        bias: Tensor | None = module.bias
        operation = _Products(
            {"filters": filters}, filters.new_zeros(len(module.weight)) if bias is None else bias, depthwise
        )
        if isinstance(module, nn.Conv2d):
            stride, padding = _pair(module.stride), int(module.padding[0])
    elif isinstance(module, ContrastConvolution):
        filters, stride = module.filters, module.stride
        contrast = _Contrast(module.scale, module.shift, module.contrast)
        operation = _Products({"filters": filters}, module.bias, contrast=contrast)
    elif isinstance(module, SquaredSimilarity):
        filters, square = _filters(module.cross, shape), _filters(module.square, shape)
        operation = _Products({"cross": filters, "square": square}, module.constant)
        stride, padding = module.stride, module.padding
    elif isinstance(module, LpSimilarity):
        filters = _filters(module.templates, shape, module.kernel_size)
        weights = _filters(module.weights, shape, module.kernel_size)
        operation = _Lp(filters, weights, module.p, module.constant)
        stride, padding = module.stride, module.padding
    elif isinstance(module, nn.MaxPool2d):
        return _Pool(math.inf), shape[0], _pair(module.kernel_size), _pair(module.stride), 0
    elif isinstance(module, nn.AvgPool2d):
        return _Pool(0.0), shape[0], _pair(module.kernel_size), _pair(module.stride), 0
    elif isinstance(module, MexPool2d):
        return _Pool(float(module.beta)), shape[0], module.kernel_size, module.stride, 0
    elif isinstance(module, nn.ReLU):
        return _Relu(), shape[0], (1, 1), (1, 1), 0
    else:
        raise SimNetsError(f"model cannot be exported to C: it has a {type(module).__name__}")
    return operation, len(filters), (filters.shape[2], filters.shape[3]), stride, padding


def _filters(weights: Tensor, shape: Shape, kernel: Pair = (1, 1)) -> Tensor:
    """Weights as filters (n, C, h, w); those on a flattened map become a window as large as the map."""
    if weights.dim() == 4 and weights.shape[1] == shape[0]:
        return weights
    size = shape[1:] if weights[0].numel() == math.prod(shape) else kernel
    return weights.reshape(len(weights), shape[0], *size)


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _windows(side: int, kernel: int, stride: int, ceil: bool) -> int:
    count = (side - kernel) // stride + 1
    return count + (ceil and count * stride < side and (side - kernel) % stride > 0)


# ── how it is written ────────────────────────────────────────────────────────────────────────────────────


class _Writer:
    def __init__(self, network: InferenceNetwork, int8: bool) -> None:
        self.network, self.int8 = network, int8
        self.type = "int8_t" if int8 else "float"
        channels, height, width = (1, 1, *network.spec.input_shape)[-3:]
        self.image: Shape = (channels, height, width)
        chain = _chain(network)
        self.head = chain.pop() if isinstance(chain[-1], ProductMex | GeneralMex) else None
        rows, columns = network.used or (height, width)
        self.layers = _layers(chain, (channels, rows, columns))
        self.weights = 0
        self.arrays: list[str] = []
        self.kernels: dict[str, str] = {}
        self.functions: list[str] = []

    def source(self) -> Source:
        self._image_row()
        before = "image"
        for layer in self.layers:
            self._layer(layer, before)
            before = layer.name
        self._classify()
        memory = sum(4 * (layer.kernel[0] * layer.row + 1) for layer in self.layers)
        rings = [
            f"    float {layer.name}[{layer.kernel[0]}][{layer.row}];\n    int {layer.name}_next;"
            for layer in self.layers
        ]
        names = [f"    {_string(name)}" for name in self.network.classes]
        parts = [
            self._header(memory),
            _part("implementation", names=",\n".join(names)),
            *self.arrays,
            _part("memory", rings="\n".join(rings)),
            *self.kernels.values(),
            *self.functions,
            _part("main"),
        ]
        return Source("\n\n".join(parts) + "\n", self.weights, memory)

    def _header(self, memory: int) -> str:
        channels, height, width = self.image
        return _part(
            "header",
            family=self.network.spec.family,
            version=version("simnets"),
            kind="int8 weights, float arithmetic" if self.int8 else "float",
            channels=channels,
            height=height,
            width=width,
            classes=self.network.spec.num_classes,
            weights=f"{self.weights:,}",
            memory=f"{memory:,}",
        )

    def _array(self, name: str, values: Tensor, kind: str = "float") -> str:
        flat = values.detach().flatten().cpu()
        numbers = list(map(_number, flat.float().tolist()) if kind == "float" else map(str, flat.tolist()))
        width = 8 if kind == "float" else 20
        rows = [", ".join(numbers[i : i + width]) for i in range(0, len(numbers), width)]
        lines = "    " + ",\n    ".join(rows)
        self.arrays.append(f"static const {kind} {name}[{len(flat)}] = {{\n{lines}\n}};")
        self.weights += len(flat) * (4 if kind == "float" else 1)
        return name

    def _kernel(self, part: str, /, **names: object) -> str:
        name = str(names.get("name", part))
        self.kernels.setdefault(name, _part(part, **names))
        return name

    def _function(self, part: str, /, **names: object) -> None:
        self.functions.append(_part(part, **names))

    def _accumulate(self, n: int, kind: str, depthwise: bool = False) -> str:
        part = "depthwise" if depthwise else "accumulate"
        suffix = "" if kind == "float" else "_int8"
        return self._kernel(part, name=f"{part}_{n}{suffix}", n=n, type=kind)

    def _mex(self, beta: float, name: str) -> str:
        """The functions that add a value to a MEX, and give its result."""
        if beta in (math.inf, -math.inf):
            return self._kernel("maximum" if beta > 0 else "minimum")
        if abs(beta) < SMALLEST_BETA:
            return self._kernel("mean")
        return self._kernel("mex", name=name, beta=_number(beta))

    def _image_row(self) -> None:
        offset = self.network.offset
        taken = ""
        if offset is not None:
            self._array("pixel_offset", offset)
            per_channel = offset.numel() == self.image[0]
            index = "c" if per_channel else "(c * SIMNETS_HEIGHT + row) * SIMNETS_WIDTH + x"
            taken = f" - pixel_offset[{index}]"
        channels, _, width = self.layers[0].input
        self._function("image_row", channels=channels, width=width, offset=taken)

    def _layer(self, layer: _Layer, before: str) -> None:
        """The functions that fill a layer's ring, compute one position, and compute a row of them."""
        channels, height, _ = layer.input
        self._function(
            "fill",
            name=layer.name,
            before=before,
            stride=layer.stride[0],
            kernel=layer.kernel[0],
            end=layer.end(0, "first"),
            padding=layer.padding,
            height=height,
            border=layer.padding * channels,
        )
        if isinstance(layer.operations[0][0], _Pool):
            self._pool(layer, layer.operations[0][0])
        else:
            self._position(layer)
        if layer is not self.layers[-1]:
            channels, _, width = layer.output
            self._function("row", name=layer.name, channels=channels, width=width)

    def _pool(self, layer: _Layer, pool: _Pool) -> None:
        channels = layer.input[0]
        after = ""
        if len(layer.operations) > 1:
            after = f"    {self._kernel('rectify')}(out, {channels});\n"
        self._function(
            "pool",
            name=layer.name,
            comment=layer.described(),
            rows=layer.kernel[0],
            row_stride=layer.stride[0],
            column_stride=layer.stride[1],
            bottom=layer.end(0, "top"),
            right=layer.end(1, "left"),
            channels=channels,
            mex=self._mex(pool.beta, f"{layer.name}_mex"),
            after=after,
        )

    def _position(self, layer: _Layer) -> None:
        """Operations one after the other, each from a vector to the next; the last one is `out`."""
        last = max(i for i, (operation, _) in enumerate(layer.operations) if not isinstance(operation, _Relu))
        channels = layer.input[0]
        span = layer.kernel[1] * channels
        source, size = "x", layer.kernel[0] * span
        vectors, lines = "", []
        for i, (operation, outputs) in enumerate(layer.operations):
            if isinstance(operation, _Relu):
                lines.append(f"{self._kernel('rectify')}({source}, {size});")
                continue
            target = "out" if i == last else f"y{i + 1}"
            if target != "out":
                vectors += f", {target}[{outputs}]"
            assert not isinstance(operation, _Pool)
            name = layer.name if i == 0 else f"{layer.name}_{i + 1}"
            lines += self._weighted(operation, name, outputs, target, source, size)
            source, size = target, outputs
        self._function(
            "layer",
            name=layer.name,
            comment=layer.described(),
            patch=layer.kernel[0] * span,
            vectors=vectors,
            rows=layer.kernel[0],
            span=span,
            row_stride=layer.stride[0],
            column_step=layer.stride[1] * channels,
            steps="\n".join(f"    {line}" for line in lines),
        )

    def _weighted(
        self, operation: _Products | _Lp, name: str, n: int, target: str, source: str, size: int
    ) -> list[str]:
        """target = the operation on source. In int8, sums are multiples of a step until they are done."""
        calls, before = [], []
        if isinstance(operation, _Lp):
            z, z_steps = self._weights(f"{name}_templates", operation.templates)
            u, steps = self._weights(f"{name}_weights", operation.weights)
            all_steps = [steps]
            kernel = self._kernel(
                "lp",
                name=f"{name}_lp",
                type=self.type,
                n=n,
                p=f"{operation.p:g}",
                times_step=f" * {self._array(f'{name}_templates_step', z_steps)}[l]" if self.int8 else "",
                power=POWERS.get(operation.p, f"powf(d, {_number(operation.p)})"),
            )
            calls.append([f"{kernel}({target}, {z}, {u}, {source}, {size});"])
        else:
            if (contrast := operation.contrast) is not None:
                channels = contrast.scale.numel()
                scale, shift = (
                    self._array(f"{name}_{part}", values)
                    for part, values in (("scale", contrast.scale), ("shift", contrast.shift))
                )
                added = _number(contrast.added)
                kernel = self._kernel("contrast")
                before = [f"{kernel}({source}, {scale}, {shift}, {size}, {channels}, {added});"]
            all_steps = []
            for term, filters in operation.terms.items():
                w, steps = self._weights(f"{name}_{term}", filters)
                all_steps.append(steps)
                squared = [f"{self._kernel('square')}({source}, {size});"] if term == "square" else []
                kernel = self._accumulate(n, self.type, operation.depthwise)
                calls.append([*squared, f"{kernel}({target}, {w}, {source}, {size});"])
        constant = self._array(f"{name}_constant", operation.constant.double() / all_steps[0])
        lines = [*before, f"memcpy({target}, {constant}, sizeof {constant});"]
        for i, call in enumerate(calls):
            lines += call
            if self.int8:
                following = all_steps[i + 1] if i + 1 < len(calls) else torch.ones(n)
                step = self._array(f"{name}_step{i + 1}", all_steps[i] / following)
                lines.append(f"{self._kernel('multiply')}({target}, {step}, {n});")
        return lines

    def _weights(self, name: str, filters: Tensor) -> tuple[str, Tensor]:
        """Writes filters (n, C, h, w) as [h][w][C][n]; what one unit of them means, for each output."""
        if not self.int8:
            return self._array(name, filters.permute(2, 3, 1, 0)), torch.ones(len(filters))
        codes, steps = coded(filters)
        return self._array(name, codes.permute(2, 3, 1, 0), self.type), steps

    def _classify(self) -> None:
        last = self.layers[-1]
        n, rows, columns = last.output
        k = self.network.spec.num_classes
        match self.head:
            case ProductMex(exponentials=exponentials, constant=constant, gain=gain, beta=beta):
                self._array("head_exponentials", exponentials.T)
                self._array("head_constant", constant)
                times_beta = "" if beta is None else f" * {_number(beta)}"
                accumulate = self._accumulate(k, "float")
                self._function("product_head", k=k, n=n, accumulate=accumulate, times_beta=times_beta)
                score = f"scores[r] * {_number(gain / (rows * columns))} + head_constant[r]"
            case GeneralMex(offsets=offsets, beta=beta, scale=scale, global_beta=global_beta):
                self._array("head_offsets", offsets)
                mex, pool = self._mex(beta, "classify_mex"), self._mex(global_beta or 0.0, "global_mex")
                times = "" if scale == 1 else f"{_number(scale)} * "
                self._function("general_head", k=k, n=n, mex=mex, pool=pool, scale=times)
                score = f"{pool}_value(scores[r], total[r], {rows * columns})"
            case _:
                self._function("plain_head", k=k)
                score = "scores[r]"
        self._function("classify", k=k, n=n, rows=rows, columns=columns, last=last.name, score=score)


@cache
def _parts() -> dict[str, str]:
    pieces = re.split(r"^// part (\w+)\n", KERNELS.read_text(encoding="ascii"), flags=re.MULTILINE)
    return {name: text.strip("\n") for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def _part(part: str, /, **names: object) -> str:
    return re.sub(r"@(\w+)@", lambda match: str(names[match[1]]), _parts()[part])


def _number(value: float) -> str:
    """A float32 constant; nine digits give it back exactly."""
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = f"{value:.9g}"
    return f"{text}f" if re.search("[.e]", text) else f"{text}.0f"


def _string(text: str) -> str:
    """A string constant in ASCII: other bytes in octal, and so are question marks, which begin trigraphs."""
    characters = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{"".join(characters)}"'
