"""Runs that have ended, and their means over seeds, for tables and pictures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpart.central.records import CentralEvaluation, CentralSummary
from fedpart.run_files import damaged, ended_well
from fedpart.seeds import mean_and_error
from fedpart.stored import read_record, read_records


@dataclass(frozen=True)
class Finished:
    """A run that has ended.

    Attributes:
        folder: where it lies.
        summary: what it came to.
    """

    folder: Path
    summary: CentralSummary

    def evaluations(self) -> list[CentralEvaluation]:
        """Every evaluation.

        Raises:
            OutputError: a damaged file, or one without the evaluation that counts or the last.
        """
        path = self.folder / "evaluations.jsonl"
        found = read_records(path, CentralEvaluation)
        # The one that counts, and the last.
        needed = {self.summary.iteration, self.summary.iterations}
        if lost := needed - {evaluation.iteration for evaluation in found}:
            raise damaged(path, None, f"it lacks the evaluation after iteration {max(lost):,}")
        return found


def finished(folder: Path) -> Finished | None:
    """What a run came to; None where it is not finished.

    Raises:
        OutputError: a damaged file.
    """
    if not ended_well(folder):
        return None
    return Finished(folder, read_record(folder / "summary.json", CentralSummary))


def learned_psi(run: Finished) -> tuple[float, ...]:
    """Raw values of the augmentation at the end, which a plain network can be trained with.

    Raises:
        OutputError: a damaged file.
    """
    counted = next(e for e in run.evaluations() if e.iteration == run.summary.iteration)
    return tuple(counted.hyper["augmentation"])


def of_method(runs: Iterable[Finished], *methods: str) -> list[Finished]:
    """Those of some methods."""
    return [run for run in runs if run.summary.method in methods]


def accuracy(runs: Sequence[Finished]) -> tuple[float, float | None]:
    """Test accuracy [%], mean and standard error over runs."""
    return mean_and_error([100 * run.summary.test_accuracy for run in runs])


def rotation(run: Finished) -> float | None:
    """Learned or drawn rotation, up to so many degrees either way; None where there is none."""
    return run.summary.hyper_readable.get("rotation_degrees")


def ratio(values: Sequence[float] | None) -> str:
    """Shares as ``[0.8, 0.1, 0.1]``."""
    return "[" + ", ".join(f"{v:.2g}" for v in values or ()) + "]"
