"""TensorBoard events of a central run."""

from pathlib import Path
from typing import Any

from fedpart.central.records import CentralEvaluation

_SCALARS = (
    *("train_loss", "l_ml", "train_accuracy", "train_log_likelihood"),
    *("test_accuracy", "test_log_likelihood"),
)


class TensorBoardEvents:
    """Event files in the run folder: likelihoods in nats, accuracies as fractions, psi."""

    def __init__(self, path: Path, done: int) -> None:
        """Write into ``path``; events after iteration ``done`` that a crash has left are void."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(path), purge_step=done + 1 if done else None)

    def log(self, record: CentralEvaluation) -> None:
        """Called at each evaluation."""
        for name in _SCALARS:
            value = getattr(record, name)
            if value is not None:
                self._writer.add_scalar(name, value, record.iteration)
        for name, value in record.hyper_readable.items():
            self._writer.add_scalar(f"hyper/{name}", value, record.iteration)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
