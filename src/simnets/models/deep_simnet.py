"""SimNet MLPConv (section 4.1) and the L-layer SimNet (section 4.3, figure 1(d))."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simnets.errors import SimNetsError
from simnets.models.simnet import SimNet, multiply_similarity
from simnets.models.spec import (
    ADDED,
    ImageTooSmall,
    Mode,
    OptionalMode,
    Spec,
    Stage,
    _replace,
    convolved,
    pooled,
)
from simnets.nn import (
    ConvSimilarity2d,
    GlobalMexPool2d,
    Mex2d,
    MexPool2d,
    MultiplicativeGaussianNoise,
    Similarity2d,
)

INFINITY = float("inf")


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer: conv→ℓp-sim (section 4.2), then MEX pooling if `pool` > 0.

    whitened: channels d of the convolution W; None leaves the convolution out, and templates are compared
        with the patches themselves.
    depthwise: W has one filter for each channel of the input, so that `whitened` is their number.
    templates: channels n of the similarity.
    contrast: if > 0, W sees patches of equal contrast: each patch's mean is taken away, and what is left is
        divided by √(its variance + contrast). For patches of pixels, so for the first layer, and unpadded.
    field, stride, padding: of the patches. The border is padded with each channel's mean value (the
        buffer `padding_mean` of the block, 0 until pre-training sets it): similarities are ≤ 0, so a
        border of zeros would look like a perfect match. Behind a rectified layer it is 0: no match at all.
    kind, p: the similarity, ℓp of order p, or "linear".
    rectify: what is less similar than a learned threshold −b_l counts as not similar at all: a MEX with
        β = ∞ over {s_l + b_l, 0}, before pooling. Needs a bias.
    noise: σ of multiplicative Gaussian noise on the whitened patches, while training.
    pool, pool_stride, pool_beta, pool_ceil: window and stride of MEX pooling, its β (∞: maximum,
        0: average), and whether a last window that is only partly inside counts.
    *_mode: whether W and its bias, z, u, p, the similarity's bias and the pooling's β are learned.
    """

    whitened: int | None
    templates: int
    depthwise: bool = dataclasses.field(default=False, metadata=ADDED)
    contrast: float = dataclasses.field(default=0.0, metadata=ADDED)
    field: int = 5
    stride: int = 1
    padding: int = 0
    kind: Literal["lp", "linear"] = "lp"
    p: float = 2.0
    rectify: bool = dataclasses.field(default=False, metadata=ADDED)
    noise: float = 0.0
    pool: int = 0
    pool_stride: int = 2
    pool_beta: float = INFINITY
    pool_ceil: bool = False
    filters_mode: Mode = "learned"
    conv_bias_mode: OptionalMode = "learned"
    templates_mode: Mode = "learned"
    weights_mode: OptionalMode = "learned"
    p_mode: Mode = "frozen"
    bias_mode: OptionalMode = "none"
    pool_beta_mode: Mode = "frozen"

    def __post_init__(self) -> None:
        for name in ("templates", "field", "stride", "pool_stride"):
            if getattr(self, name) < 1:
                raise SimNetsError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("padding", "pool", "noise", "contrast"):
            if not 0 <= getattr(self, name) < INFINITY:
                raise SimNetsError(f"{name} is {getattr(self, name)}, expected at least 0")
        if self.whitened is not None and self.whitened < 1:
            raise SimNetsError(f"whitened is {self.whitened}, expected at least 1, or None for no whitening")
        if not 0 < self.p < INFINITY:
            raise SimNetsError(f"p is {self.p}, expected a positive number")
        if self.depthwise and self.whitened is None:
            raise SimNetsError("depthwise concerns the convolution W; expected `whitened`, not None")
        if self.contrast and (self.whitened is None or self.depthwise or self.padding):
            raise SimNetsError(
                f"contrast is {self.contrast:g}; expected 0, or a layer with `whitened`, not depthwise "
                "and not padded"
            )
        if self.rectify and self.bias_mode == "none":
            raise SimNetsError("rectify needs a threshold to learn; expected bias_mode 'learned' or 'frozen'")

    def stages(self, number: int, size: tuple[int, int], border: str = "channel means") -> list[Stage]:
        """The rows of layer `number` on a grid of `size`; `border` is what pads it."""
        size = convolved(size, self.field, self.stride, self.padding)
        window = f"{self.field}×{self.field}" + (f"/{self.stride}" if self.stride > 1 else "")
        if self.padding:
            window += f" padded by {self.padding} with {border}"
        similarity = "linear similarity" if self.kind == "linear" else f"ℓ{self.p:g} similarity"
        noise = f", noise σ={self.noise:g}" if self.noise else ""
        families = {"z": self.templates_mode, "u": self.weights_mode, "bias": self.bias_mode}
        if self.kind == "lp":
            families[f"p={self.p:g}"] = self.p_mode
        stages = []
        if self.whitened is None:
            operation = f"{similarity} to patches {window}{noise}"
        else:
            filters = {"W": self.filters_mode, "bias": self.conv_bias_mode}
            contrast = f" of equal contrast (+{self.contrast:g})" if self.contrast else ""
            whiten = f"{'depthwise ' if self.depthwise else ''}convolution {window}{contrast}{noise}"
            stages.append(Stage.of(f"whiten{number}", whiten, (self.whitened, *size), filters))
            operation = similarity
        if self.rectify:
            operation += ", rectified"
        stages.append(Stage.of(f"similarity{number}", operation, (self.templates, *size), families))
        if self.pool:
            if min(size) < self.pool:
                raise ImageTooSmall
            size = pooled(size, self.pool, self.pool_stride, self.pool_ceil)
            operation = f"{_pooling(self.pool_beta)} {self.pool}×{self.pool}/{self.pool_stride}"
            beta = {f"β={self.pool_beta:g}": self.pool_beta_mode}
            stages.append(Stage.of(f"pool{number}", operation, (self.templates, *size), beta))
        return stages


