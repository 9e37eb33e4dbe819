"""Pictures and tables of runs: accuracy against what was sent, and psi over time."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpart.arguments import check_picture
from fedpart.config import kebab
from fedpart.errors import ConfigError, OutputError
from fedpart.run_files import read_config, read_lines

# Okabe and Ito's colours, which colour-blind readers can tell apart; styles tell further runs.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
WINDOW = 10
DIRECTIONS = ("upload", "download", "total")
_AXES = {"upload": "upload [MB]", "download": "download [MB]", "total": "upload + download [MB]"}
# What the data depends on, in the order in which a difference is named.
_DATA_KEYS = (
    *("dataset", "train_size", "clients", "skew", "alpha", "concentration", "sizes"),
    *("min_examples", "data_seed"),
)


@dataclass(frozen=True)
class Curve:
    """One run, evaluation by evaluation.

    Attributes:
        label: name of the run's folder.
        rounds: round of each evaluation.
        accuracy: validation accuracy, fractions.
        smooth: mean of the last ten (or as many as there are) evaluations.
        megabytes: direction -> cumulative model megabytes (10^6 bytes) at each evaluation.
        upload_fraction: of what FedAvg would have uploaded.
        hyper: psi in plain units after every round.
    """

    label: str
    rounds: list[int]
    accuracy: list[float]
    smooth: list[float]
    megabytes: dict[str, list[float]]
    upload_fraction: float
    hyper: list[dict[str, float]]


def moving_average(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Mean of the last ``window`` values, or of as many as there are, at each position.

    Source: the paper's learning curves, "moving average over 10 evaluations".
    """
    parts = [values[max(0, i + 1 - window) : i + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def read_curve(folder: Path, label: str | None = None) -> Curve:
    """Read a run folder, finished or not.

    Raises:
        OutputError: no run, or none with an evaluation yet.
    """
    rounds = read_lines(folder / "rounds.jsonl")
    # A run that was killed may have a round less on disk than its last evaluation, or more.
    evaluations = [e for e in read_lines(folder / "evaluations.jsonl") if e["round"] <= len(rounds)]
    if not evaluations:
        raise OutputError(f"{folder} has no evaluation yet: let it run longer")
    accuracy = [e["val_accuracy"] for e in evaluations]
    at = [rounds[e["round"] - 1] for e in evaluations]
    up = [r["cumulative_upload_model_bytes"] / 1e6 for r in at]
    down = [r["cumulative_download_model_bytes"] / 1e6 for r in at]
    both = [a + b for a, b in zip(up, down, strict=True)]
    fedavg = sum(
        r["upload_model_bytes"] / r["upload_fraction"] for r in rounds if r["upload_fraction"]
    )
    return Curve(
        label=label or folder.name,
        rounds=[e["round"] for e in evaluations],
        accuracy=accuracy,
        smooth=moving_average(accuracy),
        megabytes={"upload": up, "download": down, "total": both},
        upload_fraction=rounds[-1]["cumulative_upload_model_bytes"] / fedavg if fedavg else 0.0,
        hyper=[r["hyper_readable"] for r in rounds],
    )


def check_comparable(folders: Sequence[Path]) -> None:
    """Refuse runs on different images, splits or validation sets.

    Raises:
        OutputError: names the difference.
    """
    configs = [read_config(folder) for folder in folders]
    hashes = [_data_hash(folder) for folder in folders]
    for folder, config, data_hash in zip(folders, configs, hashes, strict=True):
        if data_hash == hashes[0]:
            continue
        pair = f"{folders[0]} and {folder} cannot be compared"
        for key in _DATA_KEYS:
            a, b = getattr(configs[0], key), getattr(config, key)
            if a != b:
                raise OutputError(f"{pair}: {kebab(key)} is {a} in one and {b} in the other")
        raise OutputError(
            f"{pair}: their images differ (hash {hashes[0][:12]} and {data_hash[:12]}); was "
            "another data-dir used?"
        )


def labels(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def compare(folders: Sequence[Path], out: Path) -> list[Curve]:
    """Draw accuracy against cumulative upload, download and both; write the numbers beside it.

    Args:
        folders: run folders on the same data; the parent of several seeds stands for all of them.
        out: picture to write, ``.png`` or ``.svg``; the numbers go to the same name with ``.csv``.
    Returns:
        one curve a run.
    Raises:
        ConfigError: a picture of another kind, or no matplotlib.
        OutputError: runs that cannot be compared, or a picture that cannot be written.
    """
    check_picture(out)
    runs = [run for folder in folders for run in _seeds(folder)]
    check_comparable(runs)
    curves = [read_curve(run, label) for run, label in zip(runs, labels(runs), strict=True)]
    figure, axes = _figure(len(DIRECTIONS), sharey=True)
    for axis, direction in zip(axes, DIRECTIONS, strict=True):
        for i, curve in enumerate(curves):
            look = {"color": COLOURS[i % len(COLOURS)]}
            style = STYLES[i // len(COLOURS) % len(STYLES)]
            x = curve.megabytes[direction]
            axis.plot(x, _percent(curve.accuracy), linewidth=0.7, alpha=0.4, **look)
            axis.plot(
                x,
                _percent(curve.smooth),
                linewidth=2,
                linestyle=style,
                marker="." if len(x) < 3 else None,
                label=curve.label,
                **look,
            )
        axis.set_xlabel(_AXES[direction])
        axis.set_xlim(left=0)
    axes[0].set_ylabel("validation accuracy [%]")
    axes[-1].set_title(f"bold: mean of up to {WINDOW} evaluations", fontsize=8, loc="right")
    axes[0].legend(frameon=False, loc="lower right", fontsize=8)
    _save(figure, out)
    _write_csv(curves, out.with_suffix(".csv"))
    return curves


def compare_table(curves: Sequence[Curve]) -> str:
    """One line a run: rounds, accuracy at the end, what was sent; without a final newline."""
    head = ("run", "rounds", "accuracy %", "upload MB", "download MB", "upload share %")
    rows = [
        (
            c.label,
            f"{c.rounds[-1]:,}",
            f"{100 * c.smooth[-1]:.2f}",
            f"{c.megabytes['upload'][-1]:,.1f}",
            f"{c.megabytes['download'][-1]:,.1f}",
            f"{100 * c.upload_fraction:.1f}",
        )
        for c in curves
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )


def draw_run(folder: Path) -> None:
    """Draw ``curves.png``: accuracy by round, against upload, and learned hyperparameters.

    Raises:
        ConfigError: no matplotlib.
        OutputError: no evaluation yet, or the picture cannot be written.
    """
    curve = read_curve(folder)
    names = list(curve.hyper[-1])
    rotation = [n for n in names if n == "rotation_degrees"]
    others = [n for n in names if not n.endswith("_degrees")]
    groups = [
        (group, title)
        for group, title in ((rotation, "rotation, ± [degrees]"), (others, "other hyperparameters"))
        if group
    ]
    figure, axes = _figure(1 + len(groups))
    first, accuracy = axes[0], _percent(curve.accuracy)
    first.plot(curve.rounds, accuracy, color=COLOURS[0], marker=".", linewidth=1, alpha=0.6)
    first.plot(curve.rounds, _percent(curve.smooth), color=COLOURS[0], linewidth=2)
    first.set_xlabel(
        f"round ({curve.megabytes['upload'][-1]:,.0f} MB uploaded by the last, "
        f"{100 * curve.upload_fraction:.0f} % of FedAvg's)"
    )
    first.set_ylabel("validation accuracy [%]")
    for axis, (group, title) in zip(axes[1:], groups, strict=True):
        for i, name in enumerate(group):
            values = [h.get(name, float("nan")) for h in curve.hyper]
            axis.plot(
                range(1, len(values) + 1),
                values,
                color=COLOURS[i % len(COLOURS)],
                linestyle=STYLES[i // len(COLOURS) % len(STYLES)],
                label=name.replace("_", " "),
            )
        axis.set_xlabel("round")
        axis.set_ylabel(title)
        if len(group) > 1:
            axis.legend(frameon=False, fontsize=7, ncols=2)
    _save(figure, folder / "curves.png")


def _data_hash(folder: Path) -> str:
    try:
        return str(json.loads((folder / "run.json").read_text(encoding="utf-8"))["data_hash"])
    except (OSError, ValueError, KeyError, TypeError):
        raise OutputError(f"{folder} has no readable run.json: name the folder of a run") from None


def _seeds(folder: Path) -> list[Path]:
    runs = sorted(p.parent for p in folder.glob("seed-*/config.toml"))
    return runs if runs and not (folder / "config.toml").exists() else [folder]


def _percent(values: Sequence[float]) -> list[float]:
    return [100 * value for value in values]


def _write_csv(curves: Sequence[Curve], path: Path) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            names = [f"{d}_MB" for d in DIRECTIONS]
            writer.writerow(["run", "round", "val_accuracy", "moving_average", *names])
            for c in curves:
                for i, server_round in enumerate(c.rounds):
                    sent = [f"{c.megabytes[d][i]:.6f}" for d in DIRECTIONS]
                    accuracy = (f"{c.accuracy[i]:.6f}", f"{c.smooth[i]:.6f}")
                    writer.writerow([c.label, server_round, *accuracy, *sent])
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None


def _figure(columns: int, sharey: bool = False) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "the picture needs matplotlib; install it with pip install 'fedpart[sim]'"
        ) from None
    # Figure, not pyplot: no global state and no window.
    figure = Figure(figsize=(4.4 * columns, 3.7), layout="constrained", dpi=150)
    axes = figure.subplots(1, columns, sharey=sharey, squeeze=False)[0]
    for axis in axes:
        axis.grid(alpha=0.3, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out)
    except OSError as error:
        raise OutputError(f"cannot write {out}: {error.strerror or error}") from None
