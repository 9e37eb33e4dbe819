"""Finished runs, gathered into the cells of the paper's table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fedpart import paper
from fedpart.compare import name_data
from fedpart.config import Config
from fedpart.curves import Evaluation
from fedpart.errors import OutputError
from fedpart.run_files import (
    differences,
    find_runs,
    is_central,
    read_config,
    read_lines,
)
from fedpart.seeds import mean_and_error
from fedpart.spelling import kebab
from fedpart.stored import read_record, read_records

# Folders in one sentence.
_SHOWN = 3


class Finished(BaseModel):
    """What is needed of ``summary.json``, so that those of other versions can be read too."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    method: str
    dataset: str
    train_size: int
    skew: str
    alpha: float
    seed: int
    data_hash: str
    rounds: int
    final_accuracy: float
    final_accuracy_n: int
    upload_fraction: float


@dataclass(frozen=True, order=True)
class Key:
    """What a cell is about."""

    dataset: str
    train_size: int
    skew: str
    alpha: float
    method: str
    rounds: int

    def __str__(self) -> str:
        """``fedavg on mnist 1.25k, 2,000 rounds``; the split where it is not the paper's."""
        name = f"{self.method} on {self.dataset} {thousands(self.train_size)}"
        split = f", {self.split}" if self.split else ""
        return f"{name}{split}, {_count(self.rounds, 'round')}"

    @property
    def split(self) -> str:
        """Skew and alpha where they are not the paper's for the data set, else nothing."""
        for block in paper.BLOCKS:
            if block.split.get(self.dataset) == (self.skew, self.alpha):
                return ""
        kind = "iid" if self.skew == "iid" else f"{self.skew} skew"
        return f"{kind}, alpha {self.alpha:g}"


@dataclass(frozen=True)
class Run:
    """One finished run; ``config`` is None where ``config.toml`` is missing or of another version.

    Attributes:
        folder: where it lies.
        summary: its numbers.
        config: its settings.
        images: validation images of its last evaluation, where known.
        fault: what is damaged of settings and evaluations.
    """

    folder: Path
    summary: Finished
    config: Config | None
    images: int | None
    fault: str = ""


@dataclass(frozen=True)
class Cell:
    """Seeds of one experiment."""

    runs: tuple[Run, ...]

    @property
    def accuracy(self) -> tuple[float, float | None]:
        """Final validation accuracy [%], mean and standard error over seeds.

        Source: the paper's table, "averaged over the last 10 evaluations".
        """
        return mean_and_error([100 * run.summary.final_accuracy for run in self.runs])


@dataclass(frozen=True)
class Results:
    """All that a table is made of.

    Attributes:
        cells: finished runs by what they are about.
        notes: what sets a cell apart from the paper's, a sentence each.
        skipped: runs that are in no cell, and why, a sentence each.
    """

    cells: Mapping[Key, Cell]
    notes: tuple[str, ...]
    skipped: tuple[str, ...]


def collect(folders: Sequence[Path]) -> Results:
    """Read all runs at or below ``folders``.

    Raises:
        OutputError: a folder without runs, no finished run at all, or runs of one cell that do not
            have the same data.
    """
    # A folder may be named twice, itself and by one above it.
    found = {run.resolve(): run for folder in folders for run in find_runs(folder)}
    cells: dict[Key, dict[int, Run]] = {}
    skipped = []
    central = [folder for folder in found.values() if is_central(folder)]
    for folder in found.values():
        if folder in central:
            continue
        run = _read(folder)
        if isinstance(run, str):
            skipped.append(f"skipped {folder}: {run}")
            continue
        key = _key(run.summary)
        seeds = cells.setdefault(key, {})
        for other in seeds.values():
            _check_data(key, other, run)
        twin = seeds.setdefault(run.summary.seed, run)
        if twin is not run:
            skipped.append(f"skipped {folder}: {_duplicate(twin, run)}")
    if central:
        skipped.append(_central(central))
    if not cells:
        shown, more = skipped[:_SHOWN], len(skipped) - _SHOWN
        end = f"; and {more:,} more" if more > 0 else ""
        raise OutputError("no finished federated run: " + "; ".join(shown) + end)
    ordered = {k: Cell(tuple(v[seed] for seed in sorted(v))) for k, v in sorted(cells.items())}
    notes = [note for key, cell in ordered.items() for note in _notes(key, cell)]
    return Results(ordered, (*notes, *_columns(ordered)), tuple(skipped))


def _central(runs: Sequence[Path]) -> str:
    """Where their own numbers are."""
    if len(runs) == 1:
        return f"skipped {runs[0]}: a central run, not a federated one: see its summary.json"
    parents = {p for run in runs for p in run.parents if (p / "sweep.json").is_file()}
    tables = sorted(str(p / "table.md") for p in parents if (p / "table.md").is_file())
    where = ", ".join(tables[:_SHOWN]) or "sweep.json and sweep.png in the folder of several"
    return f"skipped {len(runs):,} central runs, not federated ones: see {where}"


