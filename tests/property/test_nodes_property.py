"""For any stack of layers, shares and subnetworks: nodes hold together."""

from itertools import pairwise

import torch
from both_ways import both_ways
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from fedpart.errors import ConfigError
from fedpart.layout import subnetwork
from fedpart.nodes import read_nodes
from fedpart.streams import numpy_rng

SMALL = settings(max_examples=25, deadline=None)
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU)
NORMS = (
    lambda n: nn.GroupNorm(2, n),
    lambda n: nn.LayerNorm((n, 4, 4)),
    lambda n: nn.RMSNorm((n, 4, 4)),
    lambda n: nn.Identity(),
)


class _Stack(nn.Module):
    """Convolutions with norms, some of them residual; a linear layer or two; logits."""

    def __init__(self, blocks, hidden):
        super().__init__()
        self.blocks, before = nn.ModuleList(), 1
        for width, norm, activation, bias, residual in blocks:
            conv = nn.Conv2d(before, width, 3, padding=1, bias=bias)
            block = nn.Sequential(conv, NORMS[norm](width), ACTIVATIONS[activation]())
            block.residual = residual and width == before
            self.blocks.append(block)
            before = width
        sizes = [before * 16, *hidden]
        layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
        self.head = nn.Sequential(*layers, nn.Linear(sizes[-1], 3))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x) if block.residual else block(x)
        return self.head(x.flatten(1))


@st.composite
def stacks(draw):
    width = st.sampled_from([2, 4, 6])
    block = st.tuples(width, st.integers(0, 3), st.integers(0, 3), st.booleans(), st.booleans())
    blocks = draw(st.lists(block, min_size=1, max_size=4))
    return _Stack(blocks, draw(st.lists(st.integers(2, 6), max_size=2)))


shares = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(
    lambda ws: tuple(w / sum(ws) for w in sorted(ws, reverse=True))
)


def _images(n):
    return torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(n)).double()


@SMALL
@given(stacks(), shares, st.lists(st.integers(0, 4), min_size=2, max_size=6))
def test_one_batch_equals_a_batch_for_each_subnetwork(module, proportions, wanted):
    """Logits and gradients."""
    k = torch.tensor([min(j, len(proportions)) for j in wanted])
    try:
        single, separate, _ = both_ways(module, _images(len(k)), k, proportions)
    except ConfigError:
        assume(False)
    torch.testing.assert_close(single, separate, rtol=1e-8, atol=1e-9)


@SMALL
@given(stacks(), shares, st.integers(0, 4))
def test_weights_that_read_units_beyond_a_subnetwork_do_not_matter(module, proportions, k):
    """Whatever stands in the columns of units that it lacks, it says the same."""
    module = module.double()
    try:
        nodes = read_nodes(module, _images(2))
        layout = nodes.layout(module, proportions, numpy_rng(0, "assignment"))
    except ConfigError:
        assume(False)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(layout.num_parameters, generator=generator).double()
    values = subnetwork(theta, torch.zeros_like(theta), layout.ids, min(k, len(proportions)))
    weights = layout.merge(layout.leaves(values))
    expected = functional_call(module, weights, _images(3))
    convs = [n for n, m in module.named_modules() if isinstance(m, nn.Conv2d)]
    ids = {e.name: layout.ids[e.start : e.stop].view(-1, *e.shape)[0] for e in layout.entries}
    for before, after in pairwise(convs):
        lacks = ids[f"{before}.weight"][:, 0, 0, 0] >= k
        weights[f"{after}.weight"][:, lacks] = 1e3
    torch.testing.assert_close(functional_call(module, weights, _images(3)), expected)
