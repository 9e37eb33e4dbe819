"""Node partitioning: whole units of linear layers and channels of convolutions have a partition.

With zero as the default, the weights of a subnetwork alone make the units that it does not have
zero everywhere, so training, messages and evaluation are those of random weight partitioning. What
is left is to find out which parameters belong to the same unit: a pass over blank images notes it.
Statistics of GroupNorm count these zeros too. Weights by which an earlier unit reads a later one
belong to the earlier, and so keep their initial values: no subnetwork trains them.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from fedpart.errors import ConfigError, cause
from fedpart.layout import Layout, largest_remainder
from fedpart.models import noise

# Arguments of functions with weights, in order.
LAYERS = {
    "linear": ("input", "weight", "bias"),
    "conv2d": ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
}
NORMS = frozenset({"group_norm", "layer_norm", "rms_norm"})
# They keep units apart and zero at zero.
_KEEP = frozenset(
    {"relu", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardtanh"}
    | {"relu6", "tanh", "dropout", "dropout1d", "dropout2d", "max_pool2d", "avg_pool2d", "neg"}
    | {"adaptive_avg_pool2d", "adaptive_max_pool2d", "amax", "mean", "sum", "div", "to", "float"}
    | {"contiguous", "clone", "mul"}
)
_REDUCE = frozenset({"amax", "mean", "sum"})
_FLATTEN = frozenset({"flatten", "view", "reshape", "squeeze"})
_TIE = frozenset({"add", "sub", "mul"})
# Their results have the shape of units, and none of their values.
_BLANK = frozenset({"empty_like", "rand_like", "randn_like", "new_empty"})


def arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a function of ``LAYERS`` by name; those that are not given are missing."""
    return dict(zip(LAYERS[name], args, strict=False)) | dict(kwargs)


@dataclass(frozen=True)
class Role:
    """Which units a parameter belongs to.

    Attributes:
        group: number of the set of units; layers whose outputs are added share one.
        dim: 0 for units that the parameter makes, 1 for units that an output layer reads.
        repeat: entries along ``dim`` that each unit has, as behind a flattened image.
    """

    group: int
    dim: int = 0
    repeat: int = 1


@dataclass(frozen=True)
class Nodes:
    """How the parameters of a network hang together.

    Attributes:
        sizes: group -> units in it, in the order of the forward pass.
        roles: parameter -> its units; all parameters but ``copied``.
        copied: biases of output layers, which have a copy for each partition, summed.
    """

    sizes: dict[int, int]
    roles: dict[str, Role]
    copied: frozenset[str]

    def layout(
        self, module: nn.Module, proportions: Sequence[float], rng: np.random.Generator
    ) -> Layout:
        """Node partitioning: a fixed share of the units of every layer.

        Args:
            module: the network that was read.
            proportions: share of each partition, [C], sums to 1.
            rng: decides which units go where.
        Raises:
            ConfigError: see ``Layout.assign``; or a layer without a unit in partition 0.
        Source: Appendix C, "Partitioning Schemes", node partitioning. Output layers keep all
            classes: their weights go with the units they read, and copies of their biases add up
            (the paper does not say). Norms go with the units they scale.
        """
        parts = {}
        for group, size in self.sizes.items():
            counts = largest_remainder(size, proportions)
            if counts[0] == 0:
                raise _refusal(
                    f"a layer of {size} units has none for a first partition of {proportions[0]:g}"
                )
            parts[group] = rng.permutation(np.repeat(np.arange(len(proportions)), counts))

        def labels(name: str, parameter: nn.Parameter) -> np.ndarray:
            role = self.roles[name]
            along = parts[role.group].repeat(role.repeat)
            shape = [-1 if d == role.dim else 1 for d in range(parameter.dim())]
            return np.broadcast_to(along.reshape(shape), parameter.shape).ravel()

        return Layout.assign(module, len(proportions), dict.fromkeys(self.copied, "sum"), labels)


def read_nodes(module: nn.Module, images: Tensor) -> Nodes:
    """Find the units of a network by sending images through it, dropout on.

    Args:
        module: the network, in training mode or not.
        images: [n, c, h, w], n at least 1.
    Raises:
        ConfigError: something else than linear layers, convolutions and norms with a scale that
            are joined by sums, pooling and functions that are zero at zero; or a forward pass that
            fails.
    """
    # Of its own: a forward pass may write to weights, and layers may share one.
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    reader = _Reader(parameters)
    training = module.training
    try:
        with torch.no_grad(), noise(module.train(), torch.Generator().manual_seed(0)), reader:
            logits = functional_call(module, parameters, images)
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's model raises is the user's to read
        raise _refusal(f"in training it fails: {cause(traceback.format_exc())}") from error
    finally:
        module.train(training)
    return reader.nodes(logits)


def _refusal(why: str) -> ConfigError:
    return ConfigError(f"this model has no node partitioning ({why}): use --scheme random")


@dataclass(frozen=True)
class _Units:
    group: int
    repeat: int = 1


