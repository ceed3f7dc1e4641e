"""Not in the paper: a ConvNet with the geometry of the two-layer SimNet, to tell operators from geometry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from simnets.models.base import ImageClassifier
from simnets.models.initial import he_normal
from simnets.models.spec import ImageTooSmall, Spec, Stage, convolved, pooled

_FIRST, _SECOND = 32, 64


@dataclass(frozen=True, kw_only=True)
class ConvNet2Spec(Spec):
    """Fields, channels, grids and pooling of `simnet2`."""

    family: ClassVar[str] = "convnet2"

    def _stages(self, input_shape: tuple[int, ...]) -> list[Stage]:
        learned = "filters, biases"
        size = convolved((input_shape[1], input_shape[2]), 5)
        stages = [
            Stage("conv1", "convolution 5×5, ReLU", (_FIRST, *size), learned),
            Stage("match1", "convolution 1×1, ReLU", (_FIRST, *size), learned),
        ]
        if min(size) < 3:
            raise ImageTooSmall
        size = pooled(size, 3, 2, ceil=False)
        stages.append(Stage("pool1", "max 3×3/2", (_FIRST, *size)))
        size = convolved(size, 5)
        stages += [
            Stage("conv2", "convolution 5×5, ReLU", (_SECOND, *size), learned),
            Stage("match2", "convolution 1×1, ReLU", (_SECOND, *size), learned),
            Stage("classify", "convolution 1×1", (self.num_classes, *size), learned),
            Stage("pool", "global average", (self.num_classes,)),
        ]
        return stages

    def build(self) -> ConvNet2:
        return ConvNet2(self)


class ConvNet2(ImageClassifier):
    """`simnet2` with 1×1 convolutions and ReLU for its similarities, and a linear classifier for its MEX."""

    spec: ConvNet2Spec

    def __init__(self, spec: ConvNet2Spec) -> None:
        super().__init__(spec)
        self.conv1 = nn.Conv2d(spec.input_shape[0], _FIRST, 5)
        self.relu1 = nn.ReLU()
        self.match1 = nn.Conv2d(_FIRST, _FIRST, 1)
        self.relu2 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(3, 2)
        self.conv2 = nn.Conv2d(_FIRST, _SECOND, 5)
        self.relu3 = nn.ReLU()
        self.match2 = nn.Conv2d(_SECOND, _SECOND, 1)
        self.relu4 = nn.ReLU()
        self.classify = nn.Conv2d(_SECOND, spec.num_classes, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        for layer in (self.conv1, self.match1, self.conv2, self.match2, self.classify):
            he_normal(layer, last=layer is self.classify)

    def scores(self, x: Tensor) -> Tensor:
        x = self.relu2(self.match1(self.relu1(self.conv1(x))))
        x = self.relu4(self.match2(self.relu3(self.conv2(self.pool1(x)))))
        scores: Tensor = self.pool(self.classify(x)).flatten(1)
        return scores
