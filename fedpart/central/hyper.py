"""Hyperparameters psi: widths of an augmentation, and tensors that layers of the network declare.

A layer declares its own in the class attribute ``hyperparameters``: the name of a buffer, and a
function that turns its values into plain numbers, as ``ConcreteDropout`` does for its logit. A
buffer is no parameter of the network, so that no partition owns it; in each pass psi takes its
place. A layer that draws noise takes it from ``self.generator``, which is lent to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpart.augment import Augmentation
from fedpart.models import CONCRETE_TEMPERATURE

# Values of one tensor in a line of the records.
_MOST = 64


class ConcreteMask(nn.Module):
    """Lets each input feature through with a probability that is learned.

    With l the logit that a feature is open, and u ~ U(0, 1) for each example and feature:
    z = sigmoid((l + log u - log(1 - u)) / temperature), output = x z. In evaluation mode z is
    sigmoid(l).

    Attributes:
        logit: [features] float32.
    Source: Maddison et al. 2017; Section 5, "Differentiable input selection".
    """

    hyperparameters: ClassVar = {"logit": torch.sigmoid}
    logit: Tensor

    def __init__(self, features: int, start: float = 0.1) -> None:
        """Start with every feature open with probability ``start`` in (0, 1)."""
        super().__init__()
        logit = torch.full((features,), start).logit()
        self.register_buffer("logit", logit, persistent=False)
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [n, features], each feature times its mask."""
        if not self.training:
            return x * torch.sigmoid(self.logit)
        noise = torch.empty_like(x, requires_grad=False).uniform_(generator=self.generator)
        return x * torch.sigmoid((self.logit + noise.logit_(eps=1e-7)) / CONCRETE_TEMPERATURE)


class FixedMask(nn.Module):
    """Lets the first ``kept`` of ``features`` inputs through; the others become zero."""

    mask: Tensor

    def __init__(self, features: int, kept: int) -> None:
        """Keep the first ``kept``."""
        super().__init__()
        self.register_buffer("mask", (torch.arange(features) < kept).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [n, features], same shape."""
        return x * self.mask


@dataclass(frozen=True)
class DeclaredPsi:
    """Psi as one flat vector: augmentation first, then the layers' tensors in their order.

    Attributes:
        augmentation: family of affine maps, or None.
        start: the tensors by their name in the network, at the values they start with.
        readers: turn the values of a tensor into plain numbers, by its name.
    """

    augmentation: Augmentation | None
    start: Mapping[str, Tensor]
    readers: Mapping[str, Callable[[Tensor], Tensor | float]]

    @classmethod
    def of(cls, network: nn.Module, augmentation: Augmentation | None) -> "DeclaredPsi":
        """All that the layers of ``network`` declare."""
        start, readers = {}, {}
        for prefix, layer in network.named_modules():
            for own, read in getattr(layer, "hyperparameters", {}).items():
                name = f"{prefix}.{own}" if prefix else own
                start[name] = layer.get_buffer(own).detach().to(torch.float32).clone()
                readers[name] = read
        return cls(augmentation, start, readers)

    @property
    def _num_affine(self) -> int:
        return len(self.augmentation.names) if self.augmentation else 0

    @property
    def size(self) -> int:
        """Number of scalars H; 0 where nothing is learned."""
        return self._num_affine + sum(value.numel() for value in self.start.values())

    def initial(self) -> Tensor:
        """Values at the start, [H] float32."""
        affine = [self.augmentation.initial()] if self.augmentation else []
        return torch.cat([torch.empty(0), *affine, *(v.reshape(-1) for v in self.start.values())])

    def split(self, hyper: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raw augmentation values, and the network's tensors by name."""
        shapes = [value.shape for value in self.start.values()]
        affine, *rest = torch.split(hyper, [self._num_affine, *map(prod, shapes)])
        tensors = (part.view(shape) for part, shape in zip(rest, shapes, strict=True))
        return affine, dict(zip(self.start, tensors, strict=True))

    def raw(self, hyper: Tensor) -> dict[str, list[float]]:
        """Psi as it is optimised, for the records; tensors of weights stand in model.pt alone."""
        affine, tensors = self.split(hyper)
        named = {"augmentation": affine.double().tolist()} if self.augmentation else {}
        return named | {
            name: t.double().reshape(-1).tolist()
            for name, t in tensors.items()
            if t.numel() <= _MOST
        }

    def readable(self, hyper: Tensor) -> dict[str, float]:
        """Psi in plain units by the name of its buffer, numbered where there are several."""
        affine, tensors = self.split(hyper)
        named = self.augmentation.readable(affine) if self.augmentation else {}
        for name, value in tensors.items():
            found = self.readers[name](value.double())
            numbers = torch.as_tensor(found).flatten().tolist()
            names = (
                [name]
                if len(numbers) == 1
                else [f"{name}_{i}" for i in range(1, value.numel() + 1)]
            )
            named |= dict(zip(names, numbers, strict=True))
        return named
