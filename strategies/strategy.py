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
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpart.algorithm import Observer
from fedpart.client import ClientReply
from fedpart.cohort import Failure, draw_cohort, settle
from fedpart.errors import cause
from fedpart.program import Program
from fedpart.server import ServerState, assign_chunks, server_update
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
        join_timeout: float = 120.0,
    ) -> None:
        """Go on from ``state`` and tell ``observer`` of every round.

        Args:
            program: shared by all.
            state: before the next round.
            observer: records, evaluates, shows.
            join_timeout: seconds to wait for clients before the first round.
        """
        self.program, self.state, self.observer = program, state, observer
        self.join_timeout = join_timeout
        self.replies: list[ClientReply] = []
        self.failures: list[Failure] = []
        self.wire: dict[int, tuple[int, int]] = {}
        self._timeout = program.config.round_timeout
        self._chunks = [int(chunk) for chunk in assign_chunks(program.config)]
        self._roster = Roster()
        self._joined = False
        self._asked: dict[int, Message] = {}
        self._left_out = 0

    def arrays(self) -> ArrayRecord:
        """``theta`` and ``hyper``, encoded once: every client is sent this one immutable copy."""
        named = {"theta": self.state.theta, "hyper": self.state.hyper}
        return ArrayRecord(
            {n: Array("float32", (len(t),), "numpy.ndarray", encode(t)) for n, t in named.items()}
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message for each client of the cohort that is connected and does not drop out.

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
        cohort = draw_cohort(self.program.config, server_round)
        for client_id in cohort.clients:
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
        return [m for client_id, m in self._asked.items() if client_id not in cohort.dropped]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Judge every reply by the gate, then update partitions and psi with those that count.

        Args:
            server_round: the round that ``configure_train`` made the messages of.
            replies: in any order; late ones are missing.

        Returns:
            the new ``theta`` and ``hyper``, and numbers of the round.
        """
        config, received = self.program.config, self._received(replies)
        cohort = draw_cohort(config, server_round)
        answers: dict[int, ClientReply | str] = {}
        self.wire = {}
        for client_id in cohort.clients:
            if client_id not in self._asked:
                answers[client_id] = "is not connected"
                continue
            message = received.get(client_id)
            sent = message_bytes(self._asked[client_id])
            self.wire[client_id] = (message_bytes(message) if message else 0, sent)
            if message is None:
                answers[client_id] = f"no reply within {self._timeout:g} s"
            elif message.has_error():
                answers[client_id] = cause(message.error.reason or "")
            else:
                try:
                    answers[client_id] = self._judge(server_round, client_id, message)
                except RefusedReply as refused:
                    answers[client_id] = refused.verdict
        self.replies, self.failures = settle(config, cohort, self._chunks, answers)
        self.state = server_update(self.program, self.state, self.replies)
        failed = sum(not f.unused for f in self.failures)
        numbers = MetricRecord(
            {"replies": len(self.replies), "failures": failed, "left-out": self._left_out}
        )
        if self.replies:
            numbers["train-loss"] = statistics.fmean(r.train_loss for r in self.replies)
        return self.arrays(), numbers

    def _received(self, replies: Iterable[Message]) -> dict[int, Message]:
        # By the message that was answered: an error about a dead node comes from Flower's server.
        by_message = {m.metadata.message_id: c for c, m in self._asked.items()}
        received: dict[int, Message] = {}
        self._left_out = 0
        for reply in replies:
            client_id = by_message.get(reply.metadata.reply_to_message_id)
            if client_id is None or client_id in received:
                self._left_out += 1
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

    def join(self, grid: Grid) -> None:
        """Wait until all clients are there, or ``join_timeout`` seconds; once in a run.

        Raises:
            ClientFailure, ConfigError: see ``Roster.wait``.
        """
        if not self._joined:
            self._roster.wait(grid, self.program.config.clients, self.join_timeout)
            self._joined = True

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
            ClientFailure: nobody is connected; or what ``observer`` raises.
            ConfigError: see ``join``.
            ValueError: ``initial_arrays`` were given.
        Source: Appendix J; ``fedpart.algorithm.run`` without messages.
        """
        if initial_arrays is not None:
            raise ValueError("weights and psi are those of state: build the strategy with another")
        config, result = self.program.config, Result()
        self._timeout = config.round_timeout if timeout is None else timeout
        train_config = ConfigRecord() if train_config is None else train_config
        self.join(grid)
        arrays = self.arrays()
        while self.state.server_round < (config.rounds if num_rounds is None else num_rounds):
            started = time.perf_counter()
            server_round = self.state.server_round + 1
            messages = self.configure_train(server_round, arrays, train_config, grid)
            replies = grid.send_and_receive(messages, timeout=self._timeout) if messages else []
            arrays, numbers = self.aggregate_train(server_round, replies)
            result.train_metrics_clientapp[server_round] = numbers
            seconds = time.perf_counter() - started
            self.observer.after_round(self.state, self.replies, self.failures, self.wire, seconds)
            if evaluate_fn is not None and (evaluated := evaluate_fn(server_round, arrays)):
                result.evaluate_metrics_serverapp[server_round] = evaluated
        result.arrays = arrays
        return result
