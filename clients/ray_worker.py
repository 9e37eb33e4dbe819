"""What runs in the process of one of Ray's workers."""

import ctypes
import platform
import signal
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from clients.app import register
from clients.entry import app
from clients.grid import InlineExecutor
from fedpart.config import make_config
from fedpart.data import FederatedData
from fedpart.errors import ConfigError
from fedpart.machine import code_id
from fedpart.program import program_for
from fedpart.runtime import prepare_process

# Linux's name, from prctl.h.
_PR_SET_PDEATHSIG = 1


class Worker:
    """Answers messages for clients of one run, one after the other."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._batch = 0
        self._held: dict[int, ArrayRecord] = {}

    def prepare(
        self, path: Sequence[str], settings: dict[str, object], data: FederatedData, code: int
    ) -> None:
        """Get ready for clients of one run.

        Args:
            path: where else to look for modules: the user's network may be anywhere.
            settings: TOML keys and values; the network and its partition follow from them.
            data: in the object store's memory, which all workers of a machine map.
            code: the server's; a machine of a cluster may hold another version.

        Raises:
            ConfigError: this worker runs other code.
        """
        sys.path.extend(place for place in path if place not in sys.path)
        if code != code_id():
            raise ConfigError(
                f"a worker on {platform.node()} runs other code than the server: have the same "
                "version of fedpart on every machine, and change no code under a run"
            )
        _end_with_parent()
        register_arrays()
        prepare_process()
        program = program_for(make_config(settings), data)
        register(program, data)

    def hold(self, batch: int, number: int, record: ArrayRecord) -> None:
        """Keep arrays for the messages of a batch, and forget those of batches before it.

        A worker takes the weights out of the object store once a round, not once a client.
        """
        if batch != self._batch:
            self._batch, self._held = batch, {}
        self._held[number] = record

    def answer(
        self, work: Sequence[tuple[Message, Context, Mapping[str, int]]], at_once: int
    ) -> list[tuple[Message, RecordDict]]:
        """Answer messages, as ``InlineExecutor`` does.

        Args:
            work: messages without their arrays; the context of the client that is asked; names of
                the arrays, and the numbers they are held by.
            at_once: see ``InlineExecutor``.

        Returns:
            the replies, and the clients' states after them.
        """
        for message, _, arrays in work:
            message.content.update({name: self._held[number] for name, number in arrays.items()})
        asked = [(message, context) for message, context, _ in work]
        replies = InlineExecutor(app, at_once=at_once).run(asked, float("inf"))
        return [(reply, context.state) for reply, (_, context) in zip(replies, asked, strict=True)]


def _end_with_parent() -> None:
    """Have Linux kill this process when Ray's daemon, which started it, has died.

    Ray notices only when a worker comes back from what it is at, and that may be a long round.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def register_arrays() -> None:
    """Let the bytes of arrays go through shared memory as they are, instead of by pickle."""
    from ray.util import register_serializer

    register_serializer(
        Array,
        serializer=lambda a: (a.dtype, a.shape, a.stype, np.frombuffer(a.data, np.uint8)),
        deserializer=lambda a: Array(a[0], a[1], a[2], a[3].tobytes()),
    )
