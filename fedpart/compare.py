"""``sim.py compare``: runs on the same data, seeds of one experiment taken together."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpart.config import Config
from fedpart.curves import (
    CHUNK_COLUMN,
    DIRECTIONS,
    WINDOW,
    Curve,
    Evaluation,
    Group,
    cut,
    reached,
    read_curve,
    to_csv,
)
from fedpart.errors import OutputError
from fedpart.files import PICTURES, check_out, write_out
from fedpart.plots_curves import draw_groups
from fedpart.run_files import (
    damaged,
    differences,
    find_runs,
    is_central,
    read_config,
    read_lines,
)
from fedpart.seeds import mean_and_error
from fedpart.stored import read_records

# What the data depends on, in the order in which a difference is named.
DATA_KEYS = (
    *("dataset", "train_size", "clients", "skew", "alpha", "concentration", "sizes"),
    *("min_examples", "data_seed"),
)


@dataclass(frozen=True)
class Comparison:
    """What ``compare`` found.

    Attributes:
        groups: one an experiment, over its seeds.
        target: validation accuracy to reach, a fraction, or None.
        notes: what was left out, and why.
    """

    groups: list[Group]
    target: float | None
    notes: list[str]

    def text(self) -> str:
        """What was reached at which cost, as plain text without a final newline."""
        end = _aligned(_HEAD, [_row(group) for group in self.groups])
        if self.target is None:
            return end
        target = f"to {100 * self.target:g} % (mean of up to {WINDOW} evaluations)"
        rows = [_target_row(group, self.target) for group in self.groups]
        return f"{end}\n\n{target}\n{_aligned(_TARGET_HEAD, rows)}"


def compare(folders: Sequence[Path], out: Path, target: float | None = None) -> Comparison:
    """Draw and tabulate runs; seeds of one experiment become a mean and its standard error.

    Args:
        folders: run folders on the same data, or folders that hold them.
        out: picture to write, ``.png`` or ``.svg``; the numbers go to the same name with ``.csv``.
        target: validation accuracy to reach, a fraction.
    Raises:
        ConfigError: a picture of another kind, or no matplotlib.
        OutputError: runs that cannot be compared, or a picture that cannot be written.
    """
    check_out(out, PICTURES)
    check_out(out.with_suffix(".csv"))
    curves, notes = _read(folders)
    configs = {run: read_config(run) for run in curves}
    for run, curve in curves.items():
        _check_whole(run, curve, configs[run])
    check_comparable(configs)
    experiments = _by_settings(configs)
    places = [_place(runs) for runs in experiments]
    if len({place.resolve() for place in places}) < len(places):
        places = [runs[0] for runs in experiments]
    groups = []
    for name, experiment in zip(labels(places), experiments, strict=True):
        seeds = [curves[run] for run in experiment]
        groups.append(_group(name, seeds, experiment, configs[experiment[0]].rounds, notes))
    picture = draw_groups(groups, out.suffix, target)
    write_out(out, picture)
    write_out(out.with_suffix(".csv"), _csv(groups))
    return Comparison(groups, target, notes)


def _read(folders: Sequence[Path]) -> tuple[dict[Path, Curve], list[str]]:
    """Curves by run folder; what has not begun is left out, unless it was named itself."""
    named = {folder.resolve() for folder in folders}
    found = {run.resolve(): run for folder in folders for run in find_runs(folder)}
    central = [run for run in found.values() if is_central(run)]
    runs = {place: run for place, run in found.items() if run not in central}
    if not runs:
        raise OutputError(
            f"{central[0]} is a central run, which sent nothing to compare: see its curves.png, or "
            "sweep.png in the folder of several"
        )
    fresh = {
        place: run
        for place, run in runs.items()
        if place not in named and len(runs) > 1 and _unseen(run)
    }
    if len(fresh) == len(runs):
        raise OutputError(f"none of {len(runs)} runs has an evaluation yet: let them run longer")
    curves = {run: read_curve(run) for place, run in runs.items() if place not in fresh}
    notes = [f"left out: {run} has no evaluation yet" for run in fresh.values()]
    return curves, notes + [f"left out: {run} is a central run" for run in central]


def _unseen(run: Path) -> bool:
    path = run / "evaluations.jsonl"
    return path.is_file() and not read_lines(path)


def _check_whole(run: Path, curve: Curve, config: Config) -> None:
    """A run that is finished has its records up to its last round."""
    if (run / "summary.json").exists() and curve.rounds[-1] < config.rounds:
        path = run / "evaluations.jsonl"
        ends = read_records(path, Evaluation)[-1].round if path.exists() else config.rounds
        name = path.name if ends < config.rounds else "rounds.jsonl"
        name = name if (run / name).exists() else "curves.csv"
        raise damaged(run / name, None, f"it ends before round {config.rounds:,}")


def check_comparable(configs: dict[Path, Config]) -> None:
    """Refuse runs on different images, splits or validation sets.

    Args:
        configs: run folder -> its settings.
    Raises:
        OutputError: names the difference.
    """
    first, *others = configs
    for folder in others:
        pair = f"{first} and {folder} cannot be compared"
        a, b = (data_hash(run) for run in (first, folder))
        if a != b:
            raise OutputError(f"{pair}: {name_data(configs[first], configs[folder], a, b)}")
        sizes = [configs[run].eval_size for run in (first, folder)]
        # Where there are fewer validation images than either, all were used.
        if sizes[0] != sizes[1] and _images(first) != _images(folder):
            raise OutputError(f"{pair}: eval-size is {sizes[0]} in one and {sizes[1]} in the other")


def name_data(a: Config, b: Config, hash_a: str, hash_b: str) -> str:
    """Why two runs do not have the same data, as the end of a sentence."""
    for key, (one, other) in differences([a, b], DATA_KEYS).items():
        return f"{key} is {one} in one and {other} in the other"
    return f"their images differ (hash {hash_a[:12]} and {hash_b[:12]}), as with another data-dir"


def data_hash(folder: Path) -> str:
    """Hash of a run's images and split.

    Raises:
        OutputError: neither ``run.json`` nor ``summary.json`` tells it.
    """
    found = [_field(folder / name, "data_hash") for name in ("run.json", "summary.json")]
    for value in found:
        if value is not None:
            return value
    raise OutputError(
        f"{folder} has no readable run.json or summary.json: name the folder of a run"
    )


def _field(path: Path, name: str) -> str | None:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))[name])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def labels(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _images(folder: Path) -> set[int]:
    path = folder / "evaluations.jsonl"
    return {e.num_images for e in read_records(path, Evaluation)} if path.exists() else set()


def _by_settings(configs: dict[Path, Config]) -> list[list[Path]]:
    """Runs that differ in their seed only; those of one place stay together."""
    found: dict[str, dict[Path, list[dict[int, Path]]]] = {}
    for run, config in configs.items():
        settings = config.model_copy(update={"seed": 0}).config_hash
        runs = found.setdefault(settings, {}).setdefault(_without_seed(run), [])
        runs.append({config.seed: run})
    experiments = [
        seeds
        for places in found.values()
        for seeds in _merged(seeds for runs in places.values() for seeds in _merged(runs))
    ]
    order = {run: i for i, run in enumerate(configs)}
    experiments.sort(key=lambda seeds: min(order[run] for run in seeds.values()))
    return [[seeds[seed] for seed in sorted(seeds)] for seeds in experiments]


def _merged(experiments: Iterable[dict[int, Path]]) -> list[dict[int, Path]]:
    """Each joins the first before it that has none of its seeds."""
    found: list[dict[int, Path]] = []
    for seeds in experiments:
        for other in found:
            if not other.keys() & seeds.keys():
                other |= seeds
                break
        else:
            found.append({**seeds})
    return found


def _place(runs: Sequence[Path]) -> Path:
    """The path that stands for the seeds of an experiment."""
    return runs[0] if len(runs) == 1 else _without_seed(runs[0])


def _without_seed(run: Path) -> Path:
    """``runs/x`` of ``runs/x/seed-0``, ``runs/x-seed-0`` and ``runs/x``."""
    path = run.resolve()
    stem = re.sub(r"[-_]?seed[-_]?\d+(-\d+)?$", "", path.name)
    return path.with_name(stem) if stem else path.parent


def _group(
    label: str, curves: list[Curve], folders: Sequence[Path], rounds: int, notes: list[str]
) -> Group:
    """Seeds over the rounds that all of them have; where some are finished, only those count."""
    whole = [curve.rounds[-1] == rounds for curve in curves]
    if any(whole) and not all(whole):
        for curve, folder, complete in zip(curves, folders, whole, strict=True):
            if not complete:
                notes.append(
                    f"left out: {folder} is at round {curve.rounds[-1]:,} of {rounds:,}, "
                    "and other seeds are finished"
                )
        curves = [curve for curve, complete in zip(curves, whole, strict=True) if complete]
    shortest = min(curves, key=lambda curve: curve.rounds[-1])
    if len({curve.rounds[-1] for curve in curves}) > 1:
        notes.append(f"{label}: shown to round {shortest.rounds[-1]:,}, which all seeds have")
    several = f" ({len(curves)} seeds)" if len(curves) > 1 else ""
    return Group(label + several, [cut(curve, shortest.rounds) for curve in curves])


_HEAD = ("run", "seeds", "rounds", "accuracy %", "upload MB", "download MB", "upload share %")
_TARGET_HEAD = ("run", "reached", "round", "upload MB", "download MB", "total MB")


def _row(group: Group) -> tuple[str, ...]:
    return (
        group.label,
        str(len(group.curves)),
        f"{group.rounds[-1]:,}",
        _spread([100 * c.smooth[-1] for c in group.curves], 2),
        _spread([c.megabytes["upload"][-1] for c in group.curves], 1),
        _spread([c.megabytes["download"][-1] for c in group.curves], 1),
        _spread([100 * c.upload_share[-1] for c in group.curves], 1),
    )


def _target_row(group: Group, target: float) -> tuple[str, ...]:
    places = [reached(curve, target) for curve in group.curves]
    pairs = [(curve, i) for curve, i in zip(group.curves, places, strict=True) if i is not None]
    count = f"{len(pairs)} of {len(places)}"
    # A mean over the seeds that got there would flatter a method that often does not.
    if len(pairs) < len(places):
        best = max(max(curve.smooth) for curve in group.curves)
        where = "not by all" if pairs else "not reached"
        return (group.label, count, where, f"best {100 * best:.2f} %", "", "")
    return (
        group.label,
        count,
        _spread([curve.rounds[i] for curve, i in pairs], 0),
        *(_spread([c.megabytes[way][i] for c, i in pairs], 1) for way in DIRECTIONS),
    )


def _spread(values: Sequence[float], digits: int) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:,.{digits}f}" + ("" if error is None else f" ± {error:,.{digits}f}")


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


def _csv(groups: Sequence[Group]) -> bytes:
    names = list(dict.fromkeys(name for g in groups for name in g.curves[0].hyper[-1]))
    count = max(len(group.chunks()) for group in groups)
    head = [
        *("run", "seeds", "round", "val_accuracy", "moving_average", "standard_error"),
        *(f"{way}_MB" for way in DIRECTIONS),
        *(f"{CHUNK_COLUMN}{chunk}" for chunk in range(count)),
        *names,
    ]
    rows = []
    for g in groups:
        numbers = [
            *(g.series(lambda curve: curve.accuracy).mean, g.smooth.mean, g.smooth.error),
            *(g.megabytes(way) for way in DIRECTIONS),
            *g.chunks(),
        ]
        numbers += [[]] * (len(head) - 3 - len(names) - len(numbers))
        # Nothing for what this group does not have.
        numbers += [g.hyper(n).mean if n in g.curves[0].hyper[-1] else [] for n in names]
        rows += [
            [g.label, len(g.curves), r, *(f"{v[i]:.6f}" if v else "" for v in numbers)]
            for i, r in enumerate(g.rounds)
        ]
    return to_csv(head, rows)
