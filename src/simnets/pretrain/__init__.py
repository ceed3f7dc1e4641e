"""Pre-training without labels: whitening, generalized Gaussian mixtures, numbers of channels (section 5)."""

from simnets.pretrain.config import PretrainConfig
from simnets.pretrain.density import MixtureDensity
from simnets.pretrain.mixture import GeneralizedGaussianMixture
from simnets.pretrain.report import LayerReport, PretrainReport
from simnets.pretrain.selection import (
    ComponentChoice,
    DimensionChoice,
    effective_dimension,
    select_components,
)
from simnets.pretrain.structure import Structure, pretrain_structure
from simnets.pretrain.sweep import pretrain_model
from simnets.pretrain.whitening import Whitening, preconditioner

__all__ = [
    "ComponentChoice",
    "DimensionChoice",
    "GeneralizedGaussianMixture",
    "LayerReport",
    "MixtureDensity",
    "PretrainConfig",
    "PretrainReport",
    "Structure",
    "Whitening",
    "effective_dimension",
    "preconditioner",
    "pretrain_model",
    "pretrain_structure",
    "select_components",
]
