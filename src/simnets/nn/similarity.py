"""`Similarity`: the similarity operator of section 2 as a layer."""

from __future__ import annotations

import math
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.nn._autocast import full_precision
from simnets.nn._parameters import LOG_WEIGHT, NON_NEGATIVE, POSITIVE, REAL, Layer, Mode
from simnets.ops import similarity


class SimilarityOptions(TypedDict, total=False):
    """The keyword arguments that `Similarity2d` and `ConvSimilarity2d` hand on to their `Similarity`."""

    kind: str
    p: float
    templates_mode: Mode
    weights_mode: Mode
    p_mode: Mode
    bias_mode: Mode
    normalization: bool
    nan_policy: str
    method: str
    device: torch.device | str | None
    dtype: torch.dtype | None


class Similarity(Layer):
    """Similarity to n templates: s_l = Σ_t u_lt·φ(x_t, z_lt) (+ c_l) (+ b_l), section 2.

    φ(x, z) = −|x − z|^p for kind "lp" and x·z for kind "linear". x (..., in_features) → (..., out_features).

    With `normalization`, s_l gets the constant of section 5, c_l = Σ_t log(p·u_lt^{1/p} / (2Γ(1/p))), which
    makes it the log-density of a generalized Gaussian with mean z_l and scales u_l^{−1/p}; `bias` then
    carries the log-prior log λ_l. With nan_policy "omit", NaN coordinates of x are missing data: left out of
    the sum and of c_l, so that s_l is the exact marginal log-density of the coordinates that are there.

    Args:
        in_features, out_features: d and n.
        kind: "lp" or "linear"; the linear form does not read p.
        p: order, any number > 0; its first value where it is learned.
        templates_mode, weights_mode, p_mode, bias_mode: "learned", "frozen", or a layer to share with;
            weights and bias also "none" (u = 1, no b).
        normalization: add c_l.
        nan_policy: "propagate" or "omit".
        method: path of `simnets.similarity`.

    Attributes, all of which can be assigned: `templates` z (n, d); `weights` u ≥ 0 (n, d), exp(raw_weights),
    where an assigned 0 stays 0 in training; `p` > 0, exp(raw_p) where it is learned; `bias` b (n,).

    Example:
        >>> layer = Similarity(3, 2, weights_mode="none")
        >>> layer.templates = [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
        >>> layer(torch.ones(1, 3)).tolist()
        [[-3.0, 0.0]]
    """

    templates: Tensor
    raw_weights: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        kind: str = "lp",
        p: float = 2.0,
        templates_mode: Mode = "learned",
        weights_mode: Mode = "learned",
        p_mode: Mode = "frozen",
        bias_mode: Mode = "none",
        normalization: bool = False,
        nan_policy: str = "propagate",
        method: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value, allowed in (
            ("kind", kind, ("lp", "linear")),
            ("nan_policy", nan_policy, ("propagate", "omit")),
            ("method", method, ("auto", "reference", "expanded", "fused")),
        ):
            if value not in allowed:
                raise SimNetsError(f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}")
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(size, int) or size < 1:
                raise SimNetsError(f"{name}={size!r}: expected a positive int")
        if kind == "linear" and (normalization or p_mode != "frozen"):
            raise SimNetsError(
                "kind='linear' has no order p and no density: leave p_mode and normalization out"
            )
        self.in_features = in_features
        self.out_features = out_features
        self.kind = kind
        self.normalization = normalization
        self.nan_policy = nan_policy
        self.method = method
        shape = (out_features, in_features)
        self._declare("templates", templates_mode, shape, REAL, device=device, dtype=dtype)
        self._declare("weights", weights_mode, shape, NON_NEGATIVE, optional=True, device=device, dtype=dtype)
        self._declare("bias", bias_mode, shape[:1], LOG_WEIGHT, optional=True, device=device, dtype=dtype)
        self._declare_number("p", p_mode, p, POSITIVE, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """For whitened input: z ~ N(0, 1) and u = 1/(2d), so that ℓ2 similarities are about −1; b = 0.

        Linear: z ~ N(0, 1/d), u = 1. p keeps its value, and what is shared with another layer is left alone.
        """
        linear = self.kind == "linear"
        if self._owns("templates"):
            nn.init.normal_(self.templates, std=self.in_features**-0.5 if linear else 1.0)
        if self.raw_weights is not None and self._owns("weights"):
            nn.init.constant_(self.raw_weights, 0.0 if linear else -math.log(2 * self.in_features))
        if self.bias is not None and self._owns("bias"):
            nn.init.zeros_(self.bias)

    @property
    def weights(self) -> Tensor | None:
        """u (n, d), or None where every weight is 1."""
        return self._value("weights")

    @weights.setter
    def weights(self, value: Any) -> None:
        self._assign("weights", value)

    @property
    def p(self) -> Tensor:
        """The order as a 0-dim tensor."""
        return self._number_tensor("p")

    @p.setter
    def p(self, value: Any) -> None:
        self._assign("p", value)

    @property
    def order(self) -> float | Tensor:
        """The order as the operators take it: a float unless it is learned."""
        return self._number("p")

    def log_density_constants(self) -> Tensor:
        """log(p·u^{1/p} / (2Γ(1/p))) for each template and coordinate (n, d), section 5.

        A weight of 0 is not a density; it counts as u = exp(−1000).
        """
        p = self.order
        if isinstance(p, Tensor):
            constant: float | Tensor = p.log() - torch.lgamma(1 / p) - math.log(2)
        else:
            constant = math.log(p) - math.lgamma(1 / p) - math.log(2)
        logarithm = torch.zeros_like(self.templates) if self.raw_weights is None else self.raw_weights / p
        return logarithm + constant

    def constants(self) -> Tensor | None:
        """c_l + b_l (n,), what is added to each similarity whatever x is; None where that is nothing."""
        constants = self.log_density_constants().sum(-1) if self.normalization else None
        if constants is None or self.bias is None:
            return self.bias if constants is None else constants
        return constants + self.bias

    @full_precision
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (self.in_features,):
            raise SimNetsError(f"x: expected shape (..., {self.in_features}), got {tuple(x.shape)}")
        result = similarity(
            x,
            self.templates,
            self.weights,
            self.order,
            kind=self.kind,
            method=self.method,
            nan_policy=self.nan_policy,
        )
        if self.normalization and self.nan_policy == "omit":
            observed = (~x.isnan()).to(result.dtype)
            result = result + observed @ self.log_density_constants().t()
            constants = self.bias
        else:
            constants = self.constants()
        return result if constants is None else result + constants

    def extra_repr(self) -> str:
        order = ["p"] if self.kind == "lp" else []
        words = [
            f"{self.in_features}, {self.out_features}, kind={self.kind}",
            self._describe(*order, "templates", "weights", "bias"),
        ]
        if self.normalization:
            words.append("normalization")
        if self.nan_policy != "propagate":
            words.append(f"nan_policy={self.nan_policy}")
        if self.method != "auto":
            words.append(f"method={self.method}")
        return ", ".join(words)
