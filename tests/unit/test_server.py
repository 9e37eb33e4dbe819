"""Cohorts, chunks, Adam on every partition and on psi."""

# L1 to L9 are the numbers of acceptance tests.

import copy

import numpy as np
import pytest
import tiny
import torch
from torch.func import functional_call

from fedpart.accounting import fedavg_bytes
from fedpart.algorithm import run
from fedpart.cohort import draw_cohort
from fedpart.data import to_float
from fedpart.optimisers import adam
from fedpart.program import build_program
from fedpart.server import (
    assign_chunks,
    initial_state,
    mean_hyper_gradient,
    pseudo_gradient,
    server_update,
)
from fedpart.streams import numpy_rng
from fedpart.wire import model_bytes


def _random_replies(program, cohort, seed):
    """Random deltas from (client, chunk) pairs."""
    rng = torch.Generator().manual_seed(seed)
    return [
        tiny.reply(
            *(i, chunk),
            {
                j: torch.randn(program.layout.sizes[j], generator=rng)
                for j in range(chunk, program.layout.num_partitions)
            },
            hyper_gradient=torch.randn(program.hyper.size, generator=rng) if chunk else None,
            hyper_examples=5 + i if chunk else 0,
        )
        for i, chunk in cohort
    ]


def _equal(a, b):
    fields = ("theta", "m", "v", "steps", "hyper", "hyper_m", "hyper_v")
    assert all(torch.equal(getattr(a, f), getattr(b, f)) for f in fields)
    assert a.hyper_steps == b.hyper_steps


def test_L4_adam_per_partition_equals_separate_stock_optimisers():
    """Three torch Adams on three tensors and a fourth on psi, with rounds that skip some."""
    program = tiny.bare_program([0, 2, 1, 0, 0, 1, 2, 0], 3, num_hyper=2)
    state = initial_state(program, torch.linspace(-1, 1, 8))
    layout = program.layout
    values = [state.theta[layout.index(j)].clone().requires_grad_() for j in range(3)]
    psi = state.hyper.clone().requires_grad_()
    stock = [torch.optim.Adam([v], lr=1e-3) for v in values]
    stock_psi = torch.optim.Adam([psi], lr=3e-3)
    cohorts = [[(0, 0), (1, 1)], [(3, 2)], [(2, 1), (5, 1)], [(0, 0)], [(4, 2), (6, 0)]]
    for t, cohort in enumerate(cohorts):
        replies = _random_replies(program, cohort, seed=t)
        state = server_update(program, state, replies)
        for j in range(3):
            sent = [r.deltas[j] for r in replies if j in r.deltas]
            if sent:
                values[j].grad = -torch.stack(sent).double().mean(0).float()
                stock[j].step()
        measured = [(r.hyper_gradient, r.hyper_examples) for r in replies if r.chunk]
        if measured:
            total = sum(g.double() * n for g, n in measured)
            psi.grad = (total / sum(n for _, n in measured)).float()
            stock_psi.step()
        for j in range(3):
            torch.testing.assert_close(
                state.theta[layout.index(j)], values[j].detach(), atol=1e-7, rtol=1e-6
            )
        torch.testing.assert_close(state.hyper, psi.detach(), atol=1e-7, rtol=1e-6)
    assert state.steps.tolist() == [3, 4, 5]
    assert state.hyper_steps == 4


def test_L4_a_partition_that_nobody_sent_keeps_weights_moments_and_counter():
    """Chunk 2 alone: partitions 0 and 1 stay to the bit, also after they have moments."""
    program = tiny.bare_program([0, 2, 1, 0, 1], 3, num_hyper=1)
    state = server_update(program, initial_state(program), _random_replies(program, [(0, 0)], 0))
    after = server_update(program, state, _random_replies(program, [(1, 2)], 1))
    still = torch.cat([program.layout.index(0), program.layout.index(1)])
    for before, now in ((state.theta, after.theta), (state.m, after.m), (state.v, after.v)):
        assert before[still].abs().min() > 0
        assert torch.equal(before[still], now[still])
        assert not torch.equal(before, now)
    assert after.steps.tolist() == [1, 1, 2]


def test_adam_equals_torch_to_the_bit():
    """The same operations in the same order as ``torch.optim.Adam`` on one tensor."""
    rng = torch.Generator().manual_seed(0)
    value = torch.randn(50, generator=rng)
    twin = value.clone().requires_grad_()
    stock = torch.optim.Adam([twin], lr=0.01, eps=1e-7, foreach=False)
    m, v = torch.zeros(50), torch.zeros(50)
    for step in range(1, 6):
        twin.grad = torch.randn(50, generator=rng)
        stock.step()
        value, m, v = adam(value, twin.grad, m, v, step, lr=0.01, eps=1e-7)
        assert torch.equal(value, twin.detach())


