"""`optimize`: an inference copy of a network in which everything constant is folded into its neighbours.

Every rewrite is exact; only rounding differs, and the folding itself is done in float64:

- pixel normalisation goes into the first convolution, unless that sees patches of equal contrast. Where it is
  padded, zeros at the border must stand for what they did, so the border's value is taken away from the
  pixels before, one subtraction;
- λ, preconditioners, natural coordinates, the mean of the templates, the means that pad a layer, and β of the
  classification MEX go into the constants of the layer before them (MEX_β{x + c} = MEX_β{x} + c lets them
  pass through pooling), and a layer's similarities at y = 0 into those of the layer after it;
- an ℓ2 similarity becomes two 1×1 convolutions, of y and y²; a linear one merges with the convolution before;
- the classification MEX becomes a matrix product of exponentials;
- rows and columns that no pooling window sees are not computed;
- batch normalisation goes into the convolution before it.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from simnets.deploy.inference import (
    ContrastConvolution,
    GeneralMex,
    InferenceNetwork,
    LpSimilarity,
    ProductMex,
    Scores,
    SquaredSimilarity,
    convolution,
)
from simnets.errors import SimNetsError
from simnets.models import (
    CaffeQuick,
    ConvNet1,
    ConvNet2,
    DeepSimNet,
    ImageClassifier,
    NiN,
    ResNet8,
    SimNetBlock,
    SimNetMLP,
)
from simnets.models.normalizable_conv import NormalizableConv2d
from simnets.models.resnet8 import ResidualBlock
from simnets.nn import ConvSimilarity2d, MexPool2d, Similarity

# The largest exponential is 1, so a sum is at least exp(−60)/n. What float32 cannot hold, below exp(−87), is
# nothing beside it.
_WIDEST_OFFSETS = 60.0
# log(mean exp(β·c)) is rounded to about 1e-7, and so the scores to `gain` times that; for small β the
# operator has a form that does better.
_LARGEST_GAIN = 100.0


def optimize(model: ImageClassifier) -> InferenceNetwork:
    """A copy of `model` for inference, faster in every run-time, with the same scores up to rounding.

    Example:
        >>> import torch, simnets
        >>> from simnets.deploy import optimize
        >>> model = simnets.create_model("simnet2").eval()
        >>> images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> torch.allclose(optimize(model)(images), model(images), atol=1e-4)
        True
    """
    if not isinstance(model, ImageClassifier):
        raise SimNetsError(f"model is a {type(model).__name__}, expected a network of simnets")
    with torch.no_grad():
        if isinstance(model, DeepSimNet):
            network = _deep_simnet(model)
        elif isinstance(model, SimNetMLP):
            network = _simnet_mlp(model)
        elif isinstance(model, CaffeQuick | ConvNet1 | ConvNet2 | NiN | ResNet8):
            network = _baseline(model)
        else:
            raise SimNetsError(
                f"model is a {type(model).__name__}, which has no inference form; "
                "networks made by simnets.create_model and simnets.load have one"
            )
    return network.eval().to(model.pixel_mean.device)


@dataclass(frozen=True)
class _Affine:
    """What a layer's input means: scale·x + shift, for each channel."""

    scale: Tensor
    shift: Tensor

    def offset(self, zero: Tensor) -> Tensor:
        """The x that stands for the value `zero`."""
        return (zero - self.shift) / self.scale


def _pixels(model: ImageClassifier) -> _Affine:
    mean, std = model.pixel_mean.double().cpu(), model.pixel_std.double().cpu()
    return _Affine(1 / (255 * std), -mean / std)


# ── SimNets ──────────────────────────────────────────────────────────────────────────────────────────────


