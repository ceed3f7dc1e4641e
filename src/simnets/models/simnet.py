"""What all SimNets share: the scale λ that helps training, and how it folds into the paper's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.models.base import ImageClassifier
from simnets.models.spec import Spec
from simnets.nn import ConvSimilarity2d, Similarity


class SimNet(ImageClassifier):
    """Scores h = λ·MEX_β{s_l + b_rl}, with λ = 1 in the paper.

    Averages over templates and positions shrink the scores, so training goes faster with a learned λ > 0.
    It adds nothing to what the network can say, since λ·MEX_β{c} = MEX_{β/λ}{λ·c} (section 2): `fold`
    moves it into u, b and β, and afterwards the network is the paper's.
    """

    log_scale: nn.Parameter | None

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.register_parameter("log_scale", None)

    @property
    def scale(self) -> Tensor | None:
        """λ, or None where there is none (λ = 1). Assign a positive number to learn it, None to drop it."""
        return None if self.log_scale is None else self.log_scale.exp()

    @scale.setter
    def scale(self, value: float | Tensor | None) -> None:
        if value is None:
            self.log_scale = None
            return
        given = torch.as_tensor(value, dtype=self.pixel_mean.dtype, device=self.pixel_mean.device).detach()
        if given.numel() != 1 or not bool(given > 0) or not bool(given.isfinite()):
            raise SimNetsError(f"scale is {value}, expected one positive number, or None")
        log = given.reshape(()).log()
        if self.log_scale is None:
            self.log_scale = nn.Parameter(log)
        else:
            with torch.no_grad():
                self.log_scale.copy_(log)

    def scaled(self, scores: Tensor) -> Tensor:
        """λ·scores, while there is a λ."""
        return scores if self.log_scale is None else self.log_scale.exp() * scores

    def fold(self) -> None:
        """Turn what only training needs (λ, preconditioners) into the paper's parameters; scores stay."""
        raise NotImplementedError

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # whether there is a λ is part of the state: a network in training has one, a folded one has not
        stored = prefix + "log_scale" in state_dict
        if stored and self.log_scale is None:
            self.log_scale = nn.Parameter(torch.zeros_like(self.pixel_mean[0]))
        elif not stored:
            self.log_scale = None
        super()._load_from_state_dict(state_dict, prefix, *rest)


@torch.no_grad()
def multiply_similarity(
    similarity: Similarity, factor: Tensor, whitening: ConvSimilarity2d | None = None
) -> None:
    """Change the parameters so that the similarities are `factor` times what they were."""
    if similarity.weights is not None:
        similarity.weights = similarity.weights * factor
    elif similarity.kind == "linear":
        similarity.templates = similarity.templates * factor
    elif whitening is not None:
        # λ·|y − z|^p = |λ^(1/p)·y − λ^(1/p)·z|^p
        root = factor ** (1 / similarity.p)
        whitening.filters = whitening.filters * root
        if whitening.conv_bias is not None:
            whitening.conv_bias = whitening.conv_bias * root
        similarity.templates = similarity.templates * root
    else:
        raise SimNetsError("scale cannot be folded into a similarity that has neither weights nor whitening")
    if similarity.bias is not None:
        similarity.bias = similarity.bias * factor
