"""The modules that `optimize` builds an inference copy from: constants folded, nothing learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simnets.errors import SimNetsError
from simnets.models.spec import Spec
from simnets.nn._contrast import contrast_convolution
from simnets.nn._images import patches
from simnets.ops import mex, similarity

# Images at a time on a CPU. Maps of more fall out of the caches, and the memory for them is given back to the
# system and asked for again with every batch, which together costs up to half of the time.
CHUNK = 32


class InferenceNetwork(nn.Module):
    """Images in, class scores out, as the network that it was made from; not for training.

    `forward` takes what an `ImageClassifier` takes: (N, C, H, W), uint8, or floating point in [0, 1].
    """

    offset: Tensor | None

    def __init__(
        self,
        spec: Spec,
        classes: tuple[str, ...],
        body: nn.Module,
        dtype: torch.dtype,
        offset: Tensor | None = None,
        used: tuple[int, int] | None = None,
    ) -> None:
        """offset: pixel values (0…255) that the body takes for 0. used: rows and columns that matter."""
        super().__init__()
        self.spec = spec
        self.classes = classes
        self.used = used
        self.dtype = dtype
        self.body = body.to(dtype)
        self.register_buffer("offset", None if offset is None else offset.to(dtype))

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (N, k)."""
        if images.shape[1:] != torch.Size(self.spec.input_shape):
            expected = ", ".join(str(n) for n in self.spec.input_shape)
            raise SimNetsError(f"images have shape {tuple(images.shape)}, this network takes (N, {expected})")
        # the order matters: a graph that is being captured must not ask for the size of the batch
        if torch.compiler.is_compiling() or images.device.type != "cpu" or len(images) <= CHUNK:
            return self._scores(images)
        return torch.cat([self._scores(part) for part in torch.split(images, CHUNK)])

    def _scores(self, images: Tensor) -> Tensor:
        if self.used is not None:
            # a negative border is one operator in an exported graph, two slices are two
            height, width = images.shape[2:]
            images = F.pad(images, (0, self.used[1] - width, 0, self.used[0] - height))
        # channels-last, which torch's convolutions are fastest on; an exported graph knows no such thing
        layout = torch.channels_last if images.dim() == 4 else torch.contiguous_format
        x = images.to(self.dtype, memory_format=layout)
        if images.dtype != torch.uint8:
            x = x * 255
        if self.offset is not None:
            x = x - self.offset
        scores: Tensor = self.body(x)
        return scores


class SquaredSimilarity(nn.Module):
    """ℓ2 similarity to patches as two convolutions: Σ 2uz·x − Σ u·x² + c, section 2.

    The constant c has −Σ u·z² in it. The sum of two convolutions is what run-times fuse best: one adds to the
    result of the other, and [x, x²] is never written out.
    """

    def __init__(
        self, cross: Tensor, square: Tensor, constant: Tensor, stride: tuple[int, int], padding: int
    ) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.cross = frozen(cross)
        self.square = frozen(square)
        self.constant = frozen(constant)

    def forward(self, x: Tensor) -> Tensor:
        similarities = F.conv2d(x, self.cross, self.constant, self.stride, self.padding)
        # x is not needed any more: a large batch has no second copy of it
        return similarities.add_(F.conv2d(x.mul_(x), self.square, None, self.stride, self.padding))


