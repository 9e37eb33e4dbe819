"""What one client does in one round."""

# L1 to L9 are the numbers of acceptance tests.

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from torch.func import functional_call

import fedpart.likelihood
from fedpart.algorithm import run
from fedpart.client import ClientTask, client_update, hyper_gradient
from fedpart.data import to_float
from fedpart.gradients import weight_gradient
from fedpart.layout import subnetwork
from fedpart.server import assign_chunks, initial_state


def _task(program, chunk, server_round=1, client_id=0):
    state = initial_state(program)
    # Away from the defaults, so that taking one for the other is seen.
    noise = torch.empty_like(state.theta).uniform_(-0.1, 0.1, generator=torch.Generator())
    return ClientTask(server_round, client_id, chunk, state.theta + noise, state.hyper)


def _same(a, b):
    """Two replies are equal bit for bit, but for the time they took."""
    assert sorted(a.deltas) == sorted(b.deltas)
    assert all(torch.equal(a.deltas[j], b.deltas[j]) for j in a.deltas)
    assert (a.hyper_gradient is None) == (b.hyper_gradient is None)
    assert a.hyper_gradient is None or torch.equal(a.hyper_gradient, b.hyper_gradient)
    bare = [replace(r, deltas={}, hyper_gradient=None, seconds=0.0) for r in (a, b)]
    assert bare[0] == bare[1]


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_L1_a_client_sends_its_own_partition_and_those_above(small_program, chunk):
    """Never one below its chunk, and each with as many values as the layout says."""
    reply = client_update(small_program, _task(small_program, chunk), *tiny.images(7))
    assert list(reply.deltas) == list(range(chunk, 3))
    for j, delta in reply.deltas.items():
        assert delta.shape == (small_program.layout.sizes[j],)
        assert delta.abs().max() > 0
    assert reply.num_examples == 7
    assert np.isfinite(reply.train_loss)


@pytest.mark.parametrize("last", [0, 1])
def test_L1_subnetwork_is_independent_of_later_chunks(small_data, last):
    """FL: new images, labels and counts in chunks > k leave partitions <= k alone, to the bit."""
    program = tiny.without_hyper_steps(tiny.program(rounds=3))
    chunks = assign_chunks(program.config)
    other = tiny.data(seed=99)
    owned = tuple(
        other.client_indices[i][: 2 + i % 3] if chunks[i] > last else small_data.client_indices[i]
        for i in range(10)
    )
    x, y = small_data.images.copy(), small_data.labels.copy()
    for i in np.flatnonzero(chunks > last):
        x[owned[i]], y[owned[i]] = other.images[owned[i]], other.labels[owned[i]]
    changed = replace(small_data, images=x, labels=y, client_indices=owned)
    a, b = (run(program, d, initial_state(program), tiny.Silent()) for d in (small_data, changed))
    for j in range(3):
        index = program.layout.index(j)
        equal = torch.equal(a.theta[index], b.theta[index])
        assert equal == (j <= last)
        assert torch.equal(a.m[index], b.m[index]) == (j <= last)
    first, second = (
        subnetwork(s.theta, program.default, program.layout.ids, last + 1) for s in (a, b)
    )
    assert torch.equal(first, second)
    assert not torch.equal(
        first, subnetwork(program.initial, program.default, program.layout.ids, 3)
    )


def test_L2_psi_gradient_is_the_same_before_and_after_local_training(small_program):
    """It goes through subnetwork k, which local training of k.. cannot touch."""
    x, y = tiny.images(9)
    for chunk in (1, 2):
        task = _task(small_program, chunk)
        before, likelihood, n = hyper_gradient(
            small_program, task, to_float(x), torch.from_numpy(y)
        )
        reply = client_update(small_program, task, x, y)
        theta = task.theta.clone()
        for j, delta in reply.deltas.items():
            theta[small_program.layout.index(j)] += delta
        after, _, _ = hyper_gradient(
            small_program, replace(task, theta=theta), to_float(x), torch.from_numpy(y)
        )
        assert before.abs().max() > 0
        assert torch.equal(before, after)
        assert torch.equal(before, reply.hyper_gradient)
        assert (reply.log_likelihood, reply.hyper_examples) == (likelihood, n)
        assert n == 9


