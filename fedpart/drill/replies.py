"""Faults of clients and their replies, in this process."""

import random
from dataclasses import replace

import numpy as np
import torch

from fedpart.client import ClientReply, ClientTask, client_update
from fedpart.cohort import Cohort, Failure, draw_cohort, settle
from fedpart.config import Config, make_config
from fedpart.data import load_federated
from fedpart.drill.case import Happened, case
from fedpart.drill.mutations import mutate
from fedpart.drill.runs import Place
from fedpart.program import Program, build_program
from fedpart.server import ServerState, assign_chunks, initial_state, server_update
from fedpart.wire import RefusedReply, encode, reply_arrays, reply_fields, validate

Message = tuple[dict[str, bytes], dict[str, object]]
Answers = dict[int, ClientReply | str]


class _Round:
    """The first round of ten clients who are all asked.

    Attributes:
        program: shared by all.
        state: before it.
        replies: of everyone, as they should be.
    """

    def __init__(self, place: Place) -> None:
        config = _config(data_dir=str(place.scratch / "digits"))
        data = load_federated(config)
        self.program: Program = build_program(config, data.num_classes, data.in_channels)
        self.state = initial_state(self.program)
        self._chunks = [int(chunk) for chunk in assign_chunks(config)]
        tasks = [
            ClientTask(1, i, chunk, self.state.theta, self.state.hyper)
            for i, chunk in enumerate(self._chunks)
        ]
        self.replies = [client_update(self.program, t, *data.client(t.client_id)) for t in tasks]

    def message(self, reply: ClientReply) -> Message:
        arrays = {name: encode(values) for name, values in reply_arrays(reply).items()}
        return arrays, dict(reply_fields(self.program, reply))

    def judge(self, client_id: int, message: Message) -> ClientReply | str:
        """What the server makes of a message from one client."""
        try:
            return validate(self.program, 1, client_id, self._chunks[client_id], *message)
        except RefusedReply as refused:
            return refused.verdict

    def end(self, answers: Answers) -> tuple[ServerState, list[ClientReply], list[Failure]]:
        """The state after the round, the replies that counted, and who failed."""
        cohort = Cohort(tuple(answers), frozenset())
        replies, failures = settle(self.program.config, cohort, self._chunks, answers)
        return server_update(self.program, self.state, replies), replies, failures


def _config(**changes: object) -> Config:
    settings = {"model": "fedpart.drill.network:faulty", "train_size": 60, "samples": 2}
    return make_config({**settings, "clients": 10, "chunks": (0.5, 0.3, 0.2), **changes})


def _same(one: ServerState, other: ServerState) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )


@case(
    "of ten replies, one has NaN for weights and one for psi",
    "of these, the first is left out, and the gradient of psi of the second",
)
def not_a_number(place: Place) -> Happened:
    """State as if the rest had been all."""
    played = _Round(place)
    spoilt, half = (next(r for r in played.replies if r.chunk == chunk) for chunk in (0, 1))
    assert half.hyper_gradient is not None
    answers: Answers = {}
    for reply in played.replies:
        sent = reply
        if reply is spoilt:
            sent = replace(reply, deltas={j: d * torch.nan for j, d in reply.deltas.items()})
        elif reply is half:
            sent = replace(reply, hyper_gradient=half.hyper_gradient * torch.nan)
        answers[reply.client_id] = played.judge(reply.client_id, played.message(sent))
    after, counted, failures = played.end(answers)
    wanted: Answers = {
        r.client_id: replace(r, hyper_gradient=None) if r is half else r
        for r in played.replies
        if r is not spoilt
    }
    found = [f.client_id for f in failures], [r.client_id for r in counted if r.hyper_fault]
    right = found == ([spoilt.client_id], [half.client_id])
    text = f"client {found[0]} left out, psi of client {found[1]}"
    return text, right and _same(after, played.end(wanted)[0])


@case("1,000 broken, foreign and replayed replies", "each is refused, nothing changes")
def broken(place: Place) -> Happened:
    """A hundred rounds in which every reply is broken, and one in which none is."""
    played, rng = _Round(place), random.Random(0)
    messages = {r.client_id: played.message(r) for r in played.replies}
    refused = changed = 0
    for _ in range(100):
        after, _, failures = played.end(
            {i: played.judge(i, mutate(rng, *m)[:2]) for i, m in messages.items()}
        )
        refused += len(failures)
        changed += not _same(replace(after, server_round=0), played.state)
    after, counted, _ = played.end({i: played.judge(i, m) for i, m in messages.items()})
    right = (refused, changed, len(counted)) == (1000, 0, 10)
    return f"{refused:,} refused, {changed} rounds changed", right


@case("a reply a thousand times as long as the others, --max-update-norm 5", "it is refused")
def too_long(place: Place) -> Happened:
    """And the rest count."""
    played = _Round(place)
    played.program = replace(played.program, config=_config(max_update_norm=5))
    first = played.replies[0]
    longer = replace(first, deltas={j: 1000 * d for j, d in first.deltas.items()})
    answers: Answers = {r.client_id: r for r in played.replies}
    _, counted, failures = played.end({**answers, 0: longer})
    refused = any(f.client_id == 0 and f.reason.startswith("refused") for f in failures)
    return f"{len(failures)} refused, {len(counted)} count", refused


@case(
    "1,000 rounds of 10, --client-failure-rate 0.1 --over-select 1.5",
    "10 replies in at least 990 rounds, in any order of arrival the same",
)
def over_selection(place: Place) -> Happened:
    """Rounds are drawn and settled; nobody trains."""
    config = _config(clients=100, clients_per_round=10, over_select=1.5, client_failure_rate=0.1)
    rng, full, equal = np.random.default_rng(0), 0, True
    chunks = [int(chunk) for chunk in assign_chunks(config)]
    for number in range(1, 1001):
        cohort = draw_cohort(config, number)
        there = [i for i in cohort.order if i not in cohort.dropped]
        answers: Answers = {i: _reply(i, chunks[i]) for i in there}
        counted, _ = settle(config, cohort, chunks, answers)
        shuffled: Answers = {int(i): answers[int(i)] for i in rng.permutation(there)}
        equal &= counted == settle(config, cohort, chunks, shuffled)[0]
        full += len(counted) == config.clients_per_round
    return f"10 replies in {full} rounds, {'the same' if equal else 'NOT the same'}", (
        full >= 990 and equal
    )


def _reply(client_id: int, chunk: int) -> ClientReply:
    return ClientReply(
        *(1, client_id, chunk, 1, {}, None, 0), train_loss=0.0, log_likelihood=None, seconds=0.0
    )
