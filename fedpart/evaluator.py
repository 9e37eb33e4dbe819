"""When the states of a run are evaluated: at once, or beside the rounds that follow."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass

from torch import Tensor

from fedpart.config import Config
from fedpart.data import FederatedData
from fedpart.evaluation import evaluation_record
from fedpart.program import Program
from fedpart.records import EvaluationRecord

FINAL_EVALUATIONS = 10


@dataclass(frozen=True)
class Pending:
    """What one evaluation needs; a checkpoint keeps it until the record is written.

    Attributes:
        round: the round that ended with these values.
        theta: every parameter, [P].
        hyper: psi, [H].
        l_ml: what the round's clients measured out of sample, nats an example.
    """

    round: int
    theta: Tensor
    hyper: Tensor
    l_ml: float | None


def evaluated_rounds(config: Config) -> list[int]:
    """Every ``eval_every``-th round, and the last."""
    every = range(config.eval_every, config.rounds + 1, config.eval_every)
    return sorted({*every, config.rounds})


class Evaluator:
    """Evaluates one state after the other, with the same bits at once or beside.

    Attributes:
        rounds: see ``evaluated_rounds``.
        pending: what is not evaluated yet, or whose record has not been taken.
    """

    def __init__(self, program: Program, data: FederatedData, beside: bool = False) -> None:
        """Nothing is pending.

        Args:
            program: shared by all; in this process nobody else may use its network ``beside``.
            data: with validation images.
            beside: in a thread, while clients of the next rounds run in other processes.
        """
        self.program, self.data, self._beside = program, data, beside
        self.rounds = evaluated_rounds(program.config)
        self.pending: Pending | None = None
        self._future: Future[EvaluationRecord] | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def begin(self, pending: Pending) -> None:
        """Evaluate this next; the record of the one before must have been taken."""
        assert self.pending is None, "take the record of the evaluation before this one"
        self.pending = pending
        if self._beside:
            self._future = future = Future[EvaluationRecord]()

            def work() -> None:
                try:
                    future.set_result(self._evaluate(pending))
                except BaseException as error:  # for the thread that asks
                    future.set_exception(error)

            # A daemon, so that it never keeps a process that has to end.
            self._thread = threading.Thread(target=work, name="evaluation", daemon=True)
            self._thread.start()

    def record(self, wait: bool) -> EvaluationRecord | None:
        """The record of what is pending, which stays so until ``taken``.

        Args:
            wait: until it is there; beside the rounds, None is returned otherwise. Not beside
                them, the evaluation happens now.
        """
        if self.pending is None:
            return None
        if self._future is None:
            return self._evaluate(self.pending)
        return self._future.result() if wait or self._future.done() else None

    def taken(self) -> None:
        """The record is written."""
        self.pending, self._future = None, None

    def close(self) -> None:
        """Leave off what is under way; it stays pending."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _evaluate(self, pending: Pending) -> EvaluationRecord:
        size = len(self.data.val_labels)
        if pending.round not in self.rounds[-FINAL_EVALUATIONS:]:
            size = min(self.program.config.eval_size, size)
        return evaluation_record(
            *(self.program, self.data, pending.theta, pending.hyper, pending.round),
            size=size,
            l_ml=pending.l_ml,
            stop=self._stop,
        )