def _deep_simnet(model: DeepSimNet) -> InferenceNetwork:
    model = copy.deepcopy(model)
    model.from_natural()
    for layer in model.modules():
        if isinstance(layer, ConvSimilarity2d):
            layer.fold()
    blocks = [block for block in model.layers if isinstance(block, SimNetBlock)]
    zeros = [_zero(block) for block in blocks]
    pixels = _pixels(model)
    offset = None
    if zeros[0] is not None:
        offset = pixels.offset(zeros[0]).view(-1, 1, 1)
        pixels = _Affine(pixels.scale, zeros[0])
    beta = _number(model.classify.beta)
    head, factor = _head(model, foldable=beta > 0 and blocks[-1].pool is None)
    body = nn.Sequential()
    incoming = pixels
    for block, following, zero in zip(blocks, [*blocks[1:], None], [*zeros[1:], None], strict=True):
        # what the next layer takes for 0 is taken away here
        shift = _middle(block, following) if zero is None else zero
        body.extend(_block(block, incoming, shift, factor if block is blocks[-1] else 1.0))
        incoming = _Affine(torch.ones_like(shift), shift)
    body.append(head)
    return InferenceNetwork(model.spec, model.classes, body, model.pixel_mean.dtype, offset, _used(model))


def _zero(block: SimNetBlock) -> Tensor | None:
    """The value of each channel that is best represented as 0, or None where it does not matter.

    It is the padding's, because run-times pad with zeros; without padding, where x² is computed, it is the
    templates' mean, which keeps the terms of the square small.
    """
    if not block.pads_with_mean:
        return None  # 0 is what the rectified layer before has there
    if block.spec.padding:
        return block.padding_mean.double().cpu()
    layer = block.conv_similarity
    if isinstance(layer, ConvSimilarity2d) or layer.similarity.kind == "linear":
        return None
    return (
        layer.similarity.templates.double().cpu().view(layer.out_channels, layer.in_channels, -1).mean((0, 2))
    )


def _middle(block: SimNetBlock, following: SimNetBlock | None) -> Tensor:
    """The similarities at y = 0, the middle of whitened patches, if a convolution follows that does not pad.

    A template far away makes every similarity a large number that hardly varies; 8 bits for all channels
    together would be spent on these numbers. What the next convolution makes of them is a constant.
    """
    layer = block.conv_similarity
    convolved = following is not None and isinstance(following.conv_similarity, ConvSimilarity2d)
    if block.spec.rectify or not convolved or not isinstance(layer, ConvSimilarity2d):
        return torch.zeros(block.spec.templates, dtype=torch.float64)
    found = _Constants.of(layer.similarity, torch.zeros(layer.out_channels, dtype=torch.float64), 1.0)
    if found.linear:
        return found.constant
    return found.constant - (found.weights * found.templates.abs() ** found.p).sum(1)


def _block(block: SimNetBlock, incoming: _Affine, shift: Tensor, factor: float) -> list[nn.Module]:
    """The modules of a layer whose outputs are factor·(s − shift)."""
    layer = block.conv_similarity
    padding = block.spec.padding
    similarity = _Constants.of(layer.similarity, shift, factor)
    modules: list[nn.Module]
    if isinstance(layer, ConvSimilarity2d):
        constants = torch.zeros_like(incoming.shift) if layer.contrast else incoming.shift
        bias = layer.of_constants(constants)
        if layer.conv_bias is not None:
            bias = bias + layer.conv_bias.double().cpu()
        scale = incoming.scale.view(-1, 1, 1, 1) if layer.depthwise else incoming.scale.view(-1, 1, 1)
        filters = layer.filters.double().cpu() * scale
        if similarity.linear and _merging_is_cheaper(layer):
            merged = torch.einsum("nd,dchw->nchw", similarity.weights * similarity.templates, filters)
            constant = similarity.constant + (similarity.weights * similarity.templates) @ bias
            modules = [convolution(merged, constant, layer.stride, padding)]
        else:
            if not similarity.linear:
                # y and z move together: the mean of the templates costs nothing in the bias
                center = similarity.templates.mean(0)
                bias, similarity = bias - center, similarity.moved(center)
            if layer.contrast:
                # what it divides by is not linear in the pixels: their normalisation stays
                given = layer.filters.double().cpu(), bias, layer.contrast, layer.stride
                first: nn.Module = ContrastConvolution(*given, incoming.scale, incoming.shift)
            else:
                first = convolution(filters, bias, layer.stride, padding, layer.depthwise)
            modules = [first, similarity.module((1, 1), (1, 1), 0)]
    else:
        per_coordinate = layer.kernel_size[0] * layer.kernel_size[1]
        scale, moved = (v.repeat_interleave(per_coordinate) for v in (incoming.scale, incoming.shift))
        modules = [similarity.of_affine(scale, moved).module(layer.kernel_size, layer.stride, padding)]
    for operation in block.after_similarity():
        modules.append(_pool(operation) if isinstance(operation, MexPool2d) else nn.ReLU())
    return modules


