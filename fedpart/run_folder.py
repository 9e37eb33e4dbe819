"""A run's folder: settings, records, checkpoints, pictures; and the evaluations they hold."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel

from fedpart import checkpoint, files, machine
from fedpart.accounting import (
    empty_streak,
    out_of_sample,
    round_record,
    run_info,
    summary_record,
)
from fedpart.client import ClientReply
from fedpart.cohort import Failure
from fedpart.data import FederatedData, order_warnings, scale_warnings
from fedpart.errors import ClientFailure, DivergedError, OutputError
from fedpart.evaluation import evaluate
from fedpart.evaluator import FINAL_EVALUATIONS, Evaluator, Pending
from fedpart.events import Events, NoEvents, open_events
from fedpart.files import write_atomic, writing
from fedpart.folder_lock import lock_run
from fedpart.model_file import starting_state, write_model
from fedpart.origin import Origin, origin_of
from fedpart.program import Program
from fedpart.psi import runaway
from fedpart.records import EvaluationRecord, RoundBrief, RoundRecord, RunInfo, Summary
from fedpart.resumable import read_behind, totals
from fedpart.run_files import claim_folder, never_saved
from fedpart.server import ServerState
from fedpart.stored import write_ended

# A round that has ended, and the evaluations that have come in: of this round or before it.
OnRound = Callable[[RoundRecord, Sequence[EvaluationRecord]], None]


def known_warnings(program: Program, data: FederatedData) -> list[str]:
    """What a user should know of data and model before a run, one sentence each."""
    of_data = [*order_warnings(data.images.shape), *scale_warnings(data.images)]
    return [*of_data, *program.warnings]


class RunFolder:
    """Observes a run: writes each record as it comes, evaluates, and keeps checkpoints.

    Attributes:
        path: the folder.
        rounds: every round so far, in brief.
        evaluations: every evaluation so far.
        warnings: what the user should know of data, model and a resume, one sentence each.
    """

    def __init__(
        self,
        path: Path,
        program: Program,
        data: FederatedData,
        on_round: OnRound,
        evaluate_beside: bool = False,
    ) -> None:
        """Observe a run of ``program`` on ``data``; call ``create`` or ``resume`` next.

        Args:
            path: the folder.
            program: shared by all.
            data: each client's images, validation and test images.
            on_round: told of every round.
            evaluate_beside: the rounds that follow, whose clients run in other processes.
        """
        self.path, self.program, self.data, self.on_round = path, program, data, on_round
        self.config = program.config
        self.rounds: list[RoundBrief] = []
        self.evaluations: list[EvaluationRecord] = []
        self.warnings = known_warnings(program, data)
        self._seconds = 0.0
        self._peak_rss = 0
        self._clock = time.perf_counter()
        self._info: RunInfo | None = None
        self._events: Events = NoEvents()
        self._evaluator = Evaluator(program, data, evaluate_beside)
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
            BusyError, TakenError, OutputError: see ``run_files.claim_folder``.
        """
        self._lock = claim_folder(self.path)
        write_atomic(self.path / "config.toml", self.config.to_toml().encode())
        self._begin(state, command)

    def _begin(self, state: ServerState, command: Sequence[str]) -> None:
        self._info = run_info(self.config, self.data, command)
        self._write("run.json", self._info)
        for name in ("rounds", "evaluations"):
            write_atomic(self.path / f"{name}.jsonl", b"")
        self._state = state
        # Last: where there is a checkpoint, all else is there too.
        self._save()
        self._events = open_events(self.config, self.path, 0)

    def resume(self, command: Sequence[str] | None = None) -> ServerState:
        """Take an interrupted run up: records are cut back to the last checkpoint.

        A run that was killed before its first checkpoint starts from its beginning.

        Args:
            command: what the user typed; ``sim.py --resume`` where None.
        Returns:
            the state to go on from; ``warnings`` holds what the user should know.
        Raises:
            OutputError: no checkpoint, damaged records, a finished run, one that another process
                works on, or other data, settings or number of weights than the run began with;
                nothing has been changed then.
        """
        self._lock = lock_run(self.path)
        if never_saved(self.path):
            state = starting_state(self.program)
            self._begin(state, command or ["sim.py", "--resume", str(self.path)])
            return state
        behind = read_behind(self.path, self.config, self._origin)
        state, extra, info = behind.state, behind.extra, behind.info
        self._refuse_other_network(state)
        self.rounds, self.evaluations = behind.rounds, behind.evaluations
        self.warnings += behind.warnings
        done = state.server_round
        for name, records in (("rounds", self.rounds), ("evaluations", self.evaluations)):
            file = self.path / f"{name}.jsonl"
            lines = file.read_bytes().split(b"\n")[: len(records)]
            write_atomic(file, b"".join(line + b"\n" for line in lines))
        self._seconds, self._peak_rss = extra["seconds"], extra["peak_rss_bytes"]
        again = {"resumed_from": [*info.resumed_from, done]}
        self._info = info.model_copy(
            update=again | {"ended": None, "exit": None, "exit_code": None}
        )
        self._write("run.json", self._info)
        self._state, self._saved = state, done
        self._events = open_events(self.config, self.path, done)
        if behind.pending is not None:
            self._evaluator.begin(behind.pending)
        return state

    def _refuse_other_network(self, state: ServerState) -> None:
        """A module of the user's own may have changed since the run began.

        Raises:
            OutputError: the state has another number of weights or hyperparameters.
        """
        began, now = (
            f"{len(theta):,} weights and {len(hyper)} hyperparameters"
            for theta, hyper in (
                (state.theta, state.hyper),
                (self.program.initial, self.program.hyper.initial()),
            )
        )
        if began != now:
            raise OutputError(
                f"{self.path} began with {began}, and has {now} now: put model "
                f"{self.config.model!r} and augmentation {self.config.augmentation!r} back as they "
                "were, or start a new run"
            )

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
        """See ``fedpart.algorithm.Observer``.

        Raises:
            DivergedError: psi has left every useful range; the round is not recorded.
            ClientFailure: this round and those before it were empty, ``max_empty_rounds`` in all
                or every round of the run; they are on record, and a resume goes on after them.
        """
        if (found := runaway(self.program.hyper, state.hyper)) is not None:
            raise DivergedError(
                f"psi has run away: {found[0]} is {found[1]:.3g} after round "
                f"{state.server_round} with hyper-lr {self.config.hyper_lr:g}: start anew with a "
                "smaller one"
            )
        before = self.rounds[-1] if self.rounds else None
        record = round_record(self.program, state, replies, failures, wire, seconds, before)
        self.rounds.append(record.brief())
        self._append("rounds.jsonl", record)
        evaluations = []
        if state.server_round in self._evaluator.rounds:
            evaluations += self._take_evaluation(wait=True)
            l_ml = out_of_sample(self.program, replies)
            self._evaluator.begin(Pending(state.server_round, state.theta, state.hyper, l_ml))
        self._state = state
        evaluations += self._take_evaluation(wait=state.server_round == self.config.rounds)
        self._events.log(record, evaluations)
        self._tick()
        if state.server_round % self.config.checkpoint_every == 0:
            self._save()
        self.on_round(record, evaluations)
        empty = empty_streak(self.rounds)
        # A short run whose rounds are all empty has failed too.
        if empty >= min(self.config.max_empty_rounds, self.config.rounds):
            why = "no client was available"
            if failures:
                # Replies that were too few say more than those that were not there.
                last = max(failures, key=lambda failure: failure.unused)
                why = last.reason if last.unused else f"client {last.client_id}: {last.reason}"
            raise ClientFailure(
                f"no reply counted in {empty} rounds in a row; in round {record.round}, {why}; "
                "mend the cause and resume the run, or let it try longer with max-empty-rounds"
            )

    def finish(self, draw: Callable[[Path], None]) -> Summary:
        """Test accuracy, ``model.pt``, ``summary.json``, pictures.

        Args:
            draw: makes the pictures of a finished run in its folder.
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
        self._take_evaluation(wait=True)
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
                self.program.readable(state.hyper),
                self.evaluations[-FINAL_EVALUATIONS:],
            ),
            test_accuracy=test,
            seconds=self._seconds,
            peak_rss_bytes=self._peak_rss,
        )
        self._write("summary.json", summary)
        draw(self.path)
        self.close("ok", 0)
        return summary

    def close(self, reason: str, exit_code: int) -> int | None:
        """Say in ``run.json`` how the run ended; keep what is complete for a resume.

        Returns:
            rounds that a resume would not repeat, or None where nothing was begun.
        """
        self._events.close()
        self._evaluator.close()
        try:
            if self._info is None or self._state is None:
                return None
            # Where the disk is full, the old checkpoint stays.
            with contextlib.suppress(OutputError):
                if self._saved != self._state.server_round:
                    self._save()
            write_ended(self.path, self._info, reason, exit_code)
            return max(0, self._saved)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _take_evaluation(self, wait: bool) -> list[EvaluationRecord]:
        """Put on record what has been evaluated; none or one."""
        record = self._evaluator.record(wait)
        if record is None:
            return []
        self.evaluations.append(record)
        self._append("evaluations.jsonl", record)
        self._evaluator.taken()
        return [record]

    def _tick(self) -> None:
        elapsed = time.perf_counter()
        self._seconds += elapsed - self._clock
        self._clock = elapsed

    def _save(self) -> None:
        assert self._state is not None
        done = self._state.server_round
        self._peak_rss = max(self._peak_rss, machine.peak_rss())
        pending = self._evaluator.pending
        extra = {
            "origin": asdict(self._origin),
            "seconds": self._seconds,
            "peak_rss_bytes": self._peak_rss,
            # Of the rounds that are wholly recorded: one may be under way.
            "bytes": totals(self.rounds[:done]),
            # Of a round that is not wholly recorded, it comes again with the round.
            "pending": vars(pending) if pending and pending.round <= done else None,
        }
        # A checkpoint that outlives a power cut must find the records that it builds on.
        for name in ("rounds", "evaluations"):
            with writing(self.path / f"{name}.jsonl"):
                files.sync(self.path / f"{name}.jsonl")
        checkpoint.save(self.path / "checkpoint.pt", self._state, extra)
        self._saved = done

    @cached_property
    def _origin(self) -> Origin:
        return origin_of(self.config, self.data)

    def _write(self, name: str, record: BaseModel) -> None:
        write_atomic(self.path / name, (record.model_dump_json(indent=2) + "\n").encode())

    def _append(self, name: str, record: BaseModel) -> None:
        # As bytes: the same ends of lines on every system.
        with writing(self.path / name), (self.path / name).open("ab") as file:
            file.write((record.model_dump_json() + "\n").encode())
