"""Networks: the paper's, concrete dropout, and the user's own modules."""

from fedpart.models.build import MODELS, build_model, refuse_running_statistics
from fedpart.models.digits import MnistCNN
from fedpart.models.dropout import CONCRETE_TEMPERATURE, ConcreteDropout, noise, swap_dropout
from fedpart.models.fixup import FixupResNet
from fedpart.models.mlp import MLP
from fedpart.models.resnet9 import ResNet9, ResNet9Narrow
from fedpart.models.wide import WideResNet

__all__ = [
    "CONCRETE_TEMPERATURE",
    "MLP",
    "MODELS",
    "ConcreteDropout",
    "FixupResNet",
    "MnistCNN",
    "ResNet9",
    "ResNet9Narrow",
    "WideResNet",
    "build_model",
    "noise",
    "refuse_running_statistics",
    "swap_dropout",
]
