"""Optimisers that know one partition at a time: its moments, its step counter, nobody else's.

Zero gradients fed to a stock optimiser would not do: it lets the moments of untouched weights
decay, and their values with weight decay.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedpart.central.settings import Settings
from fedpart.layout import Layout
from fedpart.optimisers import adam

Moments = tuple[Tensor, ...]
# A number for all values of a partition, or one for each.
Decay = float | Tensor


class Optimiser(Protocol):
    """One step on the values of one partition."""

    def start(self, values: Tensor) -> Moments:
        """Moments before the first step, each like ``values`` [n]."""
        ...

    def step(
        self,
        values: Tensor,
        gradient: Tensor,
        moments: Moments,
        count: int,
        lr: float,
        decay: Decay,
    ) -> tuple[Tensor, Moments]:
        """New values and moments; nothing is changed in place.

        Args:
            values: [n].
            gradient: of the mean loss, [n].
            moments: from ``start`` or an earlier step.
            count: number of this step of this partition, from 1.
            lr: learning rate.
            decay: coefficient of weight decay, or one for each value, [n].
        """
        ...


@dataclass(frozen=True)
class Sgd:
    """SGD with momentum, as ``torch.optim.SGD`` takes it."""

    momentum: float

    def start(self, values: Tensor) -> Moments:
        """See ``Optimiser``."""
        return (torch.zeros_like(values),) if self.momentum else ()

    def step(
        self,
        values: Tensor,
        gradient: Tensor,
        moments: Moments,
        count: int,
        lr: float,
        decay: Decay,
    ) -> tuple[Tensor, Moments]:
        """See ``Optimiser``."""
        gradient = _decayed(gradient, values, decay)
        if moments:
            gradient = gradient.add(moments[0], alpha=self.momentum)
            moments = (gradient,)
        return values.add(gradient, alpha=-lr), moments


@dataclass(frozen=True)
class Adam:
    """Adam, as ``torch.optim.Adam`` takes it; ``decoupled`` makes it AdamW."""

    eps: float
    decoupled: bool = False

    def start(self, values: Tensor) -> Moments:
        """See ``Optimiser``."""
        return torch.zeros_like(values), torch.zeros_like(values)

    def step(
        self,
        values: Tensor,
        gradient: Tensor,
        moments: Moments,
        count: int,
        lr: float,
        decay: Decay,
    ) -> tuple[Tensor, Moments]:
        """See ``Optimiser``."""
        if self.decoupled:
            values = values * (1 - lr * decay)
        else:
            gradient = _decayed(gradient, values, decay)
        m, v = moments
        values, m, v = adam(values, gradient, m, v, step=count, lr=lr, eps=self.eps)
        return values, (m, v)


def _decayed(gradient: Tensor, values: Tensor, decay: Decay) -> Tensor:
    if isinstance(decay, Tensor):
        return gradient.addcmul(values, decay)
    return gradient.add(values, alpha=decay) if decay else gradient


def build_optimiser(settings: Settings) -> Optimiser:
    """The optimiser of the weights that ``settings`` name."""
    if settings.optimiser == "sgd":
        return Sgd(settings.momentum)
    return Adam(settings.adam_eps, decoupled=settings.optimiser == "adamw")


def learning_rate(settings: Settings, iteration: int) -> float:
    """Learning rate of an iteration, which all partitions share; fine-tuning has its own.

    Args:
        settings: schedule, length and rates.
        iteration: counted from 0 over all partitions, not over the steps of one.
    Source: Appendix I, "Gradient optimization of partitioned parameters" (rates go by the total
        number of iterations); Loshchilov and Hutter 2017 (cosine).
    """
    if iteration >= settings.iterations and settings.finetune:
        return settings.finetune_lr
    if settings.schedule == "constant":
        return settings.lr
    done = min(1.0, iteration / (settings.anneal * settings.iterations))
    cosine = (1 + math.cos(math.pi * done)) / 2
    return settings.lr * (settings.lr_end + (1 - settings.lr_end) * cosine)


def decay_factor(settings: Settings, seen: int, examples: int) -> float:
    """How much more a partition decays than the last one.

    Args:
        settings: the rule.
        seen: examples of the chunks that the partition is trained on.
        examples: of all chunks, N.
    Source: Appendix I, "Weight-decay" (reciprocal of the number of examples: the prior of
        w_k weighs 1 / N_k in the mean loss); "CIFAR variations experiments" (square root).
    """
    power = {"reciprocal": 1.0, "root": 0.5, "equal": 0.0}[settings.decay_rule]
    return float((examples / seen) ** power)


def decay_of(layout: Layout, partition: int, coefficient: float) -> Decay:
    """Weight decay for the values of one partition in wire order: none for affine copies.

    Decay pulls a scale to 0, and with it the product over partitions.
    """
    affine = torch.zeros_like(layout.ids, dtype=torch.bool)
    for entry in layout.entries:
        if entry.merge != "plain":
            affine[entry.start : entry.stop] = True
    exempt = layout.take(affine, partition)
    if not coefficient or not exempt.any():
        return coefficient
    return (~exempt).float() * coefficient
