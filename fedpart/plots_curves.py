"""Pictures of runs: accuracy against what was sent, psi over time, upload by chunk."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from fedpart.curves import DIRECTIONS, WINDOW, Group, read_curve, write_csv
from fedpart.errors import ConfigError, OutputError
from fedpart.files import write_atomic
from fedpart.run_files import read_lines

# Okabe and Ito's colours, which colour-blind readers can tell apart; styles tell further runs.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = {"solid": "-", "dashed": "--", "dotted": ":", "dash-dotted": "-."}
_AXES = {"upload": "upload", "download": "download", "total": "upload + download"}
# Kind of hyperparameter, the first word of its name -> what it is and its unit.
_KINDS = {
    "rotation": "rotation, ± [degrees]",
    "translate": "shift, ± [half images]",
    "scale": "scale, up to [factor]",
    "shear": "shear, ± [slope]",
    "dropout": "drop rate",
}
# More megabytes than this are shown as gigabytes.
_GIGABYTES_FROM = 10_000
_COLUMNS = 3


def draw_groups(groups: Sequence[Group], ending: str, target: float | None = None) -> bytes:
    """Draw several experiments.

    Above, accuracy against cumulative upload, download and both; below, where anything is learned,
    each kind of hyperparameter over the rounds, and upload by chunk. One colour an experiment.

    Args:
        groups: on the same data.
        ending: of the picture's name; see ``render``.
        target: accuracy to mark, a fraction.
    Returns:
        what the picture's file holds.
    Raises:
        ConfigError: no matplotlib.
        OutputError: the ending names no format.
    """
    kinds = hyper_kinds(groups)
    chunked = any(len(group.chunks()) > 1 for group in groups)
    below = len(kinds) + 1 if kinds or chunked else 0
    figure, axes = new_figure(len(DIRECTIONS), 1 + -(-below // _COLUMNS))
    for axis, direction in zip(axes[0], DIRECTIONS, strict=True):
        _accuracy(axis, groups, direction, target)
    axes[0][0].set_ylabel("validation accuracy [%]")
    for axis in axes[0][1:]:
        axis.sharey(axes[0][0])
    bold = f"bold: mean of up to {WINDOW} evaluations"
    band = "; band: ± standard error over seeds"
    several = any(len(group.curves) > 1 for group in groups)
    axes[0][-1].set_title(bold + band * several, fontsize=8, loc="right")
    rest = [axis for row in axes[1:] for axis in row]
    for axis, (kind, names) in zip(rest, kinds.items(), strict=False):
        _hyper(axis, groups, kind, names)
    if below:
        _chunks(rest[len(kinds)], groups)
    for axis in rest[below:]:
        axis.set_axis_off()
    handles, names = axes[0][0].get_legend_handles_labels()
    # Long names need the room of several columns.
    columns = max(1, min(len(names), 140 // max(len(name) + 6 for name in names)))
    figure.legend(handles, names, loc="outside upper center", frameon=False, ncols=columns)
    return render(figure, ending)


def draw_run(folder: Path) -> None:
    """Draw ``curves.png`` of one run, and write ``curves.csv`` beside it.

    Accuracy by round, with what was uploaded, and learned hyperparameters.

    Raises:
        ConfigError: no matplotlib.
        OutputError: no evaluation yet, or a file that cannot be written.
    """
    curve = read_curve(folder)
    # Psi is known after every round, not at evaluations only.
    hyper = [line["hyper_readable"] for line in read_lines(folder / "rounds.jsonl")]
    names = list(curve.hyper[-1])
    rotation = [n for n in names if n == "rotation_degrees"]
    others = [n for n in names if not n.endswith("_degrees")]
    groups = [
        (group, title)
        for group, title in ((rotation, "rotation, ± [degrees]"), (others, "other hyperparameters"))
        if group
    ]
    figure, grid = new_figure(1 + len(groups), 1)
    axes = grid[0]
    first, accuracy = axes[0], _percent(curve.accuracy)
    first.plot(curve.rounds, accuracy, color=COLOURS[0], marker=".", linewidth=1, alpha=0.6)
    first.plot(curve.rounds, _percent(curve.smooth), color=COLOURS[0], linewidth=2)
    first.set_xlabel(
        f"round ({curve.megabytes['upload'][-1]:,.0f} MB uploaded by the last, "
        f"{100 * curve.upload_share[-1]:.0f} % of FedAvg's)"
    )
    first.set_ylabel("validation accuracy [%]")
    styles = list(STYLES.values())
    for axis, (group, title) in zip(axes[1:], groups, strict=True):
        for i, name in enumerate(group):
            axis.plot(
                range(1, len(hyper) + 1),
                [psi.get(name, float("nan")) for psi in hyper],
                color=COLOURS[i % len(COLOURS)],
                linestyle=styles[i // len(COLOURS) % len(styles)],
                label=name.replace("_", " "),
            )
        axis.set_xlabel("round")
        axis.set_ylabel(title)
        if len(group) > 1:
            axis.legend(frameon=False, fontsize=7, ncols=2)
    save_figure(figure, folder / "curves.png")
    write_csv(curve, folder / "curves.csv")


def hyper_kinds(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Hyperparameters that any of the groups learned, by the first word of their names."""
    kinds: dict[str, list[str]] = {}
    for name in dict.fromkeys(n for group in groups for n in group.curves[0].hyper[-1]):
        kinds.setdefault(name.split("_")[0], []).append(name)
    return kinds


