"""Masks over inputs, and layers of the user's own that hold hyperparameters."""

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedpart.central.hyper import ConcreteMask, DeclaredPsi, FixedMask
from fedpart.models import CONCRETE_TEMPERATURE, noise


def test_mask_in_evaluation_is_its_mean_in_training_it_is_drawn_for_each_example():
    mask = ConcreteMask(3, 0.25)
    x = torch.ones(20_000, 3)
    assert torch.allclose(mask.eval()(x), torch.full((20_000, 3), 0.25))
    with noise(mask.train(), torch.Generator().manual_seed(0)):
        drawn = mask(x)
    assert 0 <= drawn.min() <= drawn.max() <= 1
    assert drawn.std(0).min() > 0.3
    # P(z > 1/2) is the probability that the feature is open, at any temperature.
    assert (drawn > 0.5).float().mean(0).tolist() == pytest.approx([0.25] * 3, abs=0.015)


def test_mask_has_the_gradient_of_finite_differences():
    """In float64, noise held fixed, logits of both signs."""
    mask = ConcreteMask(3, 0.5).train()
    x = torch.tensor([[1.0, -2.0, 0.5], [0.3, 1.0, -1.0]], dtype=torch.float64)

    def forward(logit):
        with noise(mask, torch.Generator().manual_seed(5)):
            return functional_call(mask, {"logit": logit}, x)

    logit = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(forward, (logit,))


def test_mask_formula():
    """z = sigmoid((l + log u - log(1 - u)) / temperature), with u from the lent generator."""
    mask = ConcreteMask(2, 0.7).train()
    x = torch.tensor([[1.0, -1.0]])
    u = torch.empty(1, 2).uniform_(generator=torch.Generator().manual_seed(8))
    expected = x * torch.sigmoid((mask.logit + u.log() - (1 - u).log()) / CONCRETE_TEMPERATURE)
    with noise(mask, torch.Generator().manual_seed(8)):
        torch.testing.assert_close(mask(x), expected)
    assert mask.generator is None


def test_fixed_mask_keeps_the_first():
    assert FixedMask(4, 2)(torch.tensor([[1.0, 2, 3, 4]])).tolist() == [[1, 2, 0, 0]]


class Temper(nn.Module):
    """A user's own hyperparameter: a temperature of the logits."""

    hyperparameters: ClassVar = {"log": torch.exp}

    def __init__(self):
        super().__init__()
        self.register_buffer("log", torch.tensor(0.0))

    def forward(self, x):
        return x * self.log.exp()


def test_a_layer_of_the_users_own_declares_its_buffer():
    model = nn.Sequential(ConcreteMask(2, 0.5), nn.Linear(2, 2), Temper())
    psi = DeclaredPsi.of(model, None)
    assert psi.size == 3
    assert psi.initial().tolist() == [0, 0, 0]
    assert psi.readable(psi.initial()) == {"0.logit_1": 0.5, "0.logit_2": 0.5, "2.log": 1.0}
    assert psi.raw(torch.tensor([1.0, 2.0, 3.0])) == {"0.logit": [1.0, 2.0], "2.log": [3.0]}


def test_no_hyperparameters_are_an_empty_vector():
    psi = DeclaredPsi.of(nn.Linear(2, 2), None)
    assert psi.size == 0
    assert psi.initial().shape == (0,)
    affine, tensors = psi.split(psi.initial())
    assert affine.numel() == 0
    assert tensors == {}
