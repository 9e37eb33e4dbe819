"""The paper's round loop, whole: the reference that every back end equals bit for bit."""

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedpart.client import ClientReply, ClientTask, client_update
from fedpart.data import FederatedData
from fedpart.errors import cause
from fedpart.program import Program
from fedpart.server import ServerState, assign_chunks, sample_clients, server_update
from fedpart.wire import RefusedReply, through_gate, wire_bytes


@dataclass(frozen=True)
class Failure:
    """A client whose reply did not count.

    Attributes:
        client_id: who.
        chunk: the client's chunk.
        reason: one line.
    """

    client_id: int
    chunk: int
    reason: str


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

    A client that raises, or whose reply the gate refuses, is a failure of its own: the round goes
    on with the others, and a round without any reply changes nothing but its number.

    Args:
        program: network, partitions, psi, settings.
        data: each client's images.
        state: before the next round.
        observer: told of every round.
    Returns:
        the state after ``config.rounds`` rounds.
    Source: Appendix H.
    """
    config = program.config
    chunks = assign_chunks(config)
    while state.server_round < config.rounds:
        started = time.perf_counter()
        server_round = state.server_round + 1
        replies, failures, wire = [], [], {}
        for client_id in sample_clients(config, server_round):
            chunk = int(chunks[client_id])
            task = ClientTask(server_round, client_id, chunk, state.theta, state.hyper)
            wire[client_id] = wire_bytes(program, chunk)
            try:
                reply = client_update(program, task, *data.client(client_id))
                replies.append(through_gate(program, task, reply))
            except RefusedReply as refused:
                failures.append(Failure(client_id, chunk, refused.verdict))
            except Exception:
                failures.append(Failure(client_id, chunk, cause(traceback.format_exc())))
                wire[client_id] = 0, wire[client_id][1]
        state = server_update(program, state, replies)
        observer.after_round(state, replies, failures, wire, time.perf_counter() - started)
    return state