def test_L2_the_psi_gradient_does_depend_on_the_partitions_below(small_program):
    """The counterpart: other values in partition 0 give another gradient for chunk 1."""
    x, y = tiny.images(9)
    task = _task(small_program, 1)
    theta = task.theta.clone()
    theta[small_program.layout.index(0)] *= 1.5
    data = to_float(x), torch.from_numpy(y)
    one = hyper_gradient(small_program, task, *data)[0]
    assert not torch.equal(one, hyper_gradient(small_program, replace(task, theta=theta), *data)[0])


def test_L2_chunk_zero_sends_no_psi_gradient(small_program):
    """There is no subnetwork that has not seen it."""
    reply = client_update(small_program, _task(small_program, 0), *tiny.images(5))
    assert reply.hyper_gradient is None
    assert reply.log_likelihood is None
    assert reply.hyper_examples == 0


def test_no_psi_gradient_where_nothing_is_learned():
    """Without augmentation and dropout psi is empty, and later chunks send none either."""
    program = tiny.program(augmentation="none", dropout=0.0)
    reply = client_update(program, _task(program, 2), *tiny.images(5))
    assert reply.hyper_gradient is None
    assert list(reply.deltas) == [2]


def test_log_likelihood_is_that_of_subnetwork_k_on_all_images():
    """Equal to PyTorch's cross entropy of the module with those weights."""
    program = tiny.program(augmentation="none", dropout=1e-6)
    x, y = tiny.images(9)
    task = _task(program, 1)
    reply = client_update(program, task, x, y)
    flat = subnetwork(task.theta, program.default, program.layout.ids, 1)
    logits = functional_call(
        program.network.eval(), program.layout.merge(program.layout.leaves(flat)), to_float(x)
    )
    expected = -torch.nn.functional.cross_entropy(logits, torch.from_numpy(y))
    assert reply.log_likelihood == pytest.approx(float(expected), abs=1e-4)


def test_hyper_batch_size_limits_the_images_of_the_psi_gradient():
    """Four of nine are drawn; asking for more than there are takes all."""
    for size, used in ((4, 4), (100, 9), (0, 9)):
        program = tiny.program(hyper_batch_size=size)
        reply = client_update(program, _task(program, 1), *tiny.images(9))
        assert reply.hyper_examples == used


def test_partitions_are_trained_independently_from_the_servers_values():
    """Partition 2 ends the same whether or not partitions 0 and 1 were trained before it."""
    program = tiny.program()
    x, y = tiny.images(9)
    replies = [client_update(program, _task(program, chunk), x, y) for chunk in (0, 1, 2)]
    assert torch.equal(replies[0].deltas[2], replies[2].deltas[2])
    assert torch.equal(replies[1].deltas[2], replies[2].deltas[2])
    assert torch.equal(replies[0].deltas[1], replies[1].deltas[1])


def test_partitions_above_the_trained_one_count_as_default():
    """Other server values in partition 2 do not change how partitions 0 and 1 are trained."""
    program = tiny.program()
    x, y = tiny.images(9)
    task = _task(program, 0)
    theta = task.theta.clone()
    theta[program.layout.index(2)] += 1
    one = client_update(program, task, x, y)
    other = client_update(program, replace(task, theta=theta), x, y)
    assert torch.equal(one.deltas[0], other.deltas[0])
    assert torch.equal(one.deltas[1], other.deltas[1])
    assert not torch.equal(one.deltas[2], other.deltas[2])


def test_the_same_task_gives_the_same_bits(small_program):
    """Twice in a row, and whatever torch's global generator was at."""
    x, y = tiny.images(9)
    task = _task(small_program, 1)
    first = client_update(small_program, task, x, y)
    torch.manual_seed(1234)
    _same(first, client_update(small_program, task, x, y))


