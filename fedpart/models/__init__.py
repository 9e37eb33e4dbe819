"""Networks: the paper's, concrete dropout, and the user's own modules."""

from fedpart.models.build import MODELS, build_model, check_module, noise_images, try_out
from fedpart.models.digits import MnistCNN
from fedpart.models.draw import Source, Streams, uniform
from fedpart.models.dropout import (
    CONCRETE_TEMPERATURE,
    ConcreteDropout,
    dropout_rates,
    swap_dropout,
)
from fedpart.models.fixup import FixupResNet
from fedpart.models.half import BatchedHalf
from fedpart.models.hyper import OwnHyper, noise, own_hyperparameters
from fedpart.models.mlp import MLP
from fedpart.models.resnet9 import ResNet9, ResNet9Narrow
from fedpart.models.wide import WideResNet

__all__ = [
    "CONCRETE_TEMPERATURE",
    "MLP",
    "MODELS",
    "BatchedHalf",
    "ConcreteDropout",
    "FixupResNet",
    "MnistCNN",
    "OwnHyper",
    "ResNet9",
    "ResNet9Narrow",
    "Source",
    "Streams",
    "WideResNet",
    "build_model",
    "check_module",
    "dropout_rates",
    "noise",
    "noise_images",
    "own_hyperparameters",
    "swap_dropout",
    "try_out",
    "uniform",
]
