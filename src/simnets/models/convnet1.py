"""The single-layer ConvNet that section 6 compares with the single-layer SimNet (figure 2(a))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.models.base import ImageClassifier
from simnets.models.initial import he_normal
from simnets.models.spec import ImageTooSmall, Spec, Stage, convolved


@dataclass(frozen=True, kw_only=True)
class ConvNet1Spec(Spec):
    """n filters of 5×5, unpadded, as in the study of Coates et al. that the paper follows."""

    family: ClassVar[str] = "convnet1"

    channels: int = 50
    field: int = 5

    def __post_init__(self) -> None:
        for name in ("channels", "field"):
            if getattr(self, name) < 1:
                raise SimNetsError(f"{name} is {getattr(self, name)}, expected at least 1")
        super().__post_init__()

    def _stages(self, input_shape: tuple[int, ...]) -> list[Stage]:
        size = convolved((input_shape[1], input_shape[2]), self.field)
        if min(size) < 2:  # no quadrants
            raise ImageTooSmall
        operation = f"convolution {self.field}×{self.field}, ReLU"
        return [
            Stage("conv", operation, (self.channels, *size), "filters, biases"),
            Stage("pool", "max over quadrants", (self.channels, 2, 2)),
            Stage("dense", "dense", (self.num_classes,), "weights, biases"),
        ]

    def build(self) -> ConvNet1:
        return ConvNet1(self)


class ConvNet1(ImageClassifier):
    """Convolution, ReLU, maximum over the four quadrants, dense classification."""

    spec: ConvNet1Spec

    def __init__(self, spec: ConvNet1Spec) -> None:
        super().__init__(spec)
        _, height, width = spec.stages()[0].output
        self.conv = nn.Conv2d(spec.input_shape[0], spec.channels, spec.field)
        self.relu = nn.ReLU()
        # a middle row or column of an odd grid belongs to the quadrants on both of its sides
        window = ((height + 1) // 2, (width + 1) // 2)
        self.pool = nn.MaxPool2d(window, stride=(height // 2, width // 2))
        self.dense = nn.Linear(4 * spec.channels, spec.num_classes)
        he_normal(self.conv)
        he_normal(self.dense, last=True)

    def scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.dense(self.pool(self.relu(self.conv(x))).flatten(1))
        return scores