class ContrastConvolution(nn.Module):
    """A convolution of patches of equal contrast, of maps that mean scale·x + shift."""

    def __init__(
        self,
        filters: Tensor,
        bias: Tensor,
        contrast: float,
        stride: tuple[int, int],
        scale: Tensor,
        shift: Tensor,
    ) -> None:
        super().__init__()
        self.contrast, self.stride = contrast, stride
        self.filters = frozen(filters)
        self.bias = frozen(bias)
        self.scale, self.shift = frozen(scale.view(-1, 1, 1)), frozen(shift.view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale + self.shift
        return contrast_convolution(x, self.filters, self.bias, self.contrast, self.stride)


class LpSimilarity(nn.Module):
    """ℓp similarity to patches, for any p, and a constant: −Σ u·|x − z|^p + c."""

    def __init__(
        self,
        templates: Tensor,
        weights: Tensor,
        p: float,
        constant: Tensor,
        kernel_size: tuple[int, int],
        stride: tuple[int, int],
        padding: int,
    ) -> None:
        super().__init__()
        self.p, self.kernel_size, self.stride, self.padding = p, kernel_size, stride, padding
        self.templates = frozen(templates)
        self.weights = frozen(weights)
        self.constant = frozen(constant)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 4:
            if self.padding:
                x = F.pad(x, [self.padding] * 4)
            x = patches(x, self.kernel_size, self.stride)
        maps = similarity(x, self.templates, self.weights, self.p) + self.constant
        return maps.permute(0, 3, 1, 2) if maps.dim() == 4 else maps


class ProductMex(nn.Module):
    """MEX with offsets over channels, mean over locations, from maps t = β·s (section 2, equation 1).

    h_r = gain·mean_ij log Σ_l E_rl·exp(t_lij) + constant_r with E_rl = exp(β·b_rl − max_l β·b_rl)/n: one
    matrix product of exponentials. The largest t_l of a location is taken away first, so that the largest
    exponent is 0; that the sum cannot underflow is for the one who builds this to see to.
    """

    def __init__(self, exponentials: Tensor, constant: Tensor, gain: float, beta: float | None) -> None:
        """beta: what s still has to be multiplied by, if it could not be folded into what comes before."""
        super().__init__()
        self.gain, self.beta = gain, beta
        self.exponentials = frozen(exponentials)
        self.constant = frozen(constant)

    def forward(self, maps: Tensor) -> Tensor:
        t = maps.flatten(2) if maps.dim() == 4 else maps.unsqueeze(2)
        if self.beta is not None:
            t = self.beta * t
        largest = t.amax(1, keepdim=True)
        sums = torch.matmul(self.exponentials, (t - largest).exp())
        return (sums.log() + largest).mean(2) * self.gain + self.constant


class GeneralMex(nn.Module):
    """The same for every β and every offset: MEX_{β_p}{ λ·MEX_{β_c}{ s_l + b_rl }_l }_ij."""

    def __init__(self, offsets: Tensor, beta: float, scale: float, global_beta: float | None) -> None:
        super().__init__()
        self.beta, self.scale, self.global_beta = beta, scale, global_beta
        self.offsets = frozen(offsets)

    def forward(self, maps: Tensor) -> Tensor:
        classes = mex(maps, self.beta, self.offsets, dim=1)
        if self.scale != 1:
            classes = self.scale * classes
        return classes if self.global_beta is None else mex(classes.flatten(2), self.global_beta)


class Scores(nn.Module):
    """A network without its own normalisation of pixels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.network.scores(x)  # type: ignore[operator]
        return scores


def frozen(value: Tensor) -> nn.Parameter:
    """A constant; filters (n, C, h, w) in the layout that torch's convolutions are fastest on."""
    layout = torch.channels_last if value.dim() == 4 else torch.contiguous_format
    return nn.Parameter(value.detach().clone(memory_format=layout), requires_grad=False)


def convolution(
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int] = (1, 1),
    padding: int = 0,
    depthwise: bool = False,
) -> nn.Conv2d:
    """A convolution with these constants; with `depthwise`, of each channel by itself."""
    out_channels, in_channels, height, width = weight.shape
    groups = out_channels if depthwise else 1
    # on the meta device no starting values are drawn
    layer = nn.Conv2d(
        in_channels * groups,
        out_channels,
        (height, width),
        stride,
        padding,
        groups=groups,
        bias=bias is not None,
        device="meta",
    )
    layer.weight = frozen(weight)
    if bias is not None:
        layer.bias = frozen(bias)
    return layer
