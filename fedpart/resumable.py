"""What a resume finds in a run folder, and whether it can go on from there."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpart import checkpoint
from fedpart.accounting import BYTES
from fedpart.config import Config
from fedpart.data import FederatedData
from fedpart.errors import OutputError
from fedpart.evaluator import Pending, evaluated_rounds
from fedpart.folder_lock import lock_run
from fedpart.origin import Origin, code_warnings, origin_of
from fedpart.records import EvaluationRecord, RoundBrief, RoundRecord, RunInfo, Summary
from fedpart.run_files import ended_well, never_saved
from fedpart.server import ServerState
from fedpart.stored import read_record, read_records


@dataclass(frozen=True)
class Behind:
    """A run up to its last checkpoint.

    Attributes:
        state: after the last round of it.
        extra: what else the checkpoint holds, by name.
        pending: an evaluation that was under way, or None.
        info: ``run.json``.
        rounds: every round, in brief.
        evaluations: those on record.
        warnings: what the user should know, one sentence each.
    """

    state: ServerState
    extra: dict[str, Any]
    pending: Pending | None
    info: RunInfo
    rounds: list[RoundBrief]
    evaluations: list[EvaluationRecord]
    warnings: list[str]


def read_behind(path: Path, config: Config, now: Origin) -> Behind:
    """Read what a resume goes on from; a crash may have left more on record.

    Args:
        path: the run folder.
        config: settings of the resume.
        now: what it would go on with.
    Raises:
        OutputError: see ``RunFolder.resume``.
    """
    if not (path / "checkpoint.pt").exists() and (path / "summary.json").exists():
        # Results that were kept without their weights.
        raise _finished(path, read_record(path / "summary.json", Summary).rounds)
    state, extra = checkpoint.load(path / "checkpoint.pt")
    began = Origin(**extra["origin"])
    began.refuse_other(path, now)
    done = state.server_round
    pending = Pending(**extra["pending"]) if extra.get("pending") else None
    expected = [r for r in evaluated_rounds(config) if r <= done]
    if pending is not None:
        expected.remove(pending.round)
    of_rounds, of_evaluations = path / "rounds.jsonl", path / "evaluations.jsonl"
    rounds = [record.brief() for record in read_records(of_rounds, RoundRecord, done)]
    evaluations = read_records(of_evaluations, EvaluationRecord, len(expected))
    whole = [r.round for r in rounds] == list(range(1, done + 1))
    if not whole or [e.round for e in evaluations] != expected:
        file = of_evaluations if whole else of_rounds
        raise OutputError(f"{file} lacks records up to round {done}: start the run anew")
    info = read_record(path / "run.json", RunInfo)
    if ended_well(path):
        raise _finished(path, read_record(path / "summary.json", Summary).rounds)
    if totals(rounds) != extra["bytes"]:
        raise OutputError(
            f"{of_rounds}: bytes recorded are not those of the checkpoint: start the run anew"
        )
    warnings = began.warnings(now) + code_warnings(info.code, config.result_values())
    return Behind(state, extra, pending, info, rounds, evaluations, warnings)


def _finished(path: Path, rounds: int) -> OutputError:
    return OutputError(
        f"{path} is finished, all {rounds} rounds of it: see its summary.json, or start a new "
        "run with more rounds"
    )


def totals(rounds: Sequence[RoundBrief]) -> dict[str, int]:
    """Bytes of a run, by name."""
    return {
        name: getattr(rounds[-1] if rounds else None, f"cumulative_{name}", 0) for name in BYTES
    }


def look_behind(path: Path, config: Config, data: FederatedData) -> Behind | None:
    """What another process would go on from, or None at a run's beginning; changes nothing.

    Raises:
        OutputError: see ``RunFolder.resume``, which would raise the same.
    """
    lock = lock_run(path)
    try:
        return None if never_saved(path) else read_behind(path, config, origin_of(config, data))
    finally:
        os.close(lock)
