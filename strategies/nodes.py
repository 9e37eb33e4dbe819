"""Which node is which client."""

import time

from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedpart.errors import ClientFailure, cause
from fedpart.wire import FORMAT

_PAUSE = 0.5


class Roster:
    """The clients that are connected.

    Attributes:
        nodes: client id -> node id.
        trouble: why the last node that could not say who it is could not.
    """

    def __init__(self) -> None:
        """Know nobody yet."""
        self.nodes: dict[int, int] = {}
        self.trouble = ""
        self._identities: dict[int, int] = {}

    def refresh(self, grid: Grid, timeout: float) -> None:
        """Forget nodes that have gone, and ask new ones which client they are.

        Args:
            grid: where they are.
            timeout: seconds to wait for answers; who does not answer is asked again next time.
        """
        present = set(grid.get_node_ids())
        self._identities = {n: c for n, c in self._identities.items() if n in present}
        unknown = sorted(present - set(self._identities))
        if unknown:
            question = RecordDict({"metrics": MetricRecord({"format": FORMAT})})
            asked = [
                Message(question, dst_node_id=node, message_type=MessageType.QUERY)
                for node in unknown
            ]
            for reply in grid.send_and_receive(asked, timeout=timeout):
                self._learn(reply)
        self.nodes = {}
        for node, client_id in sorted(self._identities.items()):
            # Of two that claim to be one client, the lower number is believed, in every round.
            self.nodes.setdefault(client_id, node)

    def _learn(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            self.trouble = cause(reply.error.reason or "")
            return
        metrics = reply.content.get("metrics")
        answer = metrics.get("client-id") if isinstance(metrics, MetricRecord) else None
        if isinstance(answer, int):
            self._identities[node] = answer
        else:
            self.trouble = f"node {node} does not say which client it is"

    def wait(self, grid: Grid, clients: int, timeout: float) -> None:
        """Wait until all clients are there, or ``timeout`` seconds, and go on with who is.

        Raises:
            ClientFailure: nobody is.
        """
        deadline = time.monotonic() + timeout
        self.refresh(grid, timeout)
        while len(self.nodes) < clients and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_PAUSE, left))
            self.refresh(grid, timeout)
        if not self.nodes:
            why = f" ({self.trouble})" if self.trouble else ""
            raise ClientFailure(
                f"none of {clients} clients is connected after {timeout:g} s{why}: start them first"
            )
