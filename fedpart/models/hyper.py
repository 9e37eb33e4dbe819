"""Hyperparameters that layers of a network hold: buffers that psi puts its values in place of.

A layer names its own in the class attribute ``hyperparameters``: the name of a buffer, and a
function that turns its values into plain numbers. One that draws noise takes it from
``self.generator``, which is lent to it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpart.errors import ConfigError
from fedpart.models.draw import Source
from fedpart.models.dropout import ConcreteDropout


@dataclass(frozen=True)
class OwnHyper:
    """One buffer.

    Attributes:
        name: of the buffer in the network.
        initial: its values at the start, float32.
        read: values -> as many plain numbers, for people.
    """

    name: str
    initial: Tensor
    read: Callable[[Tensor], Tensor | float]

    def readable(self, values: Tensor) -> dict[str, float]:
        """Plain numbers: the buffer's name, with a number behind it where there are several.

        Raises:
            ConfigError: the layer's function gives another count, or numbers that are not finite.
        """
        found = self.read(values.detach().clone())
        numbers = torch.as_tensor(found, dtype=torch.float64).flatten().tolist()
        if len(numbers) != values.numel() or not all(map(math.isfinite, numbers)):
            raise ConfigError(
                f"hyperparameter {self.name!r}: its function turns {values.numel()} values into "
                f"{numbers!s:.60}; there must be a finite number for each"
            )
        if len(numbers) == 1:
            return {self.name: numbers[0]}
        return {f"{self.name}_{i}": number for i, number in enumerate(numbers, 1)}


def own_hyperparameters(module: nn.Module) -> list[OwnHyper]:
    """What the layers declare, in the module's order; concrete dropout is counted elsewhere."""
    return [
        OwnHyper(
            f"{prefix}.{name}" if prefix else name,
            part.get_buffer(name).detach().to(torch.float32).clone(),
            read,
        )
        for prefix, part in module.named_modules()
        if not isinstance(part, ConcreteDropout)
        for name, read in getattr(part, "hyperparameters", {}).items()
    ]


@contextmanager
def noise(module: nn.Module, generator: Source) -> Iterator[None]:
    """Lend ``generator`` to all layers of ``module`` that declare hyperparameters."""
    layers = [m for m in module.modules() if hasattr(m, "hyperparameters")]
    for layer in layers:
        layer.generator = generator  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.generator = None  # type: ignore[assignment]
