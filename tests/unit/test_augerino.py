"""FedAvg with Augerino's objective: who measures psi, and the reward for width."""

import math

import numpy as np
import pytest
import tiny
import torch

from fedpart.accounting import out_of_sample
from fedpart.algorithm import run
from fedpart.augment import augerino_reward, natural_widths
from fedpart.client import ClientTask, client_update
from fedpart.errors import ConfigError
from fedpart.server import initial_state


def _program(**changes):
    return tiny.program(method="augerino", **changes)


def _reply(program, theta=None, hyper=None):
    state = initial_state(program)
    task = ClientTask(
        *(1, 0, 0),
        state.theta if theta is None else theta,
        state.hyper if hyper is None else hyper,
    )
    return client_update(program, task, *tiny.images(9))


def test_reward_is_the_norm_of_the_widths_with_rotation_up_to_half_a_turn():
    """Value and gradient, beside NumPy."""
    widths = torch.tensor([4.0, 0.3, -0.2, 0.1, 0.05, 0.7], requires_grad=True)
    reward = augerino_reward(widths, safe=True)
    reward.backward()
    w = np.array([math.pi, 0.3, -0.2, 0.1, 0.05, 0.7])
    expected = w / np.linalg.norm(w)
    expected[0] = 0  # beyond half a turn
    assert reward.item() == pytest.approx(np.linalg.norm(w))
    np.testing.assert_allclose(widths.grad.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("width", [10.0, -10.0, 25.0])
def test_safe_reward_has_no_gradient_once_a_width_reaches_ten(at, width):
    """Exactly zero, for all widths; the unsafe one goes on."""
    start = torch.full((6,), 0.5)
    start[at] = width
    for safe in (True, False):
        widths = start.clone().requires_grad_()
        augerino_reward(widths, safe).backward()
        assert bool((widths.grad == 0).all()) == safe


def test_rotation_beyond_ten_does_not_end_the_reward_of_the_others():
    """It counts as half a turn, so the safe variant cannot be switched off by a harmless drift."""
    widths = torch.tensor([40.0, 0.5, 0.5, 0.5, 0.5, 0.5], requires_grad=True)
    augerino_reward(widths, safe=True).backward()
    assert widths.grad[0] == 0
    assert (widths.grad[1:] > 0).all()


def test_every_client_measures_psi_and_uploads_everything():
    """One partition, one chunk: the whole network scores, as FedAvg has it."""
    program = _program()
    assert program.layout.num_partitions == 1
    reply = _reply(program)
    assert reply.deltas[0].shape == (program.layout.num_parameters,)
    assert reply.hyper_gradient.shape == (6,)
    assert reply.hyper_examples == 9
    assert reply.log_likelihood is not None


def test_likelihood_of_augerino_is_not_called_out_of_sample():
    """Its clients score what they train on."""
    program = _program()
    assert out_of_sample(program, [_reply(program)]) is None


def test_the_gradient_of_psi_is_that_of_the_loss_less_the_reward():
    """Against the same client without reward: the difference is the reward's own gradient."""
    with_reward, without = (_reply(_program(augerino_weight=w)).hyper_gradient for w in (0.5, 0.0))
    raw = initial_state(_program()).hyper.clone().requires_grad_()
    scale = torch.tensor([math.pi, 1, 1, 1, 1, 1])
    augerino_reward(raw * scale, safe=True).backward()
    torch.testing.assert_close(with_reward, without - 0.5 * raw.grad, atol=1e-6, rtol=1e-4)


def test_dropout_stays_fixed():
    """Only the widths are learned."""
    assert _program(dropout=0.3).hyper.dropout == ()


@pytest.mark.parametrize("augmentation", ["none", "asymmetric"])
def test_a_family_without_widths_is_refused(augmentation):
    """There would be nothing to reward."""
    with pytest.raises(ConfigError, match="use symmetric or generators"):
        _program(augmentation=augmentation)


def _widest(variant: str) -> float:
    program = _program(augerino=variant, hyper_lr=0.5, rounds=60)
    state = run(program, tiny.data(), initial_state(program), tiny.Silent())
    widths = natural_widths(program.hyper.augmentation, program.hyper.split(state.hyper)[0])
    return float(widths[1:].abs().max())


def test_unsafe_augerino_diverges_and_the_safe_one_does_not():
    """At a large learning rate the unbounded reward carries a width past 20."""
    assert _widest("unsafe") > 20
    assert _widest("safe") < 20
