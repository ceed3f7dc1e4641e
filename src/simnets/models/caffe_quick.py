"""Caffe's small CIFAR-10 network, the rival of the two-layer SimNet (section 6, figure 2(c), table 1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.models.base import ImageClassifier
from simnets.models.initial import he_normal
from simnets.models.spec import ADDED, Spec, Stage, pooled

CAFFE_STDS = (1e-4, 0.01, 0.01, 0.1, 0.1)


@dataclass(frozen=True, kw_only=True)
class CaffeQuickSpec(Spec):
    """Caffe's `cifar10_quick`: 145,578 parameters for 10 classes of 32×32 colour images.

    init "he" (default) starts every layer with He's normal values, which trains faster with a modern
    recipe; "caffe" starts with the Gaussians of Caffe's own file, which the paper used. channels are those of
    the three convolutions and of the first dense layer; other numbers compare it at another cost.
    """

    family: ClassVar[str] = "caffe_quick"

    init: Literal["he", "caffe"] = "he"
    channels: tuple[int, ...] = field(default=(32, 32, 64, 64), metadata=ADDED)

    def __post_init__(self) -> None:
        if len(self.channels) != 4 or min(self.channels) < 1:
            raise SimNetsError(f"channels is {self.channels}, expected four positive numbers")
        super().__post_init__()

    def _stages(self, input_shape: tuple[int, ...]) -> list[Stage]:
        size = (input_shape[1], input_shape[2])
        stages = []
        pools = ("max", "average", "average")
        for number, (channels, pool) in enumerate(zip(self.channels[:3], pools, strict=True), 1):
            name = f"conv{number}"
            stages.append(Stage(name, "convolution 5×5 padded, ReLU", (channels, *size), "filters, biases"))
            size = pooled(size, 3, 2, ceil=True)
            stages.append(Stage(f"pool{number}", f"{pool} 3×3/2", (channels, *size)))
        stages.append(Stage("dense1", "dense, ReLU", self.channels[3:], "weights, biases"))
        stages.append(Stage("dense2", "dense", (self.num_classes,), "weights, biases"))
        return stages

    def build(self) -> CaffeQuick:
        return CaffeQuick(self)


class CaffeQuick(ImageClassifier):
    """Three 5×5 convolutions with ReLU and 3×3/2 pooling (max, average, average), two dense layers.

    The first ReLU follows its pooling, as in Caffe's file (with max pooling the order does not matter),
    and pooling rounds up, as Caffe does. The paper puts a ReLU between the dense layers, Caffe's file
    has none; this is the paper's.

    Example:
        >>> import simnets
        >>> sum(p.numel() for p in simnets.create_model("caffe_quick").parameters())
        145578
    """

    spec: CaffeQuickSpec

    def __init__(self, spec: CaffeQuickSpec) -> None:
        super().__init__(spec)
        _, height, width = spec.stages()[-3].output
        first, second, third, hidden = spec.channels
        self.conv1 = nn.Conv2d(spec.input_shape[0], first, 5, padding=2)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(first, second, 5, padding=2)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.AvgPool2d(3, 2, ceil_mode=True)
        self.conv3 = nn.Conv2d(second, third, 5, padding=2)
        self.relu3 = nn.ReLU()
        self.pool3 = nn.AvgPool2d(3, 2, ceil_mode=True)
        self.dense1 = nn.Linear(third * height * width, hidden)
        self.relu4 = nn.ReLU()
        self.dense2 = nn.Linear(hidden, spec.num_classes)
        layers: list[nn.Conv2d | nn.Linear]
        layers = [self.conv1, self.conv2, self.conv3, self.dense1, self.dense2]
        for layer, std in zip(layers, CAFFE_STDS, strict=True):
            he_normal(layer, last=layer is self.dense2)
            if spec.init == "caffe":
                nn.init.normal_(layer.weight, std=std)

    def scores(self, x: Tensor) -> Tensor:
        x = self.relu1(self.pool1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        x = self.pool3(self.relu3(self.conv3(x)))
        scores: Tensor = self.dense2(self.relu4(self.dense1(x.flatten(1))))
        return scores
