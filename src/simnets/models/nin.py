"""Network in Network (Lin et al. 2013), which section 6 compares with the three-layer SimNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.models.base import ImageClassifier
from simnets.models.initial import he_normal
from simnets.models.normalizable_conv import NormalizableConv2d
from simnets.models.spec import Spec, Stage, pooled

FIELDS = (5, 1, 1, 5, 1, 1, 3, 1, 1)


@dataclass(frozen=True, kw_only=True)
class NiNSpec(Spec):
    """Three MLPConv groups of three convolutions; the ninth gives one map a class.

    `channels` are those of the first eight convolutions. `class_relu` puts the ReLU of the published
    network after the class maps too: left out by default, since scores that cannot be negative learn more
    slowly.
    """

    family: ClassVar[str] = "nin"

    channels: tuple[int, ...] = (192, 160, 96, 192, 192, 192, 192, 192)
    dropout: float = 0.5
    class_relu: bool = False

    def __post_init__(self) -> None:
        if len(self.channels) != 8 or min(self.channels) < 1:
            raise SimNetsError(f"channels is {self.channels}, expected eight positive numbers")
        if not 0 <= self.dropout < 1:
            raise SimNetsError(f"dropout is {self.dropout}, expected 0 ≤ dropout < 1")
        super().__post_init__()

    def _stages(self, input_shape: tuple[int, ...]) -> list[Stage]:
        size = (input_shape[1], input_shape[2])
        stages = []
        for index, channels in enumerate((*self.channels, self.num_classes)):
            field = FIELDS[index]
            relu = ", ReLU" if index < 8 or self.class_relu else ""
            operation = f"convolution {field}×{field}{' padded' if field > 1 else ''}{relu}"
            stages.append(Stage(f"conv{index + 1}", operation, (channels, *size), "filters, biases"))
            if index in (2, 5):
                size = pooled(size, 3, 2, ceil=True)
                operation = f"{'max' if index == 2 else 'average'} 3×3/2"
                if self.dropout:
                    operation += f", dropout {self.dropout:g}"
                stages.append(Stage(f"pool{index // 3 + 1}", operation, (channels, *size)))
        return [*stages, Stage("pool", "global average", (self.num_classes,))]

    def build(self) -> NiN:
        return NiN(self)


class NiN(ImageClassifier):
    """5×5, 1×1, 1×1; max; 5×5, 1×1, 1×1; average; 3×3, 1×1, 1×1; global average."""

    spec: NiNSpec

    def __init__(self, spec: NiNSpec) -> None:
        super().__init__(spec)
        modules: list[nn.Module] = []
        before = spec.input_shape[0]
        for index, channels in enumerate((*spec.channels, spec.num_classes)):
            last = index == 8
            field = FIELDS[index]
            convolution = nn.Conv2d if last else NormalizableConv2d
            conv = convolution(before, channels, field, padding=field // 2)
            he_normal(conv, last=last)
            modules.append(conv)
            if not last or spec.class_relu:
                modules.append(nn.ReLU())
            if index == 2:
                modules.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            if index == 5:
                modules.append(nn.AvgPool2d(3, 2, ceil_mode=True))
            if index in (2, 5) and spec.dropout:
                modules.append(nn.Dropout(spec.dropout))
            before = channels
        self.layers = nn.Sequential(*modules)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.pool(self.layers(x)).flatten(1)
        return scores
