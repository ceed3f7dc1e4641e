"""`Mex`: the MEX operator of section 2 as a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.nn._offsets import OffsetsLayer
from simnets.nn._parameters import Mode
from simnets.ops import mex


class Mex(OffsetsLayer):
    """h_r = MEX_β{x_l + b_rl}_l = (1/β)·log((1/n)·Σ_l exp(β·(x_l + b_rl))), the MEX operator: section 2.

    After a `Similarity` it makes the SimNet MLP of section 3. x (..., in_features) → (..., out_features).

    Args:
        in_features, out_features: n and k.
        beta: any number, 0 (mean), inf (maximum), -inf (minimum); its first value where it is learned.
        beta_mode: "learned" (β then is finite), "frozen", or a layer to share with.
        offsets_mode: the same.
        normalized: take each output's MEX_β{b_rl}_l away from its offsets, so that its weights exp(β·b_rl)/n
            sum to one.
        approximation: name of an approximation of exp and log in `simnets.mex`, or None for the exact ones.

    Attributes, which can be assigned: `offsets` b (k, n), `beta`. `effective_offsets` is what is added to x.

    Example:
        >>> layer = Mex(3, 2, beta=float("inf"))
        >>> layer.offsets = [[0.0, 0.0, 0.0], [5.0, 0.0, 0.0]]
        >>> layer(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [3.0, 6.0]
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        beta: float = 1.0,
        beta_mode: Mode = "frozen",
        offsets_mode: Mode = "learned",
        normalized: bool = False,
        approximation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(size, int) or size < 1:
                raise SimNetsError(f"{name}={size!r}: expected a positive int")
        self.in_features = in_features
        self.out_features = out_features
        self.normalized = normalized
        self.approximation = approximation
        self._declare_beta(beta, beta_mode, device, dtype)
        self._declare_offsets(offsets_mode, (out_features, in_features), device, dtype)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (self.in_features,):
            raise SimNetsError(f"x: expected shape (..., {self.in_features}), got {tuple(x.shape)}")
        return mex(x, self._number("beta"), self.effective_offsets, approximation=self.approximation)

    def extra_repr(self) -> str:
        words = [f"{self.in_features}, {self.out_features}", self._describe("beta", "offsets")]
        if self.normalized:
            words.append("normalized")
        if self.approximation is not None:
            words.append(f"approximation={self.approximation}")
        return ", ".join(words)
