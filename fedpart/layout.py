"""Partitioned networks as pure functions of one flat parameter vector.

The vector ``theta`` [P] holds every trainable scalar of the network once, and every affine
parameter of a normalisation layer C times (one copy a partition). ``ids`` [P] says which partition
an entry belongs to. Subnetwork ``k`` is made of the partitions ``< k`` and of default values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedpart.errors import ConfigError

MAX_PARTITIONS = 255
_NORMS = (
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


def largest_remainder(total: int, proportions: Sequence[float]) -> list[int]:
    """Split ``total`` into integer counts closest to ``proportions``.

    Args:
        total: how many items there are, at least 0.
        proportions: positive shares that sum to 1, [C].
    Returns:
        C counts that sum to ``total``, each within 1 of its exact share; ties go to the lowest
        index.
    Source: Appendix C, "Partitioning Schemes" (a fixed proportion of each layer).
    """
    # Rounding first: 0.7 * 10 is 7.000000000000001 in some orders and 6.999... in others. Dividing,
    # because proportions may miss 1 by a millionth, which is several scalars of a large tensor.
    whole = math.fsum(proportions)
    shares = [round(p / whole * total, 9) for p in proportions]
    counts = [math.floor(s) for s in shares]
    remainders = [round(s - c, 9) for s, c in zip(shares, counts, strict=True)]
    by_remainder = sorted(range(len(shares)), key=lambda j: (-remainders[j], j))
    for j in by_remainder[: total - sum(counts)]:
        counts[j] += 1
    return counts


def subnetwork(theta: Tensor, default: Tensor, ids: Tensor, k: int) -> Tensor:
    """The weights of subnetwork ``k``: partitions ``< k`` learned, the others at their default.

    Args:
        theta: every parameter, [P].
        default: w-hat, [P].
        ids: partition of every entry, [P] uint8.
        k: number of partitions that take part, 0..C.
    Returns:
        [P].
    Source: Section 3, w_s^(k) = concat(w_1..w_k, what_{k+1}..what_C).
    """
    return torch.where(ids < k, theta, default)


def insert(theta: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Write one partition into the flat vector.

    Args:
        theta: every parameter, [P]; treated as constant.
        index: flat positions, [n] int64, from ``Layout.index``.
        values: the partition's entries in wire order, [n].
    Returns:
        [P]; gradient reaches ``values`` only.
    Raises:
        ValueError: ``index`` and ``values`` differ in length.
    Source: Appendix J, "update each partition independently".
    """
    if index.shape != values.shape:
        raise ValueError(f"{values.numel()} values for {index.numel()} positions of a partition")
    return theta.detach().index_put((index,), values)


@dataclass(frozen=True)
class Entry:
    """One tensor of the network: where its scalars lie in ``theta``.

    Attributes:
        name: the parameter's name in the module.
        shape: its shape there.
        merge: ``plain``, or how the C copies of an affine parameter make one: ``product``, ``sum``.
        start: first position in ``theta``.
        stop: one past the last; ``stop - start`` is C times the size for an affine parameter.
    """

    name: str
    shape: tuple[int, ...]
    merge: str
    start: int
    stop: int


def affine_roles(module: nn.Module) -> dict[str, str]:
    """Which parameters are scales (``product``) and biases (``sum``) of affine transformations.

    Normalisation layers are known; any other module names its own in the class attribute
    ``partitioned_affine``, for example ``{"scale": "product", "bias": "sum"}``.

    Source: Appendix I, "Partitioned affine transformations".
    """
    roles: dict[str, str] = {}
    for prefix, part in module.named_modules():
        own: Mapping[str, str] = getattr(part, "partitioned_affine", {})
        if isinstance(part, _NORMS):
            own = {"weight": "product", "bias": "sum"}
        for name, role in own.items():
            if getattr(part, name, None) is not None:
                roles[f"{prefix}.{name}" if prefix else name] = role
    return roles


