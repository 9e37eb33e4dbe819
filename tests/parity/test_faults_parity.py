"""Clients that come, go, fail and send nonsense: the same bits and records in every back end."""

import json
import random
from dataclasses import replace

import pytest
import torch
from test_inline import (
    Recorder,
    altered_grid,
    assert_same_rounds,
    assert_same_state,
    build,
    federation,
    spoil,
    without,
)

from clients.grid import inline_grid
from fedpart import algorithm
from fedpart.accounting import round_record
from fedpart.client import client_update
from fedpart.cohort import draw_cohort
from fedpart.errors import DROPPED
from fedpart.records import RoundRecord
from fedpart.server import initial_state
from strategies.app import run


@pytest.fixture(scope="module")
def data():
    return federation()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Every way to lose a client at once, over six rounds, in the last of which nobody is there."""
    table = tmp_path_factory.mktemp("availability") / "seen.csv"
    rng = random.Random(2)
    lines = [",".join([*rng.choices("01", (1, 5), k=5), "0"]) for _ in range(10)]
    table.write_text("\n".join(lines) + "\n")
    return build(
        rounds=6,
        over_select=2.0,
        client_failure_rate=0.15,
        availability=str(table),
        min_replies=2,
        max_update_norm=1.3,
        seed=2,
    )


@pytest.fixture(scope="module")
def reference(program, data):
    recorder = Recorder()
    algorithm.run(program, data, initial_state(program), recorder)
    return recorder.rounds


def records(program, rounds) -> list[RoundRecord]:
    made: list[RoundRecord] = []
    for state, replies, failures, wire in rounds:
        before = made[-1].brief() if made else None
        made.append(round_record(program, state, replies, failures, wire, 0.0, before))
    return made


def test_the_reference_has_every_kind_of_fault(program, reference):
    """Else the tests below would prove nothing."""
    made = records(program, reference)
    reasons = [f.reason for r in made for f in r.failures]
    assert DROPPED in reasons
    assert any(reason.startswith("refused: partition-") for reason in reasons)
    assert any(reason.startswith("only its weights count: hyper has") for reason in reasons)
    statuses = {c.status for r in made for c in r.clients}
    assert statuses == {"ok", "weights", "unused", "failed"}
    assert made[5].clients == []
    assert made[5].empty
    assert not made[0].empty


def test_inline_equals_the_loop_whatever_the_order_of_replies(program, data, reference):
    rng, recorder = random.Random(0), Recorder()
    grid = altered_grid(program, data, lambda replies: rng.sample(replies, len(replies)))
    run(program, initial_state(program), recorder, grid)
    assert_same_rounds(recorder.rounds, reference)


def test_a_run_that_is_taken_up_loses_the_same_clients(program, data, reference):
    recorder = Recorder()
    run(program, reference[2][0], recorder, inline_grid(program, data))
    assert_same_rounds(recorder.rounds, reference[3:])


@pytest.mark.ray
@pytest.mark.slow
def test_ray_equals_the_loop(program, data, reference):
    from clients.ray_grid import ray_grid

    recorder = Recorder()
    with ray_grid(program, data, 2) as grid:
        run(program, initial_state(program), recorder, grid)
    assert_same_rounds(recorder.rounds, reference)


def test_bytes_are_counted_for_all_that_travelled(program, data, reference):
    """Down to everyone who was asked; up from everyone who answered, needed or not."""
    for (_, replies, failures, wire), made in zip(
        reference, records(program, reference), strict=True
    ):
        unused = [f for f in failures if f.unused]
        assert made.download_wire_bytes == sum(down for _, down in wire.values())
        up = {r.client_id: wire[r.client_id][0] for r in [*replies, *unused]}
        assert made.upload_wire_bytes == sum(up.values())
        assert all(up.values())
        assert all(not wire[f.client_id][0] for f in failures if f.reason == DROPPED)


def test_over_selection_goes_on_with_those_who_are_left(data, monkeypatch):
    """As if only the first four of six had been asked; the two others have worked for nothing."""
    program = build(over_select=1.5)
    recorder = Recorder()
    state = run(program, initial_state(program), recorder, inline_grid(program, data))
    surplus = {n: set(draw_cohort(program.config, n).order[4:]) for n in (1, 2, 3)}
    assert_same_state(state, without(program, data, surplus))
    assert [{f.client_id for f in r[2]} for r in recorder.rounds] == list(surplus.values())
    assert all(len(s) == 2 for s in surplus.values())


def test_a_gradient_of_psi_that_is_not_finite_costs_nothing_but_itself(data, monkeypatch):
    """Weights, moments and counters as with it; psi as without it; counted and named."""
    program = build(clients_per_round=10)
    victim = next(i for i in draw_cohort(program.config, 1).clients if chunk_of(program, i) > 0)

    def poisoned(gradient):
        def update(program, task, images, labels):
            reply = client_update(program, task, images, labels)
            if (task.server_round, task.client_id) != (1, victim):
                return reply
            return replace(reply, hyper_gradient=gradient(reply.hyper_gradient))

        return update

    def outcome(runner, gradient):
        monkeypatch.setattr("fedpart.side_by_side.client_update", poisoned(gradient))
        recorder = Recorder()
        runner(recorder)
        return recorder.rounds

    def loop(recorder):
        algorithm.run(program, data, initial_state(program), recorder)

    def flower(recorder):
        run(program, initial_state(program), recorder, inline_grid(program, data))

    rounds = outcome(loop, lambda g: g * float("nan"))
    assert_same_rounds(outcome(flower, lambda g: g * float("nan")), rounds)
    right = outcome(loop, lambda g: g)
    assert torch.equal(rounds[0][0].theta, right[0][0].theta)
    assert torch.equal(rounds[0][0].steps, right[0][0].steps)
    # The first step of Adam is one of signs; its moments tell more.
    assert not torch.equal(rounds[0][0].hyper_m, right[0][0].hyper_m)
    assert torch.isfinite(rounds[-1][0].hyper).all()
    (failure,) = records(program, rounds)[0].failures
    assert failure.client_id == victim
    assert failure.reason == ("only its weights count: hyper holds values that are not finite")


def chunk_of(program, client_id: int) -> int:
    from fedpart.server import assign_chunks

    return int(assign_chunks(program.config)[client_id])


def test_a_reply_of_another_run_is_refused(data):
    """Though round, client, chunk and every array are right."""
    program, other = build(), build(seed=1)
    client_id = draw_cohort(program.config, 1).clients[0]

    def alter(replies):
        for reply in replies:
            metrics = reply.content["metrics"]
            if (metrics["server-round"], metrics["client-id"]) == (1, client_id):
                spoil(reply.content, {"run": other.run_token}, {})
        return replies

    recorder = Recorder()
    state = run(program, initial_state(program), recorder, altered_grid(program, data, alter))
    assert_same_state(state, without(program, data, {1: {client_id}}))
    (failure,) = recorder.rounds[0][2]
    assert failure.reason.startswith("refused: run is ")


def test_a_replay_of_an_earlier_round_is_refused(data):
    """The very bytes that were right a round ago, in answer to this round's message."""
    program = build(clients_per_round=10)
    kept = {}

    def alter(replies):
        for reply in replies:
            metrics = reply.content["metrics"]
            if metrics["client-id"] == 3:
                if metrics["server-round"] == 1:
                    kept.update(reply.content)
                elif metrics["server-round"] == 2:
                    reply.content.update(kept)
        return replies

    recorder = Recorder()
    state = run(program, initial_state(program), recorder, altered_grid(program, data, alter))
    assert_same_state(state, without(program, data, {2: {3}}))
    assert [f.reason for f in recorder.rounds[1][2]] == ["refused: server-round is 1, not 2"]


def test_records_obey_their_schema(program, reference):
    import jsonschema

    from fedpart.records import schema

    for made in records(program, reference):
        jsonschema.validate(json.loads(made.model_dump_json()), json.loads(schema("rounds")))
