"""What can be chosen about pre-training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Self

from simnets.errors import SimNetsError


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """How each layer is pre-trained. `PretrainConfig.exact()` is section 5 to the letter.

    patches, max_bytes: how many patches of a layer's input are sampled, and the memory they may take.
    batch_size: images that pass through the model at a time.
    whitening: "ica", "pca" or "zca".
    ridge: damps directions of little variance, see `Whitening`, and bounds the pooled weights of coordinates
        of little variance likewise, α^β + ridge·mean α^β; 0 for exactly white patches.
    precondition: learn W = V·A in whitened coordinates from now on, with A = `preconditioner(covariance,
        ridge)`. With PCA or ICA the rows of V are orthonormal. `model.fold()` undoes it after training.
    shape: of the mixture. "layer": the layer's p where p is frozen, estimated where p is learned;
        "estimate": estimated, and p is set to it; or a number, which p is set to.
    weights: "mixture": each template has the weights u = α^−β of its component; "pooled": all have the same,
        from the scales within components on the average.
    perplexity: the similarities of the layer before the classification MEX are scaled so that the posterior
        over templates, softmax_l(β_c·(s_l + b_l)), has this perplexity, exp of its mean entropy; but at most
        half the number of templates. None leaves the scale as the mixture has it.
    unit_output: the similarities of the other layers are scaled to a standard deviation of 1. The next layer
        whitens its input, so this changes no later estimate; it keeps gradients and filters of one size.
    energy: ℓ2 layers before the last get templates that lie far away, in the directions of the clusters, with
        small weights. Their similarities are then nearly linear, −Σ u·y² having `energy` times the standard
        deviation of Σ 2uz·y: squares of squares have tails that no later layer can use. None keeps the
        mixture's own templates and weights.
    offsets: set b_l = c_l where there is a bias or a succeeding MEX.
    offset_noise: standard deviation of what is added to the offsets of a MEX, whose outputs would otherwise
        be the same, and give the layers below no gradient.
    iterations: of EM, at most; 0 keeps the k-means clusters that EM starts from. EM explains heavy-tailed
        patches by components that lie close together and differ in scale. Where the weights are pooled these
        are alike, and a network starts from few distinct templates (docs/training_notes.md).
    tolerance: a gain in mean log-likelihood below which EM stops; it is an error if EM does not get there.
        None stops at 1e-3 and accepts what `iterations` reach.
    stochastic: stochastic ICA and EM, mini-batches of `batch_rows` patches, instead of full-batch ones.
    layers: names of the layers to pre-train; None for all.
    """

    patches: int = 100_000
    max_bytes: int = 1 << 30
    batch_size: int = 250
    whitening: Literal["ica", "pca", "zca"] = "ica"
    ridge: float = 0.1
    precondition: bool = False
    shape: float | Literal["layer", "estimate"] = "layer"
    weights: Literal["mixture", "pooled"] = "pooled"
    perplexity: float | None = 10.0
    unit_output: bool = True
    energy: float | None = None
    offsets: bool = True
    offset_noise: float = 0.1
    iterations: int = 30
    tolerance: float | None = None
    stochastic: bool = False
    batch_rows: int = 2_000
    layers: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, values in (("whitening", ("ica", "pca", "zca")), ("weights", ("mixture", "pooled"))):
            if getattr(self, name) not in values:
                raise SimNetsError(f"{name}={getattr(self, name)!r}; expected one of {', '.join(values)}")
        for name, least in (
            ("patches", 1),
            ("max_bytes", 1),
            ("batch_size", 1),
            ("iterations", 0),
            ("batch_rows", 1),
        ):
            if getattr(self, name) < least:
                raise SimNetsError(f"{name}={getattr(self, name)}; expected at least {least}")
        for name in ("ridge", "offset_noise"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SimNetsError(f"{name}={getattr(self, name)}; expected a number ≥ 0")
        if self.perplexity is not None and not 1 < self.perplexity < math.inf:
            raise SimNetsError(f"perplexity={self.perplexity}; expected a number above 1, or None")
        if self.energy is not None and not 0 < self.energy < math.inf:
            raise SimNetsError(f"energy={self.energy}; expected a number above 0, or None")
        if self.tolerance is not None and not self.tolerance > 0:
            raise SimNetsError(f"tolerance={self.tolerance}; expected a number above 0: EM never gains less")
        if isinstance(self.shape, str):
            if self.shape not in ("layer", "estimate"):
                raise SimNetsError(f"shape={self.shape!r}; expected 'layer', 'estimate' or a number above 0")
        elif not 0 < self.shape < math.inf:
            raise SimNetsError(f"shape={self.shape}; expected a number above 0")

    @classmethod
    def exact(cls, **changes: Any) -> Self:
        """The paper's scheme and nothing else: ICA without damping, u = α^−β, b_l = c_l."""
        plain: dict[str, Any] = {
            "ridge": 0.0,
            "weights": "mixture",
            "perplexity": None,
            "unit_output": False,
            "offset_noise": 0.0,
        }
        return cls(**(plain | changes))