def test_a_client_does_not_depend_on_those_before_it(small_program, small_data):
    """In ascending, descending and lone order each client sends the same bits."""
    tasks = [_task(small_program, c % 3, 2, c) for c in range(4)]
    ascending = [client_update(small_program, t, *small_data.client(t.client_id)) for t in tasks]
    descending = [
        client_update(small_program, t, *small_data.client(t.client_id)) for t in reversed(tasks)
    ]
    for a, b in zip(ascending, reversed(descending), strict=True):
        _same(a, b)


def test_clients_and_rounds_have_noise_of_their_own(small_program):
    """Same images and weights, another client or another round: another result."""
    x, y = tiny.images(9)
    deltas = [
        client_update(small_program, _task(small_program, 2, *key), x, y).deltas[2]
        for key in ((1, 0), (1, 1), (2, 0))
    ]
    assert not torch.equal(deltas[0], deltas[1])
    assert not torch.equal(deltas[0], deltas[2])


def test_a_client_leaves_its_task_and_the_global_generator_alone(small_program):
    """Neither theta nor psi is written to, and torch.rand goes on as if nothing had happened."""
    task = _task(small_program, 1)
    theta, hyper = task.theta.clone(), task.hyper.clone()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    client_update(small_program, task, *tiny.images(5))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(task.theta, theta)
    assert torch.equal(task.hyper, hyper)


@pytest.mark.parametrize("model", ["tiny:small_cnn", "tiny:norm_cnn", "tiny:twins"])
def test_micro_batches_give_the_gradient_of_the_whole_batch(monkeypatch, model):
    """Two images at a time or all at once: same gradient and loss, affine copies included."""
    program = tiny.program(model=model, augmentation="none", dropout=0.0, samples=1)
    x, y = tiny.images(9)
    data = to_float(x), torch.from_numpy(y)
    theta, rng = _task(program, 0).theta, torch.Generator()
    whole, loss = weight_gradient(program, program.leaves(theta), torch.zeros(0), *data, rng)
    monkeypatch.setattr(fedpart.likelihood, "MICRO_BATCH", 2)
    assert len(list(program.micro_batches(*data))) == 5
    parts, loss_of_parts = weight_gradient(
        program, program.leaves(theta), torch.zeros(0), *data, rng
    )
    assert whole.abs().max() > 1e-3
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)
    assert loss_of_parts == pytest.approx(loss, rel=1e-5)


def test_micro_batches_give_the_psi_gradient_of_all_images(monkeypatch):
    """With next to no noise: eight images at a time or three."""
    program = tiny.program(dropout=0.0, samples=1)
    task = _task(program, 1)
    x, y = tiny.images(9)
    data = to_float(x), torch.from_numpy(y)
    whole = hyper_gradient(program, task, *data)
    monkeypatch.setattr(fedpart.likelihood, "MICRO_BATCH", 3)
    parts = hyper_gradient(program, task, *data)
    torch.testing.assert_close(parts[0], whole[0], atol=1e-6, rtol=1e-4)
    assert parts[1] == pytest.approx(whole[1], rel=1e-5)


def test_a_model_that_never_calls_its_dropout_has_no_gradient_there():
    """The logit is part of psi all the same, with gradient zero."""
    program = tiny.program(model="tiny:unused_dropout", augmentation="none")
    reply = client_update(program, _task(program, 1), *tiny.images(5))
    assert reply.hyper_gradient.tolist() == [0.0]


def test_a_model_that_writes_to_its_weights_does_so_for_one_client():
    """The weights that clients of a round share are built anew for the next."""
    program = tiny.program(model="tiny:writer", augmentation="none", dropout=0.0)
    task, data = _task(program, 1), tiny.images(5)
    first = client_update(program, task, *data)
    _same(client_update(program, task, *data), first)
    fresh = tiny.program(model="tiny:writer", augmentation="none", dropout=0.0)
    _same(client_update(fresh, task, *data), first)


def test_a_client_without_images_is_an_error_that_names_it(small_program):
    """It could neither train nor measure."""
    x, y = tiny.images(0)
    with pytest.raises(ValueError, match="client 6 has no images"):
        client_update(small_program, _task(small_program, 1, client_id=6), x, y)
