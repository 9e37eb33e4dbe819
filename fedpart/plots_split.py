"""The client split as a table and as a picture."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpart.config import Config
from fedpart.data import FederatedData
from fedpart.data.rotate import NUM_BINS
from fedpart.data.split import skew_groups
from fedpart.errors import ConfigError
from fedpart.files import write_out
from fedpart.plots_curves import render

# A client is called one-sided when more than this share of its images is of one group.
ONE_SIDED = 0.9


@dataclass(frozen=True)
class SplitSummary:
    """A split in a few numbers; "group" is a label, or an angle bin under rotation skew.

    Attributes:
        clients: how many.
        images: how many, over all clients.
        smallest: images of the smallest client.
        median: images of the median client.
        largest: images of the largest client.
        one_sided: share of clients with more than 90 % of their images in one group.
        single_group: share of clients with one group only.
        over_batch: clients with more images than one batch, which make two or more steps an epoch.
    """

    clients: int
    images: int
    smallest: int
    median: float
    largest: int
    one_sided: float
    single_group: float
    over_batch: int


def group_names(skew: str, num_classes: int = 10) -> list[str]:
    """What the groups of a split are called, in order."""
    if skew != "rotation":
        return [str(label) for label in range(num_classes)]
    width = 360 // NUM_BINS
    return [f"{low}° to {low + width}°" for low in range(-180, 180, width)]


def group_counts(
    client_indices: Sequence[np.ndarray], groups: np.ndarray, num_groups: int
) -> np.ndarray:
    """Images of each client in each group, int64 [clients, groups]."""
    return np.stack([np.bincount(groups[i], minlength=num_groups) for i in client_indices])


def count_groups(data: FederatedData, config: Config) -> np.ndarray:
    """Images of each client by angle bin under rotation skew, else by label, [clients, groups]."""
    # Under iid nothing is skewed, and it is the labels that show it.
    groups = skew_groups(
        "rotation" if config.skew == "rotation" else "label", data.labels, data.angles
    )
    return group_counts(
        data.client_indices, groups, len(group_names(config.skew, data.num_classes))
    )


def summarise(counts: np.ndarray, batch_size: int = 64) -> SplitSummary:
    """A split in a few numbers.

    Args:
        counts: images of each client in each group, [clients, groups]; no client is empty.
        batch_size: images per step of a client.
    """
    sizes, peak = counts.sum(1), counts.max(1)
    return SplitSummary(
        clients=len(counts),
        images=int(sizes.sum()),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        one_sided=float((peak > ONE_SIDED * sizes).mean()),
        single_group=float((peak == sizes).mean()),
        over_batch=int((sizes > batch_size).sum()),
    )


def split_table(data: FederatedData, config: Config) -> str:
    """The summary as plain text, a line each, without a final newline."""
    summary = summarise(count_groups(data, config), config.batch_size)
    group = "angle bin of 36°" if config.skew == "rotation" else "label"
    test = 0 if data.test_labels is None else len(data.test_labels)
    rows = [
        ("data", data.source),
        ("skew", _recipe(config)),
        ("training images", f"{summary.images:,} over {summary.clients:,} clients"),
        ("validation, test", f"{len(data.val_labels):,}, {test:,} images"),
        (
            "images per client (min / median / max)",
            f"{summary.smallest:,} / {summary.median:g} / {summary.largest:,}",
        ),
        (f"more than 90 % of one {group}", f"{summary.one_sided:.0%} of clients"),
        (f"nothing but one {group}", f"{summary.single_group:.0%} of clients"),
        (
            f"more than {config.batch_size} images",
            f"{summary.over_batch:,} clients ({summary.over_batch / summary.clients:.0%})",
        ),
        ("data hash", data.data_hash[:16]),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def split_json(data: FederatedData, config: Config) -> dict[str, object]:
    """The summary and each client's counts, for programs."""
    counts = count_groups(data, config)
    return {
        **dataclasses.asdict(summarise(counts, config.batch_size)),
        "skew": config.skew,
        "groups": group_names(config.skew, data.num_classes),
        "counts": counts.tolist(),
        "data_hash": data.data_hash,
        "source": data.source,
    }


def draw_split(data: FederatedData, config: Config, path: str | Path) -> None:
    """Write a picture: one bar a client, largest first, coloured by label or angle bin.

    Args:
        data: with the split.
        config: it was made with.
        path: where to; the ending chooses the format.
    Raises:
        ConfigError: matplotlib is not installed.
        OutputError: the file cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "the picture needs matplotlib; install it with pip install 'fedpart[sim]'"
        ) from None
    counts, names = count_groups(data, config), group_names(config.skew, data.num_classes)
    counts = counts[np.argsort(-counts.sum(1), kind="stable")]
    # Angles go round, and so do their colours.
    wheel = mpl.colormaps["hsv" if config.skew == "rotation" else "tab10"]
    tops = counts.cumsum(1)
    # Figure, not pyplot: no global state and no window, whatever the back end.
    figure = Figure(figsize=(9, 4), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    left = np.arange(len(counts)) - 0.45
    for group, name in enumerate(names):
        # One collection a group: a patch for each of thousands of clients would take minutes.
        some = counts[:, group] > 0
        x, high = left[some], tops[some, group]
        low = high - counts[some, group]
        corners = np.stack([x, low, x, high, x + 0.9, high, x + 0.9, low], -1).reshape(-1, 4, 2)
        colour = wheel(group / len(names) if config.skew == "rotation" else group % wheel.N)
        axes.add_collection(PolyCollection(list(corners), facecolor=colour, label=name))
    summary = summarise(counts, config.batch_size)
    if summary.over_batch:
        axes.axhline(config.batch_size, color="0.3", linewidth=0.8, linestyle="--")
    axes.set(
        xlim=(-1, len(counts)),
        ylim=(0, summary.largest * 1.05),
        xlabel="clients, largest first",
        ylabel="images",
        title=f"{data.name}: {summary.images:,} images, {summary.clients:,} clients, "
        f"{_recipe(config)}",
    )
    title = "angle" if config.skew == "rotation" else "label"
    figure.legend(title=title, loc="outside right center", fontsize="small", reverse=True)
    path = Path(path)
    write_out(path, render(figure, path.suffix))


def _recipe(config: Config) -> str:
    sizes = "equal sizes" if config.sizes == "equal" else "sizes as drawn"
    if config.skew == "iid":
        return f"iid, {sizes}"
    each = "alpha x prior" if config.concentration == "prior" else "alpha for each group"
    return f"{config.skew} skew, alpha {config.alpha:g} ({each}), {sizes}"
