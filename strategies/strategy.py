"""The Strategy: messages on one side, ``fedpart.server`` on the other."""

import logging
import statistics
import time
from collections.abc import Callable, Iterable

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpart.algorithm import Failure, Observer
from fedpart.client import ClientReply
from fedpart.errors import ClientFailure, cause
from fedpart.program import Program
from fedpart.server import ServerState, assign_chunks, sample_clients, server_update
from fedpart.wire import FORMAT, RefusedReply, encode, validate
from strategies.nodes import Roster

logger = logging.getLogger(__name__)

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


def message_bytes(message: Message) -> int:
    """Encoded bytes of a message's content, names and array headers included; 0 for an error."""
    if not message.has_content():
        return 0
    return sum(record.count_bytes() for record in message.content.values())


class PartitionedStrategy(Strategy):
    """Clients of different chunks send different partitions; the server updates each by Adam.

    Attributes:
        state: after the last round.
        replies: those that counted in the last round, in client order.
        failures: those that did not, in client order.
        wire: encoded bytes (upload, download) of everyone who was asked in the last round.
    """

    def __init__(
        self,
        program: Program,
        state: ServerState,
        observer: Observer,
        fail_fast: bool = False,
        join_timeout: float = 60.0,
    ) -> None:
        """Go on from ``state`` and tell ``observer`` of every round.

        Args:
            program: shared by all.
            state: before the next round.
            observer: records, evaluates, shows.
            fail_fast: a client that raises ends the run (in a simulation it is a bug), instead of
                counting as one client's failure (a device may be ill). Clients that are lost in
                another way, with a process or a node that died, never end it alone.
            join_timeout: seconds to wait for clients before the first round.
        """
        self.program, self.state, self.observer = program, state, observer
        self.fail_fast, self.join_timeout = fail_fast, join_timeout
        self.replies: list[ClientReply] = []
        self.failures: list[Failure] = []
        self.wire: dict[int, tuple[int, int]] = {}
        self._timeout = program.config.round_timeout
        self._chunks = [int(chunk) for chunk in assign_chunks(program.config)]
        self._roster = Roster()
        self._asked: dict[int, Message] = {}

    def arrays(self) -> ArrayRecord:
        """``theta`` and ``hyper``, encoded once: every client is sent this one immutable copy."""
        named = {"theta": self.state.theta, "hyper": self.state.hyper}
        return ArrayRecord(
            {n: Array("float32", (len(t),), "numpy.ndarray", encode(t)) for n, t in named.items()}
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message for each client of the round's cohort that is connected.

        Args:
            server_round: counted from 1.
            arrays: ``theta`` and ``hyper``, shared by all messages.
            config: further entries for every client, as Flower's interface has it.
            grid: asked who is connected.

        Returns:
            a list, since Flower's own grid walks through it twice.
        """
        self._roster.refresh(grid, self._timeout)
        self._asked = {}
        for client_id in sample_clients(self.program.config, server_round):
            if client_id not in self._roster.nodes:
                continue
            fields = {
                "format": FORMAT,
                "server-round": server_round,
                "client-id": client_id,
                "chunk": self._chunks[client_id],
            }
            self._asked[client_id] = Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({**config, **fields})}),
                dst_node_id=self._roster.nodes[client_id],
                message_type=MessageType.TRAIN,
                group_id=str(server_round),
            )
        return list(self._asked.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Judge every reply by the gate, then update partitions and psi with those that count.

        Args:
            server_round: the round that ``configure_train`` made the messages of.
            replies: in any order; late ones are missing.

        Returns:
            the new ``theta`` and ``hyper``, and numbers of the round.

        Raises:
            ClientFailure: a client raised, and ``fail_fast`` is set.
        """
        received = self._received(replies)
        self.replies, self.failures, self.wire = [], [], {}
        for client_id in sample_clients(self.program.config, server_round):
            if client_id not in self._asked:
                self._fail(client_id, "is not connected")
                continue
            message = received.get(client_id)
            sent = message_bytes(self._asked[client_id])
            self.wire[client_id] = (message_bytes(message) if message else 0, sent)
            if message is None:
                self._fail(client_id, f"no reply within {self._timeout:g} s")
            elif message.has_error():
                reason = cause(message.error.reason or "")
                if self.fail_fast and message.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
                    raise ClientFailure(
                        f"client {client_id} failed in round {server_round}: {reason}"
                    )
                self._fail(client_id, reason)
            else:
                try:
                    self.replies.append(self._judge(server_round, client_id, message))
                except RefusedReply as refused:
                    self._fail(client_id, f"refused: {refused.tensor} {refused.reason}")
        self.state = server_update(self.program, self.state, self.replies)
        numbers = MetricRecord({"replies": len(self.replies), "failures": len(self.failures)})
        if self.replies:
            numbers["train-loss"] = statistics.fmean(r.train_loss for r in self.replies)
        return self.arrays(), numbers

    def _received(self, replies: Iterable[Message]) -> dict[int, Message]:
        # By the message that was answered: an error about a dead node comes from Flower's server.
        by_message = {m.metadata.message_id: c for c, m in self._asked.items()}
        received: dict[int, Message] = {}
        for reply in replies:
            client_id = by_message.get(reply.metadata.reply_to_message_id)
            if client_id is None or client_id in received:
                logger.warning("left out a reply that nobody waits for")
            else:
                received[client_id] = reply
        return received

    def _judge(self, server_round: int, client_id: int, message: Message) -> ClientReply:
        records = message.content
        arrays, metrics = records.get("arrays"), records.get("metrics")
        if (
            len(records) != 2
            or not isinstance(arrays, ArrayRecord)
            or not isinstance(metrics, MetricRecord)
        ):
            found = ", ".join(sorted(records)) or "nothing"
            raise RefusedReply(client_id, "message", f"holds {found:.80}, not arrays and metrics")
        encoded = {name: array.data for name, array in arrays.items()}
        chunk = self._chunks[client_id]
        return validate(self.program, server_round, client_id, chunk, encoded, dict(metrics))

    def _fail(self, client_id: int, reason: str) -> None:
        self.failures.append(Failure(client_id, self._chunks[client_id], reason))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nobody: clients hold no validation data; the observer evaluates at the server."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing came."""
        return None

    def summary(self) -> None:
        """The observer tells the user what is going on."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """The round loop, from the round after ``state`` to the last one.

        Args:
            grid: where the clients are.
            initial_arrays: must be None: weights and psi are those of ``state``.
            num_rounds: number of the last round; ``config.rounds`` where None.
            timeout: deadline of a round in seconds; ``config.round_timeout`` where None.
            train_config: further entries for every client.
            evaluate_config: not read; clients do not evaluate.
            evaluate_fn: called with the round and the arrays after each round.

        Returns:
            the last arrays, and the rounds' numbers.

        Raises:
            ClientFailure: nobody is connected; a client raised and ``fail_fast`` is set; or no
                reply of a round counted (the round is not on record, so a resume repeats it).
            ValueError: ``initial_arrays`` were given.
        Source: Appendix H; ``fedpart.algorithm.run`` without messages.
        """
        if initial_arrays is not None:
            raise ValueError("weights and psi are those of state: build the strategy with another")
        config, result = self.program.config, Result()
        self._timeout = config.round_timeout if timeout is None else timeout
        train_config = ConfigRecord() if train_config is None else train_config
        self._roster.wait(grid, config.clients, self.join_timeout)
        arrays = self.arrays()
        while self.state.server_round < (config.rounds if num_rounds is None else num_rounds):
            started = time.perf_counter()
            server_round = self.state.server_round + 1
            messages = self.configure_train(server_round, arrays, train_config, grid)
            replies = grid.send_and_receive(messages, timeout=self._timeout) if messages else []
            arrays, numbers = self.aggregate_train(server_round, replies)
            result.train_metrics_clientapp[server_round] = numbers
            if not self.replies:
                # Before it is recorded: a resume takes this round up again.
                first = self.failures[0]
                raise ClientFailure(
                    f"all {len(self.failures)} clients failed in round {server_round}; client "
                    f"{first.client_id}: {first.reason}"
                )
            seconds = time.perf_counter() - started
            self.observer.after_round(self.state, self.replies, self.failures, self.wire, seconds)
            if evaluate_fn is not None and (evaluated := evaluate_fn(server_round, arrays)):
                result.evaluate_metrics_serverapp[server_round] = evaluated
        result.arrays = arrays
        return result
