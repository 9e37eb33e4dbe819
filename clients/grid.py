"""A Flower Grid that runs the ClientApp on this machine, without Flower's runtime.

What is private in Flower 1.42 is used in this module only.
"""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from clients.app import register, train_together
from clients.entry import app
from fedpart.config import Config
from fedpart.data import FederatedData
from fedpart.program import Program
from fedpart.side_by_side import groups

# Flower's own codes: a ClientApp that raised, and a node that is not there.
CLIENT_APP_RAISED, NODE_UNAVAILABLE = 2, 5
_RUN_ID, _SERVER_NODE = 1, 1
_FIRST_NODE = 2


class Executor(Protocol):
    """Runs messages on clients, in any order."""

    def run(self, work: Sequence[tuple[Message, Context]], deadline: float) -> Iterable[Message]:
        """Answer every message, as soon as there is an answer; an error is an answer too.

        Args:
            work: what to answer, and the context of the client that is asked.
            deadline: on the clock of ``time.monotonic``, seconds; nothing need come after it.
        """
        ...


class InlineExecutor:
    """Calls the ClientApp in this process, one client after the other, or several side by side."""

    def __init__(
        self,
        client_app: ClientApp,
        prepare: Callable[[], object] = lambda: None,
        at_once: int = 1,
    ) -> None:
        """Run ``client_app``.

        Args:
            client_app: answers one message.
            prepare: called before each batch of messages.
            at_once: where above 1, so many clients compute together, see ``train_together``.
        """
        self._app, self._prepare, self._at_once = client_app, prepare, at_once

    def run(self, work: Sequence[tuple[Message, Context]], deadline: float) -> Iterator[Message]:
        """See ``Executor``; a client that raises gives an error reply with its traceback.

        Where several compute together, what one raises is an error reply of each.
        """
        self._prepare()
        for group in groups(work, self._at_once):
            if time.monotonic() > deadline:
                return
            try:
                if self._at_once > 1:
                    replies = train_together(group)
                else:
                    replies = [self._app(message, context) for message, context in group]
            except Exception:  # whatever a client raises is one client's failure, not the run's
                error = Error(code=CLIENT_APP_RAISED, reason=traceback.format_exc())
                replies = [Message(error, reply_to=message) for message, _ in group]
            yield from replies


class LocalGrid(Grid):
    """Messages go to an executor and replies come back, with no network and no copies.

    Client i is node i + 2, in every run.

    Attributes:
        executor: runs the messages.
    """

    def __init__(self, executor: Executor, config: Config) -> None:
        """Offer a node for each client of ``config``, run by ``executor``."""
        self.executor, self._num_clients = executor, config.clients
        # Who a client is, this process knows too: no worker is asked.
        self._identify = InlineExecutor(app)
        # Flower's run configs hold scalars only.
        self._run_config = {
            key: value if isinstance(value, str | bool | int | float) else ",".join(map(str, value))
            for key, value in config.model_dump(mode="json", by_alias=True).items()
            if value is not None
        }
        self._states: dict[int, RecordDict] = {}
        self._pending: dict[str, Message] = {}
        self._sent = 0
        self._run = Run.create_empty(_RUN_ID)
        if TaskIdentity._run_id is None:
            TaskIdentity.run_id = _RUN_ID
            TaskIdentity.node_id = _SERVER_NODE
            TaskIdentity.task_id = 0

    def set_run(self, run: Run) -> None:
        """Take over a run's description."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run this grid belongs to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message from the server to one node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Nodes of all clients, ascending."""
        return range(_FIRST_NODE, _FIRST_NODE + self._num_clients)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages in; returns an id for each."""
        ids = []
        for message in messages:
            self._sent += 1
            # By number of sending: equal content would give equal ids under Flower's own rule.
            message_id = str(self._sent)
            message.metadata.__dict__["_message_id"] = message_id
            self._pending[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run what is pending among ``message_ids``, and return the replies."""
        return self._answer(message_ids, float("inf"))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run all messages; replies that are not there after ``timeout`` seconds are left out."""
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        return self._answer(self.push_messages(messages), deadline)

    def _answer(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        replies: list[Message] = []
        questions: list[tuple[Message, Context]] = []
        work: list[tuple[Message, Context]] = []
        for message in [self._pending.pop(i) for i in message_ids if i in self._pending]:
            node = message.metadata.dst_node_id
            if node in self.get_node_ids():
                kind = message.metadata.message_type
                (questions if kind == MessageType.QUERY else work).append(
                    (message, self._context(node))
                )
            else:
                error = Error(NODE_UNAVAILABLE, f"there is no node {node}")
                replies.append(Message(error, reply_to=message))
        answers = (self._identify.run(questions, deadline), self.executor.run(work, deadline))
        for reply in chain.from_iterable(answers):
            if time.monotonic() > deadline:
                break
            replies.append(reply)
        # Most clients keep nothing from round to round: what stays is small, however many they are.
        used = {c.node_id: c.state for _, c in work}
        self._states.update({node: state for node, state in used.items() if state})
        return replies

    def _context(self, node: int) -> Context:
        return Context(
            run_id=_RUN_ID,
            node_id=node,
            node_config={"partition-id": node - _FIRST_NODE, "num-partitions": self._num_clients},
            state=self._states.get(node) or RecordDict(),
            run_config=dict(self._run_config),
        )


def inline_grid(program: Program, data: FederatedData) -> LocalGrid:
    """All clients in this process, with the network and the data that are already here."""
    at_once = program.config.clients_at_once
    executor = InlineExecutor(app, partial(register, program, data), at_once)
    return LocalGrid(executor, program.config)
