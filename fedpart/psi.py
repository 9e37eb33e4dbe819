"""The hyperparameters psi as one flat vector, and what a likelihood asks of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedpart.augment import Asymmetric, Augmentation, Generators, Symmetric, natural_values
from fedpart.errors import ConfigError
from fedpart.models import OwnHyper

# Of a width: 16 turns, or 50 times the image.
WIDTH_LIMIT = 100.0


@dataclass(frozen=True)
class HyperSpec:
    """The hyperparameters psi as one flat vector: augmentation first, then dropout logits.

    Attributes:
        augmentation: family of affine maps, or None.
        dropout: names of the learned logits in the network; empty where dropout is fixed.
        dropout_initial: their values at the start.
        own: what other layers of the network declare.
    """

    augmentation: Augmentation | None
    dropout: tuple[str, ...]
    dropout_initial: tuple[float, ...]
    own: tuple[OwnHyper, ...] = ()

    @property
    def _num_affine(self) -> int:
        return len(self.augmentation.names) if self.augmentation else 0

    @property
    def size(self) -> int:
        """Number of scalars H; 0 where nothing is learned."""
        return self._num_affine + len(self.dropout) + sum(h.initial.numel() for h in self.own)

    def initial(self) -> Tensor:
        """Values at the start, [H] float32."""
        affine = [self.augmentation.initial()] if self.augmentation else []
        logits = torch.tensor(self.dropout_initial, dtype=torch.float32)
        return torch.cat([*affine, logits, *(h.initial.flatten() for h in self.own)])

    def split(self, hyper: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raw augmentation values, and what the network holds, by name."""
        sizes = [self._num_affine, len(self.dropout), *(h.initial.numel() for h in self.own)]
        affine, logits, *own = torch.split(hyper, sizes)
        named = dict(zip(self.dropout, logits.unbind(), strict=True))
        return affine, named | {
            h.name: values.view(h.initial.shape) for h, values in zip(self.own, own, strict=True)
        }

    def raw(self, hyper: Tensor) -> dict[str, list[float]]:
        """Psi as it is optimised, for the records."""
        affine, held = self.split(hyper.double())
        named = {}
        if self.augmentation:
            named["augmentation"] = affine.tolist()
        if self.dropout:
            named["dropout_logits"] = [float(held[name]) for name in self.dropout]
        return named | {h.name: held[h.name].flatten().tolist() for h in self.own}

    def readable(self, hyper: Tensor) -> dict[str, float]:
        """Psi in plain units: degrees, fractions of half the image, factors, drop rates."""
        return dict(self._told(hyper))

    def _told(self, hyper: Tensor) -> Iterator[tuple[str, float]]:
        affine, held = self.split(hyper)
        if self.augmentation:
            yield from self.augmentation.readable(affine).items()
        for i, name in enumerate(self.dropout, 1):
            yield f"dropout_{i}", float(held[name].double().sigmoid())
        for own in self.own:
            yield from own.readable(held[own.name]).items()

    def names(self) -> tuple[str, ...]:
        """The names that ``readable`` gives, each once.

        Raises:
            ConfigError: two are the same.
        """
        names = tuple(name for name, _ in self._told(self.initial()))
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two hyperparameters are named {name!r}: name one otherwise")
        return names


def runaway(psi: "Psi", hyper: Tensor) -> tuple[str, float] | None:
    """What shows that psi has left every useful range, and its value; None where it has not.

    Args:
        psi: what ``hyper`` is made of.
        hyper: [H].
    Returns:
        the first value that is not finite, or the largest width of an affine map beyond
        ``WIDTH_LIMIT`` in natural units.
    """
    bad = hyper[~hyper.isfinite()]
    if len(bad):
        return "psi", float(bad[0])
    family = psi.augmentation
    if not isinstance(family, Symmetric | Asymmetric | Generators):
        return None
    widths = natural_values(family, psi.split(hyper)[0])
    worst = int(widths.abs().argmax())
    if widths[worst].abs() <= WIDTH_LIMIT:
        return None
    return f"{family.names[worst]} in natural units", float(widths[worst])


class Psi(Protocol):
    """The hyperparameters psi as one flat vector, [H]: what the likelihood asks of them."""

    @property
    def augmentation(self) -> Augmentation | None:
        """Family of affine maps of the inputs, or None."""
        ...

    @property
    def size(self) -> int:
        """Number of scalars H; 0 where nothing is learned."""
        ...

    def split(self, hyper: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raw augmentation values, and the network's tensors that psi replaces, by name."""
        ...
