"""A data set in chunks, and the batches that are drawn from them with replacement."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from fedpart.central.settings import Settings
from fedpart.errors import DataError
from fedpart.layout import largest_remainder
from fedpart.streams import numpy_rng

_WHOLE = frozenset(
    {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
)


class Chunks:
    """Examples in an order in which chunk ``c`` is a run of positions.

    Attributes:
        bounds: chunk ``c`` has positions ``bounds[c]`` to ``bounds[c + 1]``, [C + 1].
    """

    def __init__(self, dataset: Dataset[Any], shares: Sequence[float], seed: int) -> None:
        """Split at random into exact shares.

        Args:
            dataset: of pairs (input tensor, label); anything with a length and items.
            shares: of each chunk, [C].
            seed: of the run; decides which example goes where.
        Raises:
            DataError: a chunk that would be empty, or examples that are not two tensors.
        """
        total = len(dataset)  # type: ignore[arg-type]
        counts = largest_remainder(total, shares)
        if min(counts) == 0:
            raise DataError(
                f"chunk {counts.index(0)} of {len(counts)} would be empty with {total} examples: "
                "use more data, or fewer or larger chunks"
            )
        self.bounds = [0, *np.cumsum(counts).tolist()]
        self._order = numpy_rng(seed, "data-chunks").permutation(total)
        self._dataset = dataset
        self._classes: int | None = None
        self._tensors: tuple[Tensor, Tensor] | None = None
        if type(dataset) is TensorDataset:
            if len(dataset.tensors) != 2:
                raise DataError(
                    f"the data set has {len(dataset.tensors)} tensors; give inputs and labels"
                )
            # Sorted once, which makes a batch one look-up.
            order = torch.from_numpy(self._order)
            inputs, labels = dataset.tensors
            self._tensors = inputs[order], check_examples(inputs, labels)[order]

    def __len__(self) -> int:
        """Number of examples, N."""
        return int(self.bounds[-1])

    def expect(self, classes: int) -> None:
        """Refuse labels that are not below ``classes``: at once, or as single items are taken.

        Raises:
            DataError: there is one.
        """
        self._classes = classes
        if self._tensors is not None:
            check_examples(*self._tensors, classes)

    def take(self, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        """Inputs [b, ...] and labels [b] int64 at these positions.

        Raises:
            DataError: see ``check_examples``.
        """
        if self._tensors is not None:
            index = torch.from_numpy(positions)
            return self._tensors[0][index], self._tensors[1][index]
        pairs = [self._dataset[int(i)] for i in self._order[positions]]
        inputs: Tensor = default_collate([inputs for inputs, _ in pairs])
        labels = np.array([label for _, label in pairs])
        # PyTorch's own collation takes neither all of NumPy's whole numbers nor text.
        whole = torch.from_numpy(labels.astype(np.int64)) if labels.dtype.kind in "iu" else labels
        return inputs, check_examples(inputs, whole, self._classes)

    def seen_by(self, k: int) -> int:
        """Number of examples in the chunks ``< k``, on which subnetwork ``k`` is trained."""
        return int(self.bounds[k])

    def positions(self, chunk: int) -> range:
        """Where one chunk lies."""
        return range(self.bounds[chunk], self.bounds[chunk + 1])


def check_examples(inputs: Tensor, labels: object, classes: int | None = None) -> Tensor:
    """Whether examples can be trained on, or scored.

    Args:
        inputs: [n, ...].
        labels: [n], whole numbers.
        classes: which labels are below, where it is known.
    Returns:
        labels, [n] int64.
    Raises:
        DataError: labels that are no class, or inputs that are not finite.
    """
    if not isinstance(labels, Tensor) or labels.dtype not in _WHOLE:
        kind = f"of type {getattr(labels, 'dtype', type(labels).__name__)}"
        raise DataError(f"labels are {kind}; give whole numbers, 0 for the first class")
    if tuple(labels.shape) != (len(inputs),):
        raise DataError(
            f"labels have shape {tuple(labels.shape)} for {len(inputs):,} inputs; give one number "
            "for each"
        )
    if not len(labels):
        raise DataError("there is no example; give at least one")
    labels = labels.long()
    low, high = (int(value) for value in labels.aminmax())
    if low < 0 or (classes is not None and high >= classes):
        limit = "0 or more"
        if classes is not None:
            limit = f"0 to {classes - 1}, as the model has {classes} outputs"
        raise DataError(f"a label is {low if low < 0 else high}; it must be {limit}")
    # NaN and infinity both show in the extremes: one pass, where isfinite needs a mask.
    ends = inputs.aminmax() if inputs.is_floating_point() and inputs.numel() else ()
    if not all(math.isfinite(value) for value in ends):
        raise DataError("an input holds values that are not finite; mend it or leave it out")
    return labels


def draw_weights_batch(
    rng: np.random.Generator, chunks: Chunks, shares: Sequence[float], size: int
) -> tuple[int, np.ndarray]:
    """A partition to train, and a batch of the data it may see.

    Returns:
        partition j ~ Cat(u), and ``size`` positions drawn uniformly, with replacement, from the
        chunks ``<= j``.
    Source: Appendix I, "Partitioned parameter update scheduling", steps 1 and 2.
    """
    partition = _categorical(rng, shares)
    return partition, rng.integers(0, chunks.seen_by(partition + 1), size)


def draw_updates(
    rng: np.random.Generator, chunks: Chunks, settings: Settings, iteration: int
) -> list[tuple[int, np.ndarray]]:
    """What an iteration trains: partitions, each with a batch of the data it may see.

    One partition of ``draw_weights_batch``. Networks that share nothing are all trained, since
    none gains by what another learns. Fine-tuning is on all data.
    """
    size, count = settings.batch_size, settings.num_partitions
    if iteration >= settings.iterations and settings.finetune:
        return [(0, rng.integers(0, len(chunks), size))]
    if settings.method == "networks":
        return [(j, rng.integers(0, chunks.seen_by(j + 1), size)) for j in range(count)]
    return [draw_weights_batch(rng, chunks, settings.chunks[:count], size)]


def draw_hyper_batch(
    rng: np.random.Generator, chunks: Chunks, shares: Sequence[float], size: int
) -> tuple[int, np.ndarray]:
    """A chunk to score, and a batch of it.

    Returns:
        chunk c ~ Cat(u_1/Z .. u_{C-1}/Z) without chunk 0 (where there are others), and ``size``
        positions drawn uniformly, with replacement, from chunk c alone; subnetwork ``c`` scores
        them.
    Source: Appendix I, "Gradient optimization of hyperparameters".
    """
    chunk = 1 + _categorical(rng, shares[1:]) if len(shares) > 1 else 0
    at = chunks.positions(chunk)
    return chunk, rng.integers(at.start, at.stop, size)


def _categorical(rng: np.random.Generator, shares: Sequence[float]) -> int:
    # rng.choice with probabilities takes ten times as long.
    edges = np.cumsum(shares)
    return int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))
