"""Hyperparameters psi: widths of an augmentation, and tensors that layers of the network declare.

A layer declares its own by naming buffers in the class attribute ``hyperparameters``, as
``ConcreteDropout`` does with its logit. A buffer is no parameter of the network, so that no
partition owns it; in each pass psi takes its place. A layer may say what its values mean in a
method ``readable(name, value)`` that returns numbers by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from fedpart.augment import Augmentation
from fedpart.models import Noisy

MASK_TEMPERATURE = 2 / 3


class ConcreteMask(Noisy):
    """Lets each input feature through with a probability that is learned.

    With l the logit that a feature is open, and u ~ U(0, 1) for each example and feature:
    z = sigmoid((l + log u - log(1 - u)) / temperature), output = x z. In evaluation mode z is
    sigmoid(l).

    Attributes:
        logit: [features] float32.
    Source: Maddison et al. 2017; Section 5, "Differentiable input selection".
    """

    hyperparameters = ("logit",)
    logit: Tensor

    def __init__(self, features: int, start: float = 0.5) -> None:
        """Start with every feature open with probability ``start`` in (0, 1)."""
        super().__init__()
        logit = torch.full((features,), start).logit()
        self.register_buffer("logit", logit, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [n, features], each feature times its mask."""
        if not self.training:
            return x * torch.sigmoid(self.logit)
        noise = torch.empty_like(x, requires_grad=False).uniform_(generator=self.generator)
        return x * torch.sigmoid((self.logit + noise.logit_(eps=1e-7)) / MASK_TEMPERATURE)

    def readable(self, name: str, value: Tensor) -> dict[str, float]:
        """Probability that each feature is open."""
        return {f"open_{i + 1}": float(p) for i, p in enumerate(value.double().sigmoid())}


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
        readers: what the values of a tensor mean, by its name.
    """

    augmentation: Augmentation | None
    start: Mapping[str, Tensor]
    readers: Mapping[str, nn.Module]

    @classmethod
    def of(cls, network: nn.Module, augmentation: Augmentation | None) -> "DeclaredPsi":
        """All that the layers of ``network`` declare."""
        start, readers = {}, {}
        for prefix, layer in network.named_modules():
            for own in getattr(layer, "hyperparameters", ()):
                name = f"{prefix}.{own}" if prefix else own
                start[name] = getattr(layer, own).detach().clone().to(torch.float32)
                readers[name] = layer
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
        """Psi as it is optimised, for the records."""
        affine, tensors = self.split(hyper)
        named = {"augmentation": affine.double().tolist()} if self.augmentation else {}
        return named | {name: t.double().reshape(-1).tolist() for name, t in tensors.items()}

    def readable(self, hyper: Tensor) -> dict[str, float]:
        """Psi in plain units, where its layer gives any; else as it is."""
        affine, tensors = self.split(hyper)
        named = self.augmentation.readable(affine) if self.augmentation else {}
        for name, value in tensors.items():
            reader = getattr(self.readers[name], "readable", None)
            if reader is None:
                flat = value.double().reshape(-1).tolist()
                named |= {f"{name}_{i + 1}": number for i, number in enumerate(flat)}
                continue
            # Two layers of one kind would give the same names.
            prefix = f"{name.rpartition('.')[0]}_" if len(tensors) > 1 else ""
            named |= {f"{prefix}{word}": number for word, number in reader(name, value).items()}
        return named
