"""Deep SimNets: image classifiers made of a similarity operator and MEX."""

from simnets.errors import SimNetsError
from simnets.ops import mex, similarity

__all__ = ["SimNetsError", "mex", "similarity"]
__version__ = "0.1.0"
