"""Layers: the two operators with parameters that can be learned, frozen or shared."""

from simnets.nn.conv_similarity2d import ConvSimilarity2d
from simnets.nn.global_mex_pool2d import GlobalMexPool2d
from simnets.nn.mex import Mex
from simnets.nn.mex2d import Mex2d
from simnets.nn.mex_pool2d import MexPool2d
from simnets.nn.multiplicative_gaussian_noise import MultiplicativeGaussianNoise
from simnets.nn.similarity import Similarity
from simnets.nn.similarity2d import Similarity2d

__all__ = [
    "ConvSimilarity2d",
    "GlobalMexPool2d",
    "Mex",
    "Mex2d",
    "MexPool2d",
    "MultiplicativeGaussianNoise",
    "Similarity",
    "Similarity2d",
]
