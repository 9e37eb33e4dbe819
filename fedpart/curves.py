"""Learning curves: what one run measured and sent, evaluation by evaluation, and several seeds.

A run's curve comes from ``rounds.jsonl`` and ``evaluations.jsonl``, finished or not. A finished run
keeps it in ``curves.csv`` as well, beside its picture: a few kilobytes that can be committed where
``rounds.jsonl`` would be megabytes.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from fedpart.errors import ConfigError, OutputError
from fedpart.files import write_atomic
from fedpart.run_files import damaged
from fedpart.seeds import mean_and_error
from fedpart.stored import read_records

WINDOW = 10
DIRECTIONS = ("upload", "download", "total")
CHUNK_COLUMN = "upload_MB_chunk_"
_COLUMNS = (
    *("round", "val_accuracy", "moving_average"),
    *(f"{direction}_MB" for direction in DIRECTIONS),
    "upload_share",
)
# Columns of ``compare`` besides.
_COMPARED = ("run", "seeds", "standard_error")


class _Client(BaseModel):
    chunk: int = Field(ge=0)
    upload_model_bytes: int


class Round(BaseModel):
    """What is needed of a line of ``rounds.jsonl``; other versions' lines may hold other things."""

    round: int
    clients: list[_Client]
    upload_model_bytes: int
    upload_fraction: float | None
    cumulative_upload_model_bytes: int
    cumulative_download_model_bytes: int
    hyper_readable: dict[str, float]


class Evaluation(BaseModel):
    """What is needed of a line of ``evaluations.jsonl``."""

    round: int = Field(ge=1)
    num_images: int
    val_accuracy: float


@dataclass(frozen=True)
class Curve:
    """One run, evaluation by evaluation.

    Attributes:
        label: name of the run's folder.
        rounds: round of each evaluation.
        accuracy: validation accuracy, fractions.
        smooth: mean of the last ten (or as many as there are) evaluations.
        megabytes: direction -> cumulative model megabytes (10^6 bytes) at each evaluation.
        chunks: cumulative upload of each chunk's clients, [evaluations][C], megabytes.
        upload_share: of what FedAvg would have uploaded by each evaluation.
        hyper: psi in plain units at each evaluation.
    """

    label: str
    rounds: list[int]
    accuracy: list[float]
    smooth: list[float]
    megabytes: dict[str, list[float]]
    chunks: list[list[float]]
    upload_share: list[float]
    hyper: list[dict[str, float]]


@dataclass(frozen=True)
class Series:
    """A number at each evaluation, over seeds.

    Attributes:
        mean: over the seeds.
        error: its standard error; zero where there is one seed.
    """

    mean: list[float]
    error: list[float]


@dataclass(frozen=True)
class Group:
    """Seeds of one experiment.

    Attributes:
        label: what tells it from others.
        curves: one a seed, all over the same rounds.
    """

    label: str
    curves: list[Curve]

    @property
    def rounds(self) -> list[int]:
        """Round of each evaluation."""
        return self.curves[0].rounds

    def series(self, pick: Callable[[Curve], Sequence[float]]) -> Series:
        """Mean and standard error over seeds of what ``pick`` takes from each curve."""
        columns = zip(*(pick(curve) for curve in self.curves), strict=True)
        pairs = [mean_and_error(values) for values in columns]
        return Series([mean for mean, _ in pairs], [error or 0.0 for _, error in pairs])

    @property
    def smooth(self) -> Series:
        """Moving average of validation accuracy, taken for each seed first.

        Source: the paper, "MNIST learning curves".
        """
        return self.series(lambda curve: curve.smooth)

    def megabytes(self, direction: str) -> list[float]:
        """What was sent by each evaluation, mean over seeds."""
        return self.series(lambda curve: curve.megabytes[direction]).mean

    def chunks(self) -> list[list[float]]:
        """Cumulative upload of each chunk's clients, [C][evaluations], mean over seeds."""
        count = max(len(curve.chunks[-1]) for curve in self.curves)
        return [self.series(partial(_chunk, chunk=chunk)).mean for chunk in range(count)]

    def hyper(self, name: str) -> Series:
        """One hyperparameter in plain units."""
        return self.series(lambda curve: [psi[name] for psi in curve.hyper])


def _chunk(curve: Curve, chunk: int) -> list[float]:
    # A short run may not have met a client of the last chunk yet.
    return [values[chunk] if chunk < len(values) else 0.0 for values in curve.chunks]


