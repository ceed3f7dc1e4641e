"""The two operators as pure functions on tensors."""

from simnets.ops.reference import mex, similarity

__all__ = ["mex", "similarity"]
