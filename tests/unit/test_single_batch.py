"""One pass over several subnetworks gives what a pass for each of them gives."""

# L11 is the number of an acceptance test.

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from fedpart.layout import subnetwork
from fedpart.models import build_model, noise, swap_dropout
from fedpart.nodes import read_nodes
from fedpart.single_batch import mixed_forward
from fedpart.streams import numpy_rng


def both_ways(module, images, k, shares=(0.5, 0.3, 0.2)):
    """Logits and gradients (weights, then each buffer) in one batch, and subnetwork by subnetwork.

    All in float64, with the same dropout noise for an image either way.
    """
    module = module.double().train()
    nodes = read_nodes(module, images[:2])
    layout = nodes.layout(module, shares, numpy_rng(0, "assignment"))
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(layout.num_parameters, generator=generator).double() / 10
    labels = torch.arange(len(images)) % 3
    held = {n: b.detach().clone().requires_grad_() for n, b in module.named_buffers()}

    def finish(leaves, forward, mine):
        leaves = {n: t.requires_grad_() for n, t in leaves.items()}
        with noise(module, torch.Generator().manual_seed(1)):
            logits = forward(leaves)
        loss = F.cross_entropy(logits[mine], labels[mine], reduction="sum")
        wanted = [*leaves.values(), *held.values()]
        found = torch.autograd.grad(loss, wanted, materialize_grads=True)
        own, rest = found[: len(leaves)], found[len(leaves) :]
        return logits.detach(), layout.flatten(dict(zip(leaves, own, strict=True))), rest

    everything = torch.ones(len(images), dtype=torch.bool)
    single = finish(
        layout.leaves(theta),
        lambda leaves: mixed_forward(module, nodes, layout, leaves | held, images, k),
        everything,
    )
    logits, total = torch.zeros_like(single[0]), torch.zeros_like(theta)
    rest = [torch.zeros_like(b) for b in held.values()]
    for j in range(len(shares) + 1):
        values = subnetwork(theta, torch.zeros_like(theta), layout.ids, j)
        found = finish(
            layout.leaves(values),
            lambda leaves: functional_call(module, layout.merge(leaves) | held, images),
            k == j,
        )
        logits[k == j] = found[0][k == j]
        total += torch.where(layout.ids == j - 1, found[1], 0)
        rest = [a + b for a, b in zip(rest, found[2], strict=True)]
    return single, (logits, total, rest), layout


@pytest.mark.parametrize(
    ("name", "channels", "side"),
    [("mlp", 1, 8), ("mnist-cnn", 1, 28), ("resnet9", 3, 8), ("wide-resnet20", 3, 8)],
)
def test_L11_outputs_and_gradients_equal_a_batch_for_each_subnetwork(name, channels, side):
    """Dropout on; the gradient of its logits too. Each partition gets some gradient."""
    module = build_model(name, 3, channels, (side, side))
    swap_dropout(module, 0.1)
    images = torch.rand(7, channels, side, side, generator=torch.Generator().manual_seed(2))
    k = torch.tensor([2, 0, 3, 1, 3, 1, 2])
    single, separate, layout = both_ways(module, images.double(), k)
    torch.testing.assert_close(single, separate, rtol=1e-9, atol=1e-11)
    assert all(single[1][layout.index(j)].any() for j in range(3))


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_only_the_last_partition_of_a_subnetwork_learns(k):
    """Exactly zero elsewhere; the biases of the output layer too."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 3))
    single, _, layout = both_ways(module, torch.rand(5, 1, 4, 4).double(), torch.full((5,), k))
    learned = single[1] != 0
    assert not learned[layout.ids != k - 1].any()
    assert bool(learned.any()) is (k > 0)


def test_padding_by_a_word_is_refused():
    """Its gradient needs numbers."""
    module = nn.Sequential(nn.Conv2d(1, 6, 3, padding="same"), nn.Flatten(), nn.Linear(96, 3))
    with pytest.raises(ValueError, match="padding 'same': give it as a number"):
        both_ways(module, torch.rand(2, 1, 4, 4).double(), torch.tensor([1, 2]))


@pytest.mark.parametrize("k", [0, 1, 2])
def test_weights_from_later_to_earlier_units_are_trained_by_nobody(k):
    """A unit of partition 0 owns what it reads of partition 1, which is not there then."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    module.append(nn.Linear(8, 3))
    images = torch.rand(5, 1, 4, 4).double()
    single, _, layout = both_ways(module, images, torch.full((5,), k), (0.5, 0.5))
    gradient, ids = layout.leaves(single[1])["3.weight"], layout.leaves(layout.ids)
    later = ids["1.bias"] > ids["3.bias"][:, None]
    assert later.any()
    assert not gradient[later].any()


def test_float32_is_within_its_tolerance():
    """What is used in practice: a layer without masks rounds otherwise, no more."""
    module = build_model("mnist-cnn", 3, 1, (28, 28))
    images = torch.rand(6, 1, 28, 28)
    nodes = read_nodes(module.eval(), images)
    layout = nodes.layout(module, (0.5, 0.3, 0.2), numpy_rng(0, "assignment"))
    theta = layout.spread(dict(module.named_parameters()))
    k = torch.tensor([0, 1, 2, 3, 1, 2])
    logits = mixed_forward(module, nodes, layout, layout.leaves(theta), images, k)
    for j in range(4):
        values = subnetwork(theta, torch.zeros_like(theta), layout.ids, j)
        expected = functional_call(module, layout.merge(layout.leaves(values)), images[k == j])
        torch.testing.assert_close(logits[k == j], expected)
