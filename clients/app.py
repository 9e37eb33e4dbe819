"""A client's work: the same on a laptop, in a simulation and on a device."""

from collections.abc import Sequence
from functools import lru_cache

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    UserConfigValue,
)
from torch import Tensor

from clients.identity import own_id
from fedpart.client import ClientReply, ClientTask
from fedpart.config import Config, make_config
from fedpart.data import FederatedData, load_federated, load_own
from fedpart.program import Program, program_for
from fedpart.run_config import given_settings
from fedpart.runtime import prepare_process
from fedpart.side_by_side import cohort_update
from fedpart.wire import FORMAT, INSTRUCTION_FIELDS, decode, encode, reply_arrays, reply_fields

# One run at a time in a process: what it needs is built once, whatever the number of clients.
_built: dict[Config, tuple[Program, FederatedData]] = {}
# Clients of a round that share a process share the server's bytes: these are decoded once.
_theta: dict[str, tuple[bytes, Tensor]] = {}


def register(program: Program, data: FederatedData) -> None:
    """Let clients in this process use what is already built."""
    _built.clear()
    _built[program.config] = (program, data)


def materials(context: Context) -> tuple[Program, FederatedData]:
    """What the node's run needs; built at the first call in a process.

    Args:
        context: with the run config, and the node config. Its ``data-path`` names data that are
            this client's alone; without it, the client has its part of the simulation's split, and
            ``data-dir`` comes before the run's: a device knows best where its data are.
    Raises:
        FedpartError: settings or data that cannot be used.
    """
    path, data_dir = (context.node_config.get(key) for key in ("data-path", "data-dir"))
    own = (("data-dir", data_dir),) if data_dir else ()
    config = _settings(tuple(context.run_config.items()), own)
    if path:
        return _device(config, str(path), own_id(context))
    if config not in _built:
        prepare_process()
        data = load_federated(config)
        register(program_for(config, data), data)
    return _built[config]


@lru_cache(maxsize=1)
def _device(config: Config, path: str, client_id: int) -> tuple[Program, FederatedData]:
    prepare_process()
    data = load_own(config, path, client_id)
    return program_for(config, data), data


Items = tuple[tuple[str, UserConfigValue], ...]


@lru_cache(maxsize=8)
def _settings(run_config: Items, own: Items) -> Config:
    """Checked once, not for every message."""
    return make_config(given_settings(dict(run_config)) | dict(own))


def read_task(message: Message, client_id: int, program: Program) -> ClientTask:
    """An instruction, decoded; its tensors are the client's own.

    Raises:
        ValueError: another format, another client's, or arrays of a wrong size.
    """
    arrays, config = message.content.get("arrays"), message.content.get("config")
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise ValueError("the message lacks arrays or config")
    numbers: dict[str, int] = {}
    for name in INSTRUCTION_FIELDS:
        value = config.get(name)
        if not isinstance(value, int):
            raise ValueError(f"the message's {name} is {value!r}, not a whole number")
        numbers[name] = value
    if numbers["format"] != FORMAT:
        raise ValueError(f"message format {numbers['format']}; this client speaks {FORMAT}")
    if numbers["client-id"] != client_id:
        raise ValueError(f"message for client {numbers['client-id']} reached client {client_id}")
    return ClientTask(
        server_round=numbers["server-round"],
        client_id=client_id,
        chunk=numbers["chunk"],
        theta=_decoded(arrays["theta"].data, program.layout.num_parameters),
        hyper=decode(arrays["hyper"].data, program.hyper.size),
    )


def _decoded(data: bytes, length: int) -> Tensor:
    known = _theta.get("latest")
    # A client that wrote to its tensor keeps it to itself.
    if known is None or known[0] is not data or known[1]._version:
        known = _theta["latest"] = (data, decode(data, length))
    return known[1]


def train(message: Message, context: Context) -> Message:
    """One client's work in one round; see ``fedpart.client.client_update``.

    Raises:
        ValueError: see ``own_id`` and ``read_task``.
    """
    return train_together([(message, context)])[0]


def train_together(work: Sequence[tuple[Message, Context]]) -> list[Message]:
    """``train`` for several clients of a round, side by side.

    Args:
        work: messages, and the contexts of the clients that are asked.

    Raises:
        ValueError: see ``train``.
    """
    program, data = materials(work[0][1])
    tasks = [read_task(message, own_id(context), program) for message, context in work]
    replies = cohort_update(program, tasks, data)
    return [_packed(program, reply, m) for reply, (m, _) in zip(replies, work, strict=True)]


def _packed(program: Program, reply: ClientReply, message: Message) -> Message:
    arrays = {
        name: Array("float32", (len(values),), "numpy.ndarray", encode(values))
        for name, values in reply_arrays(reply).items()
    }
    records = RecordDict(
        {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({**reply_fields(program, reply)})}
    )
    return Message(records, reply_to=message)