class Layout:
    """Maps a module's named parameters to ``theta`` and to partitions.

    Attributes:
        entries: one for each parameter, in the module's order.
        ids: partition of every scalar, [P] uint8.
        num_partitions: C.
        num_parameters: P, affine copies included.
    """

    def __init__(self, entries: Sequence[Entry], ids: Tensor, num_partitions: int) -> None:
        """Keep ``entries`` and ``ids``; see ``build`` for how they come about.

        Raises:
            ConfigError: a partition that holds no parameter at all.
        """
        self.entries = tuple(entries)
        self.ids = ids
        self.num_partitions = num_partitions
        self.num_parameters = int(ids.numel())
        for j, size in enumerate(self.sizes):
            if size == 0:
                raise ConfigError(
                    f"partition {j} of {num_partitions} would hold no parameter of this model "
                    f"({self.num_parameters} in all): use fewer or larger chunks"
                )

    @classmethod
    def build(
        cls, module: nn.Module, proportions: Sequence[float], rng: np.random.Generator
    ) -> "Layout":
        """Random weight partitioning: a fixed share of the scalars of every tensor.

        Args:
            module: the network; its parameters are laid out in their order.
            proportions: share of each partition, [C], sums to 1.
            rng: decides which scalars go where.
        Raises:
            ConfigError: more than 255 partitions, or an empty one.
        Source: Appendix C, "Partitioning Schemes", random weight partitioning.
        """

        def labels(_: str, parameter: nn.Parameter) -> np.ndarray:
            counts = largest_remainder(parameter.numel(), proportions)
            return rng.permutation(np.repeat(np.arange(len(proportions)), counts))

        return cls.assign(module, len(proportions), affine_roles(module), labels)

    @classmethod
    def assign(
        cls,
        module: nn.Module,
        num_partitions: int,
        roles: Mapping[str, str],
        labels_of: Callable[[str, nn.Parameter], np.ndarray],
    ) -> "Layout":
        """Lay out the parameters of ``module`` in their order.

        Args:
            module: the network.
            num_partitions: C.
            roles: how the copies of affine parameters are merged, see ``affine_roles``.
            labels_of: name and parameter -> partition of its scalars, [n]; of the others, in order.
        Raises:
            ConfigError: more than 255 partitions, or an empty one; no parameter.
        """
        if num_partitions > MAX_PARTITIONS:
            raise ConfigError(f"{num_partitions} partitions: at most {MAX_PARTITIONS} are possible")
        entries, ids, start = [], [], 0
        for name, parameter in module.named_parameters():
            merge = roles.get(name, "plain")
            if merge == "plain":
                labels = labels_of(name, parameter)
            else:
                labels = np.repeat(np.arange(num_partitions), parameter.numel())
            entries.append(Entry(name, tuple(parameter.shape), merge, start, start + len(labels)))
            ids.append(labels.astype(np.uint8))
            start += len(labels)
        if not entries:
            raise ConfigError("the model has no parameters to train")
        return cls(entries, torch.from_numpy(np.concatenate(ids)), num_partitions)

    @cached_property
    def order(self) -> Tensor:
        """Wire order, [P] int64: partition by partition, so that an upload is a suffix of it."""
        return self.ids.argsort(stable=True)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Scalars in each partition, affine copies included."""
        return tuple(int((self.ids == j).sum()) for j in range(self.num_partitions))

    @cached_property
    def _indices(self) -> tuple[Tensor, ...]:
        return tuple(torch.split(self.order, list(self.sizes)))

    def to(self, device: str) -> "Layout":
        """The same layout with its positions on another device."""
        return Layout(self.entries, self.ids.to(device), self.num_partitions)

    def index(self, partition: int) -> Tensor:
        """Flat positions of one partition in wire order, [sizes[partition]] int64."""
        return self._indices[partition]

    def take(self, flat: Tensor, partition: int) -> Tensor:
        """One partition's values in wire order, [sizes[partition]]; ``flat`` itself where C is 1.

        Args:
            flat: [P].
            partition: j.
        """
        if self.num_partitions == 1:
            return flat
        return flat.index_select(0, self.index(partition))

    def put(self, flat: Tensor, partition: int, values: Tensor) -> None:
        """Inverse of ``take``: write one partition's values into ``flat`` [P], in place."""
        if values is not flat:
            flat.index_copy_(0, self.index(partition), values)

    def leaves(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut a flat vector into tensors of their own, one for each entry.

        Args:
            flat: [P].
        Returns:
            name -> tensor of the parameter's shape, with a leading dimension C for affine copies.
            Copies, not views: an offset into ``flat`` changes which kernels run, and so the bits.
        """
        return {
            e.name: flat[e.start : e.stop]
            .view(e.shape if e.merge == "plain" else (self.num_partitions, *e.shape))
            .clone()
            for e in self.entries
        }

    def flatten(self, leaves: Mapping[str, Tensor]) -> Tensor:
        """Inverse of ``leaves``: [P], in float32 or better."""
        flat = torch.cat([leaves[e.name].reshape(-1) for e in self.entries])
        return flat.to(torch.promote_types(flat.dtype, torch.float32))

    def merge(self, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters as the module wants them: affine copies multiplied or summed.

        Source: Appendix I, "Partitioned affine transformations": s^(k) = prod s_i, b^(k) = sum b_i.
        """
        merged = {}
        for e in self.entries:
            leaf = leaves[e.name]
            if e.merge == "product":
                leaf = leaf.prod(0)
            elif e.merge == "sum":
                leaf = leaf.sum(0)
            merged[e.name] = leaf
        return merged

    def spread(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Lay plain parameters out as ``theta``: an affine one goes into copy 0.

        The other copies get 1 (scales) or 0 (biases), so that ``merge`` gives ``parameters`` back.

        Args:
            parameters: name -> tensor of the parameter's shape.
        Returns:
            [P] float32.
        Raises:
            ConfigError: a tensor is missing or has another shape.
        """
        pieces = []
        for e in self.entries:
            if e.name not in parameters or tuple(parameters[e.name].shape) != e.shape:
                found = tuple(parameters[e.name].shape) if e.name in parameters else "nothing"
                raise ConfigError(f"parameter {e.name}: found {found}, the model needs {e.shape}")
            value = parameters[e.name].detach().to(torch.float32).reshape(-1)
            pieces.append(value)
            if e.merge != "plain":
                neutral = 1.0 if e.merge == "product" else 0.0
                pieces.append(value.new_full((value.numel() * (self.num_partitions - 1),), neutral))
        return torch.cat(pieces)

    def defaults(self, initial: Tensor, zero: bool) -> Tensor:
        """Default values w-hat, [P]: the initial values, or zero; affine copies 1 and 0.

        Args:
            initial: parameters at initialisation, [P].
            zero: zero instead of the initial values for everything but affine copies.
        Source: Section 3 and Appendix I, "Partitioned training" (default values).
        """
        default = torch.zeros_like(initial) if zero else initial.clone()
        for e in self.entries:
            if e.merge != "plain":
                default[e.start : e.stop] = 1.0 if e.merge == "product" else 0.0
        return default