def _pooling(beta: float) -> str:
    return {INFINITY: "max", 0.0: "average", -INFINITY: "min"}.get(beta, "MEX")


@dataclass(frozen=True, kw_only=True)
class DeepSimNetSpec(Spec):
    """L layers, classification MEX (β_c, offsets b), global MEX pooling (β_p).

    In `replace` and in `create_model`, a field of `LayerSpec` changes every layer, or each its own way
    when given as a sequence with a value a layer: `spec.replace(p=1.0)`, `spec.replace(templates=(16, 48))`.
    """

    family: ClassVar[str] = "deep_simnet"

    layers: tuple[LayerSpec, ...]
    classify_beta: float = 1.0
    classify_beta_mode: Mode = "frozen"
    offsets_mode: Mode = "learned"
    global_beta: float = 0.0
    global_beta_mode: Mode = "frozen"

    def __post_init__(self) -> None:
        if not self.layers:
            raise SimNetsError("layers is empty, expected at least one layer")
        channels = self.input_shape[0]
        for number, layer in enumerate(self.layers, 1):
            if layer.depthwise and layer.whitened != channels:
                raise SimNetsError(
                    f"whitened of layer {number} is {layer.whitened}; a depthwise layer has as many as its "
                    f"input has channels, {channels}"
                )
            channels = layer.templates
            if layer.contrast and number > 1:
                raise SimNetsError(
                    f"contrast of layer {number} is {layer.contrast:g}; expected 0 after the first layer"
                )
        super().__post_init__()

    def _stages(self, input_shape: tuple[int, ...]) -> list[Stage]:
        size = (input_shape[1], input_shape[2])
        stages: list[Stage] = []
        border = "channel means"
        for number, layer in enumerate(self.layers, 1):
            stages += layer.stages(number, size, border)
            border = "zeros" if layer.rectify else "channel means"
            size = (stages[-1].output[1], stages[-1].output[2])
        modes = {"b": self.offsets_mode, f"β={self.classify_beta:g}": self.classify_beta_mode}
        stages.append(Stage.of("classify", "MEX over templates", (self.num_classes, *size), modes))
        modes = {f"β={self.global_beta:g}": self.global_beta_mode}
        stages.append(Stage.of("pool", f"global {_pooling(self.global_beta)}", (self.num_classes,), modes))
        return stages

    def replace(self, **changes: Any) -> Self:
        layers = changes.get("layers", self.layers)
        names = {f.name for f in dataclasses.fields(LayerSpec)}
        changed: list[dict[str, Any]] = [{} for _ in layers]  # at once: fields can depend on each other
        for name in [name for name in changes if name in names]:
            value = changes.pop(name)
            values = value if isinstance(value, list | tuple) else [value] * len(layers)
            if len(values) != len(layers):
                raise SimNetsError(f"{name} has {len(values)} values, the network has {len(layers)} layers")
            for fields, one in zip(changed, values, strict=True):
                fields[name] = one
        if any(changed):
            changes["layers"] = tuple(
                _replace(layer, fields, ", ".join(fields))
                for layer, fields in zip(layers, changed, strict=True)
            )
        return super().replace(**changes)

    def build(self) -> DeepSimNet:
        return DeepSimNet(self)


