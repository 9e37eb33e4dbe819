"""The paper's toy problems: which of 30 inputs say anything about the label."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from fedpart.central.config import CentralConfig
from fedpart.central.hyper import ConcreteMask, FixedMask
from fedpart.central.task import Task
from fedpart.streams import global_seed, numpy_rng, torch_seed

FEATURES, INFORMATIVE = 30, 15


def draw(size: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Examples of the input selection task.

    y ~ Bern(1/2), x = [y + e_1 .. y + e_15, e_16 .. e_30], e ~ N(0, 1).

    Args:
        size: how many.
        rng: where they come from.
    Returns:
        inputs [size, 30] float32, labels [size] int64.
    Source: Section 5, "Input Selection"; Lyle et al. 2020.
    """
    labels = rng.integers(0, 2, size)
    inputs = rng.standard_normal((size, FEATURES))
    inputs[:, :INFORMATIVE] += labels[:, None]
    return torch.from_numpy(inputs).float(), torch.from_numpy(labels)


def mlp(out_features: int, in_features: int, width: int = 256) -> nn.Sequential:
    """Two hidden layers with GELU: 73,985 parameters for 30 inputs and one output.

    Weights start Kaiming-uniform (He's bound for ReLU, which GELU is close to), biases at zero.

    Args:
        out_features: number of outputs.
        in_features: number of inputs.
        width: units of each hidden layer.
    Source: Appendix I, "Architecture choices", input selection experiments.
    """
    sizes = (in_features, width, width, out_features)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.kaiming_uniform_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.GELU()]
    return nn.Sequential(*layers[:-1])


def _task(config: CentralConfig, mask: Callable[[], nn.Module]) -> Task:
    with global_seed(torch_seed(config.seed, "init")):
        model = nn.Sequential(OrderedDict(mask=mask(), mlp=mlp(2, FEATURES)))
    # Train and test from streams of their own: more of one leaves the other as it is.
    train, test = (
        draw(size, numpy_rng(config.data_seed, "input-selection", which))
        for which, size in enumerate((config.train_size, config.test_size))
    )
    return Task(model, train, test, f"drawn from data seed {config.data_seed}")


def input_selection(config: CentralConfig) -> Task:
    """A fixed mask: the first K inputs stay. Source: Section 5, "Input Selection"."""
    (kept,) = config.inputs
    return _task(config, lambda: FixedMask(FEATURES, kept))


def mask_learning(config: CentralConfig) -> Task:
    """A mask to be learned. Source: Section 5, "Differentiable input selection"."""
    return _task(config, lambda: ConcreteMask(FEATURES, config.mask_start))
