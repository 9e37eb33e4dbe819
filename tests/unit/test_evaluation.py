"""Accuracy and loss on held-out images."""

import numpy as np
import pytest
import tiny
import torch
from torch.func import functional_call

import fedpart.likelihood
from fedpart.data import to_float
from fedpart.evaluation import evaluate
from fedpart.layout import subnetwork


def _theta(program):
    noise = torch.empty_like(program.initial).uniform_(-0.2, 0.2, generator=torch.Generator())
    return program.initial + noise


@pytest.mark.parametrize("k", [None, 0, 1, 3])
def test_equals_cross_entropy_and_argmax_of_the_plain_module(k):
    """Without augmentation: subnetwork k in evaluation mode, dropout off."""
    program = tiny.program(augmentation="none", dropout=0.4)
    x, y = tiny.images(20)
    theta = _theta(program)
    result = evaluate(program, theta, program.hyper.initial(), x, y, 1, k)
    flat = subnetwork(theta, program.default, program.layout.ids, 3 if k is None else k)
    logits = functional_call(
        program.network.eval(), program.layout.merge(program.layout.leaves(flat)), to_float(x)
    )
    target = torch.from_numpy(y)
    assert result.loss == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, target)), rel=1e-5
    )
    assert np.array_equal(result.correct, (logits.argmax(1) == target).numpy())
    assert result.accuracy == result.correct.mean()
    assert result.num_images == 20


def test_micro_batches_do_not_change_the_result(monkeypatch):
    """Three images at a time, with a short last batch, give the loss of all at once."""
    program = tiny.program(augmentation="none", samples=1)
    x, y = tiny.images(20)
    whole = evaluate(program, _theta(program), program.hyper.initial(), x, y, 1)
    monkeypatch.setattr(fedpart.likelihood, "MICRO_BATCH", 3)
    parts = evaluate(program, _theta(program), program.hyper.initial(), x, y, 1)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert np.array_equal(parts.correct, whole.correct)


def test_the_noise_of_augmentation_follows_round_and_subnetwork(small_program):
    """Same round, same bits; another round or subnetwork draws anew."""
    x, y = tiny.images(20)
    arguments = (small_program, _theta(small_program), small_program.hyper.initial() * 5, x, y)
    first = evaluate(*arguments, 1)
    torch.manual_seed(99)
    assert evaluate(*arguments, 1).loss == first.loss
    assert evaluate(*arguments, 2).loss != first.loss


def test_leaves_the_global_generator_alone(small_program):
    """torch.rand goes on as if nothing had been evaluated."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    evaluate(
        small_program, small_program.initial, small_program.hyper.initial(), *tiny.images(4), 1
    )
    assert torch.equal(torch.rand(3), expected)
