"""For any cohort: aggregation equals a dense masked mean, and the rest does not move."""

import numpy as np
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpart.cohort import draw_cohort
from fedpart.layout import largest_remainder
from fedpart.server import (
    assign_chunks,
    initial_state,
    pseudo_gradient,
    server_update,
)

SMALL = settings(max_examples=40, deadline=None)


@st.composite
def rounds(draw):
    """A partition of 6 to 30 scalars, and clients with chunks and random deltas."""
    num_partitions = draw(st.integers(1, 4))
    extra = draw(st.lists(st.integers(0, num_partitions - 1), min_size=5, max_size=25))
    ids = [*range(num_partitions), *extra]
    share = 1 / num_partitions
    program = tiny.bare_program(ids, num_partitions, 2, chunks=(share,) * num_partitions)
    chunks = draw(st.lists(st.integers(0, num_partitions - 1), max_size=8))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    replies = [
        tiny.reply(
            *(i, chunk),
            {
                j: torch.randn(program.layout.sizes[j], generator=rng)
                for j in range(chunk, num_partitions)
            },
            hyper_gradient=torch.randn(2, generator=rng) if chunk else None,
            hyper_examples=1 + i if chunk else 0,
        )
        for i, chunk in enumerate(chunks)
    ]
    return program, replies


def _dense(program, replies):
    """Deltas [clients, P] in the order of theta, and which of them were sent."""
    shape = (len(replies), program.layout.num_parameters)
    values, sent = np.zeros(shape), np.zeros(shape, bool)
    for row, r in enumerate(replies):
        for j, delta in r.deltas.items():
            values[row, program.layout.index(j).numpy()] = delta.double().numpy()
            sent[row, program.layout.index(j).numpy()] = True
    return values, sent


@SMALL
@given(rounds())
def test_aggregation_is_a_dense_masked_mean(made):
    """Entry by entry, over those that sent it; None where nobody did."""
    program, replies = made
    values, sent = _dense(program, replies)
    for j in range(program.layout.num_partitions):
        got, index = pseudo_gradient(replies, j), program.layout.index(j).numpy()
        count = sent[:, index].sum(0)
        if got is None:
            assert not count.any()
            continue
        expected = -values[:, index].sum(0) / count
        np.testing.assert_allclose(got.numpy(), expected.astype(np.float32), rtol=1e-6, atol=1e-7)


@SMALL
@given(rounds(), rounds())
def test_only_what_was_sent_moves(one, two):
    """Weights, moments and counter of a partition that nobody sent stay to the bit."""
    program, replies = one
    state = server_update(program, initial_state(program), replies)
    later = [r for r in two[1] if r.chunk < program.layout.num_partitions]
    later = [
        tiny.reply(
            *(r.client_id, r.chunk),
            {
                j: torch.full((program.layout.sizes[j],), 0.5)
                for j in range(r.chunk, program.layout.num_partitions)
            },
        )
        for r in later
    ]
    after = server_update(program, state, later)
    for j in range(program.layout.num_partitions):
        index, was_sent = program.layout.index(j), any(j in r.deltas for r in later)
        assert int(after.steps[j] - state.steps[j]) == was_sent
        for name in ("theta", "m", "v"):
            same = torch.equal(getattr(after, name)[index], getattr(state, name)[index])
            assert same != was_sent
    assert torch.equal(after.hyper, state.hyper)


@SMALL
@given(rounds(), st.randoms(use_true_random=False))
def test_order_of_arrival_does_not_matter(made, shuffler):
    """The same state to the bit."""
    program, replies = made
    shuffled = list(replies)
    shuffler.shuffle(shuffled)
    one = server_update(program, initial_state(program), replies)
    two = server_update(program, initial_state(program), shuffled)
    for name in ("theta", "m", "v", "steps", "hyper", "hyper_m", "hyper_v"):
        assert torch.equal(getattr(one, name), getattr(two, name))


@SMALL
@given(st.integers(1, 200), st.integers(0, 1000), st.data())
def test_chunks_and_cohorts_fit_the_settings(clients, seed, data):
    """Exact counts for every share, and distinct clients for every size of cohort."""
    size = data.draw(st.integers(1, clients))
    config = tiny.config(clients=clients, clients_per_round=size, seed=seed, chunks=(0.7, 0.2, 0.1))
    counts = np.bincount(assign_chunks(config), minlength=3).tolist()
    assert counts == largest_remainder(clients, (0.7, 0.2, 0.1))
    cohort = draw_cohort(config, 1).clients
    assert cohort == sorted(set(cohort))
    assert len(cohort) == size
    assert cohort[0] >= 0
    assert cohort[-1] < clients
