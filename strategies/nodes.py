"""Which node is which client."""

import copy
import logging
import time
from collections.abc import Iterable

from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedpart.errors import ClientFailure, ConfigError, cause
from fedpart.machine import code_id
from fedpart.wire import FORMAT

logger = logging.getLogger(__name__)

_PAUSE = 0.5
# A message takes a few kilobytes here, whatever it says.
_ASKED_AT_ONCE = 1000


class Roster:
    """The clients that are connected.

    Attributes:
        nodes: client id -> node id.
        trouble: why the last node that cannot take part cannot.
    """

    def __init__(self) -> None:
        """Know nobody yet."""
        self.nodes: dict[int, int] = {}
        self.trouble = ""
        self._identities: dict[int, int] = {}
        # Nodes that run other code, and how many there are to be, as far as they were told.
        self._foreign: set[int] = set()
        # Nodes of which it was said that they claim to be a client that another one is.
        self._doubles: set[int] = set()
        self._announced = 0
        # Who was connected last, where nobody needs to be asked again.
        self._known: Iterable[int] | None = None

    def refresh(self, grid: Grid, timeout: float) -> None:
        """Forget nodes that have gone, and ask new ones which client they are.

        Args:
            grid: where they are.
            timeout: seconds to wait for answers; who does not answer is asked again next time.
        """
        connected = grid.get_node_ids()
        if connected == self._known:
            return
        present = set(connected)
        self._foreign &= present
        self._doubles &= present
        unknown = sorted(present - self._identities.keys() - self._foreign)
        if not unknown and self._identities.keys() <= present:
            return
        self._identities = {n: c for n, c in self._identities.items() if n in present}
        question = RecordDict({"metrics": MetricRecord({"format": FORMAT})})
        for start in range(0, len(unknown), _ASKED_AT_ONCE):
            asked = [
                Message(question, dst_node_id=node, message_type=MessageType.QUERY)
                for node in unknown[start : start + _ASKED_AT_ONCE]
            ]
            for reply in grid.send_and_receive(asked, timeout=timeout):
                self._learn(reply)
        settled = present == self._identities.keys() | self._foreign
        self._known = copy.copy(connected) if settled else None
        # Who is believed already stays; of two that come together, the lower number.
        held = {c: n for c, n in self.nodes.items() if self._identities.get(n) == c}
        self.nodes = {}
        for node, client_id in sorted(self._identities.items()):
            first = held.get(client_id, self.nodes.get(client_id, node))
            self.nodes[client_id] = first
            if first != node and node not in self._doubles:
                self._doubles.add(node)
                logger.warning(
                    "nodes %d and %d both say that they are client %d (partition-id), and only %d "
                    "takes part: give each device a number of its own",
                    *(first, node, client_id, first),
                )

    def _learn(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            self.trouble = cause(reply.error.reason or "")
            return
        metrics = reply.content.get("metrics")
        answer = metrics if isinstance(metrics, MetricRecord) else MetricRecord()
        client_id, total = answer.get("client-id"), answer.get("num-clients")
        if not isinstance(client_id, int):
            self.trouble = f"node {node} does not say which client it is"
            return
        if isinstance(total, int):
            self._announced = max(self._announced, total)
        if answer.get("code") == code_id():
            self._identities[node] = client_id
            return
        # In Flower's simulation, workers import from the folder that SuperLink was started in
        # before they do from the bundle, which the server runs.
        self._foreign.add(node)
        self.trouble = (
            f"client {client_id} runs other code than the server: a SuperLink that was started in "
            "the folder of another version must be stopped first, and code must not change under a "
            "run"
        )
        logger.warning(self.trouble)

    def wait(self, grid: Grid, clients: int, timeout: float) -> None:
        """Wait until all clients are there, or ``timeout`` seconds, and go on with who is.

        Raises:
            ClientFailure: nobody is.
            ConfigError: waiting is no use: all who are there run other code, or they are all that
                were started, as far as they know, and too few.
        """
        deadline = time.monotonic() + timeout
        self.refresh(grid, timeout)
        while len(self.nodes) < clients and (left := deadline - time.monotonic()) > 0:
            if self._foreign and not self.nodes:
                raise ConfigError(self.trouble)
            if 0 < self._announced <= len(self.nodes):
                raise ConfigError(
                    f"clients is {clients}, but nodes were started for {self._announced}: give "
                    f"flwr run --federation-config num-supernodes={clients}, or set "
                    f"clients={self._announced}"
                )
            time.sleep(min(_PAUSE, left))
            self.refresh(grid, timeout)
        if not self.nodes:
            why = f" ({self.trouble})" if self.trouble else ""
            raise ClientFailure(
                f"none of {clients} clients is connected after {timeout:g} s{why}: start them first"
            )
