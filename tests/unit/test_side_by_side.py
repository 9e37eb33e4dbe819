"""Clients batched into one compute what each computes alone, to the last digits of float64."""

from dataclasses import replace

import pytest
import tiny
import torch

from clients.grid import inline_grid
from fedpart import algorithm, client, side_by_side
from fedpart.client import ClientTask, client_update
from fedpart.errors import ConfigError
from fedpart.models import Streams, uniform
from fedpart.program import build_program
from fedpart.server import assign_chunks, initial_state
from fedpart.side_by_side import check_side_by_side, cohort_update, groups
from fedpart.streams import torch_rng
from strategies.app import run, settings

SETTINGS = {
    "paper's": {},
    "every kind of batch": {"local_epochs": 2, "hyper_batch_size": 3, "samples": 200},
    "mean of probabilities": {"average": "probs", "augmentation": "asymmetric"},
    "affine copies": {"model": "tiny:norm_cnn", "augmentation": "generators"},
    "whole units": {"scheme": "node"},
    "no psi": {"method": "fedavg"},
    "augerino": {"method": "augerino"},
}


def precise(**changes):
    """A program, tasks for seven clients of all chunks, and their images, in float64."""
    built = tiny.program(**changes)
    built = replace(built, initial=built.initial.double(), default=built.default.double())
    chunks, state = assign_chunks(built.config), initial_state(built)
    # Not the defaults, so that it matters which subnetwork is meant.
    theta = state.theta + 0.1 * torch.randn(state.theta.shape, generator=torch_rng(0, "weights"))
    tasks = [
        ClientTask(3, i, int(chunks[i]), theta, state.hyper.double()) for i in (9, 0, 1, 3, 4, 6, 8)
    ]
    shares = side_by_side._shares(built, tiny.data(), tasks)
    return built, tasks, replace(shares, images=shares.images.double())


def positions(shares, i):
    return torch.arange(shares.starts[i], shares.starts[i] + shares.counts[i])


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS.keys())
def test_equal_to_one_by_one_in_float64(changes):
    """Clients of unequal size and of all chunks: deltas, losses, psi gradients to 1e-10."""
    built, tasks, shares = precise(**changes)
    assert len(set(shares.counts)) > 3
    theta, hyper = tasks[0].theta, tasks[0].hyper
    same = {"rtol": 0, "atol": 1e-10}
    trained = 0
    for j in range(built.layout.num_partitions):
        found = side_by_side.train_partition(built, tasks, j, theta, hyper, shares)
        for i, (delta, loss) in found.items():
            own = positions(shares, i)
            alone, loss_alone = client.train_partition(
                built, tasks[i], j, shares.images[own], shares.labels[own]
            )
            torch.testing.assert_close(delta, alone, **same)
            assert abs(float(loss) - loss_alone) < 1e-10
            assert delta.abs().max() > 1e-6
            trained += 1
    assert trained == sum(built.layout.num_partitions - task.chunk for task in tasks)
    check_psi_gradients(built, tasks, shares)


def check_psi_gradients(built, tasks, shares):
    theta, hyper = tasks[0].theta, tasks[0].hyper
    gradients = side_by_side.psi_gradients(built, tasks, theta, hyper, shares)
    assert gradients.keys() == {i for i, t in enumerate(tasks) if built.scoring(t.chunk)}
    for i, (gradient, likelihood, examples) in gradients.items():
        own = positions(shares, i)
        alone = client.hyper_gradient(built, tasks[i], shares.images[own], shares.labels[own])
        torch.testing.assert_close(gradient, alone[0], rtol=0, atol=1e-10)
        assert abs(float(likelihood) - alone[1]) < 1e-10
        assert examples == alone[2]


@pytest.mark.parametrize("kind", ["safe", "unsafe"])
def test_augerino_rewards_as_one_by_one_past_a_width_of_ten(kind):
    """There the safe one's reward is constant and the other's is not."""
    built, tasks, shares = precise(method="augerino", augerino=kind)
    wide = torch.full_like(tasks[0].hyper, 12)
    rewarded = client.reward_gradient(built, wide, safe=kind == "safe").abs().max() > 0
    assert rewarded == (kind == "unsafe")
    check_psi_gradients(built, [replace(task, hyper=wide) for task in tasks], shares)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replies_are_those_of_clients_alone(precision):
    """Whole replies in float32, within its rounding; in bfloat16 within a fifth."""
    built, data = tiny.program(precision=precision), tiny.data()
    state, chunks = initial_state(built), assign_chunks(built.config)
    tasks = [ClientTask(1, i, int(chunks[i]), state.theta, state.hyper) for i in range(10)]
    limit = 1e-5 if precision == "fp32" else 0.2
    for task, reply in zip(tasks, cohort_update(built, tasks, data), strict=True):
        alone = client_update(built, task, *data.client(task.client_id))
        assert reply.deltas.keys() == alone.deltas.keys()
        for j, delta in reply.deltas.items():
            assert (delta - alone.deltas[j]).norm() < limit * alone.deltas[j].norm()
        assert (reply.num_examples, reply.hyper_examples) == (
            alone.num_examples,
            alone.hyper_examples,
        )
        assert reply.train_loss == pytest.approx(alone.train_loss, rel=0.01)
        assert (reply.hyper_gradient is None) == (alone.hyper_gradient is None)
        if reply.log_likelihood is not None:
            assert reply.log_likelihood == pytest.approx(alone.log_likelihood, rel=0.01)


