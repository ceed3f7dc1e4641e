"""Deep SimNets: image classifiers made of a similarity operator and MEX."""

from simnets.errors import SimNetsError
from simnets.flops import count_cost
from simnets.models import create_model, list_models, load, save
from simnets.ops import mex, similarity

__all__ = [
    "SimNetsError",
    "count_cost",
    "create_model",
    "list_models",
    "load",
    "mex",
    "save",
    "similarity",
]
__version__ = "0.1.0"
