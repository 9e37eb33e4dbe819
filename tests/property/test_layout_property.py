"""For any model and any shares: partitions tile the vector, and cutting it loses nothing."""

# L1 to L9 are the numbers of acceptance tests.

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from fedpart.errors import ConfigError
from fedpart.layout import Layout, insert, largest_remainder, subnetwork

SMALL = settings(max_examples=60, deadline=None)


@st.composite
def shares(draw):
    weights = draw(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    return [w / sum(weights) for w in weights]


class _Model(nn.Module):
    def __init__(self, shapes, channels):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)
        if channels:
            self.norm = nn.GroupNorm(1, channels)
        # Large enough for every partition to hold something most of the time.
        self.bulk = nn.Parameter(torch.randn(23))


@st.composite
def layouts(draw):
    shape = st.lists(st.integers(1, 4), min_size=0, max_size=4)
    shapes = draw(st.lists(shape, max_size=4))
    module = _Model(shapes, draw(st.integers(0, 3)))
    seed = draw(st.integers(0, 2**32 - 1))
    try:
        return module, Layout.build(module, draw(shares()), np.random.default_rng(seed))
    except ConfigError:
        assume(False)


def _vector(layout, seed=0):
    return torch.randn(layout.num_parameters, generator=torch.Generator().manual_seed(seed))


@SMALL
@given(st.integers(0, 2**24), shares())
def test_L3_largest_remainder_is_within_one_of_every_share(total, proportions):
    """Counts sum to the total, are not negative, and miss no share by one."""
    counts = largest_remainder(total, proportions)
    assert sum(counts) == total
    assert min(counts) >= 0
    assert all(abs(c - p * total) < 1 + 1e-6 for c, p in zip(counts, proportions, strict=True))


@SMALL
@given(layouts())
def test_partitions_tile_the_vector(made):
    """Every position in exactly one partition, ascending inside each."""
    _, layout = made
    indices = [layout.index(j) for j in range(layout.num_partitions)]
    assert [len(i) for i in indices] == list(layout.sizes)
    assert torch.equal(torch.cat(indices).sort().values, torch.arange(layout.num_parameters))
    for j, index in enumerate(indices):
        assert (layout.ids[index] == j).all()
        assert (index.diff() > 0).all()


@SMALL
@given(layouts())
def test_leaves_and_flatten_undo_each_other(made):
    """Both ways, with affine copies, and without sharing memory."""
    module, layout = made
    flat = _vector(layout)
    leaves = layout.leaves(flat)
    assert torch.equal(layout.flatten(leaves), flat)
    assert [tuple(t.shape) for t in layout.merge(leaves).values()] == [
        tuple(p.shape) for p in module.parameters()
    ]
    before = flat.clone()
    for leaf in leaves.values():
        leaf.zero_()
    assert torch.equal(flat, before)


@SMALL
@given(layouts())
def test_spread_and_merge_give_the_modules_parameters_back(made):
    """Exactly, since the other copies are one and zero."""
    module, layout = made
    own = dict(module.named_parameters())
    merged = layout.merge(layout.leaves(layout.spread(own)))
    assert all(torch.equal(merged[name], p.detach()) for name, p in own.items())


@SMALL
@given(layouts(), st.integers(0, 6))
def test_prefix_and_suffix_make_the_whole(made, k):
    """Wire order cut at partition k: what is kept and what is sent, put back, is the vector."""
    _, layout = made
    k = min(k, layout.num_partitions)
    flat = _vector(layout)
    wire, cut = flat[layout.order], sum(layout.sizes[:k])
    sent = [flat[layout.index(j)] for j in range(k, layout.num_partitions)]
    assert torch.equal(torch.cat([wire[:cut], *sent]), wire)
    back = torch.empty_like(flat)
    back[layout.order] = torch.cat([wire[:cut], *sent])
    assert torch.equal(back, flat)


@SMALL
@given(layouts(), st.integers(0, 6))
def test_subnetwork_mixes_values_and_defaults_by_partition(made, k):
    """Below k every entry of theta, from k on every default."""
    _, layout = made
    theta, default = _vector(layout, 1), _vector(layout, 2)
    mixed = subnetwork(theta, default, layout.ids, k)
    for j in range(layout.num_partitions):
        index = layout.index(j)
        assert torch.equal(mixed[index], (theta if j < k else default)[index])


@SMALL
@given(layouts(), st.integers(0, 5))
def test_gradient_outside_the_trained_partition_is_exactly_zero(made, j):
    """Values inserted into partition j get the dense gradient there, and the rest gets none."""
    _, layout = made
    j = min(j, layout.num_partitions - 1)
    index = layout.index(j)
    theta = _vector(layout).requires_grad_()
    weights = _vector(layout, 3)

    def loss(flat):
        merged = layout.merge(layout.leaves(flat))
        joined = torch.cat([t.reshape(-1) for t in merged.values()])
        return (joined**2 * weights[: len(joined)]).sum()

    values = theta.detach()[index].clone().requires_grad_()
    loss(insert(theta, index, values)).backward()
    assert theta.grad is None
    (dense,) = torch.autograd.grad(loss(theta), theta)
    torch.testing.assert_close(values.grad, dense[index])
    # A step along it writes nothing outside.
    moved = insert(theta, index, values.detach() - values.grad)
    outside = layout.ids != j
    assert torch.equal(moved[outside], theta.detach()[outside])