def _look(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)]}


def _accuracy(axis: Any, groups: Sequence[Group], direction: str, target: float | None) -> None:
    most = max(group.megabytes(direction)[-1] for group in groups)
    unit, scale = ("GB", 1e-3) if most >= _GIGABYTES_FROM else ("MB", 1.0)
    styles = list(STYLES.values())
    for i, group in enumerate(groups):
        x = [scale * value for value in group.megabytes(direction)]
        smooth = group.smooth
        if len(group.curves) == 1:
            axis.plot(x, _percent(group.curves[0].accuracy), linewidth=0.7, alpha=0.4, **_look(i))
        else:
            _band(axis, x, _percent(smooth.mean), _percent(smooth.error), i)
        axis.plot(
            x,
            _percent(smooth.mean),
            linewidth=2,
            linestyle=styles[i // len(COLOURS) % len(styles)],
            marker="." if len(x) < 3 else None,
            label=group.label,
            **_look(i),
        )
    if target is not None:
        axis.axhline(100 * target, color="0.3", linewidth=0.8, linestyle="--")
    axis.set_xlabel(f"{_AXES[direction]} [{unit}]")
    axis.set_xlim(left=0)


def _hyper(axis: Any, groups: Sequence[Group], kind: str, names: Sequence[str]) -> None:
    parts = [n.removeprefix(kind).removesuffix("_factor").strip("_") for n in names]
    styles = list(STYLES)
    for i, group in enumerate(groups):
        for j, name in enumerate(names):
            if name not in group.curves[0].hyper[-1]:
                continue
            series = group.hyper(name)
            _band(axis, group.rounds, series.mean, series.error, i)
            axis.plot(
                group.rounds,
                series.mean,
                linestyle=STYLES[styles[j % len(styles)]],
                linewidth=1.3,
                **_look(i),
            )
    if len(names) > 1:
        words = [f"{p.replace('_', ' ')} {styles[j % len(styles)]}" for j, p in enumerate(parts)]
        axis.set_title(", ".join(words), fontsize=8, loc="right")
    axis.set_xlabel("round")
    axis.set_ylabel(_KINDS.get(kind, kind))


def _chunks(axis: Any, groups: Sequence[Group]) -> None:
    sent = [[values[-1] for values in group.chunks()] for group in groups]
    most = max(sum(values) for values in sent)
    unit, scale = ("GB", 1e-3) if most >= _GIGABYTES_FROM else ("MB", 1.0)
    for i, (group, values) in enumerate(zip(groups, sent, strict=True)):
        left = 0.0
        for chunk, value in enumerate(values):
            shade = {"alpha": 1 / (1 + 0.9 * chunk), "edgecolor": "white"}
            axis.barh(i, scale * value, left=left, height=0.7, **shade, **_look(i))
            # No room for a word in a sliver.
            if value > 0.06 * most:
                place = {"ha": "center", "va": "center", "color": "black" if chunk else "white"}
                axis.text(left + scale * value / 2, i, str(chunk), **place)
            left += scale * value
        share = 100 * group.series(lambda curve: curve.upload_share).mean[-1]
        axis.text(left, i, f" {share:.0f} % of FedAvg's", va="center", fontsize=8)
    axis.set_xlim(0, 1.45 * scale * most)
    axis.set_yticks([])
    axis.set_ylim(len(groups) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    axis.set_axisbelow(True)
    axis.set_title("number and shade: chunk of the client", fontsize=8, loc="right")
    axis.set_xlabel(f"upload by chunk [{unit}]")


def _band(
    axis: Any, x: Sequence[float], mean: Sequence[float], error: Sequence[float], i: int
) -> None:
    if any(error):
        low = [m - e for m, e in zip(mean, error, strict=True)]
        high = [m + e for m, e in zip(mean, error, strict=True)]
        axis.fill_between(x, low, high, alpha=0.2, linewidth=0, **_look(i))


def _percent(values: Sequence[float]) -> list[float]:
    return [100 * value for value in values]


def new_figure(columns: int, rows: int) -> tuple[Any, Any]:
    """A figure without a window, and its axes, [rows][columns]; the first row is the tallest.

    Raises:
        ConfigError: no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "the picture needs matplotlib; install it with pip install 'fedpart[sim]'"
        ) from None
    # Figure, not pyplot: no global state and no window.
    heights = [3.7, *[2.6] * (rows - 1)]
    figure = Figure(figsize=(4.4 * columns, sum(heights)), layout="constrained", dpi=150)
    ratios = {"height_ratios": heights}
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios)
    for axis in axes.flat:
        axis.grid(alpha=0.3, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def render(figure: Any, ending: str) -> bytes:
    """A picture as a file holds it.

    Args:
        figure: see ``new_figure``.
        ending: of the file's name, ``.png`` or ``.svg``.
    Raises:
        OutputError: it names no format.
    """
    content = BytesIO()
    try:
        figure.savefig(content, format=ending.removeprefix("."))
    except ValueError as error:
        raise OutputError(f"cannot write a picture that ends in {ending!r}: {error}") from None
    return content.getvalue()


def save_figure(figure: Any, out: Path) -> None:
    """Write a picture into a folder of this process.

    Raises:
        OutputError: it cannot be written.
    """
    write_atomic(out, render(figure, out.suffix))
