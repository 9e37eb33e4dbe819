"""Several seeds of one experiment: their folders, how far each has come, and the spread over them.

``OUT/config.toml`` holds the settings of all, ``seeds`` included, so that whatever ends a process,
between two seeds too, ``sim.py --resume OUT`` knows what is left to do. Each seed has a run folder
``OUT/seed-<s>``, which is as any other; the parent has no records of its own.
"""

import contextlib
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedpart.config import Config
from fedpart.errors import OutputError
from fedpart.files import write_atomic
from fedpart.records import Summary
from fedpart.run_files import claim_folder, differences, ended_well, read_config
from fedpart.stored import read_record


@dataclass(frozen=True)
class SeedRun:
    """One seed's turn.

    Attributes:
        config: its settings; ``out`` is its folder.
        state: its folder is new, holds an interrupted run, or a finished one.
        summary: of a finished one.
    """

    config: Config
    state: Literal["new", "begun", "finished"]
    summary: Summary | None = None

    @property
    def folder(self) -> Path:
        """``OUT/seed-<s>``."""
        assert self.config.out is not None
        return Path(self.config.out)


@contextlib.contextmanager
def claimed(path: Path, config: Config) -> Iterator[None]:
    """Make the folder of several seeds, write what each goes by, and keep it for the block.

    Raises:
        BusyError, TakenError, OutputError: see ``run_files.claim_folder``.
    """
    handle = claim_folder(path)
    try:
        write_atomic(path / "config.toml", config.to_toml().encode())
        yield
    finally:
        os.close(handle)


def check_unfinished(parent: Path, config: Config) -> None:
    """Whether there is anything left to do.

    Raises:
        OutputError: every seed has reached its last round.
    """
    if all(ended_well(run) for run in _folders(parent, config).values()):
        raise OutputError(
            f"{parent} is finished, all {config.seeds} seeds of it: see their summary.json, or "
            "start a new run with more seeds"
        )


def seed_runs(parent: Path, config: Config) -> Iterator[SeedRun]:
    """Each seed when its turn has come; its folder is looked into only then.

    Args:
        parent: may hold folders of finished, interrupted or not yet begun seeds.
        config: of all seeds.
    Raises:
        OutputError: a folder that began with other settings, or whose summary is damaged.
    """
    for seed, folder in _folders(parent, config).items():
        one = config.model_copy(update={"seed": seed, "seeds": 1, "out": str(folder)})
        if not (folder / "config.toml").is_file():
            yield SeedRun(one, "new")
            continue
        _check_settings(parent, folder, one)
        if ended_well(folder):
            yield SeedRun(one, "finished", read_record(folder / "summary.json", Summary))
        else:
            yield SeedRun(one, "begun")


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and its standard error; None for a single value."""
    mean = statistics.fmean(values)
    # Sample standard deviation, n - 1: the seeds are a sample of all that could be drawn.
    return mean, statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def over_seeds(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """Rows of the table at the end of several seeds."""
    rows = [("seeds", ", ".join(str(s.seed) for s in summaries))]
    for name in ("final_accuracy", "test_accuracy", "upload_fraction"):
        values = [100 * v for s in summaries if (v := getattr(s, name)) is not None]
        if len(values) > 1:
            mean, error = mean_and_error(values)
            rows.append((name.replace("_", " "), f"{mean:.2f} ± {error:.2f} % (standard error)"))
    return rows


def _folders(parent: Path, config: Config) -> dict[int, Path]:
    seeds = range(config.seed, config.seed + config.seeds)
    return {seed: parent / f"seed-{seed}" for seed in seeds}


def _check_settings(parent: Path, folder: Path, config: Config) -> None:
    theirs = read_config(folder)
    for key, (there, here) in differences([theirs, config]).items():
        raise OutputError(
            f"{folder} began with {key} {there}, but {parent / 'config.toml'} says {here}: "
            "set it back, or start a new run"
        )
    if theirs.seed != config.seed:
        raise OutputError(f"{folder} holds seed {theirs.seed}: move it to a folder of that name")
