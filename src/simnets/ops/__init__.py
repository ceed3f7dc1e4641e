"""The two operators as pure functions on tensors."""

from simnets.ops._mex import mex
from simnets.ops._similarity import similarity

__all__ = ["mex", "similarity"]
