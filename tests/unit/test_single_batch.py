"""One pass over several subnetworks gives what a pass for each of them gives."""

# L11 is the number of an acceptance test.

import pytest
import torch
from both_ways import both_ways
from torch import nn
from torch.func import functional_call

from fedpart.layout import subnetwork
from fedpart.models import build_model, swap_dropout
from fedpart.nodes import read_nodes
from fedpart.single_batch import mixed_forward
from fedpart.streams import numpy_rng


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
