"""A run's folder: settings, records, checkpoints, pictures; and the evaluations they hold."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedpart import checkpoint, machine
from fedpart.accounting import BYTES, fedavg_bytes, out_of_sample, round_record
from fedpart.algorithm import Failure
from fedpart.checkpoint import write_atomic
from fedpart.client import ClientReply
from fedpart.data import FederatedData
from fedpart.errors import OutputError
from fedpart.evaluation import evaluate
from fedpart.model_file import write_model
from fedpart.program import Program
from fedpart.records import EvaluationRecord, RoundRecord, RunInfo, SubnetworkRecord, Summary
from fedpart.run_files import new_folder, read_lines
from fedpart.server import ServerState

SUBNETWORK_IMAGES = 1000
FINAL_EVALUATIONS = 10

OnRound = Callable[[RoundRecord, EvaluationRecord | None], None]


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class RunFolder:
    """Observes a run: writes each record as it comes, evaluates, and keeps checkpoints.

    Attributes:
        path: the folder.
        rounds: every round so far.
        evaluations: every evaluation so far.
    """

    def __init__(
        self, path: Path, program: Program, data: FederatedData, on_round: OnRound
    ) -> None:
        """Observe a run of ``program`` on ``data``; call ``create`` or ``resume`` next."""
        self.path, self.program, self.data, self.on_round = path, program, data, on_round
        self.config = program.config
        self.rounds: list[RoundRecord] = []
        self.evaluations: list[EvaluationRecord] = []
        self._seconds = 0.0
        self._peak_rss = 0
        self._clock = time.perf_counter()
        self._info: RunInfo | None = None
        self._events: Any = None
        # The last state whose round is wholly recorded, and the round of checkpoint.pt.
        self._state: ServerState | None = None
        self._saved = -1

    def create(self, state: ServerState, command: Sequence[str]) -> None:
        """Make the folder and start the records of a new run.

        Args:
            state: before round 1; written at once, so that a run can be resumed from its start.
            command: what the user typed.
        Raises:
            OutputError: see ``run_files.new_folder``.
        """
        new_folder(self.path)
        write_atomic(self.path / "config.toml", self.config.to_toml().encode())
        self._info = RunInfo(
            name=self.config.run_name,
            command=list(command),
            versions=machine.versions(),
            commit=machine.commit(),
            hardware=machine.hardware(),
            seed=self.config.seed,
            data_source=self.data.source,
            data_hash=self.data.data_hash,
            started=now(),
            ended=None,
            resumed_from=[],
            exit=None,
            exit_code=None,
        )
        self._write("run.json", self._info)
        for name in ("rounds", "evaluations"):
            write_atomic(self.path / f"{name}.jsonl", b"")
        self._state = state
        self._save()
        self._open_events(0)

    def resume(self) -> ServerState:
        """Take an interrupted run up: records are cut back to the last checkpoint.

        Returns:
            the state to go on from.
        Raises:
            OutputError: no checkpoint, damaged records, a finished run, or other data or settings
                than the run began with; nothing has been changed then.
        """
        state, extra = checkpoint.load(self.path / "checkpoint.pt")
        here = {"data": self.data.data_hash, "settings": self.config.config_hash}
        for name, value in here.items():
            if extra[name] != value:
                raise OutputError(
                    f"{self.path} began with other {name} (hash {extra[name][:12]}, now "
                    f"{value[:12]}): give it the same {name}, or start a new run"
                )
        done = state.server_round
        if done >= self.config.rounds and (self.path / "summary.json").exists():
            raise OutputError(
                f"{self.path} is finished, all {done} rounds of it: see its summary.json, or start "
                "a new run with more rounds"
            )
        try:
            rounds, evaluations = (
                [
                    model(**line)
                    for line in read_lines(self.path / f"{name}.jsonl")
                    if line["round"] <= done
                ]
                for name, model in (("rounds", RoundRecord), ("evaluations", EvaluationRecord))
            )
            info = RunInfo.model_validate_json((self.path / "run.json").read_bytes())
        except (OSError, ValidationError, KeyError, TypeError):
            raise OutputError(f"records in {self.path} are damaged: start the run anew") from None
        self.rounds = [r for r in rounds if isinstance(r, RoundRecord)]
        self.evaluations = [e for e in evaluations if isinstance(e, EvaluationRecord)]
        expected = [r for r in self.evaluated_rounds if r <= done]
        if [r.round for r in self.rounds] != list(range(1, done + 1)) or expected != [
            e.round for e in self.evaluations
        ]:
            raise OutputError(f"{self.path} lacks records up to round {done}: start the run anew")
        self._state = state
        if self._totals() != extra["bytes"]:
            raise OutputError(f"{self.path}: bytes recorded are not those of the checkpoint")
        for name, records in (("rounds", rounds), ("evaluations", evaluations)):
            text = "".join(record.model_dump_json() + "\n" for record in records)
            write_atomic(self.path / f"{name}.jsonl", text.encode())
        self._seconds, self._peak_rss = extra["seconds"], extra["peak_rss_bytes"]
        again = {"resumed_from": [*info.resumed_from, done]}
        self._info = info.model_copy(
            update=again | {"ended": None, "exit": None, "exit_code": None}
        )
        self._write("run.json", self._info)
        self._saved = done
        self._open_events(done)
        return state

    def runs_on(self, backend: str, workers: int | None) -> None:
        """Note where clients run, once it is known; it may change with a resume."""
        assert self._info is not None, "runs_on comes after create or resume"
        self._info = self._info.model_copy(update={"backend": backend, "workers": workers})
        self._write("run.json", self._info)

    def after_round(
        self,
        state: ServerState,
        replies: Sequence[ClientReply],
        failures: Sequence[Failure],
        wire: Mapping[int, tuple[int, int]],
        seconds: float,
    ) -> None:
        """See ``fedpart.algorithm.Observer``."""
        before = self.rounds[-1] if self.rounds else None
        record = round_record(self.program, state, replies, failures, wire, seconds, before)
        self.rounds.append(record)
        self._append("rounds.jsonl", record)
        evaluation = None
        if state.server_round in self.evaluated_rounds:
            evaluation = self._evaluate(state, out_of_sample(replies))
            self.evaluations.append(evaluation)
            self._append("evaluations.jsonl", evaluation)
        if self._events is not None:
            self._log(record, evaluation)
        self._tick()
        self._state = state
        if state.server_round % self.config.checkpoint_every == 0:
            self._save()
        self.on_round(record, evaluation)

    @property
    def evaluated_rounds(self) -> list[int]:
        """Every ``eval_every``-th round, and the last."""
        config = self.config
        every = range(config.eval_every, config.rounds + 1, config.eval_every)
        return sorted({*every, config.rounds})

    def finish(self) -> Summary:
        """Test accuracy, ``model.pt``, ``curves.png``, ``summary.json``."""
        state = self._state
        assert state is not None, "finish comes after create or resume"
        test = None
        if self.data.test_images is not None and self.data.test_labels is not None:
            test = evaluate(
                *(self.program, state.theta, state.hyper),
                images=self.data.test_images,
                labels=self.data.test_labels,
                server_round=0,
            ).accuracy
        write_model(self.path / "model.pt", self.program, state)
        self._tick()
        self._save()
        summary = self._summary(test)
        self._write("summary.json", summary)
        from fedpart.compare import draw_run

        draw_run(self.path)
        self.close("ok", 0)
        return summary

    def close(self, reason: str, exit_code: int) -> int | None:
        """Say in ``run.json`` how the run ended; keep what is complete for a resume.

        Returns:
            rounds that a resume would not repeat, or None where nothing was begun.
        """
        if self._events is not None:
            self._events.close()
            self._events = None
        if self._info is None or self._state is None:
            return None
        if self._saved != self._state.server_round:
            self._save()
        update = {"ended": now(), "exit": reason, "exit_code": exit_code}
        self._write("run.json", self._info.model_copy(update=update))
        return self._state.server_round

    def _evaluate(self, state: ServerState, l_ml: float | None) -> EvaluationRecord:
        final = state.server_round in self.evaluated_rounds[-FINAL_EVALUATIONS:]
        images, labels = self.data.val_images, self.data.val_labels
        size = len(labels) if final else min(self.config.eval_size, len(labels))
        full = evaluate(
            *(self.program, state.theta, state.hyper),
            images=images[:size],
            labels=labels[:size],
            server_round=state.server_round,
        )
        few = min(SUBNETWORK_IMAGES, size)
        accuracies = [
            evaluate(
                *(self.program, state.theta, state.hyper),
                images=images[:few],
                labels=labels[:few],
                server_round=state.server_round,
                k=k,
            ).accuracy
            for k in range(1, self.program.layout.num_partitions)
        ]
        # The last subnetwork is the full network, which has just been evaluated.
        accuracies.append(float(full.correct[:few].mean()))
        return EvaluationRecord(
            round=state.server_round,
            num_images=size,
            val_accuracy=full.accuracy,
            val_loss=full.loss if math.isfinite(full.loss) else None,
            subnetworks=[
                SubnetworkRecord(k=k, accuracy=accuracy, num_images=few)
                for k, accuracy in enumerate(accuracies, 1)
            ],
            l_ml=l_ml,
        )

    def _summary(self, test_accuracy: float | None) -> Summary:
        config, last = self.config, self.rounds[-1]
        final = [e.val_accuracy for e in self.evaluations[-FINAL_EVALUATIONS:]]
        replies = sum(c.status == "ok" for r in self.rounds for c in r.clients)
        fedavg = fedavg_bytes(self.program) * replies
        return Summary(
            kind="federated",
            method=config.method,
            dataset=config.dataset,
            train_size=config.train_size,
            skew=config.skew,
            alpha=config.alpha,
            seed=config.seed,
            config_hash=config.config_hash,
            data_hash=self.data.data_hash,
            rounds=config.rounds,
            final_accuracy=statistics.fmean(final),
            final_accuracy_n=len(final),
            test_accuracy=test_accuracy,
            **{name: getattr(last, f"cumulative_{name}") for name in BYTES},
            upload_fraction=last.cumulative_upload_model_bytes / fedavg if fedavg else 0.0,
            failures=sum(len(r.failures) for r in self.rounds),
            hyper_readable=last.hyper_readable,
            seconds=self._seconds,
            seconds_per_round=statistics.median(r.seconds for r in self.rounds),
            peak_rss_bytes=self._peak_rss,
        )

    def _tick(self) -> None:
        elapsed = time.perf_counter()
        self._seconds += elapsed - self._clock
        self._clock = elapsed

    def _save(self) -> None:
        assert self._state is not None
        self._peak_rss = max(self._peak_rss, machine.peak_rss())
        extra = {
            "data": self.data.data_hash,
            "settings": self.config.config_hash,
            "seconds": self._seconds,
            "peak_rss_bytes": self._peak_rss,
            "bytes": self._totals(),
        }
        checkpoint.save(self.path / "checkpoint.pt", self._state, extra)
        self._saved = self._state.server_round

    def _totals(self) -> dict[str, int]:
        # Of the rounds that are wholly recorded: one may be under way.
        done = self._state.server_round if self._state else 0
        last = self.rounds[done - 1] if done else None
        return {name: getattr(last, f"cumulative_{name}", 0) for name in BYTES}

    def _write(self, name: str, record: BaseModel) -> None:
        write_atomic(self.path / name, (record.model_dump_json(indent=2) + "\n").encode())

    def _append(self, name: str, record: BaseModel) -> None:
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(record.model_dump_json() + "\n")
        except OSError as error:
            raise OutputError(
                f"cannot write {self.path / name}: {error.strerror or error}"
            ) from None

    def _open_events(self, done: int) -> None:
        if self.config.logger == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.path), purge_step=done + 1 if done else None)

    def _log(self, record: RoundRecord, evaluation: EvaluationRecord | None) -> None:
        megabytes = record.cumulative_upload_model_bytes / 1e6
        self._events.add_scalar("upload_MB", megabytes, record.round)
        for name, value in record.hyper_readable.items():
            self._events.add_scalar(f"hyper/{name}", value, record.round)
        if evaluation is not None:
            self._events.add_scalar("val_accuracy", evaluation.val_accuracy, record.round)
