"""One pass over a batch in which each example has a subnetwork of its own.

Layers multiply by all of the weights; what an example's subnetwork lacks is masked. Only node
partitioning allows it: random weight partitioning would need the weights of each subnetwork.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.grad
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from fedpart.layout import Layout
from fedpart.nodes import LAYERS, NORMS, Nodes, arguments

# Untyped in PyTorch.
_conv2d_input: Callable[..., Tensor] = torch.nn.grad.conv2d_input
_conv2d_weight: Callable[..., Tensor] = torch.nn.grad.conv2d_weight


def mixed_forward(
    network: nn.Module,
    nodes: Nodes,
    layout: Layout,
    values: Mapping[str, Tensor],
    images: Tensor,
    k: Tensor,
) -> Tensor:
    """What subnetwork ``k[n]``, with zero as the default, makes of image ``n``.

    Gradient of an example of subnetwork ``k`` reaches partition ``k - 1`` alone, which is the one
    that is trained through it; of subnetwork 0 it reaches no weight. Tensors that psi puts into the
    network get theirs from all examples.

    Args:
        network: the module, in training or evaluation mode as it is.
        nodes: its units.
        layout: of ``nodes.layout``.
        values: the leaves of theta (``Layout.leaves``) and whatever else is put into the network.
        images: [n, c, h, w] float32.
        k: subnetwork of each image, [n] int64 in 0..C.
    Returns:
        [n, num_classes].
    Raises:
        ValueError: a convolution whose padding is a word.
    Source: Appendix C, "Partitioning Schemes": mask inputs and outputs of each layer, and
        gradients.
    """
    with _Mixed(nodes, layout, values, k):
        logits: Tensor = functional_call(network, dict(values), images)
    return logits


class _Product(torch.autograd.Function):
    """Linear layer or convolution without bias; weights learn from the outputs in ``learn``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, learn: Tensor, geometry: tuple[Any, ...] | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight, learn)
        ctx.geometry = geometry
        return F.linear(x, weight) if geometry is None else F.conv2d(x, weight, None, *geometry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight, learn = ctx.saved_tensors
        gradient, down, own = gradients[0], None, None
        if ctx.geometry is None:
            if ctx.needs_input_grad[0]:
                down = gradient @ weight
            if ctx.needs_input_grad[1]:
                own = (gradient * learn).T @ x
        else:
            if ctx.needs_input_grad[0]:
                down = _conv2d_input(x.shape, weight, gradient, *ctx.geometry)
            if ctx.needs_input_grad[1]:
                masked = gradient * learn
                own = _conv2d_weight(x, weight.shape, masked, *ctx.geometry)
        return down, own, None, None


def _along(vectors: Tensor, dims: int) -> Tensor:
    """Rows [n, c] (or [n, ...]) with as many dimensions as a tensor has that they multiply."""
    return vectors.reshape(*vectors.shape, *(1,) * (dims - vectors.dim()))


class _Mixed(TorchFunctionMode):
    def __init__(
        self, nodes: Nodes, layout: Layout, values: Mapping[str, Tensor], k: Tensor
    ) -> None:
        super().__init__()
        self._k = k.unsqueeze(1)
        self._copies = torch.arange(layout.num_partitions, device=k.device)
        self._roles: dict[int, tuple[int, Tensor]] = {}
        for entry in layout.entries:
            if entry.merge != "plain":
                continue
            # All scalars of a unit have its partition: one of each is enough.
            dim = nodes.roles[entry.name].dim
            ids = layout.ids[entry.start : entry.stop].view(entry.shape)
            parts = ids.movedim(dim, 0).flatten(1)[:, 0] if ids.dim() > 1 else ids
            self._roles[id(values[entry.name])] = dim, parts

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name not in LAYERS:
            return func(*args, **(kwargs or {}))
        given = arguments(name, args, kwargs or {})
        x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
        dim, parts = self._roles[id(weight)]
        if name in NORMS:
            result = func(x, weight=None, **given)
            result = result * _along(self._learned(weight, parts), x.dim())
        elif dim == 1:
            # An output layer: masked inputs take the place of masked outputs.
            mine = _along(parts == self._k - 1, x.dim())
            result = func(x * mine, weight, **given) + func(x * ~mine, weight.detach(), **given)
        else:
            learn = _along(parts == self._k - 1, x.dim())
            geometry = None if name == "linear" else _geometry(**given)
            result = _Product.apply(x, weight, learn, geometry)
            result = result * _along(parts < self._k, x.dim())
        if bias is None:
            return result
        if id(bias) in self._roles:
            return result + _along(self._learned(bias, parts), x.dim())
        summed = self._learned(bias, self._copies).sum(1)
        return result + _along(summed, x.dim())

    def _learned(self, value: Tensor, parts: Tensor) -> Tensor:
        """``value`` [c, ...] for each example, [n, c, ...]: 0 beyond its subnetwork."""
        mine, below = (
            _along(mask, value.dim() + 1) for mask in (parts == self._k - 1, parts < self._k - 1)
        )
        return value * mine + value.detach() * below


def _geometry(
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[Any, ...]:
    if isinstance(padding, str):
        raise ValueError(f"a convolution has padding {padding!r}: give it as a number")
    return stride, padding, dilation, groups