def _merging_is_cheaper(layer: ConvSimilarity2d) -> bool:
    n, d, m = layer.out_channels, layer.whitened_channels, layer.filters[0].numel()
    return not (layer.depthwise or layer.contrast) and n * m <= d * m + n * d


@dataclass(frozen=True)
class _Constants:
    """A similarity in float64: −Σ u·|x − z|^p + c, or Σ u·z·x + c."""

    linear: bool
    p: float
    templates: Tensor
    weights: Tensor
    constant: Tensor

    @classmethod
    def of(cls, layer: Similarity, shift: Tensor, factor: float) -> _Constants:
        """factor·(s − shift)."""
        templates = layer.templates.double().cpu()
        weights = torch.ones_like(templates) if layer.weights is None else layer.weights.double().cpu()
        constants = layer.constants()
        constant = -shift if constants is None else constants.double().cpu() - shift
        return cls(layer.kind == "linear", _number(layer.p), templates, weights * factor, constant * factor)

    def moved(self, center: Tensor) -> _Constants:
        """The same similarity of x − center."""
        return _Constants(self.linear, self.p, self.templates - center, self.weights, self.constant)

    def of_affine(self, scale: Tensor, shift: Tensor) -> _Constants:
        """The similarity of scale·x + shift, as one of x."""
        if self.linear:
            constant = self.constant + (self.weights * self.templates) @ shift
            return _Constants(True, self.p, self.templates * scale, self.weights, constant)
        # |a·x + b − z|^p = a^p·|x − (z − b)/a|^p
        templates, weights = (self.templates - shift) / scale, self.weights * scale**self.p
        return _Constants(False, self.p, templates, weights, self.constant)

    def module(self, kernel_size: tuple[int, int], stride: tuple[int, int], padding: int) -> nn.Module:
        shape = (len(self.templates), -1, *kernel_size)
        product = self.weights * self.templates
        if self.linear:
            return convolution(product.view(shape), self.constant, stride, padding)
        if self.p == 2:
            constant = self.constant - (product * self.templates).sum(1)
            cross, square = (2 * product).view(shape), -self.weights.view(shape)
            return SquaredSimilarity(cross, square, constant, stride, padding)
        return LpSimilarity(self.templates, self.weights, self.p, self.constant, kernel_size, stride, padding)


def _pool(pool: MexPool2d) -> nn.Module:
    beta = _number(pool.beta)
    window = pool.kernel_size, pool.stride, pool.padding
    if beta == math.inf:
        return nn.MaxPool2d(*window, ceil_mode=pool.ceil_mode)
    if beta == 0:
        return nn.AvgPool2d(*window, ceil_mode=pool.ceil_mode, count_include_pad=False)
    return MexPool2d(*window, beta=beta, ceil_mode=pool.ceil_mode)


def _head(model: DeepSimNet | SimNetMLP, foldable: bool) -> tuple[nn.Module, float]:
    """The module that turns similarities into scores, and the factor that it expects them to have."""
    beta = _number(model.classify.beta)
    scale = 1.0 if model.scale is None else _number(model.scale)
    offsets = model.classify.effective_offsets.double().cpu()
    global_beta = _number(model.pool.beta) if isinstance(model, DeepSimNet) else None
    exponents = beta * offsets if math.isfinite(beta) else offsets
    largest = exponents.amax(1, keepdim=True)
    narrow = float((largest - exponents).max()) <= _WIDEST_OFFSETS
    accurate = scale / _LARGEST_GAIN <= abs(beta) < math.inf
    if not (narrow and accurate and global_beta in (0, None)):
        return GeneralMex(offsets, beta, scale, global_beta), 1.0
    gain = scale / beta
    exponentials = (exponents - largest).exp() / offsets.shape[1]
    head = ProductMex(exponentials, gain * largest.squeeze(1), gain, None if foldable else beta)
    return head, beta if foldable else 1.0