@dataclass(frozen=True, kw_only=True)
class SimNetMLPConvSpec(DeepSimNetSpec):
    """The single-layer case, a SimNet MLP at every position (section 4.1)."""

    family: ClassVar[str] = "simnet_mlpconv"

    def __post_init__(self) -> None:
        if len(self.layers) != 1:
            raise SimNetsError(f"layers has {len(self.layers)} layers, expected one for an MLPConv")
        super().__post_init__()

    def build(self) -> SimNetMLPConv:
        return SimNetMLPConv(self)


class SimNetBlock(nn.Module):
    """One layer of a SimNet: conv→ℓp-sim on patches of the (padded) map, then MEX pooling.

    pads_with_mean: whether the border is the channels' mean; behind a rectified layer it is 0, which there
    means no similarity and not a perfect one.
    """

    padding_mean: Tensor

    def __init__(self, channels: int, spec: LayerSpec, *, pads_with_mean: bool = True) -> None:
        super().__init__()
        self.spec = spec
        self.pads_with_mean = pads_with_mean
        # conv_similarity does not pad by itself: `pad` does, with each channel's own value
        self.register_buffer("padding_mean", torch.zeros(channels))
        self.conv_similarity: ConvSimilarity2d | Similarity2d
        families: dict[str, Any] = {
            "stride": spec.stride,
            "kind": spec.kind,
            "p": spec.p,
            "templates_mode": spec.templates_mode,
            "weights_mode": spec.weights_mode,
            "p_mode": spec.p_mode,
            "bias_mode": spec.bias_mode,
        }
        if spec.whitened is None:
            self.conv_similarity = Similarity2d(channels, spec.templates, spec.field, **families)
        else:
            self.conv_similarity = ConvSimilarity2d(
                channels,
                spec.whitened,
                spec.templates,
                spec.field,
                depthwise=spec.depthwise,
                contrast=spec.contrast,
                filters_mode=spec.filters_mode,
                conv_bias_mode=spec.conv_bias_mode,
                **families,
            )
        self.noise = MultiplicativeGaussianNoise(spec.noise) if spec.noise else None
        self.rectify = nn.ReLU() if spec.rectify else None
        if spec.rectify and spec.kind == "lp":
            # similarities are never positive: at 0 a threshold would let nothing through
            self._start_thresholds()
        self.pool = (
            MexPool2d(
                spec.pool,
                spec.pool_stride,
                beta=spec.pool_beta,
                beta_mode=spec.pool_beta_mode,
                ceil_mode=spec.pool_ceil,
            )
            if spec.pool
            else None
        )

    @torch.no_grad()
    def _start_thresholds(self) -> None:
        """About the mean similarity of whitened input, whose coordinates have mean 0 and variance 1."""
        layer = self.conv_similarity.similarity
        distances = (1 + layer.templates.square()) ** (layer.p / 2)
        assert layer.bias is not None
        layer.bias.copy_((distances if layer.weights is None else layer.weights * distances).sum(1))

    def pad(self, x: Tensor) -> Tensor:
        """`x` with a border of `padding_mean`, or 0; what the patches are cut from."""
        if not self.spec.padding:
            return x
        if not self.pads_with_mean:
            return F.pad(x, [self.spec.padding] * 4)
        mean = self.padding_mean.view(-1, 1, 1)
        return F.pad(x - mean, [self.spec.padding] * 4) + mean

    def similarities(self, x: Tensor) -> Tensor:
        """The maps before rectification and pooling."""
        layer = self.conv_similarity
        x = self.pad(x)
        if self.noise is None or not self.training:
            maps: Tensor = layer(x)
        elif isinstance(layer, Similarity2d):
            maps = layer(self.noise(x))
        else:
            # between the convolution and the similarity: y is centred, so the noise is in proportion
            maps = layer.match(self.noise(layer.whiten(x)))
        return maps

    def forward(self, x: Tensor) -> Tensor:
        x = self.similarities(x)
        for operation in self.after_similarity():
            x = operation(x)
        return x

    def after_similarity(self) -> list[nn.Module]:
        """Rectification and pooling; a maximum is rectified afterwards, the same on a smaller map."""
        operations: list[nn.Module | None] = [self.rectify, self.pool]
        if self.spec.pool_beta == INFINITY and self.spec.pool_beta_mode == "frozen":
            operations.reverse()
        return [operation for operation in operations if operation is not None]

    @torch.no_grad()
    def current_spec(self) -> LayerSpec:
        """`spec` with p and β as they are now."""
        beta = self.spec.pool_beta if self.pool is None else float(self.pool.beta)
        return dataclasses.replace(self.spec, p=float(self.conv_similarity.similarity.p), pool_beta=beta)

    @property
    def natural(self) -> bool:
        """Whether the templates can be learned in natural coordinates."""
        spec = self.spec
        ell2 = spec.kind == "lp" and spec.p == 2 and spec.p_mode == "frozen"
        return spec.whitened is not None and ell2 and spec.weights_mode != "none"

    @torch.no_grad()
    def expect(self, constants: Tensor) -> None:
        """Change the layer's parameters for incoming maps that are larger by `constants` (C,) from now on."""
        layer = self.conv_similarity
        assert isinstance(layer, ConvSimilarity2d)
        assert layer.conv_bias is not None
        # constants are on the CPU: not every device has float64
        moved = layer.of_constants(constants)
        if layer.batch_norm is None:
            layer.conv_bias = layer.conv_bias.to(moved) - moved
        else:
            assert layer.batch_norm.running_mean is not None
            layer.batch_norm.running_mean.add_(moved.to(layer.batch_norm.running_mean))
        self.padding_mean.add_(constants.to(self.padding_mean))

    @torch.no_grad()
    def multiply(self, factor: Tensor) -> None:
        """Change the layer's parameters so that its outputs are `factor` times what they were."""
        layer = self.conv_similarity
        whitening = layer if isinstance(layer, ConvSimilarity2d) else None
        multiply_similarity(layer.similarity, factor, whitening)
        if self.pool is not None:
            self.pool.beta = self.pool.beta / factor