def test_a_round_without_replies_changes_nothing_but_its_number():
    """Every client may have failed."""
    program = tiny.bare_program([0, 1], 2, num_hyper=1, chunks=(0.5, 0.5))
    state = server_update(program, initial_state(program), _random_replies(program, [(0, 0)], 0))
    after = server_update(program, state, [])
    assert after.server_round == state.server_round + 1 == 2
    _equal(state, after)


def test_a_round_of_chunk_zero_leaves_psi_alone():
    """No zero gradient is fed to its Adam, whose moments would decay."""
    program = tiny.bare_program([0, 1], 2, num_hyper=2, chunks=(0.5, 0.5))
    state = server_update(program, initial_state(program), _random_replies(program, [(0, 1)], 0))
    after = server_update(program, state, _random_replies(program, [(1, 0)], 1))
    assert state.hyper_steps == after.hyper_steps == 1
    assert torch.equal(state.hyper, after.hyper)
    assert torch.equal(state.hyper_m, after.hyper_m)


def test_the_update_is_pure_and_does_not_depend_on_the_order_of_arrival():
    """Sums are taken in client order, and the state before the round is left as it was."""
    program = tiny.bare_program([0, 1, 1, 0, 2] * 5, 3, num_hyper=2)
    state = initial_state(program)
    kept = copy.deepcopy(state)
    replies = _random_replies(program, [(i, i % 3) for i in range(7)], 3)
    one = server_update(program, state, replies)
    _equal(one, server_update(program, state, [replies[i] for i in (4, 2, 6, 0, 5, 3, 1)]))
    _equal(state, kept)


def test_sums_are_taken_in_client_order():
    """2^60 + 1 - 2^60 is 0 in double precision and 2^60 - 2^60 + 1 is 1: clients 0, 1, 2 decide."""
    program = tiny.bare_program([0], 1, chunks=(1.0,))
    for values, mean in (((2.0**60, 1.0, -(2.0**60)), 0), ((2.0**60, -(2.0**60), 1.0), -1 / 3)):
        replies = [tiny.reply(i, 0, {0: torch.tensor([v])}) for i, v in enumerate(values)]
        for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
            state = server_update(program, initial_state(program), [replies[i] for i in order])
            assert float(state.m) == pytest.approx(0.1 * mean)


def test_the_mean_is_taken_in_double_precision():
    """10^8 + 1 - 10^8 would be 0 in float32."""
    replies = [tiny.reply(i, 0, {0: torch.tensor([v])}) for i, v in enumerate((1e8, 1.0, -1e8))]
    assert float(pseudo_gradient(replies, 0)) == pytest.approx(-1 / 3)


def test_psi_gradient_is_weighted_by_images():
    """(1 * 1 + 3 * 5) / 4 = 4, which is the gradient over all four images."""
    replies = [
        tiny.reply(0, 1, {}, hyper_gradient=torch.tensor([1.0]), hyper_examples=1),
        tiny.reply(1, 0, {}),
        tiny.reply(2, 1, {}, hyper_gradient=torch.tensor([5.0]), hyper_examples=3),
    ]
    assert mean_hyper_gradient(replies).tolist() == [4.0]
    assert mean_hyper_gradient(replies[1:2]) is None


def test_chunks_have_exact_counts_and_follow_the_seed():
    """70, 20 and 10 of 100 clients, shuffled; the same for the same seed only."""
    config = tiny.config(clients=100, chunks=(0.7, 0.2, 0.1))
    chunks = assign_chunks(config)
    assert np.bincount(chunks).tolist() == [70, 20, 10]
    assert np.array_equal(chunks, assign_chunks(config))
    assert not np.array_equal(chunks, assign_chunks(config.model_copy(update={"seed": 1})))
    assert not np.array_equal(chunks, np.sort(chunks))


def test_cohorts_are_distinct_clients_ascending_and_equally_likely():
    """Ten of a hundred without replacement, another ten each round, each client as often."""
    config = tiny.config(clients=100, clients_per_round=10)
    cohorts = [draw_cohort(config, r).clients for r in range(1, 2001)]
    assert all(c == sorted(set(c)) and len(c) == 10 for c in cohorts)
    assert cohorts[0] == draw_cohort(config, 1).clients
    assert cohorts[0] != cohorts[1]
    counts = np.bincount(np.concatenate(cohorts), minlength=100)
    # Binomial(2000, 0.1): standard deviation 13.4.
    assert abs(counts - 200).max() < 5 * 13.4


