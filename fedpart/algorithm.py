"""The paper's round loop, whole: the reference that every back end equals bit for bit."""

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedpart.client import ClientReply, ClientTask, client_update
from fedpart.data import FederatedData
from fedpart.errors import ClientFailure, cause
from fedpart.program import Program
from fedpart.server import ServerState, assign_chunks, sample_clients, server_update
from fedpart.wire import wire_bytes


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
        """Called once a round, with the state after it.

        Args:
            state: ``state.server_round`` is the round that ended.
            replies: those that counted, in client order.
            failures: those that did not.
            wire: client id -> encoded bytes (upload, download).
            seconds: the round's duration, observers apart.
        """
        ...


def run(
    program: Program, data: FederatedData, state: ServerState, observer: Observer
) -> ServerState:
    """Federated partitioned training, from ``state`` to the last round.

    Args:
        program: network, partitions, psi, settings.
        data: each client's images.
        state: before the next round.
        observer: told of every round.
    Returns:
        the state after ``config.rounds`` rounds.
    Raises:
        ClientFailure: a client raised; names client, round and the last line.
    Source: Appendix H.
    """
    config = program.config
    chunks = assign_chunks(config)
    while state.server_round < config.rounds:
        started = time.perf_counter()
        server_round = state.server_round + 1
        replies = []
        for client_id in sample_clients(config, server_round):
            task = ClientTask(
                server_round, client_id, int(chunks[client_id]), state.theta, state.hyper
            )
            try:
                replies.append(client_update(program, task, *data.client(client_id)))
            except Exception as error:
                raise ClientFailure(
                    f"client {client_id} failed in round {server_round}: "
                    f"{cause(traceback.format_exc())}"
                ) from error
        state = server_update(program, state, replies)
        wire = {r.client_id: wire_bytes(program, r.chunk) for r in replies}
        observer.after_round(state, replies, [], wire, time.perf_counter() - started)
    return state