class DeepSimNet(SimNet):
    """Layers of conv→ℓp-sim and MEX pooling, classification MEX at every position, global MEX pooling.

    h_r = MEX_{β_p}{ MEX_{β_c}{ s_l(i, j) + b_rl }_l }_{i,j}, with s the similarity maps of the last layer.

    Example:
        >>> import simnets
        >>> model = simnets.create_model("simnet2")
        >>> sum(p.numel() for p in model.parameters() if p.requires_grad)
        64576
    """

    spec: DeepSimNetSpec

    def __init__(self, spec: DeepSimNetSpec) -> None:
        super().__init__(spec)
        blocks = []
        channels = spec.input_shape[0]
        rectified = False
        for layer in spec.layers:
            blocks.append(SimNetBlock(channels, layer, pads_with_mean=not rectified))
            channels, rectified = layer.templates, layer.rectify
        self.layers = nn.ModuleList(blocks)
        self.classify = Mex2d(
            channels,
            spec.num_classes,
            beta=spec.classify_beta,
            beta_mode=spec.classify_beta_mode,
            offsets_mode=spec.offsets_mode,
        )
        self.pool = GlobalMexPool2d(beta=spec.global_beta, beta_mode=spec.global_beta_mode)

    @torch.no_grad()
    def current_spec(self) -> DeepSimNetSpec:
        return self.spec.replace(
            layers=tuple(block.current_spec() for block in self.blocks),
            classify_beta=float(self.classify.beta),
            global_beta=float(self.pool.beta),
        )

    def similarities(self, x: Tensor) -> Tensor:
        """The last layer's maps s (N, n, H, W) of normalised images."""
        maps: Tensor = self.blocks[-1](self.before_last(x))
        return maps

    def before_last(self, x: Tensor) -> Tensor:
        """What the last layer sees (N, C, H, W), of normalised images."""
        for block in self.blocks[:-1]:
            x = block(x)
        return x

    def scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.pool(self.scaled(self.classify(self.similarities(x))))
        return scores

    @torch.no_grad()
    def to_natural(self, *, hidden: bool = True, last: bool = False) -> None:
        """Learn the templates before the last layer in natural coordinates, where they are ℓ2; scores stay.

        See `ConvSimilarity2d.to_natural`. A rectified layer's own bias takes the constants away. Else MEX
        pooling hands them on as they are, and the next layer's convolution takes them away. With `last`, the
        last layer's templates, too; the offsets of the classification MEX take those constants away.
        """
        for block, following in pairwise([*self.blocks, None]):
            assert block is not None
            if not (last if following is None else hidden):
                continue
            takes = following is None or (
                following.spec.whitened is not None and following.spec.conv_bias_mode != "none"
            )
            if block.natural and (block.spec.rectify or takes):
                assert isinstance(block.conv_similarity, ConvSimilarity2d)
                self._hand_on(block, following, block.conv_similarity.to_natural())

    def _hand_on(self, block: SimNetBlock, following: SimNetBlock | None, constants: Tensor) -> None:
        """Make up for similarities of `block` that are larger by `constants` from now on."""
        if block.rectify is not None:
            similarity = block.conv_similarity.similarity
            assert similarity.bias is not None
            similarity.bias = similarity.bias - constants.to(similarity.bias)
        elif following is not None:
            following.expect(constants)
        else:
            offsets = self.classify.offsets
            self.classify.offsets = offsets.to("cpu", torch.float64) - constants

    @property
    def blocks(self) -> list[SimNetBlock]:
        """The layers, for those who want to know what they are."""
        return [block for block in self.layers if isinstance(block, SimNetBlock)]

    @torch.no_grad()
    def from_natural(self) -> None:
        """Undo `to_natural`."""
        for block, following in pairwise([*self.blocks, None]):
            assert block is not None
            layer = block.conv_similarity
            if isinstance(layer, ConvSimilarity2d) and layer.slope_norms is not None:
                self._hand_on(block, following, -layer.from_natural())

    @torch.no_grad()
    def fold(self) -> None:
        """v and V·A become z and W; λ goes into u and the bias of the last layer, b and β_c."""
        self.from_natural()
        for block in self.layers:
            if isinstance(block.conv_similarity, ConvSimilarity2d):
                block.conv_similarity.fold()
        if (scale := self.scale) is not None:
            self.blocks[-1].multiply(scale)
            self.classify.offsets = self.classify.offsets * scale
            self.classify.beta = self.classify.beta / scale
            self.scale = None


class SimNetMLPConv(DeepSimNet):
    """A SimNet MLP at every position, then global MEX pooling (section 4.1); whitened or not (section 4.2).

    Example:
        >>> import simnets
        >>> plain = simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), whitened=None)
        >>> plain.layers[0].conv_similarity.similarity.templates.shape
        torch.Size([64, 25])
    """
