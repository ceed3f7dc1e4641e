"""SimNet MLP: similarities to templates, then MEX (section 3, figure 1(a))."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.models.simnet import SimNet, multiply_similarity
from simnets.models.spec import Mode, OptionalMode, Spec, Stage
from simnets.nn import Mex, Similarity


@dataclass(frozen=True, kw_only=True)
class SimNetMLPSpec(Spec):
    """n templates z with weights u on all coordinates of the input, k MEX units with offsets b.

    input_shape may be (channels, height, width), which is flattened, or (d,) for plain vectors.
    """

    family: ClassVar[str] = "simnet_mlp"

    templates: int
    kind: Literal["lp", "linear"] = "lp"
    p: float = 2.0
    beta: float = 1.0
    templates_mode: Mode = "learned"
    weights_mode: OptionalMode = "learned"
    p_mode: Mode = "frozen"
    offsets_mode: Mode = "learned"
    beta_mode: Mode = "frozen"

    def __post_init__(self) -> None:
        if self.templates < 1:
            raise SimNetsError(f"templates is {self.templates}, expected at least 1")
        if not 0 < self.p < float("inf"):
            raise SimNetsError(f"p is {self.p}, expected a positive number")
        super().__post_init__()

    def stages(self) -> list[Stage]:
        return self._stages(self.input_shape)

    def _stages(self, input_shape: tuple[int, ...]) -> list[Stage]:
        similarity = "linear similarity" if self.kind == "linear" else f"ℓ{self.p:g} similarity"
        families = {"z": self.templates_mode, "u": self.weights_mode}
        if self.kind == "lp":
            families[f"p={self.p:g}"] = self.p_mode
        mex = {"b": self.offsets_mode, f"β={self.beta:g}": self.beta_mode}
        return [
            Stage.of("similarity", similarity, (self.templates,), families),
            Stage.of("classify", "MEX over templates", (self.num_classes,), mex),
        ]

    def build(self) -> SimNetMLP:
        return SimNetMLP(self)


class SimNetMLP(SimNet):
    """h_r(x) = MEX_β{ u_l·φ(x, z_l) + b_rl }_l.

    Example:
        >>> import torch, simnets
        >>> model = simnets.create_model("simnet_mlp", num_classes=3, input_shape=(20,), templates=8)
        >>> model(torch.rand(5, 20)).shape
        torch.Size([5, 3])
    """

    spec: SimNetMLPSpec

    def __init__(self, spec: SimNetMLPSpec) -> None:
        super().__init__(spec)
        self.similarity = Similarity(
            prod(spec.input_shape),
            spec.templates,
            kind=spec.kind,
            p=spec.p,
            templates_mode=spec.templates_mode,
            weights_mode=spec.weights_mode,
            p_mode=spec.p_mode,
        )
        self.classify = Mex(
            spec.templates,
            spec.num_classes,
            beta=spec.beta,
            beta_mode=spec.beta_mode,
            offsets_mode=spec.offsets_mode,
        )

    @torch.no_grad()
    def current_spec(self) -> SimNetMLPSpec:
        return self.spec.replace(p=float(self.similarity.p), beta=float(self.classify.beta))

    def scores(self, x: Tensor) -> Tensor:
        return self.scaled(self.classify(self.similarity(x.flatten(1))))

    @torch.no_grad()
    def fold(self) -> None:
        """λ goes into u (or into z, for a linear similarity without weights), b and β."""
        if (scale := self.scale) is None:
            return
        multiply_similarity(self.similarity, scale)
        self.classify.offsets = self.classify.offsets * scale
        self.classify.beta = self.classify.beta / scale
        self.scale = None