class _Reader(TorchFunctionMode):
    """Notes for every tensor of a forward pass which units lie along its dimension 1."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(p): name for name, p in parameters.items()}
        # Tensors are kept, since another could get the number of one that is gone.
        self._seen: dict[int, tuple[Tensor, _Units]] = {}
        self._sizes: list[int] = []
        self._tied: list[int] = []
        self._made: dict[str, _Units] = {}
        self._read: dict[str, _Units | None] = {}
        self._inputs: set[int] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.__name__.strip("_")
        results = result if isinstance(result, tuple | list) else (result,)
        given = (a if isinstance(a, tuple | list) else (a,) for a in (*args, *kwargs.values()))
        known = [t for several in given for t in several if self._units(t)]
        if name in LAYERS:
            self._layer(name, arguments(name, args, kwargs), result)
        elif known and name not in _BLANK and any(r is None or torch.is_tensor(r) for r in results):
            units = self._kept(func, known, args, kwargs, result)
            self._note(result, units)
        return result

    def _units(self, value: object) -> _Units | None:
        return self._seen[id(value)][1] if id(value) in self._seen else None

    def _note(self, tensor: Tensor, units: _Units) -> None:
        self._seen[id(tensor)] = (tensor, units)

    def _root(self, group: int) -> int:
        while self._tied[group] != group:
            group = self._tied[group]
        return group

    def _tie(self, one: _Units, other: _Units) -> _Units:
        if (self._sizes[one.group], one.repeat) != (self._sizes[other.group], other.repeat):
            raise _refusal("it joins layers with other numbers of units")
        first, second = sorted((self._root(one.group), self._root(other.group)))
        self._tied[second] = first
        return one

    def _layer(self, name: str, given: dict[str, Any], result: Tensor) -> None:
        units, weight = self._units(given["input"]), given.get("weight")
        used = [given[p] for p in ("weight", "bias") if given.get(p) is not None]
        if any(id(p) not in self._names for p in used):
            raise _refusal(f"{name} takes weights that are computed")
        names = [self._names[id(p)] for p in used]
        if units is not None:
            self._inputs.add(units.group)
        if name in NORMS:
            if units is None or weight is None or len(weight) != result.shape[1]:
                raise _refusal(f"{name} without a scale for each unit")
            if name != "group_norm" and weight.dim() != result.dim() - 1:
                raise _refusal(f"{name} over a part of a unit")
        else:
            if weight is None or weight.dim() != result.dim() or given.get("groups", 1) != 1:
                raise _refusal(f"{name} of something else than all units of a batch")
            before = self._read.setdefault(names[0], units)
            if before is not None and units is not None:
                self._tie(before, units)
            elif before is not units:
                raise _refusal("a layer sees both images and units")
            units = self._made.get(names[0]) or self._new(len(weight))
        for parameter in names:
            self._tie(self._made.setdefault(parameter, units), units)
        self._note(result, units)

    def _new(self, size: int) -> _Units:
        self._tied.append(len(self._tied))
        self._sizes.append(size)
        return _Units(len(self._sizes) - 1)

    def _kept(
        self, func: Callable[..., Any], known: list[Tensor], args: Any, kwargs: Any, result: Any
    ) -> _Units:
        """Units of what ``func`` makes of units.

        Raises:
            ConfigError: it mixes them, or makes something of zero.
        """
        name = func.__name__.strip("_")
        x, found = known[0], [u for t in known if (u := self._units(t))]
        if name in _TIE and len(known) == 2 and known[0].shape == known[1].shape:
            return self._tie(*found)
        if name in _FLATTEN and result.dim() == 2 and len(result) == len(x):
            group = found[0].group
            return _Units(group, result.shape[1] // self._sizes[group])
        over = kwargs.get("dim", args[1] if len(args) > 1 else None) if name in _REDUCE else ()
        over = (over,) if isinstance(over, int) else over
        # Of images, [n, c, h, w], height and width may go.
        apart = over is not None and all(x.dim() == 4 and d % 4 in (2, 3) for d in over)
        if name in _KEEP and len(known) == 1 and apart and result.shape[:2] == x.shape[:2]:
            blank = func(*(torch.zeros_like(a) if a is x else a for a in args), **kwargs)
            # Not a number is something too.
            if not blank.any():
                return found[0]
        other = " with something else" if name in _TIE else ""
        raise _refusal(f"its units go through {name}{other}")

    def nodes(self, logits: Tensor) -> Nodes:
        """What was noted, for a network that gives ``logits``."""
        outputs = self._units(logits)
        if outputs is None:
            raise _refusal("its outputs are not those of a linear layer or a convolution")
        last = self._root(outputs.group)
        if last in {self._root(g) for g in self._inputs}:
            raise _refusal("its outputs are also inputs of a layer or norm")
        if missing := [n for n in self._names.values() if n not in self._made]:
            raise _refusal(f"parameter {missing[0]} belongs to no unit")
        roles, copied = {}, set()
        for name in self._names.values():
            units = self._made[name]
            if self._root(units.group) != last:
                roles[name] = Role(self._root(units.group), repeat=units.repeat)
            elif name not in self._read:
                copied.add(name)
            else:
                read = self._read[name]
                if read is None:
                    raise _refusal("an output layer sees images as they are")
                roles[name] = Role(self._root(read.group), 1, read.repeat)
        sizes = {g: self._sizes[g] for g in sorted({r.group for r in roles.values()})}
        return Nodes(sizes, roles, frozenset(copied))
