"""Rounds and runs as records: who took part, and what travelled."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from fedpart import machine
from fedpart.client import ClientReply
from fedpart.cohort import Failure
from fedpart.config import Config
from fedpart.data import FederatedData
from fedpart.plugins import code_hashes
from fedpart.program import Program
from fedpart.records import (
    ClientRecord,
    EvaluationRecord,
    FailureRecord,
    RoundBrief,
    RoundRecord,
    RunInfo,
    Summary,
)
from fedpart.run_files import now
from fedpart.server import ServerState
from fedpart.wire import model_bytes

BYTES = tuple(f"{way}_{kind}_bytes" for way in ("upload", "download") for kind in ("model", "wire"))


def run_info(config: Config, data: FederatedData, command: Sequence[str]) -> RunInfo:
    """The record of a run that begins now, as ``command`` asked for it."""
    return RunInfo(
        name=config.run_name,
        command=list(command),
        versions=machine.versions(),
        commit=machine.commit(),
        hardware=machine.hardware(),
        code=code_hashes(config.result_values()),
        seed=config.seed,
        data_source=data.source,
        data_hash=data.data_hash,
        started=now(),
        ended=None,
        resumed_from=[],
        exit=None,
        exit_code=None,
    )


def fedavg_bytes(program: Program) -> int:
    """Model bytes one client would upload under FedAvg: 4 a weight, without affine copies."""
    return 4 * sum(math.prod(entry.shape) for entry in program.layout.entries)


def round_record(
    program: Program,
    state: ServerState,
    replies: Sequence[ClientReply],
    failures: Sequence[Failure],
    wire: Mapping[int, tuple[int, int]],
    seconds: float,
    before: RoundBrief | None,
) -> RoundRecord:
    """The record of a round.

    Args:
        program: shared by all.
        state: after the round.
        replies: those that counted.
        failures: those that did not.
        wire: client id -> encoded bytes (upload, download) of everyone who was asked.
        seconds: the round's duration.
        before: the round before, or None.
    """
    clients = [_client(program, r, *wire[r.client_id]) for r in replies]
    clients += [_missing(program, f, wire.get(f.client_id)) for f in failures]
    totals = {name: sum(getattr(c, name) for c in clients) for name in BYTES}
    cumulative = {
        f"cumulative_{name}": total + (getattr(before, f"cumulative_{name}") if before else 0)
        for name, total in totals.items()
    }
    # What was sent for nothing was sent all the same, and FedAvg would have done so too.
    fedavg = fedavg_bytes(program) * sum(c.upload_model_bytes > 0 for c in clients)
    return RoundRecord(
        round=state.server_round,
        clients=sorted(clients, key=lambda c: c.client_id),
        **totals,
        **cumulative,
        upload_fraction=totals["upload_model_bytes"] / fedavg if fedavg else None,
        hyper=program.hyper.raw(state.hyper),
        hyper_readable=program.readable(state.hyper),
        seconds=seconds,
        failures=sorted(
            [
                *(_failure(f.client_id, f.chunk, f.reason) for f in failures if not f.unused),
                *(
                    _failure(r.client_id, r.chunk, f"only its weights count: {r.hyper_fault}")
                    for r in replies
                    if r.hyper_fault
                ),
            ],
            key=lambda f: f.client_id,
        ),
    )


def empty_streak(rounds: Sequence[RoundBrief]) -> int:
    """How many rounds in a row, up to the last one, were empty."""
    return sum(1 for _ in takewhile(lambda record: record.empty, reversed(rounds)))


def out_of_sample(program: Program, replies: Sequence[ClientReply]) -> float | None:
    """Mean log-likelihood over all images that were scored out of sample, nats; None for none."""
    if program.config.method == "augerino":
        # Its clients score what they have trained on.
        return None
    scored = [(r.log_likelihood, r.hyper_examples) for r in replies if r.log_likelihood is not None]
    if not scored:
        return None
    values, weights = zip(*scored, strict=True)
    return float(np.average(values, weights=weights))


def summary_record(
    program: Program,
    data_hash: str,
    rounds: Sequence[RoundBrief],
    hyper_readable: dict[str, float],
    final: Sequence[EvaluationRecord],
    test_accuracy: float | None,
    seconds: float,
    peak_rss_bytes: int,
) -> Summary:
    """The summary of a run that has reached its last round.

    Args:
        program: shared by all.
        data_hash: of images and split.
        rounds: all of them.
        hyper_readable: psi at the end.
        final: the last evaluations, whose mean is the final accuracy.
        test_accuracy: a fraction, or None without test images.
        seconds: rounds and evaluations together.
        peak_rss_bytes: peak memory.
    """
    config, last = program.config, rounds[-1]
    fedavg = fedavg_bytes(program) * sum(r.uploads for r in rounds)
    # An empty round takes no time to speak of; it counts only where there is no other.
    timed = [r.seconds for r in rounds if not r.empty] or [r.seconds for r in rounds]
    return Summary(
        kind="federated",
        method=config.method,
        dataset=config.dataset,
        train_size=config.train_size,
        skew=config.skew,
        alpha=config.alpha,
        seed=config.seed,
        config_hash=config.config_hash,
        data_hash=data_hash,
        rounds=config.rounds,
        final_accuracy=statistics.fmean(e.val_accuracy for e in final),
        final_accuracy_n=len(final),
        test_accuracy=test_accuracy,
        **{name: getattr(last, f"cumulative_{name}") for name in BYTES},
        upload_fraction=last.cumulative_upload_model_bytes / fedavg if fedavg else 0.0,
        failures=sum(r.failures for r in rounds),
        empty_rounds=sum(r.empty for r in rounds),
        hyper_readable=hyper_readable,
        seconds=seconds,
        seconds_per_round=statistics.median(timed),
        peak_rss_bytes=peak_rss_bytes,
    )


def _client(program: Program, reply: ClientReply, up_wire: int, down_wire: int) -> ClientRecord:
    up, down = model_bytes(program, reply.chunk)
    return ClientRecord(
        client_id=reply.client_id,
        chunk=reply.chunk,
        num_examples=reply.num_examples,
        upload_model_bytes=up,
        upload_wire_bytes=up_wire,
        download_model_bytes=down,
        download_wire_bytes=down_wire,
        train_loss=reply.train_loss if math.isfinite(reply.train_loss) else None,
        seconds=reply.seconds,
        status="weights" if reply.hyper_fault else "ok",
    )


def _missing(program: Program, failure: Failure, wire: tuple[int, int] | None) -> ClientRecord:
    up, down = model_bytes(program, failure.chunk)
    up_wire, down_wire = wire or (0, 0)
    # It was sent the model, unless it was not there; what a client sends back that fails is not
    # counted.
    return ClientRecord(
        client_id=failure.client_id,
        chunk=failure.chunk,
        num_examples=None,
        upload_model_bytes=up if failure.unused else 0,
        upload_wire_bytes=up_wire if failure.unused else 0,
        download_model_bytes=down if wire else 0,
        download_wire_bytes=down_wire,
        train_loss=None,
        seconds=0.0,
        status="unused" if failure.unused else "failed",
    )


def _failure(client_id: int, chunk: int, reason: str) -> FailureRecord:
    return FailureRecord(client_id=client_id, chunk=chunk, reason=reason)
