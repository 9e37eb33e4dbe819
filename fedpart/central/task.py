"""What an experiment trains, on what, and what it is tested on."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedpart.augment import Augmentation

Examples = tuple[Tensor, Tensor]


def first(examples: Examples, most: int | None) -> Examples:
    """The first ``most`` of inputs [n, ...] and labels [n]; all of them where None."""
    return examples[0][:most], examples[1][:most]


@dataclass(frozen=True, eq=False)
class Task:
    """One training problem.

    Attributes:
        model: with its initial weights.
        train: inputs and labels.
        test: inputs and labels.
        source: one sentence on where the data came from.
        augmentation: family whose widths are learned or held fixed, or None.
        hyper: psi at the start, [H], or None for what layers and augmentation start with.
        validation: further inputs and labels that no method trains on, or None.
    """

    model: nn.Module
    train: Examples
    test: Examples
    source: str
    augmentation: Augmentation | None = None
    hyper: Tensor | None = None
    validation: Examples | None = None

    @cached_property
    def data_hash(self) -> str:
        """sha256 over all examples, hex."""
        digest = hashlib.sha256()
        for tensor in (*self.train, *self.test):
            # In parts: all of a large set in float64 may be more than the memory.
            for part in torch.split(tensor, 10_000):
                digest.update(part.to(torch.float64).numpy().tobytes())
        return digest.hexdigest()