def test_back_ends_agree_to_the_bit_and_one_left_over_is_alone():
    """Ten clients by threes: groups are the same in the plain loop and through Flower's apps."""
    built, data = tiny.program(clients_at_once=3), tiny.data()
    observers = tiny.Silent(), tiny.Silent()
    plain = algorithm.run(built, data, initial_state(built), observers[0])
    flower = run(built, initial_state(built), observers[1], inline_grid(built, data))
    assert torch.equal(plain.theta, flower.theta)
    assert torch.equal(plain.hyper, flower.hyper)
    assert [len(told[1]) for told in observers[0].rounds] == [10, 10, 10]
    alone = tiny.program()
    reference = algorithm.run(alone, data, initial_state(alone), tiny.Silent())
    torch.testing.assert_close(plain.theta, reference.theta, rtol=0, atol=2e-4)


def test_what_one_raises_is_a_failure_of_all_that_compute_with_it():
    built = tiny.program(clients_at_once=4, rounds=1)
    data = tiny.data()
    broken = replace(data, client_indices=(data.client_indices[0][:0], *data.client_indices[1:]))
    plain, flower = tiny.Silent(), tiny.Silent()
    algorithm.run(built, broken, initial_state(built), plain)
    run(built, initial_state(built), flower, inline_grid(built, broken))
    for told in (plain, flower):
        ((_, replies, failures, wire, _),) = told.rounds
        assert (len(replies), len(failures)) in {(6, 4), (8, 2)}
        assert all("client 0 has no images" in f.reason for f in failures)
        assert 0 in {f.client_id for f in failures}
        assert {c for c, (up, _) in wire.items() if up} == {r.client_id for r in replies}


def test_each_client_draws_its_own_rows():
    """A client's numbers are those it draws alone; padding gets the middle of the range."""

    def one(lane):
        rngs = [torch_rng(0, "rows", i) for i in (0, 1)]
        return uniform(Streams(rngs, (1, 3), 3, lane), (6, 2), -1, 1)

    drawn = torch.func.vmap(one)(torch.arange(2))
    assert torch.equal(drawn[1], uniform(torch_rng(0, "rows", 1), (6, 2), -1, 1))
    assert torch.equal(drawn[0, :2], uniform(torch_rng(0, "rows", 0), (2, 2), -1, 1))
    assert torch.equal(drawn[0, 2:], torch.zeros(4, 2))


def test_groups_keep_the_order():
    assert groups(range(7), 3) == [range(3), range(3, 6), range(6, 7)]


@pytest.mark.parametrize(
    ("model", "reason"),
    [("tiny:global_noise", "randomness"), ("tiny:own_noise", "generator=Streams")],
)
def test_a_network_that_cannot_be_batched_is_refused_before_the_first_round(model, reason):
    built = build_program(tiny.config(model=model, clients_at_once=2), tiny.CLASSES, 1, (12, 12))
    with pytest.raises(ConfigError, match=f"clients-at-once is 2, but model '{model}'.*{reason}"):
        check_side_by_side(built, tiny.data())


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS.keys())
def test_what_can_be_batched_is_not_refused(changes):
    check_side_by_side(tiny.program(clients_at_once=2, **changes), tiny.data())


def test_settings_that_do_not_go_together():
    with pytest.raises(ConfigError, match="precision is 'tf32', which is a GPU's"):
        tiny.config(precision="tf32")
    with pytest.raises(ConfigError, match="clients-at-once is 5; Flower starts each client on its"):
        settings({"clients-at-once": 5})


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_on_a_gpu_within_a_tolerance(precision):
    """Deltas within 0.1 % of the largest in float32, 5 % in shorter types."""
    built, data = tiny.program(device="cuda", precision=precision), tiny.data()
    state, chunks = initial_state(built), assign_chunks(built.config)
    tasks = [ClientTask(1, i, int(chunks[i]), state.theta, state.hyper) for i in range(10)]
    limit = 1e-3 if precision == "fp32" else 0.05
    for task, reply in zip(tasks, cohort_update(built, tasks, data), strict=True):
        alone = client_update(built, task, *data.client(task.client_id))
        for j, delta in reply.deltas.items():
            largest = float(alone.deltas[j].abs().max())
            assert float((delta - alone.deltas[j]).abs().max()) < limit * largest
