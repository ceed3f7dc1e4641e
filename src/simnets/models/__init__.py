"""Networks: a frozen specification each, a registry of names, and the baselines they are compared with."""

from simnets.models.base import ImageClassifier
from simnets.models.caffe_quick import CaffeQuick, CaffeQuickSpec
from simnets.models.convnet1 import ConvNet1, ConvNet1Spec
from simnets.models.convnet2 import ConvNet2, ConvNet2Spec
from simnets.models.deep_simnet import (
    DeepSimNet,
    DeepSimNetSpec,
    LayerSpec,
    SimNetBlock,
    SimNetMLPConv,
    SimNetMLPConvSpec,
)
from simnets.models.files import load, save
from simnets.models.nin import NiN, NiNSpec
from simnets.models.registry import (
    create_model,
    list_models,
    list_weights,
    model_spec,
    shipped_accuracies,
    weights_file,
)
from simnets.models.resnet8 import ResNet8, ResNet8Spec
from simnets.models.simnet import SimNet
from simnets.models.simnet_mlp import SimNetMLP, SimNetMLPSpec
from simnets.models.spec import Spec

__all__ = [
    "CaffeQuick",
    "CaffeQuickSpec",
    "ConvNet1",
    "ConvNet1Spec",
    "ConvNet2",
    "ConvNet2Spec",
    "DeepSimNet",
    "DeepSimNetSpec",
    "ImageClassifier",
    "LayerSpec",
    "NiN",
    "NiNSpec",
    "ResNet8",
    "ResNet8Spec",
    "SimNet",
    "SimNetBlock",
    "SimNetMLP",
    "SimNetMLPConv",
    "SimNetMLPConvSpec",
    "SimNetMLPSpec",
    "Spec",
    "create_model",
    "list_models",
    "list_weights",
    "load",
    "model_spec",
    "save",
    "shipped_accuracies",
    "weights_file",
]
