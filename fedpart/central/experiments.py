"""The experiments by name: what each trains, in which runs, and how several are shown."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from fedpart.central import pictures, plots, tables
from fedpart.central.config import CentralConfig
from fedpart.central.finished import Finished
from fedpart.central.images import image_task
from fedpart.central.task import Task
from fedpart.central.toys import input_selection, mask_learning


@dataclass(frozen=True)
class Point:
    """One run of several.

    Attributes:
        words: names of the folders from the parent down to the run, ``seed-<s>`` last.
        update: what it sets, by TOML key.
    """

    words: tuple[str, ...]
    update: dict[str, object] = field(default_factory=dict)

    def __add__(self, other: "Point") -> "Point":
        """Both at once."""
        return Point(self.words + other.words, self.update | other.update)


@dataclass(frozen=True)
class Experiment:
    """What is known of an experiment.

    Attributes:
        task: model and data of one run.
        points: the runs of several, in order.
        draw: makes the picture of those that are finished.
        text: lines that say what they have come to; Markdown for images.
    """

    task: Callable[[CentralConfig], Task]
    points: Callable[[CentralConfig], Iterator[Point]]
    draw: Callable[[Sequence[Finished], Path], None]
    text: Callable[[Sequence[Finished]], list[str]]


def _seeds(config: CentralConfig) -> list[Point]:
    seeds = range(config.seed, config.seed + config.seeds)
    return [Point((f"seed-{s}",), {"seed": s}) for s in seeds]


def _axis(key: str, values: Sequence[Any]) -> list[Point]:
    """A point for each value; one that sets nothing where there is none."""
    return [Point((str(v).replace(":", "-"),), {key: v}) for v in values] or [Point(())]


def shares(ratio: str) -> tuple[float, ...]:
    """``8:1:1`` -> 0.8, 0.1, 0.1."""
    parts = [float(part) for part in ratio.split(":")]
    return tuple(part / sum(parts) for part in parts)


def _inputs(config: CentralConfig) -> Iterator[Point]:
    """All K for one seed, then for the next."""
    many = len(config.inputs) > 1
    for seed, kept in product(_seeds(config), config.inputs):
        above = Point((f"inputs-{kept}",) if many else (), {"inputs": (kept,)})
        yield above + seed


def _sizes(config: CentralConfig) -> list[Point]:
    points = _axis("train-size", config.sizes)
    lengths = [Point((), {"iterations": n}) for n in config.lengths] or [Point(())] * len(points)
    return [size + length for size, length in zip(points, lengths, strict=True)]


def _splits(config: CentralConfig) -> list[Point]:
    return [
        Point((ratio.replace(":", "-"),), {"chunks": shares(ratio)}) for ratio in config.splits
    ] or [Point(())]


def _pairs(config: CentralConfig) -> list[Point]:
    """Every ratio of the data with every ratio of the weights of as many chunks."""
    return [
        Point(
            (f"data-{data.replace(':', '-')}", f"weights-{weights.replace(':', '-')}"),
            {"chunks": shares(data), "weights": shares(weights)},
        )
        for data, weights in product(config.splits, config.splits)
        if data.count(":") == weights.count(":")
    ] or [Point(())]


def _images(splits: Callable[[CentralConfig], list[Point]]) -> Callable[..., Iterator[Point]]:
    """Data set by data set, size by size; of these every seed, and of each seed every method.

    Draws of the random search come last, once.
    """

    def points(config: CentralConfig) -> Iterator[Point]:
        # Where psi is taken from comes before who takes it.
        methods = sorted(config.methods, key=lambda m: m == "retrain")
        methods = [m for m in methods if m != "random-search"]
        above = product(
            _axis("dataset", config.datasets),
            _axis("model", config.models),
            _sizes(config),
            splits(config),
        )
        for dataset, model, size, split in above:
            place = dataset + model + size + split
            if methods or not config.methods:
                for seed, method in product(_seeds(config), _axis("method", methods)):
                    yield place + method + seed
            for trial in range(config.trials if "random-search" in config.methods else 0):
                words = ("random-search", f"trial-{trial}")
                drawn = Point(words, {"method": "random-search", "trial": trial})
                yield place + drawn + _seeds(config)[0]

    return points


def _extractors(config: CentralConfig) -> Iterator[Point]:
    """Each method with the split at its place."""
    methods = _axis("method", config.methods)
    chunks = [Point((), split.update) for split in _splits(config)]
    for seed, (method, split) in product(_seeds(config), zip(methods, chunks, strict=True)):
        yield method + split + seed


EXPERIMENTS: dict[str, Experiment] = {
    "input-selection": Experiment(input_selection, _inputs, plots.draw_inputs, tables.inputs),
    "mask-learning": Experiment(mask_learning, _inputs, plots.draw_masks, tables.masks),
    "data-size": Experiment(
        image_task,
        _images(_splits),
        pictures.draw_sizes,
        tables.sizes,
    ),
    "validation": Experiment(
        image_task,
        _images(_splits),
        pictures.draw_splits,
        tables.splits,
    ),
    "random-search": Experiment(
        image_task,
        _images(_splits),
        pictures.draw_search,
        tables.search,
    ),
    "sensitivity": Experiment(
        image_task,
        _images(_pairs),
        pictures.draw_shares,
        tables.grids,
    ),
    "feature-extractor": Experiment(
        image_task,
        _extractors,
        pictures.draw_extractors,
        tables.extractors,
    ),
}
