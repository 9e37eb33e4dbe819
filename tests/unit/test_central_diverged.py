"""What ends a training in one sentence: numbers that are not finite."""

from dataclasses import replace

import pytest
import torch
from test_central_training import examples, network, training
from torch import nn
from torch.utils.data import TensorDataset

from fedpart.augment import Asymmetric, Generators, Symmetric
from fedpart.central import Training, l_ml, make_settings, score_tensors
from fedpart.errors import ConfigError, DivergedError


def test_a_training_that_diverges_stops_at_its_first_loss_that_is_not_finite():
    """It raises in the iteration whose loss is lost, and the state is the one before it."""
    run = training(optimiser="sgd", lr=1e30)
    said = r"the loss is (nan|inf) at iteration (\d+) with lr 1e\+30 and hyper-lr 0\.05: start anew"
    with pytest.raises(DivergedError, match=said) as found:
        run.run()
    assert f"at iteration {run.state.iteration + 1} " in str(found.value)
    assert run.state.iteration < 12
    with pytest.raises(DivergedError, match=f"at iteration {run.state.iteration + 1} "):
        run.step()
    assert issubclass(DivergedError, ConfigError)


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({}, "lr 0.01 and hyper-lr 0.05: start anew with smaller ones"),
        ({"chunks": (1.0,)}, "lr 0.01: start anew with a smaller one"),
        ({"method": "augerino", "augerino_lr": 2}, "lr 0.01 and augerino-lr 2: start"),
        ({"method": "validation", "finetune": 4, "finetune_lr": 3}, "finetune-lr 3 and hyper-lr"),
    ],
)
@pytest.mark.parametrize(("field", "what"), [("theta", "a weight"), ("hyper", "psi")])
def test_weights_and_psi_are_looked_at_when_a_run_ends(field, what, values, rates):
    """No later loss would show what the last step has done."""
    run = training(**values)
    lost = getattr(run.state, field).clone()
    lost[-1] = float("-inf")
    run.state = replace(run.state, iteration=13, **{field: lost})
    with pytest.raises(DivergedError) as found:
        run.run(0)
    assert str(found.value).startswith(f"{what} is -inf at iteration 13 with {rates}")


def test_psi_that_is_finite_but_not_in_plain_units_is_refused():
    model = network(mask=False)
    model[0].register_buffer("scale", torch.zeros(()), persistent=False)
    model[0].hyperparameters = {"scale": torch.exp}
    run = training(model=model)
    run.check_finite()
    run.state = replace(run.state, hyper=torch.tensor([1e4, 0.0]))
    with pytest.raises(DivergedError, match="psi is inf at iteration 0"):
        run.check_finite()


def test_a_likelihood_that_is_not_finite_is_refused():
    """Weights may be finite, and what they give may not."""
    run = training(model=nn.Linear(4, 2))
    run.state = replace(run.state, theta=torch.full_like(run.state.theta, 3e38))
    for scored in (lambda: l_ml(run), lambda: score_tensors(run, 3, *examples())):
        with pytest.raises(DivergedError, match="the log-likelihood is nan at iteration 0 with lr"):
            scored()


@pytest.mark.parametrize("name", ["lr", "hyper_lr", "finetune_lr", "augerino_lr", "adam_eps"])
def test_rates_beyond_float32_are_refused_and_the_highest_that_are_not_only_diverge(name):
    with pytest.raises(ConfigError, match=r"must be at most 1e\+30"):
        training(**{name: 1e31})
    run = training(**{name: 1e30, "weight_decay": 1e30 if name == "lr" else 0.0})
    try:
        run.run()
    except DivergedError as error:
        assert "1e+30" in str(error)  # noqa: PT017 - some rates only stand still


@pytest.mark.parametrize("family", [Symmetric(0.1), Asymmetric(0.1), Generators(0.1)])
def test_a_width_beyond_its_limit_ends_a_training(family):
    """32 half-turns are 100.5 in radians; 31 are a psi like any other."""
    images = TensorDataset(torch.rand(8, 1, 6, 6), torch.arange(8) % 3)
    settings = make_settings(chunks=(0.5, 0.5))
    run = Training(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), images, settings, family)
    for half_turns in (31.0, 32.0):
        hyper = run.state.hyper.clone()
        hyper[0] = half_turns
        run.state = replace(run.state, hyper=hyper)
        if half_turns == 31:
            run.check_finite()
    said = rf"{family.names[0]} in natural units is 100\.53\d* at iteration 0 with lr"
    with pytest.raises(DivergedError, match=said):
        run.run(0)
