"""Deep SimNets: image classifiers made of a similarity operator and MEX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simnets import nn
from simnets.errors import SimNetsError
from simnets.flops import count_cost
from simnets.models import create_model, list_models, load, save
from simnets.ops import mex, similarity

if TYPE_CHECKING:
    from simnets import deploy
    from simnets.estimator import SimNetClassifier
    from simnets.pretrain import PretrainConfig, PretrainReport, pretrain_model

__all__ = [
    "PretrainConfig",
    "PretrainReport",
    "SimNetClassifier",
    "SimNetsError",
    "count_cost",
    "create_model",
    "deploy",
    "list_models",
    "load",
    "mex",
    "nn",
    "pretrain_model",
    "save",
    "similarity",
]
__version__ = "0.1.0"

# Imported when first asked for: they bring scikit-learn along, which using a network does not need.
_LATER = {
    "PretrainConfig": "simnets.pretrain",
    "PretrainReport": "simnets.pretrain",
    "SimNetClassifier": "simnets.estimator",
    "pretrain_model": "simnets.pretrain",
    "deploy": "simnets",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'simnets' has no attribute {name!r}")
    if _LATER[name] == "simnets":
        return import_module(f"simnets.{name}")
    return getattr(import_module(_LATER[name]), name)