@pytest.fixture(scope="module", params=[((0.7, 0.2, 0.1), 0.77), ((0.9, 0.1), 0.91)])
def shares(request):
    chunks, expected = request.param
    config = tiny.config(model="mnist-cnn", chunks=chunks, clients=100, clients_per_round=10)
    return build_program(config, 10, 1), expected


def test_L5_bytes_over_many_rounds_are_the_papers_share(shares):
    """Up 0.77 and 0.91 of FedAvg, up and down 0.885 and 0.955, psi left out."""
    program, expected = shares
    chunks = assign_chunks(program.config)
    rounds = range(1, 2001)
    drawn = np.concatenate([draw_cohort(program.config, r).clients for r in rounds])
    of_chunk = [model_bytes(program, k) for k in range(program.layout.num_partitions)]
    up = np.mean([of_chunk[chunks[i]][0] for i in drawn]) / fedavg_bytes(program)
    down = np.mean([of_chunk[chunks[i]][1] for i in drawn]) / fedavg_bytes(program)
    assert down == 1
    assert up == pytest.approx(expected, abs=0.006)
    assert (up + down) / 2 == pytest.approx((1 + expected) / 2, abs=0.003)


def test_L5_bytes_over_all_clients_are_the_papers_share_exactly(shares):
    """Counts and sizes leave no more than rounding: (1 + sum of squared shares) / 2."""
    program, expected = shares
    sent = [model_bytes(program, int(k))[0] for k in assign_chunks(program.config)]
    assert np.mean(sent) / fedavg_bytes(program) == pytest.approx(expected, abs=1e-5)


def test_L6_one_chunk_is_fedavg_with_stock_optimisers():
    """Clients with torch.optim.SGD, server with torch.optim.Adam, plain module, no psi."""
    program = tiny.program(method="fedavg", dropout=0.0, clients_per_round=6, adam_eps=1e-4)
    config, data = program.config, tiny.data()
    state = run(program, data, initial_state(program), tiny.Silent())
    network = copy.deepcopy(program.network)
    network.load_state_dict(program.layout.merge(program.layout.leaves(program.initial)))
    server = torch.optim.Adam(network.parameters(), lr=config.server_lr, eps=config.adam_eps)
    for server_round in (1, 2, 3):
        trained = []
        for i in draw_cohort(config, server_round).clients:
            client = copy.deepcopy(network)
            sgd = torch.optim.SGD(client.parameters(), lr=config.client_lr)
            x, y = data.client(i)
            x, y = to_float(x), torch.from_numpy(y)
            order = numpy_rng(config.seed, "order", server_round, i, 0).permutation(len(y))
            for batch in torch.from_numpy(order).split(config.batch_size):
                sgd.zero_grad()
                torch.nn.functional.cross_entropy(client(x[batch]), y[batch]).backward()
                sgd.step()
            trained.append(dict(client.named_parameters()))
        for name, p in network.named_parameters():
            p.grad = p.detach() - torch.stack([t[name].detach() for t in trained]).mean(0)
        server.step()
    plain = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    assert state.hyper.numel() == 0
    assert (plain - program.initial).abs().max() > 1e-3
    torch.testing.assert_close(state.theta, plain, atol=2e-6, rtol=1e-5)


def test_L6_one_chunk_takes_no_step_of_psi():
    """Partitioned training with a single chunk never measures psi, though it has one."""
    program = tiny.program(chunks=(1.0,))
    state = run(program, tiny.data(), initial_state(program), tiny.Silent())
    assert program.hyper.size == 7
    assert state.hyper_steps == 0
    assert torch.equal(state.hyper, program.hyper.initial())
    assert state.steps.tolist() == [3]


def test_initial_state_starts_from_the_programs_weights_or_from_given_ones(small_program):
    """Copies, moments at zero, counters at zero."""
    state = initial_state(small_program)
    assert torch.equal(state.theta, small_program.initial)
    assert state.theta.data_ptr() != small_program.initial.data_ptr()
    assert not state.m.any()
    assert not state.v.any()
    assert state.steps.tolist() == [0, 0, 0]
    given = torch.ones(small_program.layout.num_parameters)
    assert torch.equal(initial_state(small_program, given).theta, given)


def test_the_reference_loop_takes_up_where_a_state_stands(small_program, small_data):
    """Three rounds at once equal one and then two, bit for bit, and every round is told of."""
    told = tiny.Silent()
    whole = run(small_program, small_data, initial_state(small_program), told)
    assert [state.server_round for state, *_ in told.rounds] == [1, 2, 3]
    after_one = told.rounds[0][0]
    _equal(whole, run(small_program, small_data, after_one, tiny.Silent()))
    logits = functional_call(
        small_program.network.eval(),
        small_program.layout.merge(small_program.layout.leaves(whole.theta)),
        to_float(small_data.val_images),
    )
    assert torch.isfinite(logits).all()
