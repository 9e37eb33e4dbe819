import time
from dataclasses import replace

import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from tiny import data as noise
from torch import nn

from clients.app import materials, read_task, register
from clients.entry import app
from clients.grid import CLIENT_APP_RAISED, NODE_UNAVAILABLE, InlineExecutor, LocalGrid
from fedpart.config import make_config
from fedpart.program import build_program
from fedpart.wire import FORMAT, encode


def tiny(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.MaxPool2d(14), nn.Flatten(), nn.Linear(4 * in_channels, num_classes))


CONFIG = make_config({"model": f"{__name__}:tiny", "clients": 4, "clients_per_round": 2})


@pytest.fixture(scope="module")
def program():
    return build_program(CONFIG, 10, 1)


def instruction(program, **changes):
    """A message to client 2, with fields changed."""
    fields = {"format": FORMAT, "server-round": 1, "client-id": 2, "chunk": 0} | changes
    tensors = {"theta": program.initial, "hyper": program.hyper.initial()}
    arrays = {
        n: Array("float32", (len(t),), "numpy.ndarray", encode(t)) for n, t in tensors.items()
    }
    content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord(fields)})
    return Message(content, dst_node_id=4, message_type="train")


def echo(message: Message, context: Context) -> Message:
    """Count the messages of a client in its own state."""
    counter = context.state.setdefault("count", MetricRecord({"n": 0}))
    if context.node_config["partition-id"] % 2:
        counter["n"] += 1
    else:
        del context.state["count"]
    return Message(RecordDict({"metrics": MetricRecord(dict(counter))}), reply_to=message)


@pytest.fixture
def grid():
    return LocalGrid(InlineExecutor(echo), CONFIG)


def note(node: int, kind: str = "train") -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type=kind)


def test_every_setting_survives_flowers_run_config(grid):
    contexts = []

    def look(message, context):
        contexts.append(context)
        return Message(RecordDict(), reply_to=message)

    config = make_config(
        {"clients": 3, "clients_per_round": 1, "chunks": "0.9,0.1", "client_lr": 0.1 + 0.2}
    )
    LocalGrid(InlineExecutor(look), config).send_and_receive([note(4)])
    assert all(isinstance(v, bool | int | float | str) for v in contexts[0].run_config.values())
    assert make_config(contexts[0].run_config) == config
    assert contexts[0].node_config == {"partition-id": 2, "num-partitions": 3}


def test_node_ids_are_the_same_in_every_run(grid):
    assert list(grid.get_node_ids()) == [2, 3, 4, 5]


def test_push_then_pull(grid):
    ids = grid.push_messages([note(2), note(3)])
    assert len(set(ids)) == 2
    assert [r.metadata.reply_to_message_id for r in grid.pull_messages(ids[1:])] == ids[1:]
    assert [r.metadata.src_node_id for r in grid.pull_messages(ids)] == [2]
    assert list(grid.pull_messages(ids)) == []


def test_state_of_a_client_lasts_and_is_kept_only_where_there_is_some(grid):
    for _ in range(3):
        replies = grid.send_and_receive([note(n) for n in grid.get_node_ids()])
    assert [r.content["metrics"]["n"] for r in replies] == [0, 3, 0, 3]
    assert set(grid._states) == {3, 5}


def test_a_message_to_nobody_is_an_error_reply(grid):
    replies = list(grid.send_and_receive([note(99), note(2)]))
    assert sorted(r.error.code if r.has_error() else 0 for r in replies) == [0, NODE_UNAVAILABLE]


def test_an_exception_becomes_an_error_reply_as_under_flower(program):
    grid = LocalGrid(InlineExecutor(app, lambda: register(program, None)), CONFIG)
    (reply,) = grid.send_and_receive([instruction(program, **{"client-id": 3})])
    assert reply.error.code == CLIENT_APP_RAISED
    assert reply.error.reason.startswith("Traceback")
    assert "message for client 3 reached client 2" in reply.error.reason


def test_no_client_starts_after_the_deadline():
    started = []

    def slow(message, context):
        started.append(message.metadata.dst_node_id)
        time.sleep(0.02)
        return Message(RecordDict(), reply_to=message)

    grid = LocalGrid(InlineExecutor(slow), CONFIG)
    assert grid.send_and_receive([note(2), note(3)], timeout=0.01) == []
    assert started == [2]


def test_ctrl_c_goes_through():
    def interrupt(message, context):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalGrid(InlineExecutor(interrupt), CONFIG).send_and_receive([note(2)])


def test_run_and_create_message_are_flowers(grid):
    assert grid.run.run_id == 1
    grid.set_run(grid.run)
    message = grid.create_message(RecordDict(), "train", 2, "7", ttl=5.0)
    assert (message.metadata.dst_node_id, message.metadata.group_id) == (2, "7")


def context_of(**node_config):
    return Context(1, 4, node_config, RecordDict(), {})


def test_query_says_which_client_it_is():
    reply = app(note(4, "query"), context_of(**{"partition-id": 2}))
    assert reply.content["metrics"]["client-id"] == 2


def test_a_node_without_partition_id_says_so():
    with pytest.raises(ValueError, match="partition-id=<client>"):
        app(note(4, "query"), context_of())


def test_clients_of_a_round_share_what_the_server_sent(program):
    """The same bytes are decoded once in a process; other bytes are decoded anew."""
    message = instruction(program)
    task, again = (read_task(message, 2, program) for _ in range(2))
    assert torch.equal(task.theta, program.initial)
    assert again.theta is task.theta
    other = read_task(instruction(program), 2, program)
    assert other.theta is not task.theta
    assert torch.equal(other.theta, program.initial)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 99}, "format 99"),
        ({"client-id": 3}, "client 3 reached client 2"),
        ({"chunk": "1"}, "chunk is '1'"),
        ({"server-round": 1.0}, "server-round is 1.0"),
    ],
)
def test_a_wrong_instruction_is_explained(program, changes, why):
    with pytest.raises(ValueError, match=why):
        read_task(instruction(program, **changes), 2, program)


def test_an_instruction_without_arrays_is_explained(program):
    message = Message(RecordDict(), dst_node_id=4, message_type="train")
    with pytest.raises(ValueError, match="lacks arrays"):
        read_task(message, 2, program)


def test_a_process_of_its_own_loads_once(program, monkeypatch):
    loads = []

    def load(config):
        loads.append(config)
        return replace(noise(side=28), num_classes=10)

    monkeypatch.setattr("clients.app.load_federated", load)
    monkeypatch.setattr("clients.app._built", {})
    context = context_of(**{"partition-id": 0})
    context.run_config = {"model": f"{__name__}:tiny", "clients": 4, "clients-per-round": 2}
    first, second = materials(context), materials(context)
    assert first[0] is second[0]
    assert first[1] is second[1]
    assert len(loads) == 1
    assert torch.equal(first[0].initial, program.initial)
