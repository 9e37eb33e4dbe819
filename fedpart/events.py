"""Events of a run for TensorBoard, where ``logger`` asks for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fedpart.config import Config
from fedpart.records import EvaluationRecord, RoundRecord


class Events(Protocol):
    """Where a run's curves go while it runs."""

    def log(self, record: RoundRecord, evaluations: Sequence[EvaluationRecord]) -> None:
        """Called once a round, with the evaluations that have come in."""
        ...

    def close(self) -> None:
        """Write what is left; may be called again."""
        ...


class NoEvents:
    """Nobody watches."""

    def log(self, record: RoundRecord, evaluations: Sequence[EvaluationRecord]) -> None:
        """See ``Events``."""

    def close(self) -> None:
        """See ``Events``."""


class TensorBoardEvents:
    """Event files in the run folder: upload in MB, psi in readable units, accuracy (fraction)."""

    def __init__(self, path: Path, done: int) -> None:
        """Write into ``path``; events after round ``done`` that a crash has left do not count."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(path), purge_step=done + 1 if done else None)

    def log(self, record: RoundRecord, evaluations: Sequence[EvaluationRecord]) -> None:
        """See ``Events``."""
        megabytes = record.cumulative_upload_model_bytes / 1e6
        self._writer.add_scalar("upload_MB", megabytes, record.round)
        for name, value in record.hyper_readable.items():
            self._writer.add_scalar(f"hyper/{name}", value, record.round)
        for evaluation in evaluations:
            self._writer.add_scalar("val_accuracy", evaluation.val_accuracy, evaluation.round)

    def close(self) -> None:
        """See ``Events``."""
        self._writer.close()


def open_events(config: Config, path: Path, done: int) -> Events:
    """What ``config.logger`` asks for, after ``done`` rounds."""
    return TensorBoardEvents(path, done) if config.logger == "tensorboard" else NoEvents()
