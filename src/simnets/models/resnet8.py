"""ResNet-8 of MLPerf Tiny's image classification benchmark: what people use at this size today."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from simnets.models.base import ImageClassifier
from simnets.models.initial import he_normal
from simnets.models.spec import Spec, Stage, convolved

CHANNELS = (16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class ResNet8Spec(Spec):
    """16, 32 and 64 channels. 78,666 numbers: 78,186 learned, 480 running statistics."""

    family: ClassVar[str] = "resnet8"

    def _stages(self, input_shape: tuple[int, ...]) -> list[Stage]:
        size = (input_shape[1], input_shape[2])
        learned = "filters, biases, scales, shifts"
        operation = "convolution 3×3 padded, batch norm, ReLU"
        stages = [Stage("conv", operation, (CHANNELS[0], *size), learned)]
        for number, channels in enumerate(CHANNELS, 1):
            stride = 1 if number == 1 else 2
            size = convolved(size, 3, stride, 1)
            operation = f"residual, two convolutions 3×3{'/2' if stride == 2 else ''} padded"
            stages.append(Stage(f"block{number}", operation, (channels, *size), learned))
        stages.append(Stage("pool", "global average", (CHANNELS[-1],)))
        stages.append(Stage("dense", "dense", (self.num_classes,), "weights, biases"))
        return stages

    def build(self) -> ResNet8:
        return ResNet8(self)


class ResidualBlock(nn.Module):
    """ReLU(shortcut(x) + BN(conv(ReLU(BN(conv(x)))))), with a 1×1 convolution where shapes change."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(channels)
        same = before == channels and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, channels, 1, stride)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu2(self.shortcut(x) + y)
        return out


class ResNet8(ImageClassifier):
    """The Keras network of the benchmark: convolutions with biases, no normalisation on the shortcuts.

    Strided convolutions are padded on all sides; Keras pads them at the bottom and the right only.
    """

    spec: ResNet8Spec

    def __init__(self, spec: ResNet8Spec) -> None:
        super().__init__(spec)
        self.conv = nn.Conv2d(spec.input_shape[0], CHANNELS[0], 3, padding=1)
        self.norm = nn.BatchNorm2d(CHANNELS[0])
        self.relu = nn.ReLU()
        self.block1 = ResidualBlock(CHANNELS[0], CHANNELS[0], 1)
        self.block2 = ResidualBlock(CHANNELS[0], CHANNELS[1], 2)
        self.block3 = ResidualBlock(CHANNELS[1], CHANNELS[2], 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dense = nn.Linear(CHANNELS[2], spec.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                he_normal(module, last=module is self.dense)

    def scores(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(x)))
        x = self.block3(self.block2(self.block1(x)))
        scores: Tensor = self.dense(self.pool(x).flatten(1))
        return scores
