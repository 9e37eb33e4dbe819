"""Pseudo-gradient and Adam per partition against ``reference_server.py``."""

import reference_server
import tiny
import torch

from fedpart.server import initial_state, pseudo_gradient, server_update


def _replies(sent):
    """Client c sends the c-th delta of every partition that has one; the chunk is the lowest."""
    replies = []
    for c in range(max(len(deltas) for deltas in sent.values())):
        own = {j: torch.tensor(d[c]) for j, d in sent.items() if c < len(d)}
        replies.append(tiny.reply(c, min(own), own))
    return replies


def test_pseudo_gradient_is_minus_the_mean_delta():
    """-(0.5 + 0.3) / 2 = -0.4 and -(-0.25 + 0.05) / 2 = 0.1."""
    got = pseudo_gradient(_replies(reference_server.ROUNDS[0]), 0)
    torch.testing.assert_close(got, torch.tensor([-0.4, 0.1]))
    assert reference_server.mean_pseudo_gradient([[0.5, -0.25], [0.3, 0.05]]) == [-0.4, 0.1]


def test_adam_of_two_partitions_over_three_rounds_of_which_one_skips_a_partition():
    """Round 1: each entry moves by lr = 0.1 against its gradient's sign, whatever its size.

    Round 2 leaves partition 0 alone, so that in round 3 its own second step is taken, with
    m = 0.9 m1 + 0.1 g, divided by 1 - 0.9^2 (and not by 1 - 0.9^3).
    """
    golden = [
        ([1.1, -2.1], [0.4, -0.4, 0.1]),
        ([1.1, -2.1], [0.3, -0.3733663, 0.1917781]),
        ([1.1469468, -2.0376081], [0.2484347, -0.3672274, 0.2401473]),
    ]
    path, steps = reference_server.trajectory()
    program = tiny.bare_program([0, 1, 0, 1, 1], 2, chunks=(0.5, 0.5), server_lr=0.1)
    state = initial_state(program, torch.tensor([1.0, 0.5, -2.0, -0.5, 0.0]))
    for sent, (first, second), reference in zip(reference_server.ROUNDS, golden, path, strict=True):
        state = server_update(program, state, _replies(sent))
        for j, values in ((0, first), (1, second)):
            got = state.theta[program.layout.index(j)]
            torch.testing.assert_close(got, torch.tensor(values), atol=1e-6, rtol=0)
            torch.testing.assert_close(torch.tensor(reference[j]), torch.tensor(values))
    assert state.steps.tolist() == [steps[0], steps[1]] == [2, 3]
