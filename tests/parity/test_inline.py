"""``fedpart.algorithm`` and Flower in this process give the same bits."""

import random
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import nn

from clients.app import register
from clients.entry import app
from clients.grid import InlineExecutor, LocalGrid, inline_grid
from fedpart import algorithm, side_by_side
from fedpart.client import ClientReply, ClientTask, client_update
from fedpart.cohort import draw_cohort
from fedpart.config import make_config
from fedpart.data import FederatedData
from fedpart.program import Program, build_program
from fedpart.server import ServerState, assign_chunks, initial_state, server_update
from strategies.app import run

ROUNDS = 3


def federation() -> FederatedData:
    """100 images of noise over 10 clients, of unequal sizes."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (100, 1, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, 100)
    cuts = [2, 9, 10, 25, 33, 47, 60, 61, 90]
    return FederatedData(
        *("synthetic", 10, 1, images, labels, None),
        client_indices=tuple(np.split(rng.permutation(100), cuts)),
        val_images=images[:4],
        val_labels=labels[:4],
        test_images=None,
        test_labels=None,
        source="noise",
    )


class Recorder:
    def __init__(self) -> None:
        self.rounds: list[tuple] = []

    def after_round(self, state, replies, failures, wire, seconds) -> None:
        self.rounds.append((state, list(replies), list(failures), dict(wire)))


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return federation()


def small(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(in_channels, 6, 5, stride=3), nn.GroupNorm(2, 6), nn.ReLU()),
        *(nn.Dropout(0.1), nn.Flatten(), nn.Linear(6 * 8 * 8, num_classes)),
    )


def build(**changes: object) -> Program:
    values = {
        "model": f"{__name__}:small",
        "clients": 10,
        "clients_per_round": 4,
        "chunks": "0.5,0.3,0.2",
        "samples": 2,
        "train_size": 100,
        "batch_size": 16,
        "rounds": ROUNDS,
    }
    return build_program(make_config(values | changes), 10, 1)


VARIANTS = {
    "partitioned": {},
    "augerino": {"method": "augerino"},
    "fedavg": {"method": "fedavg"},
    "bf16": {"precision": "bf16"},
    "node": {"scheme": "node"},
    "the paper's network": {"model": "mnist-cnn"},
}


@pytest.fixture(scope="module")
def program() -> Program:
    return build()


@pytest.fixture(scope="module")
def reference(program, data) -> tuple[ServerState, list[tuple]]:
    recorder = Recorder()
    return algorithm.run(program, data, initial_state(program), recorder), recorder.rounds


def assert_same_state(one: ServerState, other: ServerState) -> None:
    for field in fields(ServerState):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            assert a.numpy().tobytes() == b.numpy().tobytes(), field.name
        else:
            assert a == b


def assert_same_reply(one: ClientReply, other: ClientReply) -> None:
    assert one.deltas.keys() == other.deltas.keys()
    for j, delta in one.deltas.items():
        assert delta.numpy().tobytes() == other.deltas[j].numpy().tobytes()
    assert (one.hyper_gradient is None) == (other.hyper_gradient is None)
    if one.hyper_gradient is not None:
        assert one.hyper_gradient.numpy().tobytes() == other.hyper_gradient.numpy().tobytes()
    scalars = {"deltas": {}, "hyper_gradient": None, "seconds": 0.0}
    assert replace(one, **scalars) == replace(other, **scalars)


def assert_same_rounds(one: list[tuple], other: list[tuple]) -> None:
    assert len(one) == len(other)
    for (state, replies, failures, wire), (state2, replies2, failures2, wire2) in zip(
        one, other, strict=True
    ):
        assert_same_state(state, state2)
        assert failures == failures2
        assert wire == wire2
        for a, b in zip(replies, replies2, strict=True):
            assert_same_reply(a, b)


class Altered(InlineExecutor):
    """The app of this process, with replies changed on their way."""

    def __init__(self, program: Program, data: FederatedData, alter) -> None:
        super().__init__(app, lambda: register(program, data))
        self.alter = alter

    def run(self, work, deadline):
        replies = list(super().run(work, deadline))
        if work and work[0][0].metadata.message_type == "train":
            return self.alter(replies)
        return replies


def altered_grid(program, data, alter) -> LocalGrid:
    return LocalGrid(Altered(program, data, alter), program.config)


def without(program: Program, data: FederatedData, absent: dict[int, set[int]]) -> ServerState:
    """What the server holds when some clients' replies do not count: round -> client ids."""
    state, chunks = initial_state(program), assign_chunks(program.config)
    while state.server_round < program.config.rounds:
        number = state.server_round + 1
        replies = [
            client_update(
                program,
                ClientTask(number, i, int(chunks[i]), state.theta, state.hyper),
                *data.client(i),
            )
            for i in draw_cohort(program.config, number).clients
            if i not in absent.get(number, set())
        ]
        state = server_update(program, state, replies)
    return state


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_same_bits_and_records(data, changes):
    program = build(**changes)
    loop, flower = Recorder(), Recorder()
    state = algorithm.run(program, data, initial_state(program), loop)
    result = run(program, initial_state(program), flower, inline_grid(program, data))
    assert_same_state(result, state)
    assert_same_rounds(flower.rounds, loop.rounds)
    assert not torch.equal(state.theta, program.initial)


