"""A central run's folder: settings, records, checkpoints, picture; and when a run ends early."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch.utils.data import TensorDataset

from fedpart import machine
from fedpart.central.chunks import check_examples
from fedpart.central.config import CentralConfig
from fedpart.central.objective import out_of_sample, score_tensors, weighted
from fedpart.central.records import CentralEvaluation, CentralSummary, of_images
from fedpart.central.state import TrainingState
from fedpart.central.task import Task, first
from fedpart.central.training import Training
from fedpart.data import order_warnings
from fedpart.errors import DamagedError, OutputError
from fedpart.files import sync, write_atomic, writing
from fedpart.folder_lock import lock_run
from fedpart.origin import Origin, code_warnings
from fedpart.plugins import code_hashes, own_code
from fedpart.records import RunInfo
from fedpart.run_files import claim_folder, ended_well, never_saved, now
from fedpart.spelling import kebab
from fedpart.stored import read_record, read_records, write_ended
from fedpart.tensors import read_checkpoint, write_checkpoint, write_tensors

OnEvaluation = Callable[[CentralEvaluation], None]


class CentralRun:
    """One training and its folder.

    Attributes:
        path: the folder.
        config: every setting.
        training: what is trained.
        evaluations: every evaluation so far.
        warnings: what the user should know of data and of a resume, one sentence each.
    """

    def __init__(
        self, path: Path, config: CentralConfig, task: Task, on_evaluation: OnEvaluation
    ) -> None:
        """Partition the model; call ``create`` or ``resume`` next.

        Args:
            path: the folder.
            config: every setting.
            task: model and data.
            on_evaluation: told of every evaluation.
        Raises:
            DataError: a chunk without an example, or examples that cannot be used.
        """
        self.path, self.config, self.on_evaluation = path, config, on_evaluation
        self.task = task
        self.training = Training(
            task.model, TensorDataset(*task.train), config, task.augmentation, task.hyper
        )
        for part in filter(None, (task.test, task.validation)):
            check_examples(*part, self.training.num_classes)
        self.evaluations: list[CentralEvaluation] = []
        self.warnings = order_warnings(task.train[0].shape)
        # The last state that is wholly recorded, and the one with the highest L_ML.
        self._state = self._best = self.training.state
        self._saved = -1
        self._seconds, self._peak_rss = 0.0, 0
        self._clock = time.perf_counter()
        self._info: RunInfo | None = None
        self._lock: int | None = None
        self._events: Any = None

    def create(self, command: Sequence[str]) -> None:
        """Make the folder and start the records of a new run.

        Args:
            command: what the user typed.
        Raises:
            BusyError, TakenError, OutputError: see ``run_files.claim_folder``.
        """
        self._lock = claim_folder(self.path)
        write_atomic(self.path / "config.toml", self.config.to_toml().encode())
        self._begin(command)

    def _begin(self, command: Sequence[str]) -> None:
        self._info = RunInfo(
            name=self.config.run_name,
            command=list(command),
            versions=machine.versions(),
            commit=machine.commit(),
            hardware=machine.hardware(),
            code=code_hashes(self.config.result_values()),
            seed=self.config.seed,
            data_source=self.task.source,
            data_hash=self.task.data_hash,
            started=now(),
            ended=None,
            resumed_from=[],
            exit=None,
            exit_code=None,
        )
        self._write("run.json", self._info)
        write_atomic(self.path / "evaluations.jsonl", b"")
        # Last: where there is a checkpoint, all else is there too.
        self._save()
        self._open_events()

    def resume(self) -> None:
        """Take an interrupted run up: records are cut back to the last checkpoint.

        Raises:
            OutputError: damaged records, a finished run, one that another process works on, or
                other data or settings than the run began with; nothing has been changed then.
        """
        self._lock = lock_run(self.path)
        if never_saved(self.path):
            self._begin(["sim.py", "central", "--resume", str(self.path)])
            return
        if ended_well(self.path):
            read_record(self.path / "summary.json", CentralSummary)
            raise OutputError(f"{self.path} is finished: see its summary.json, or start a new run")
        saved = read_checkpoint(self.path / "checkpoint.pt")
        if "best" not in saved:
            raise DamagedError(f"{self.path}/checkpoint.pt is not of a central run")
        began = Origin(**saved["origin"])
        began = replace(began, settings=_settings(type(self.config)()) | began.settings)
        began.refuse_other(self.path, self._origin())
        self.training.load_state_dict(saved["training"])
        self._state, self._best = self.training.state, TrainingState(**saved["best"])
        done = self._state.iteration
        expected = sum(map(self._due, range(1, done + 1)))
        file = self.path / "evaluations.jsonl"
        self.evaluations = read_records(file, CentralEvaluation, expected)
        info = read_record(self.path / "run.json", RunInfo)
        self.warnings += began.warnings(self._origin())
        self.warnings += code_warnings(info.code, self.config.result_values())
        if len(self.evaluations) != expected:
            raise DamagedError(
                f"{self.path} lacks evaluations up to iteration {done}: start the run anew"
            )
        text = "".join(record.model_dump_json() + "\n" for record in self.evaluations)
        write_atomic(self.path / "evaluations.jsonl", text.encode())
        self._seconds, self._peak_rss = saved["seconds"], saved["peak_rss_bytes"]
        self._saved = done
        update = {"resumed_from": [*info.resumed_from, done], "ended": None}
        self._info = info.model_copy(update=update | {"exit": None, "exit_code": None})
        self._write("run.json", self._info)
        self._open_events()

    def run(self) -> None:
        """Train to the end, or until patience is over.

        Raises:
            ConfigError: a model or augmentation of the user's own raised.
            DivergedError: a number that is not finite; what is recorded stays as it was before.
        """
        self._clock = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            while self._state.iteration < self.config.updates and not self._patience_over():
                with self._own_code("training"):
                    self.training.step()
                self._observe()

    def _own_code(self, doing: str) -> AbstractContextManager[None]:
        return own_code(self.config.model, self.config.augmentation, doing)

    def _due(self, done: int) -> bool:
        return done % self.config.eval_every == 0 or self._ends(done)

    def _ends(self, done: int) -> bool:
        """Whether training ends here, or fine-tuning begins."""
        return done in (self.config.iterations, self.config.updates)

    def _observe(self) -> None:
        done = self.training.state.iteration
        due = self._due(done)
        if due:
            with self._own_code(f"evaluation after iteration {done}"):
                evaluation = self._evaluate()
            path = self.path / "evaluations.jsonl"
            with writing(path), path.open("ab") as file:
                file.write((evaluation.model_dump_json() + "\n").encode())
            self.evaluations.append(evaluation)
            if self._counts is evaluation:
                self._best = self.training.state
        self._state = self.training.state
        if done % self.config.checkpoint_every == 0:
            self._save()
        if due:
            if self._events is not None:
                self._events.log(evaluation)
            self.on_evaluation(evaluation)

    @property
    def _counts(self) -> CentralEvaluation:
        """The evaluation that the run is judged by: with patience the best, else the last."""
        if not self.config.patience:
            return self.evaluations[-1]
        return max(self.evaluations, key=lambda e: -math.inf if e.l_ml is None else e.l_ml)

    def _patience_over(self) -> bool:
        if not (self.config.patience and self.evaluations and self._due(self._state.iteration)):
            return False
        since = len(self.evaluations) - 1 - self.evaluations.index(self._counts)
        return since >= self.config.patience

    def _evaluate(self) -> CentralEvaluation:
        training, full = self.training, self.config.num_partitions
        # Nothing that cannot be read again is ever written.
        training.check_finite()
        most, ends = self.config.eval_size or None, self._ends(self.training.state.iteration)
        loss = training.take_loss()
        by_chunk = out_of_sample(training, most)
        train = score_tensors(training, full, *first(self.task.train, most))
        test = score_tensors(training, full, *first(self.task.test, None if ends else most))
        validation = None
        if ends and self.task.validation is not None:
            validation = score_tensors(training, full, *self.task.validation).accuracy
        l_ml = weighted(training, by_chunk) if by_chunk else None
        if self.config.method == "laplace":
            from fedpart.central.laplace import log_marginal_likelihood

            l_ml = log_marginal_likelihood(training, *self.task.train)
        self._tick()
        return CentralEvaluation(
            iteration=training.state.iteration,
            train_loss=loss,
            l_ml=l_ml,
            l_ml_by_chunk=by_chunk,
            train_accuracy=train.accuracy,
            train_log_likelihood=train.log_likelihood,
            test_accuracy=test.accuracy,
            test_log_likelihood=test.log_likelihood,
            validation_accuracy=validation,
            hyper=training.psi.raw(training.state.hyper),
            hyper_readable=training.hyper,
            seconds=self._seconds,
        )

    def finish(self, draw: Callable[[Sequence[CentralEvaluation], Path], None]) -> CentralSummary:
        """``model.pt`` and numbers of the evaluation that counts, ``curves.png``.

        Args:
            draw: makes a picture of the evaluations.
        """
        counts, config = self._counts, self.config
        self.training.state = self._best
        write_tensors(self.path / "model.pt", self.training.trained())
        self._save()
        shared = CentralSummary.model_fields.keys() & CentralEvaluation.model_fields.keys()
        summary = CentralSummary(
            **{name: getattr(counts, name) for name in shared - {"seconds"}},
            kind="central",
            method=config.method,
            experiment=config.experiment,
            inputs=config.inputs[0] if config.experiment == "input-selection" else None,
            **of_images(config, self.evaluations),
            train_size=config.train_size,
            test_size=len(self.task.test[1]),
            seed=config.seed,
            data_seed=config.data_seed,
            config_hash=config.config_hash,
            data_hash=self.task.data_hash,
            iterations=self._state.iteration,
            seconds=self._seconds,
            seconds_per_iteration=self._seconds / self._state.iteration,
            peak_rss_bytes=self._peak_rss,
        )
        self._write("summary.json", summary)
        draw(self.evaluations, self.path / "curves.png")
        self.close("ok", 0)
        return summary

    def close(self, reason: str, exit_code: int) -> int | None:
        """Say in ``run.json`` how the run ended; keep what is complete for a resume.

        Returns:
            iterations that a resume would not repeat, or None where nothing was begun.
        """
        if self._events is not None:
            self._events.close()
        try:
            if self._info is None:
                return None
            # Where the disk is full, the old checkpoint stays.
            with contextlib.suppress(OutputError):
                if self._saved != self._state.iteration:
                    self._save()
            write_ended(self.path, self._info, reason, exit_code)
            return max(0, self._saved)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _open_events(self) -> None:
        if self.config.logger == "tensorboard":
            from fedpart.central.events import TensorBoardEvents

            self._events = TensorBoardEvents(self.path, self._state.iteration)

    def _tick(self) -> None:
        elapsed = time.perf_counter()
        self._seconds += elapsed - self._clock
        self._clock = elapsed

    def _save(self) -> None:
        self._tick()
        self._peak_rss = max(self._peak_rss, machine.peak_rss())
        with writing(self.path / "evaluations.jsonl"):
            sync(self.path / "evaluations.jsonl")
        content = {
            "origin": vars(self._origin()),
            "training": {**self.training.state_dict(), "state": vars(self._state)},
            "best": vars(self._best),
            "seconds": self._seconds,
            "peak_rss_bytes": self._peak_rss,
        }
        write_checkpoint(self.path / "checkpoint.pt", content)
        self._saved = self._state.iteration

    def _origin(self) -> Origin:
        return Origin(
            settings=_settings(self.config),
            config_hash=self.config.config_hash,
            data={"the hash of the examples": self.task.data_hash},
            source=self.task.source,
            versions=machine.versions(),
        )

    def _write(self, name: str, record: BaseModel) -> None:
        write_atomic(self.path / name, (record.model_dump_json(indent=2) + "\n").encode())


def _settings(config: CentralConfig) -> dict[str, Any]:
    return {kebab(name): value for name, value in config.result_values().items()}
