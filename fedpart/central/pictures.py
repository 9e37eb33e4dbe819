"""Pictures of several runs on images, as the paper's figures are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpart.central.finished import Finished, accuracy, of_method, ratio, rotation
from fedpart.central.tables import NAMES, before, shares_of
from fedpart.plots_curves import COLOURS, new_figure, save_figure
from fedpart.seeds import mean_and_error

_COLOUR = dict(zip(NAMES, (*COLOURS, "0.5"), strict=False))
_WIDTHS = {
    "rotation_degrees": "rotation, ± [degrees]",
    "translate_x": "shift x, ± [half images]",
    "translate_y": "shift y, ± [half images]",
    "scale_x_factor": "scale x, up to [factor]",
    "scale_y_factor": "scale y, up to [factor]",
    "shear": "shear, ± [slope]",
}


def _line(axis: Any, method: str, x: Sequence[Any], pairs: Sequence[tuple[float, Any]]) -> None:
    """Means with bars of standard error."""
    mean, error = [p[0] for p in pairs], [p[1] or 0.0 for p in pairs]
    axis.errorbar(x, mean, error, marker="o", capsize=3, color=_COLOUR[method], label=NAMES[method])


def draw_sizes(runs: Sequence[Finished], out: Path) -> None:
    """Draw test accuracy by data size, a panel a data set and model, and the rotation learned.

    Args:
        runs: any number of seeds of each.
        out: picture to write.
    Raises:
        OutputError: it cannot be written.
    Source: section 5, figure of digits by data size.
    """
    panels = sorted({(str(r.summary.dataset), str(r.summary.model)) for r in runs})
    figure, grid = new_figure(len(panels), 2)
    for (above, below), panel in zip(zip(*grid, strict=True), panels, strict=True):
        here = [r for r in runs if (r.summary.dataset, r.summary.model) == panel]
        for method in NAMES:
            by_size: dict[int, list[Finished]] = {}
            for run in of_method(here, method):
                by_size.setdefault(run.summary.train_size, []).append(run)
            found = sorted(by_size)
            if not found:
                continue
            _line(above, method, found, [accuracy(by_size[n]) for n in found])
            turned = [[w for r in by_size[n] if (w := rotation(r)) is not None] for n in found]
            if all(turned):
                _line(below, method, found, [mean_and_error(widths) for widths in turned])
        sizes = sorted({r.summary.train_size for r in here})
        for axis in (above, below):
            axis.set_xscale("log")
            axis.set_xticks(sizes, [f"{n:,}" for n in sizes])
            axis.minorticks_off()
            axis.set_xlabel("training images")
        above.set_ylabel("test accuracy [%]")
        below.set_ylabel(_WIDTHS["rotation_degrees"])
        above.set_title(f"{panel[0]}, {panel[1]}", fontsize=9, loc="left")
        above.legend(frameon=False, fontsize=7)
    save_figure(figure, out)


def draw_splits(runs: Sequence[Finished], out: Path) -> None:
    """Draw test accuracy by the share of the first chunk, with and without fine-tuning.

    Args:
        runs: any number of seeds of each.
        out: picture to write.
    Raises:
        OutputError: it cannot be written.
    Source: section 5, table of splits and fine-tuning.
    """
    figure, grid = new_figure(1, 1)
    axis = grid[0][0]
    for name in ("partitioned", "validation", "finetuned"):
        method = "validation" if name == "finetuned" else name
        by_share: dict[float, list[float]] = {}
        for run in of_method(runs, method):
            value = before(run) if name == "validation" else run.summary.test_accuracy
            if name == "finetuned" and before(run) is None:
                continue
            value = run.summary.test_accuracy if value is None else value
            by_share.setdefault((run.summary.chunks or [1.0])[0], []).append(100 * value)
        if by_share:
            found = sorted(by_share)
            _line(axis, name, found, [mean_and_error(by_share[share]) for share in found])
    axis.set_xlabel("share of the first chunk")
    axis.set_ylabel("test accuracy [%]")
    axis.legend(frameon=False, fontsize=7)
    save_figure(figure, out)


def draw_search(runs: Sequence[Finished], out: Path) -> None:
    """Draw test accuracy by each width: psi drawn, on its way in partitioned runs, and retrained.

    Psi of the user's own is drawn by its names, the first six.

    Args:
        runs: of these three methods.
        out: picture to write.
    Raises:
        OutputError: it cannot be written, or a run's records are damaged.
    Source: Appendix G, figure of the random search.
    """
    figure, grid = new_figure(3, 2)
    shown = of_method(runs, "random-search", "partitioned", "retrain")
    names = list(dict.fromkeys(name for run in shown for name in run.summary.hyper_readable))
    for axis, name in zip(grid.flat, names or _WIDTHS, strict=False):
        _marks(axis, of_method(runs, "random-search"), name, marker="+", color="0.4")
        for i, run in enumerate(of_method(runs, "partitioned")):
            colour = {"color": COLOURS[i % len(COLOURS)]}
            way = [e for e in run.evaluations() if name in e.hyper_readable]
            x, y = [e.hyper_readable[name] for e in way], [100 * e.test_accuracy for e in way]
            axis.plot(x, y, linewidth=1, alpha=0.7, **colour)
            _marks(axis, [run], name, marker="o", **colour)
            twins = [r for r in of_method(runs, "retrain") if r.summary.seed == run.summary.seed]
            _marks(axis, twins, name, marker="^", **colour)
        axis.set_xlabel(_WIDTHS.get(name, name))
    for axis in grid.flat[len(names or _WIDTHS) :]:
        axis.set_visible(False)
    for row in grid:
        row[0].set_ylabel("test accuracy [%]")
    marks = (
        "+ psi drawn, plain network; line and circle: partitioned; triangle: plain, psi found; "
        "a colour for each seed"
    )
    figure.suptitle(marks, fontsize=9)
    save_figure(figure, out)


def _marks(axis: Any, runs: Sequence[Finished], name: str, **look: Any) -> None:
    runs = [run for run in runs if name in run.summary.hyper_readable]
    x = [run.summary.hyper_readable[name] for run in runs]
    axis.plot(x, [100 * run.summary.test_accuracy for run in runs], linestyle="", **look)


def draw_shares(runs: Sequence[Finished], out: Path) -> None:
    """Draw accuracy by shares of data and weights: the runs' own, and below it retrained.

    Args:
        runs: of any methods, such as partitioned, and plain networks with the psi found.
        out: picture to write.
    Raises:
        OutputError: it cannot be written.
    Source: Appendix F, figures.
    """
    datasets = sorted({str(r.summary.dataset) for r in runs})
    counts = sorted({len(shares_of(r)[0]) for r in runs})
    methods = [m for m in NAMES if of_method(runs, m)]
    figure, grid = new_figure(len(counts), len(datasets) * len(methods))
    rows = [(dataset, method) for dataset in datasets for method in methods]
    for axes, (dataset, method) in zip(grid, rows, strict=True):
        for axis, count in zip(axes, counts, strict=True):
            here = [
                r
                for r in of_method(runs, method)
                if (r.summary.dataset, len(shares_of(r)[0])) == (dataset, count)
            ]
            axis.set_title(f"{dataset}, {NAMES[method]}", fontsize=8, loc="left")
            if here:
                _heat(figure, axis, here)
    save_figure(figure, out)


def _heat(figure: Any, axis: Any, runs: Sequence[Finished]) -> None:
    data, weights = (sorted({shares_of(r)[i] for r in runs}) for i in (0, 1))
    cells = [[[r for r in runs if shares_of(r) == (d, w)] for w in weights] for d in data]
    values = [[accuracy(c)[0] if c else float("nan") for c in row] for row in cells]
    shown = axis.imshow(values, cmap="cividis", aspect="auto", origin="lower")
    middle = sum(shown.get_clim()) / 2
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            colour = "black" if value > middle else "white"
            axis.text(j, i, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=7)
    axis.grid(visible=False)
    axis.set_xticks(range(len(weights)), [ratio(w) for w in weights], fontsize=6)
    axis.set_yticks(range(len(data)), [ratio(d) for d in data], fontsize=6)
    axis.set_xlabel("weights")
    axis.set_ylabel("data")
    figure.colorbar(shown, ax=axis)


def draw_extractors(runs: Sequence[Finished], out: Path) -> None:
    """Draw test accuracy by iteration, a line a run and a colour a method.

    Args:
        runs: any number of seeds of each method.
        out: picture to write.
    Raises:
        OutputError: it cannot be written, or a run's records are damaged.
    Source: section 5, table of the feature extractor.
    """
    figure, grid = new_figure(1, 1)
    axis = grid[0][0]
    for method in NAMES:
        for i, run in enumerate(of_method(runs, method)):
            way = run.evaluations()
            label = f"{NAMES[method]} {ratio(run.summary.chunks)}" if i == 0 else None
            x, y = [e.iteration for e in way], [100 * e.test_accuracy for e in way]
            axis.plot(x, y, marker=".", color=_COLOUR[method], label=label)
    axis.set_xlabel("iteration")
    axis.set_ylabel("test accuracy [%]")
    axis.legend(frameon=False, fontsize=7)
    save_figure(figure, out)