def test_same_bits_from_a_later_round_on(program, data, reference):
    _, rounds = reference
    recorder = Recorder()
    run(program, rounds[0][0], recorder, inline_grid(program, data))
    assert_same_rounds(recorder.rounds, rounds[1:])


def test_same_bits_whatever_the_order_of_replies(program, data, reference):
    rng, recorder = random.Random(0), Recorder()
    grid = altered_grid(program, data, lambda replies: rng.sample(replies, len(replies)))
    run(program, initial_state(program), recorder, grid)
    assert_same_rounds(recorder.rounds, reference[1])


def test_a_client_that_writes_to_its_weights_changes_nobody_elses(
    program, data, reference, monkeypatch
):
    def vandal(program, task, images, labels):
        reply = client_update(program, task, images, labels)
        task.theta.zero_()
        task.hyper.zero_()
        images[:] = 0
        return reply

    monkeypatch.setattr("fedpart.side_by_side.client_update", vandal)
    result = run(program, initial_state(program), Recorder(), inline_grid(program, data))
    assert_same_state(result, reference[0])


def test_nothing_is_loaded_or_built_twice(program, data, monkeypatch):
    def never(*_):
        raise AssertionError("built again")

    monkeypatch.setattr("clients.app.load_federated", never)
    monkeypatch.setattr("clients.app.program_for", never)
    run(program, initial_state(program), Recorder(), inline_grid(program, data))


def test_two_grids_do_not_mix_their_data(program, data, reference):
    grid = inline_grid(program, data)
    inline_grid(program, replace(data, images=255 - data.images))
    result = run(program, initial_state(program), Recorder(), grid)
    assert_same_state(result, reference[0])


def raising(monkeypatch, bad: set[tuple[int, int]]) -> None:
    """Make clients raise, under both back ends: (round, client id)."""

    def update(program, task, images, labels):
        if (task.server_round, task.client_id) in bad:
            raise ArithmeticError("too hot\nreally")
        return client_update(program, task, images, labels)

    monkeypatch.setattr("fedpart.side_by_side.client_update", update)


def test_a_client_that_raises_costs_nobody_else_anything(program, data, monkeypatch, capfd, caplog):
    """State and record; and nothing is said behind the observer's back."""
    client_id = draw_cohort(program.config, 2).clients[1]
    raising(monkeypatch, {(2, client_id)})
    recorder = Recorder()
    state = run(program, initial_state(program), recorder, inline_grid(program, data))
    assert_same_state(state, without(program, data, {2: {client_id}}))
    (failure,) = recorder.rounds[1][2]
    assert (failure.client_id, failure.chunk) == (
        client_id,
        assign_chunks(program.config)[client_id],
    )
    assert failure.reason.startswith("ArithmeticError: too hot (test_inline.py, line ")
    assert failure.reason.endswith(", in update)")
    assert recorder.rounds[1][3][client_id][0] == 0
    assert [r[2] for r in recorder.rounds[::2]] == [[], []]
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_failures_are_the_same_in_both_back_ends(program, data, monkeypatch):
    """One that raises, one that diverges, and a round in which all do: state, records, bytes."""
    first, second = (draw_cohort(program.config, n).clients for n in (1, 2))
    raising(monkeypatch, {(1, first[0])} | {(2, i) for i in second})

    def diverging(update):
        def diverged(program, task, images, labels):
            reply = update(program, task, images, labels)
            if (task.server_round, task.client_id) == (1, first[2]):
                reply.deltas[program.layout.num_partitions - 1][0] = float("nan")
            return reply

        return diverged

    update = side_by_side.client_update
    monkeypatch.setattr("fedpart.side_by_side.client_update", diverging(update))
    loop, flower = Recorder(), Recorder()
    state = algorithm.run(program, data, initial_state(program), loop)
    run(program, initial_state(program), flower, inline_grid(program, data))
    assert_same_rounds(flower.rounds, loop.rounds)
    expected = without(program, data, {1: {first[0], first[2]}, 2: set(second)})
    assert_same_state(state, expected)
    assert [len(r[2]) for r in loop.rounds] == [2, 4, 0]
    last = f"partition-{program.layout.num_partitions - 1}"
    assert loop.rounds[0][2][1].reason == f"refused: {last} holds values that are not finite"


