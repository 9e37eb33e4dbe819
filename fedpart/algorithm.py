"""The paper's round loop, whole: the reference that every back end equals bit for bit."""

import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Protocol

from fedpart.client import ClientReply, ClientTask
from fedpart.cohort import Failure, draw_cohort, settle
from fedpart.data import FederatedData
from fedpart.errors import cause
from fedpart.program import Program
from fedpart.server import ServerState, assign_chunks, server_update
from fedpart.side_by_side import cohort_update, groups
from fedpart.wire import RefusedReply, through_gate, wire_bytes


class Observer(Protocol):
    """Learns of every round: writes records, evaluates, shows progress."""

    def after_round(
        self,
        state: ServerState,
        replies: Sequence[ClientReply],
        failures: Sequence[Failure],
        wire: Mapping[int, tuple[int, int]],
        seconds: float,
    ) -> None:
        """Called once a round, with the state after it; ends the run by raising.

        Args:
            state: ``state.server_round`` is the round that ended.
            replies: those that counted, in client order; none in an empty round.
            failures: those that did not, in client order.
            wire: client id -> encoded bytes (upload, download) of everyone who was asked.
            seconds: the round's duration, observers apart.
        """
        ...


def run(
    program: Program, data: FederatedData, state: ServerState, observer: Observer
) -> ServerState:
    """Federated partitioned training, from ``state`` to the last round.

    A client that raises, drops out, or whose reply the gate refuses, is a failure of its own: the
    round goes on with the others, and a round without any reply changes nothing but its number.

    Args:
        program: network, partitions, psi, settings.
        data: each client's images.
        state: before the next round.
        observer: told of every round.
    Returns:
        the state after ``config.rounds`` rounds.
    Source: Appendix J.
    """
    config = program.config
    chunks = [int(chunk) for chunk in assign_chunks(config)]
    while state.server_round < config.rounds:
        started = time.perf_counter()
        server_round = state.server_round + 1
        cohort, wire = draw_cohort(config, server_round), {}
        answers: dict[int, ClientReply | str] = {}
        for client_id in cohort.clients:
            wire[client_id] = 0, wire_bytes(program, chunks[client_id])[1]
        tasks = [
            ClientTask(server_round, client_id, chunks[client_id], state.theta, state.hyper)
            for client_id in cohort.clients
            if client_id not in cohort.dropped
        ]
        for group in groups(tasks, config.clients_at_once):
            try:
                sent = cohort_update(program, group, data)
            except Exception:
                answers |= dict.fromkeys(
                    (t.client_id for t in group), cause(traceback.format_exc())
                )
                continue
            for task, reply in zip(group, sent, strict=True):
                wire[task.client_id] = wire_bytes(program, task.chunk)
                try:
                    answers[task.client_id] = through_gate(program, task, reply)
                except RefusedReply as refused:
                    answers[task.client_id] = refused.verdict
        replies, failures = settle(config, cohort, chunks, answers)
        state = server_update(program, state, replies)
        observer.after_round(state, replies, failures, wire, time.perf_counter() - started)
    return state