def thousands(size: int) -> str:
    """1250 -> 1.25k."""
    return f"{size / 1000:g}k" if size >= 1000 else str(size)


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def _read(folder: Path) -> Run | str:
    """A finished run, or why there is none."""
    config, fault = None, ""
    try:
        config = read_config(folder)
    except OutputError as error:
        # Settings may be left out of what is copied; what is there and damaged is named.
        fault = str(error) if (folder / "config.toml").is_file() else ""
    rounds, evaluations = folder / "rounds.jsonl", folder / "evaluations.jsonl"
    try:
        if not (folder / "summary.json").is_file():
            done = len(read_lines(rounds)) if rounds.exists() else 0
            of = f" of {config.rounds:,}" if config else ""
            return f"not finished, {_count(done, 'round')}{of} done"
        summary = read_record(folder / "summary.json", Finished)
    except OutputError as error:
        return str(error)
    try:
        found = read_records(evaluations, Evaluation) if evaluations.exists() else []
    except OutputError as error:
        # No number of the table comes from there.
        return Run(folder, summary, config, None, "; ".join(filter(None, [fault, str(error)])))
    return Run(folder, summary, config, found[-1].num_images if found else None, fault)


def _key(summary: Finished) -> Key:
    names = ("dataset", "train_size", "skew", "alpha", "method", "rounds")
    return Key(**{name: getattr(summary, name) for name in names})


def _check_data(key: Key, a: Run, b: Run) -> None:
    hashes = [run.summary.data_hash for run in (a, b)]
    if hashes[0] == hashes[1]:
        return
    reason = f"hash {hashes[0][:12]} and {hashes[1][:12]}"
    if a.config is not None and b.config is not None:
        reason = name_data(a.config, b.config, *hashes)
    raise OutputError(
        f"{key}: {a.folder} and {b.folder} are not on the same data: {reason}; "
        "give each a table of its own"
    )


def _duplicate(twin: Run, run: Run) -> str:
    differ = differences([r.config for r in (twin, run) if r.config is not None])
    other = f", with other settings ({_listed(differ)})" if differ else ""
    return f"seed {run.summary.seed} is taken from {twin.folder}{other}"


def _listed(differ: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{key} {' and '.join(values)}" for key, values in differ.items())


def _notes(key: Key, cell: Cell) -> list[str]:
    """What a reader must know who takes the cell for the paper's."""
    configs = [run.config for run in cell.runs if run.config is not None]
    notes = []
    if differ := differences(configs):
        notes.append(f"seeds differ in more than the seed: {_listed(differ)}")
    if len(configs) < len(cell.runs):
        notes.append("settings unknown for want of a readable config.toml")
    notes += [run.fault for run in cell.runs if run.fault]
    block = next((b for b in paper.BLOCKS if key.dataset in b.datasets), None)
    if block is not None and configs:
        notes += _unlike(key, configs[0], block)
    counts = sorted({run.summary.final_accuracy_n for run in cell.runs})
    if counts != [paper.EVALUATIONS]:
        found = " or ".join(map(str, counts))
        notes.append(f"evaluations in the mean: {found} (paper {paper.EVALUATIONS})")
    images = sorted({run.images for run in cell.runs if run.images is not None})
    if block is not None and images and images != [block.validation_images]:
        found = " or ".join(f"{n:,}" for n in images)
        notes.append(f"validation images: {found} (paper {block.validation_images:,})")
    return [f"{key}: {'; '.join(notes)}"] if notes else []


def _unlike(key: Key, config: Config, block: paper.Block) -> list[str]:
    """Settings that are not the paper's; rounds and split stand in the table itself."""
    stated = dict(block.settings)
    if (row := block.row(key.method)) is not None and row.upload < 100:
        stated |= block.learned
    found = []
    for name, value in stated.items():
        mine = getattr(config, name)
        if isinstance(value, float) and math.isclose(mine, value, rel_tol=1e-3):
            continue
        if mine != value:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            mine = ",".join(map(str, mine)) if isinstance(mine, tuple) else mine
            found.append(f"{kebab(name)} {mine} (paper {shown})")
    return found


def _columns(cells: Mapping[Key, Cell]) -> list[str]:
    """Columns whose rows do not have the same data, so that they cannot be read against another."""
    hashes: dict[tuple[str, int, str], dict[str, Key]] = {}
    for key, cell in cells.items():
        column = (key.dataset, key.train_size, key.split)
        hashes.setdefault(column, {}).setdefault(cell.runs[0].summary.data_hash, key)
    return [
        f"not on the same data: {' / '.join(map(str, keys.values()))}"
        for keys in hashes.values()
        if len(keys) > 1
    ]