def moving_average(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Mean of the last ``window`` values, or of as many as there are, at each position.

    Source: the paper's learning curves, "moving average across 10 evaluations".
    """
    parts = [values[max(0, i + 1 - window) : i + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def reached(curve: Curve, target: float) -> int | None:
    """Position of the first evaluation whose moving average is at least ``target``, or None."""
    # Three times 0.6 over 3 is a little less than 0.6.
    return next((i for i, value in enumerate(curve.smooth) if value >= target - 1e-12), None)


def cut(curve: Curve, rounds: Sequence[int]) -> Curve:
    """The curve at some of its rounds only."""
    keep = set(rounds)
    at = [i for i, server_round in enumerate(curve.rounds) if server_round in keep]

    def some(values: Sequence[Any]) -> list[Any]:
        return [values[i] for i in at]

    return Curve(
        label=curve.label,
        rounds=some(curve.rounds),
        accuracy=some(curve.accuracy),
        smooth=some(curve.smooth),
        megabytes={name: some(values) for name, values in curve.megabytes.items()},
        chunks=some(curve.chunks),
        upload_share=some(curve.upload_share),
        hyper=some(curve.hyper),
    )


def read_curve(folder: Path, label: str | None = None) -> Curve:
    """Read a run folder, finished or not.

    Raises:
        OutputError: no run, none with an evaluation yet, or a damaged file.
    """
    label = label or folder.name
    if not (folder / "rounds.jsonl").exists() and (folder / "curves.csv").exists():
        return _read_csv(folder / "curves.csv", label)
    rounds = read_records(folder / "rounds.jsonl", Round)
    found = read_records(folder / "evaluations.jsonl", Evaluation)
    for number, line in enumerate(rounds, 1):
        if line.round != number:
            raise damaged(folder / "rounds.jsonl", number, f"it holds round {line.round}")
        if line.hyper_readable.keys() != rounds[0].hyper_readable.keys():
            raise damaged(folder / "rounds.jsonl", number, "hyper_readable has other names")
    for number, (before, after) in enumerate(pairwise(e.round for e in found), 2):
        if after <= before:
            what = f"round {after} after round {before}"
            raise damaged(folder / "evaluations.jsonl", number, what)
    # A run that was killed may have a round less on disk than its last evaluation, or more.
    evaluations = [e for e in found if e.round <= len(rounds)]
    if not evaluations:
        raise OutputError(f"{folder} has no evaluation yet: let it run longer")
    accuracy = [e.val_accuracy for e in evaluations]
    at = [rounds[e.round - 1] for e in evaluations]
    up = [r.cumulative_upload_model_bytes / 1e6 for r in at]
    down = [r.cumulative_download_model_bytes / 1e6 for r in at]
    chunks, shares = _sent(rounds)
    return Curve(
        label=label,
        rounds=[e.round for e in evaluations],
        accuracy=accuracy,
        smooth=moving_average(accuracy),
        megabytes={
            "upload": up,
            "download": down,
            "total": [a + b for a, b in zip(up, down, strict=True)],
        },
        chunks=[chunks[e.round - 1] for e in evaluations],
        upload_share=[shares[e.round - 1] for e in evaluations],
        hyper=[r.hyper_readable for r in at],
    )


def _sent(rounds: Sequence[Round]) -> tuple[list[list[float]], list[float]]:
    """After each round: megabytes up by chunk, and upload as a share of FedAvg's."""
    count = max((c.chunk for r in rounds for c in r.clients), default=0) + 1
    so_far, fedavg = [0] * count, 0.0
    chunks, shares = [], []
    for line in rounds:
        for client in line.clients:
            so_far[client.chunk] += client.upload_model_bytes
        if line.upload_fraction:
            fedavg += line.upload_model_bytes / line.upload_fraction
        chunks.append([value / 1e6 for value in so_far])
        shares.append(line.cumulative_upload_model_bytes / fedavg if fedavg else 0.0)
    return chunks, shares


def write_csv(curve: Curve, path: Path) -> None:
    """Write one run's curve, a line an evaluation.

    Raises:
        OutputError: the file cannot be written.
    """
    names = list(curve.hyper[-1])
    sent = [f"{CHUNK_COLUMN}{chunk}" for chunk in range(len(curve.chunks[-1]))]
    rows = [
        [
            *(curve.rounds[i], f"{curve.accuracy[i]:.6f}", f"{curve.smooth[i]:.6f}"),
            *(f"{curve.megabytes[direction][i]:.6f}" for direction in DIRECTIONS),
            f"{curve.upload_share[i]:.6f}",
            *(f"{value:.6f}" for value in curve.chunks[i]),
            *(f"{curve.hyper[i][name]:.6g}" for name in names),
        ]
        for i in range(len(curve.rounds))
    ]
    write_atomic(path, to_csv([*_COLUMNS, *sent, *names], rows))


def to_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """A table as comma-separated values, UTF-8.

    Args:
        head: names of the columns.
        rows: their values.
    """
    content = StringIO(newline="")
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return content.getvalue().encode()


def check_columns(names: Iterable[str]) -> None:
    """Whether hyperparameters may head columns of these names in tables of curves.

    Raises:
        ConfigError: one is taken.
    """
    for name in names:
        if name in (*_COLUMNS, *_COMPARED) or name.startswith(CHUNK_COLUMN):
            raise ConfigError(
                f"a hyperparameter is named {name!r}, as a column of curves.csv or of what "
                "compare writes is already: name it otherwise"
            )


def _read_csv(path: Path, label: str) -> Curve:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        rounds = [int(line["round"]) for line in lines]
        columns = {
            name: [float(line[name]) for line in lines] for name in lines[0] if name != "round"
        }
        chunks = [columns.pop(name) for name in list(columns) if name.startswith(CHUNK_COLUMN)]
        given = {name: columns.pop(name) for name in _COLUMNS if name != "round"}
    except (OSError, UnicodeDecodeError, ValueError, TypeError, KeyError, IndexError, csv.Error):
        raise OutputError(f"{path} is damaged: restore it, or rounds.jsonl beside it") from None
    return Curve(
        label=label,
        rounds=rounds,
        accuracy=given["val_accuracy"],
        smooth=moving_average(given["val_accuracy"]),
        megabytes={direction: given[f"{direction}_MB"] for direction in DIRECTIONS},
        chunks=[list(values) for values in zip(*chunks, strict=True)],
        upload_share=given["upload_share"],
        hyper=[{name: values[i] for name, values in columns.items()} for i in range(len(rounds))],
    )
