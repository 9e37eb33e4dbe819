"""Uniform noise for one client, or for several that compute side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Streams:
    """Generators of several clients inside ``torch.func.vmap``: each draws its own rows.

    A client draws what it would draw alone, so that its numbers do not depend on who computes
    beside it; rows of padding get the middle of the range.

    Attributes:
        generators: one for each client.
        rows: images of each.
        padded: images of each with padding, the same for all.
        lane: which client, [] inside vmap.
    """

    generators: Sequence[torch.Generator]
    rows: Sequence[int]
    padded: int
    lane: Tensor


Source = torch.Generator | Streams


def uniform(
    source: Source | None,
    shape: Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    order: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Numbers in [low, high), [*shape].

    Args:
        source: where they come from; None for torch's global generator.
        shape: the first dimension is a multiple of the images.
        low: lower end.
        high: upper end.
        dtype: of the result.
        device: of the global generator; any other draws on its own.
        order: of drawing, and of the result in memory.
    """
    if isinstance(source, Streams):
        drawn: Tensor = _Uniform.apply(source.lane, source, tuple(shape), low, high, dtype, order)
        return drawn
    place = device if source is None else source.device
    empty = torch.empty(tuple(shape), dtype=dtype, device=place, memory_format=order)
    return empty.uniform_(low, high, generator=source)


class _Uniform(torch.autograd.Function):
    """``uniform`` of several clients: what vmap does with it is in our hands."""

    @staticmethod
    def forward(
        lane: Tensor,
        source: Streams,
        shape: tuple[int, ...],
        low: float,
        high: float,
        dtype: torch.dtype,
        order: torch.memory_format,
    ) -> Tensor:
        """[clients, *shape]."""
        drawn = torch.full((len(lane), *shape), (low + high) / 2, dtype=dtype, device=lane.device)
        how: Any = {"dtype": dtype, "order": order}
        for one, generator, rows in zip(drawn, source.generators, source.rows, strict=True):
            own = shape[0] * rows // source.padded
            one[:own] = uniform(generator, (own, *shape[1:]), low, high, **how)
        return drawn

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None,) * 7

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _Uniform.apply(*args), 0
