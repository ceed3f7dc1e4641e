"""The two operators as pure functions on tensors."""

from simnets.ops._mex import mex
from simnets.ops.reference import similarity

__all__ = ["mex", "similarity"]
