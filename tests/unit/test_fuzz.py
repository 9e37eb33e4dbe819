"""Ten thousand broken replies: none crashes the server, none changes it, each is counted."""

import random
from dataclasses import replace

import pytest
import tiny
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from clients.app import register
from clients.entry import app
from clients.grid import InlineExecutor, LocalGrid
from fedpart.drill.mutations import GROUPS, mutate
from fedpart.server import initial_state
from strategies.strategy import PartitionedStrategy


class Breaking(InlineExecutor):
    """Clients whose replies are broken on their way, in every round but the last.

    Attributes:
        seen: faults there have been.
    """

    def __init__(self, program, data, rounds: int) -> None:
        super().__init__(app, lambda: register(program, data))
        self.rng, self.seen, self.rounds = random.Random(0), set(), rounds
        self.right: dict[int, tuple[dict, dict]] = {}

    def run(self, work, deadline):
        if not work or work[0][0].metadata.message_type != "train":
            yield from super().run(work, deadline)
            return
        if not self.right:
            # The weights stay as they are, so that one round's replies serve for all.
            for reply in super().run(work, deadline):
                arrays, fields = reply.content["arrays"], dict(reply.content["metrics"])
                encoded = {name: array.data for name, array in arrays.items()}
                self.right[fields["client-id"]] = encoded, fields
        for message, _ in work:
            config = message.content["config"]
            arrays, fields = self.right[config["client-id"]]
            fields = fields | {"server-round": config["server-round"]}
            if config["server-round"] < self.rounds:
                content = self.broken(arrays, fields)
            else:
                content = records(arrays, fields)
            yield Message(content, reply_to=message)

    def broken(self, arrays, fields) -> RecordDict:
        while True:
            spoilt, numbers, faults = mutate(self.rng, arrays, fields)
            try:
                content = records(spoilt, numbers)
            except TypeError:
                # What Flower's records cannot hold does not come from a network either.
                continue
            self.seen |= set(faults.split(", "))
            return content


def records(arrays, fields) -> RecordDict:
    made = {n: Array("float32", (1,), "numpy.ndarray", data) for n, data in arrays.items()}
    return RecordDict({"arrays": ArrayRecord(made), "metrics": MetricRecord(fields)})


@pytest.mark.parametrize("times", [500, pytest.param(10_000, marks=pytest.mark.full)])
def test_broken_replies_cost_nothing(times):
    """Through Flower's messages and the Strategy; the round after them is as ever."""
    program = tiny.program(rounds=times // 10 + 1, max_update_norm=5)
    clients = Breaking(program, tiny.data(), program.config.rounds)
    before, refused = initial_state(program), 0

    class Watch:
        def after_round(self, state, replies, failures, wire, seconds):
            nonlocal refused
            if state.server_round == program.config.rounds:
                assert [r.client_id for r in replies] == list(range(10))
                return
            assert replies == []
            assert [f.client_id for f in failures] == list(range(10))
            assert all(f.reason.startswith("refused: ") for f in failures)
            assert all(f.reason.isprintable() and len(f.reason) < 500 for f in failures)
            assert same(state, before, state.server_round)
            refused += len(failures)

    strategy = PartitionedStrategy(program, before, Watch())
    strategy.start(LocalGrid(clients, program.config))
    assert refused == times
    assert clients.seen == {mutation.__name__ for group in GROUPS for mutation in group}
    assert not same(strategy.state, before, strategy.state.server_round)


def same(state, before, server_round: int) -> bool:
    expected = replace(before, server_round=server_round)
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(vars(state).values(), vars(expected).values(), strict=True)
    )
