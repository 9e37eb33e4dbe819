"""One partition's optimiser is a stock optimiser on that partition, and touches nothing else."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedpart.central.optimisers import (
    build_optimiser,
    decay_factor,
    decay_of,
    learning_rate,
)
from fedpart.central.settings import make_settings
from fedpart.layout import Layout, insert

SHARES = (0.5, 0.3, 0.2)
STOCK = {
    "sgd": lambda p, s: torch.optim.SGD(
        [p], lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay
    ),
    "adam": lambda p, s: torch.optim.Adam(
        [p], lr=s.lr, eps=s.adam_eps, weight_decay=s.weight_decay
    ),
    "adamw": lambda p, s: torch.optim.AdamW(
        [p], lr=s.lr, eps=s.adam_eps, weight_decay=s.weight_decay
    ),
}


def _layout(seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    layout = Layout.build(module, SHARES, np.random.default_rng(seed))
    return layout, layout.spread(dict(module.named_parameters()))


@pytest.mark.parametrize("decay", [0.0, 0.03])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("name", list(STOCK))
def test_L4_equals_a_stock_optimiser_for_each_partition(name, schedule, decay):
    """Fifty random steps on random partitions, learning rates by the total count of steps."""
    settings = make_settings(
        optimiser=name, lr=0.05, schedule=schedule, weight_decay=decay, iterations=50, chunks=SHARES
    )
    layout, theta = _layout()
    optimiser = build_optimiser(settings)
    parts = [nn.Parameter(layout.take(theta, j).clone()) for j in range(3)]
    stock = [STOCK[name](part, settings) for part in parts]
    moments = [optimiser.start(part.detach()) for part in parts]
    counts = [0, 0, 0]
    rng, noise = np.random.default_rng(1), torch.Generator().manual_seed(2)
    for iteration in range(50):
        j = int(rng.integers(3))
        gradient = torch.randn(layout.sizes[j], generator=noise)
        lr = learning_rate(settings, iteration)
        counts[j] += 1
        values, moments[j] = optimiser.step(
            layout.take(theta, j), gradient, moments[j], counts[j], lr, settings.weight_decay
        )
        theta = insert(theta, layout.index(j), values)
        stock[j].param_groups[0]["lr"] = lr
        parts[j].grad = gradient
        stock[j].step()
    assert min(counts) > 5
    for j, part in enumerate(parts):
        torch.testing.assert_close(layout.take(theta, j), part.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", list(STOCK))
def test_a_step_changes_none_of_its_inputs(name):
    settings = make_settings(optimiser=name, weight_decay=0.1)
    optimiser = build_optimiser(settings)
    values, gradient = torch.ones(4), torch.tensor([1.0, -1.0, 0.5, -2.0])
    before = optimiser.start(values)
    _, after = optimiser.step(values, gradient, before, 1, 0.1, 0.1)
    assert torch.equal(values, torch.ones(4))
    assert all(torch.equal(m, torch.zeros(4)) for m in before)
    assert all(m.abs().min() > 0 for m in after)


def test_cosine_goes_by_iterations_and_ends_where_it_should():
    """At the start lr, half way the middle, at the end lr times lr-end; then it stays."""
    settings = make_settings(lr=0.1, schedule="cosine", lr_end=0.01, iterations=100, anneal=0.5)
    assert learning_rate(settings, 0) == pytest.approx(0.1)
    assert learning_rate(settings, 25) == pytest.approx(0.1 * 1.01 / 2)
    quarter = (1 + math.cos(math.pi / 4)) / 2
    assert learning_rate(settings, 12) > 0.1 * (0.01 + 0.99 * quarter) > learning_rate(settings, 13)
    for late in (50, 75, 99):
        assert learning_rate(settings, late) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("reciprocal", (1.25, 10 / 9, 1.0)),
        ("root", (1.25**0.5, (10 / 9) ** 0.5, 1.0)),
        ("equal", (1.0, 1.0, 1.0)),
    ],
)
def test_decay_factors_of_the_papers_chunks(rule, expected):
    """[0.8, 0.1, 0.1] of 1,000: N / |D_1:k| is 1000/800, 1000/900, 1."""
    settings = make_settings(decay_rule=rule)
    found = [decay_factor(settings, seen, 1000) for seen in (800, 900, 1000)]
    assert found == pytest.approx(expected)


def test_affine_copies_do_not_decay():
    """A layer norm's scale and bias keep their values under decay alone; a matrix shrinks."""
    module = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6))
    layout = Layout.build(module, SHARES, np.random.default_rng(0))
    theta = torch.ones(layout.num_parameters)
    optimiser = build_optimiser(make_settings(optimiser="sgd", momentum=0.0))
    for j in range(3):
        values, _ = optimiser.step(
            layout.take(theta, j),
            torch.zeros(layout.sizes[j]),
            (),
            1,
            0.5,
            decay_of(layout, j, 0.2),
        )
        theta = insert(theta, layout.index(j), values)
    leaves = layout.leaves(theta)
    torch.testing.assert_close(leaves["0.weight"], torch.full((6, 4), 0.9))
    torch.testing.assert_close(leaves["0.bias"], torch.full((6,), 0.9))
    assert torch.equal(leaves["1.weight"], torch.ones(3, 6))
    assert torch.equal(leaves["1.bias"], torch.ones(3, 6))


def test_decay_of_plain_partitions_is_one_number():
    layout, _ = _layout()
    assert decay_of(layout, 1, 0.3) == 0.3
