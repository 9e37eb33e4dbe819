"""A run's folder: settings, records, checkpoints, pictures; and the evaluations they hold."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ValidationError

from fedpart import checkpoint, machine
from fedpart.accounting import (
    BYTES,
    empty_streak,
    out_of_sample,
    round_record,
    summary_record,
)
from fedpart.algorithm import Failure
from fedpart.checkpoint import write_atomic, writing
from fedpart.client import ClientReply
from fedpart.data import FederatedData
from fedpart.errors import ClientFailure, OutputError
from fedpart.evaluation import evaluate, evaluation_record
from fedpart.events import Events, NoEvents, open_events
from fedpart.model_file import starting_state, write_model
from fedpart.origin import Origin, origin_of
from fedpart.program import Program
from fedpart.records import EvaluationRecord, RoundRecord, RunInfo, Summary
from fedpart.run_files import ended_well, lock_run, new_folder, now, read_lines
from fedpart.server import ServerState

FINAL_EVALUATIONS = 10

OnRound = Callable[[RoundRecord, EvaluationRecord | None], None]


class RunFolder:
    """Observes a run: writes each record as it comes, evaluates, and keeps checkpoints.

    Attributes:
        path: the folder.
        rounds: every round so far.
        evaluations: every evaluation so far.
        warnings: what a resume has found and the user should know, one sentence each.
    """

    def __init__(
        self, path: Path, program: Program, data: FederatedData, on_round: OnRound
    ) -> None:
        """Observe a run of ``program`` on ``data``; call ``create`` or ``resume`` next."""
        self.path, self.program, self.data, self.on_round = path, program, data, on_round
        self.config = program.config
        self.rounds: list[RoundRecord] = []
        self.evaluations: list[EvaluationRecord] = []
        self.warnings: list[str] = []
        self._seconds = 0.0
        self._peak_rss = 0
        self._clock = time.perf_counter()
        self._info: RunInfo | None = None
        self._events: Events = NoEvents()
        # The last state whose round is wholly recorded, and the round of checkpoint.pt.
        self._state: ServerState | None = None
        self._saved = -1
        self._lock: int | None = None

    def create(self, state: ServerState, command: Sequence[str]) -> None:
        """Make the folder and start the records of a new run.

        From the moment that config.toml is there, ``resume`` can take the folder up.

        Args:
            state: before round 1; written at once, so that a run can be resumed from its start.
            command: what the user typed.
        Raises:
            OutputError: see ``run_files.new_folder``.
        """
        new_folder(self.path)
        write_atomic(self.path / "config.toml", self.config.to_toml().encode())
        self._lock = lock_run(self.path)
        self._begin(state, command)

    def _begin(self, state: ServerState, command: Sequence[str]) -> None:
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
        # Last: where there is a checkpoint, all else is there too.
        self._save()
        self._events = open_events(self.config, self.path, 0)

    def resume(self) -> ServerState:
        """Take an interrupted run up: records are cut back to the last checkpoint.

        A run that was killed before its first checkpoint starts from its beginning.

        Returns:
            the state to go on from; ``warnings`` holds what the user should know.
        Raises:
            OutputError: no checkpoint, damaged records, a finished run, one that another process
                works on, or other data or settings than the run began with; nothing has been
                changed then.
        """
        self._lock = lock_run(self.path)
        if self._never_saved():
            state = starting_state(self.program)
            self._begin(state, ["sim.py", "--resume", str(self.path)])
            return state
        state, extra = checkpoint.load(self.path / "checkpoint.pt")
        began = Origin(**extra["origin"])
        began.refuse_other(self.path, self._origin)
        self.warnings = began.warnings(self._origin)
        done = state.server_round
        info = self._read_records(done)
        if ended_well(self.path):
            raise OutputError(
                f"{self.path} is finished, all {done} rounds of it: see its summary.json, or start "
                "a new run with more rounds"
            )
        if self._totals(done) != extra["bytes"]:
            raise OutputError(
                f"{self.path}: bytes recorded are not those of the checkpoint: start the run anew"
            )
        for name, records in (("rounds", self.rounds), ("evaluations", self.evaluations)):
            text = "".join(record.model_dump_json() + "\n" for record in records)
            write_atomic(self.path / f"{name}.jsonl", text.encode())
        self._seconds, self._peak_rss = extra["seconds"], extra["peak_rss_bytes"]
        again = {"resumed_from": [*info.resumed_from, done]}
        self._info = info.model_copy(
            update=again | {"ended": None, "exit": None, "exit_code": None}
        )
        self._write("run.json", self._info)
        self._state, self._saved = state, done
        self._events = open_events(self.config, self.path, done)
        return state

    def runs_on(self, backend: str, workers: int | None) -> None:
        """Note where clients run, once it is known; it may change with a resume."""
        assert self._info is not None, "runs_on comes after create or resume"
        self._info = self._info.model_copy(update={"backend": backend, "workers": workers})
        self._write("run.json", self._info)

    def _never_saved(self) -> bool:
        # Results that were copied without their checkpoint are not a run that has yet to begin.
        names = ("checkpoint.pt", "rounds.jsonl", "evaluations.jsonl", "summary.json")
        files = [self.path / name for name in names]
        return not any(file.exists() and file.stat().st_size > 0 for file in files)

    def _read_records(self, done: int) -> RunInfo:
        """Take in what is on record up to round ``done``; a crash may have left more."""
        expected = [r for r in self.evaluated_rounds if r <= done]
        try:
            lines = read_lines(self.path / "rounds.jsonl", done)
            self.rounds = [RoundRecord(**line) for line in lines]
            lines = read_lines(self.path / "evaluations.jsonl", len(expected))
            self.evaluations = [EvaluationRecord(**line) for line in lines]
            info = RunInfo.model_validate_json((self.path / "run.json").read_bytes())
        except (OSError, ValidationError, TypeError):
            names = "rounds.jsonl, evaluations.jsonl or run.json"
            raise OutputError(
                f"{names} in {self.path} is damaged: put it back from a copy, or start the run anew"
            ) from None
        rounds = [r.round for r in self.rounds]
        if rounds != list(range(1, done + 1)) or expected != [e.round for e in self.evaluations]:
            raise OutputError(f"{self.path} lacks records up to round {done}: start the run anew")
        return info

    def after_round(
        self,
        state: ServerState,
        replies: Sequence[ClientReply],
        failures: Sequence[Failure],
        wire: Mapping[int, tuple[int, int]],
        seconds: float,
    ) -> None:
        """See ``fedpart.algorithm.Observer``.

        Raises:
            ClientFailure: this round and those before it were empty, ``max_empty_rounds`` in all
                or every round of the run; they are on record, and a resume goes on after them.
        """
        before = self.rounds[-1] if self.rounds else None
        record = round_record(self.program, state, replies, failures, wire, seconds, before)
        self.rounds.append(record)
        self._append("rounds.jsonl", record)
        evaluation = None
        if state.server_round in self.evaluated_rounds:
            evaluation = self._evaluate(state, out_of_sample(self.program, replies))
            self.evaluations.append(evaluation)
            self._append("evaluations.jsonl", evaluation)
        self._events.log(record, evaluation)
        self._tick()
        self._state = state
        if state.server_round % self.config.checkpoint_every == 0:
            self._save()
        self.on_round(record, evaluation)
        empty = empty_streak(self.rounds)
        # A short run whose rounds are all empty has failed too.
        if empty >= min(self.config.max_empty_rounds, self.config.rounds):
            last = record.failures[-1]
            raise ClientFailure(
                f"no reply counted in {empty} rounds in a row; in round {record.round}, client "
                f"{last.client_id}: {last.reason}; mend the cause and resume the run, or let it "
                "try longer with a larger max-empty-rounds"
            )

    @property
    def evaluated_rounds(self) -> list[int]:
        """Every ``eval_every``-th round, and the last."""
        config = self.config
        every = range(config.eval_every, config.rounds + 1, config.eval_every)
        return sorted({*every, config.rounds})

    def finish(self) -> Summary:
        """Test accuracy, ``model.pt``, ``curves.png``, ``summary.json``.

        Raises:
            ClientFailure: no reply counted in any round.
        """
        state = self._state
        assert state is not None, "finish comes after create or resume"
        if empty_streak(self.rounds) >= self.config.rounds:
            raise ClientFailure(
                f"no reply counted in any of {self.config.rounds} rounds; mend the cause and start "
                "a new run"
            )
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
        summary = summary_record(
            *(
                self.program,
                self.data.data_hash,
                self.rounds,
                self.evaluations[-FINAL_EVALUATIONS:],
            ),
            test_accuracy=test,
            seconds=self._seconds,
            peak_rss_bytes=self._peak_rss,
        )
        self._write("summary.json", summary)
        from fedpart.plots_curves import draw_run

        draw_run(self.path)
        self.close("ok", 0)
        return summary

    def close(self, reason: str, exit_code: int) -> int | None:
        """Say in ``run.json`` how the run ended; keep what is complete for a resume.

        Returns:
            rounds that a resume would not repeat, or None where nothing was begun.
        """
        self._events.close()
        try:
            if self._info is None or self._state is None:
                return None
            if self._saved != self._state.server_round:
                self._save()
            update = {"ended": now(), "exit": reason, "exit_code": exit_code}
            self._write("run.json", self._info.model_copy(update=update))
            return self._state.server_round
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _evaluate(self, state: ServerState, l_ml: float | None) -> EvaluationRecord:
        final = state.server_round in self.evaluated_rounds[-FINAL_EVALUATIONS:]
        size = len(self.data.val_labels)
        if not final:
            size = min(self.config.eval_size, size)
        return evaluation_record(self.program, self.data, state, size, l_ml)

    def _tick(self) -> None:
        elapsed = time.perf_counter()
        self._seconds += elapsed - self._clock
        self._clock = elapsed

    def _save(self) -> None:
        assert self._state is not None
        done = self._state.server_round
        self._peak_rss = max(self._peak_rss, machine.peak_rss())
        extra = {
            "origin": asdict(self._origin),
            "seconds": self._seconds,
            "peak_rss_bytes": self._peak_rss,
            "bytes": self._totals(done),
        }
        # A checkpoint that outlives a power cut must find the records that it builds on.
        for name in ("rounds", "evaluations"):
            with writing(self.path / f"{name}.jsonl"):
                checkpoint.sync(self.path / f"{name}.jsonl")
        checkpoint.save(self.path / "checkpoint.pt", self._state, extra)
        self._saved = done

    @cached_property
    def _origin(self) -> Origin:
        return origin_of(self.config, self.data)

    def _totals(self, done: int) -> dict[str, int]:
        # Of the rounds that are wholly recorded: one may be under way.
        last = self.rounds[done - 1] if done else None
        return {name: getattr(last, f"cumulative_{name}", 0) for name in BYTES}

    def _write(self, name: str, record: BaseModel) -> None:
        write_atomic(self.path / name, (record.model_dump_json(indent=2) + "\n").encode())

    def _append(self, name: str, record: BaseModel) -> None:
        with writing(self.path / name), (self.path / name).open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json() + "\n")