def _used(model: DeepSimNet) -> tuple[int, int] | None:
    """The rows and columns of the image that any score depends on, if not all of them."""
    size = (model.spec.input_shape[1], model.spec.input_shape[2])
    first = model.spec.layers[0]
    if first.padding:
        return None
    used = []
    for side in size:
        grid = (side - first.field) // first.stride + 1
        if first.pool and not first.pool_ceil:
            grid = (grid - first.pool) // first.pool_stride * first.pool_stride + first.pool
        used.append((grid - 1) * first.stride + first.field)
    return None if tuple(used) == size else (used[0], used[1])


def _simnet_mlp(model: SimNetMLP) -> InferenceNetwork:
    similarity = model.similarity
    beta = _number(model.classify.beta)
    head, factor = _head(model, foldable=beta > 0)
    pixels = _pixels(model)
    per_channel = math.prod(model.spec.input_shape[1:])
    scale, shift = (v.repeat_interleave(per_channel) for v in (pixels.scale, pixels.shift))
    constants = _Constants.of(similarity, torch.zeros(similarity.out_features, dtype=torch.float64), factor)
    offset = None
    if not constants.linear:
        center = constants.templates.mean(0)
        offset = _Affine(scale, shift).offset(center).view(model.spec.input_shape)
        shift = center
    rows = constants.of_affine(scale, shift)
    body = nn.Sequential(nn.Flatten(), _Rows(rows), head)
    return InferenceNetwork(model.spec, model.classes, body, model.pixel_mean.dtype, offset)


class _Rows(nn.Module):
    """A similarity of vectors (N, d) → (N, n)."""

    def __init__(self, constants: _Constants) -> None:
        super().__init__()
        self.maps = constants.module((1, 1), (1, 1), 0)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.maps, LpSimilarity):
            result: Tensor = self.maps(x)
        else:
            result = self.maps(x[:, :, None, None]).flatten(1)
        return result


# ── baselines ────────────────────────────────────────────────────────────────────────────────────────────


def _baseline(model: CaffeQuick | ConvNet1 | ConvNet2 | NiN | ResNet8) -> InferenceNetwork:
    network = copy.deepcopy(model).eval()
    if isinstance(network, ResNet8):
        _fold_norm(network, "conv", "norm")
        for block in network.children():
            if isinstance(block, ResidualBlock):
                _fold_norm(block, "conv1", "norm1")
                _fold_norm(block, "conv2", "norm2")
    for layer in network.modules():
        if isinstance(layer, NormalizableConv2d):
            layer.fold()
    if isinstance(network, ConvNet2 | NiN | ResNet8):
        # over a known grid: run-times have a faster operator for it than for a mean over any grid
        _, height, width = model.spec.stages()[-3 if isinstance(network, ResNet8) else -2].output
        network.add_module("pool", nn.AvgPool2d((height, width)))
    for module in network.modules():
        if isinstance(module, nn.AvgPool2d) and module.padding == 0:
            module.count_include_pad = (
                False  # there is none; ONNX Runtime has no fast form for the other case
            )
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    pixels = _pixels(model)
    offset = None
    filters = first.weight.double()
    assert first.bias is not None
    if first.padding != (0, 0):
        offset = pixels.offset(torch.zeros_like(pixels.shift)).view(-1, 1, 1)
    else:
        first.bias.copy_(first.bias + torch.einsum("dchw,c->d", filters, pixels.shift.to(filters)))
    first.weight.copy_(filters * pixels.scale.to(filters).view(-1, 1, 1))
    body = Scores(network)
    for parameter in body.parameters():
        parameter.requires_grad_(False)
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return InferenceNetwork(model.spec, model.classes, body, model.pixel_mean.dtype, offset)


def _fold_norm(block: nn.Module, conv: str, norm: str) -> None:
    """Batch normalisation, with its running statistics, goes into the convolution before it."""
    before, after = block.get_submodule(conv), block.get_submodule(norm)
    assert isinstance(before, nn.Conv2d)
    assert isinstance(after, nn.BatchNorm2d)
    block.add_module(conv, fuse_conv_bn_eval(before, after))
    block.add_module(norm, nn.Identity())


def _number(value: Tensor) -> float:
    return float(value.detach())