def test_an_empty_round_changes_nothing_but_its_number(program, data, monkeypatch):
    """Weights, psi, all moments and counters; the run goes on."""
    raising(monkeypatch, {(2, i) for i in range(program.config.clients)})
    recorder = Recorder()
    run(program, initial_state(program), recorder, inline_grid(program, data))
    before, empty, after = recorder.rounds
    assert empty[1] == []
    assert len(empty[2]) == program.config.clients_per_round
    assert_same_state(empty[0], replace(before[0], server_round=2))
    assert not torch.equal(after[0].theta, empty[0].theta)


# What is wrong -> new numbers, new arrays (partition-2 is the last, which every client sends; None
# takes it away), and what the gate says.
SPOILT = {
    "round": ({"server-round": 2}, {}, "server-round is 2, not 1"),
    "client": ({"client-id": 99}, {}, "client-id is 99, not "),
    "chunk": ({"chunk": 3}, {}, "chunk is 3, not "),
    "missing": ({}, {"partition-2": None}, "partition-2 is missing"),
    "foreign": ({}, {"theta": np.zeros(3)}, "theta does not belong to its chunk"),
    "short": ({}, {"partition-2": lambda v: v[:-1]}, "partition-2 has shape ("),
    "length 1": ({}, {"partition-2": lambda v: v[:1]}, "partition-2 has shape (1,), not ("),
    "dtype": ({}, {"partition-2": lambda v: v.astype("f8")}, "partition-2 has type <f8, not <f4"),
    "nan": ({}, {"partition-2": lambda v: v * np.nan}, "partition-2 holds values that are not fin"),
}


def spoil(content: RecordDict, numbers: dict, arrays: dict) -> None:
    for name, value in numbers.items():
        content["metrics"][name] = value
    kept = dict(content["arrays"])
    for name, change in arrays.items():
        if change is None:
            del kept[name]
        else:
            kept[name] = Array(change(kept[name].numpy()) if callable(change) else change)
    content["arrays"] = ArrayRecord(kept)


@pytest.mark.parametrize("fault", SPOILT)
def test_a_refused_reply_is_named_and_costs_nobody_else_anything(data, fault):
    """Whatever is wrong with it, and although it is sent twice."""
    program = build()
    client_id = draw_cohort(program.config, 1).clients[0]
    numbers, arrays, words = SPOILT[fault]

    def alter(replies: list[Message]) -> list[Message]:
        for reply in replies:
            metrics = reply.content["metrics"]
            if (metrics["server-round"], metrics["client-id"]) == (1, client_id):
                spoil(reply.content, numbers, arrays)
        return [*replies, *replies[:1]]

    recorder = Recorder()
    state = run(program, initial_state(program), recorder, altered_grid(program, data, alter))
    assert_same_state(state, without(program, data, {1: {client_id}}))
    (failure,) = recorder.rounds[0][2]
    assert failure.client_id == client_id
    assert failure.reason.startswith(f"refused: {words}")


def test_a_missing_reply_costs_nobody_else_anything(program, data):
    cohort = draw_cohort(program.config, 1).clients
    recorder = Recorder()

    def lose(replies):
        ids = [
            (r.content["metrics"]["server-round"], r.content["metrics"]["client-id"])
            for r in replies
        ]
        return [r for r, who in zip(replies, ids, strict=True) if who != (1, cohort[2])]

    state = run(program, initial_state(program), recorder, altered_grid(program, data, lose))
    assert_same_state(state, without(program, data, {1: {cohort[2]}}))
    assert [f.reason for f in recorder.rounds[0][2]] == ["no reply within 3600 s"]
