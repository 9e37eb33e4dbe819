"""Partitions, subnetworks and affine copies."""

# L1 to L9 are the numbers of acceptance tests.

import pytest
import tiny
import torch
from torch import nn

from fedpart.errors import ConfigError
from fedpart.layout import Layout, affine_roles, insert, largest_remainder, subnetwork
from fedpart.server import initial_state, server_update
from fedpart.streams import numpy_rng


class _Scaled(nn.Module):
    """A FixUp-like module that names its own affine parameters."""

    partitioned_affine = {"scale": "product", "shift": "sum"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.randn(10))


def _build(module, proportions=(0.5, 0.3, 0.2), seed=0):
    return Layout.build(module, proportions, numpy_rng(seed, "assignment"))


def test_L3_every_tensor_is_split_in_proportion_and_all_of_it():
    """Within one scalar of its share in each tensor, from the seed alone, covering everything."""
    module, proportions = tiny.small_cnn(3, 1), (0.5, 0.3, 0.2)
    layout = _build(module, proportions)
    for e in layout.entries:
        ids, n = layout.ids[e.start : e.stop], e.stop - e.start
        for j, share in enumerate(proportions):
            assert abs(int((ids == j).sum()) - share * n) < 1
    assert layout.num_parameters == sum(p.numel() for p in module.parameters())
    assert sum(layout.sizes) == layout.num_parameters
    covered = torch.cat([layout.index(j) for j in range(3)]).sort().values
    assert torch.equal(covered, torch.arange(layout.num_parameters))
    assert torch.equal(layout.ids, _build(module, proportions).ids)
    assert not torch.equal(layout.ids, _build(module, proportions, seed=1).ids)


def test_assignment_is_elementwise_and_not_in_runs():
    """Scalars of one partition lie scattered over a tensor, inside kernels too."""
    layout = _build(tiny.small_cnn(3, 1))
    weight = next(e for e in layout.entries if e.name == "4.weight")
    rows = layout.ids[weight.start : weight.stop].view(weight.shape)
    assert all(len(row.unique()) == 3 for row in rows)


def test_ties_and_millionths_do_not_lose_scalars():
    """Equal remainders go to the lowest index; shares that miss 1 by 1e-6 fill the total."""
    assert largest_remainder(2, (0.7, 0.2, 0.1)) == [2, 0, 0]
    assert largest_remainder(10_000_000, (0.3333331, 0.333333, 0.333333)) == [
        3_333_334,
        3_333_333,
        3_333_333,
    ]
    assert sum(largest_remainder(10_000_000, (0.5000001, 0.5000008))) == 10_000_000


def test_subnetwork_takes_learned_values_below_k_and_defaults_above():
    """Subnetwork 0 is all default, subnetwork C is theta."""
    ids = torch.tensor([0, 2, 1, 0], dtype=torch.uint8)
    theta, default = torch.tensor([1.0, 2, 3, 4]), torch.tensor([-1.0, -2, -3, -4])
    expected = [[-1, -2, -3, -4], [1, -2, -3, 4], [1, -2, 3, 4], [1, 2, 3, 4]]
    assert [subnetwork(theta, default, ids, k).tolist() for k in range(4)] == expected


def test_insert_writes_one_partition_and_passes_gradient_to_it_alone():
    """gradcheck in float64 for the values; none reaches the rest of the vector."""
    theta = torch.arange(5, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([3, 1])
    values = torch.tensor([-1.0, 0.5], dtype=torch.float64, requires_grad=True)
    assert insert(theta, index, values).tolist() == [0, 0.5, 2, -1, 4]
    assert torch.autograd.gradcheck(lambda v: insert(theta, index, v).pow(2), (values,))
    insert(theta, index, values).sum().backward()
    assert theta.grad is None
    assert values.grad.tolist() == [1, 1]
    with pytest.raises(ValueError, match="1 values for 2 positions"):
        insert(theta, index, values[:1])


def test_more_than_255_partitions_are_refused():
    """An id is one byte."""
    with pytest.raises(ConfigError, match="256 partitions: at most 255"):
        _build(nn.Linear(100, 100), [1 / 256] * 256)


def test_an_empty_partition_is_refused():
    """Five scalars in all leave a share of one hundredth without any."""
    with pytest.raises(ConfigError, match="partition 1 of 2 would hold no parameter"):
        _build(nn.Linear(4, 1), (0.99, 0.01))


def test_a_model_without_parameters_is_refused():
    """There would be nothing to train."""
    with pytest.raises(ConfigError, match="no parameters"):
        _build(nn.Flatten())


def test_small_tensors_may_lack_a_partition():
    """A single scalar goes to the largest share, as long as no partition is empty overall."""
    layout = _build(nn.Linear(30, 1), (0.7, 0.2, 0.1))
    bias = layout.entries[1]
    assert layout.ids[bias.start : bias.stop].tolist() == [0]


def test_affine_roles_of_norm_layers_and_of_modules_that_name_their_own():
    """GroupNorm scales multiply and biases add; ``partitioned_affine`` says the same of others."""
    module = nn.Sequential(
        nn.GroupNorm(2, 4), nn.LayerNorm(3, bias=False), _Scaled(), nn.Conv2d(1, 1, 1)
    )
    assert affine_roles(module) == {
        "0.weight": "product",
        "0.bias": "sum",
        "1.weight": "product",
        "2.scale": "product",
        "2.shift": "sum",
    }


def test_L9_affine_copies_of_subnetwork_k_multiply_and_add():
    """With GroupNorm: s^(k) is the product of the first k copies, b^(k) their sum."""
    program = tiny.program(model="tiny:norm_cnn")
    layout = program.layout
    plain = sum(p.numel() for p in program.network.parameters())
    assert layout.num_parameters == plain + 2 * (4 + 4)
    theta = torch.randn(layout.num_parameters, generator=torch.Generator().manual_seed(0))
    copies = layout.leaves(theta)
    for k in range(4):
        merged = layout.merge(layout.leaves(subnetwork(theta, program.default, layout.ids, k)))
        torch.testing.assert_close(merged["1.weight"], copies["1.weight"][:k].prod(0))
        torch.testing.assert_close(merged["1.bias"], copies["1.bias"][:k].sum(0))


def test_L9_only_the_copies_of_partition_k_move_on_an_update_of_k():
    """A reply with partition 1 alone changes s_1 and b_1, and no other copy."""
    program = tiny.program(model="tiny:norm_cnn")
    layout, state = program.layout, initial_state(program)
    sent = {1: torch.ones(layout.sizes[1])}
    after = server_update(program, state, [tiny.reply(0, 1, sent)])
    before_leaves, after_leaves = layout.leaves(state.theta), layout.leaves(after.theta)
    for name in ("1.weight", "1.bias"):
        moved = (before_leaves[name] != after_leaves[name]).all(1)
        still = (before_leaves[name] == after_leaves[name]).all(1)
        assert moved.tolist() == [False, True, False]
        assert still.tolist() == [True, False, True]


@pytest.mark.parametrize("zero", [False, True])
def test_defaults_of_affine_copies_are_one_and_zero_whatever_the_rest_is(zero):
    """A zero scale would silence the network, so ``zero`` does not reach affine parameters."""
    module = tiny.norm_cnn(3, 1)
    nn.init.constant_(module[1].weight, 3.0)
    layout = _build(module)
    initial = layout.spread(dict(module.named_parameters()))
    default = layout.leaves(layout.defaults(initial, zero))
    assert default["1.weight"].unique().tolist() == [1.0]
    assert default["1.bias"].unique().tolist() == [0.0]
    expected = torch.zeros_like(module[0].weight) if zero else module[0].weight.detach()
    assert torch.equal(default["0.weight"], expected)


def test_spread_then_merge_gives_the_parameters_back():
    """Copy 0 holds the affine parameter, the others are neutral."""
    module = tiny.norm_cnn(3, 1)
    nn.init.normal_(module[1].weight, generator=torch.Generator().manual_seed(0))
    layout = _build(module)
    merged = layout.merge(layout.leaves(layout.spread(dict(module.named_parameters()))))
    for name, parameter in module.named_parameters():
        assert torch.equal(merged[name], parameter.detach())


def test_merge_is_differentiable_in_every_copy():
    """gradcheck in float64 of the product and of the sum, a zero scale among the copies."""
    layout = _build(nn.GroupNorm(1, 2), (0.5, 0.5))
    flat = torch.tensor([1.5, 0.0, -0.5, 2.0, 1.0, -1.0, 0.5, 0.25], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda v: tuple(layout.merge(layout.leaves(v)).values()), (flat.requires_grad_(),)
    )


def test_spread_names_the_parameter_that_does_not_fit():
    """A state dict of another model is refused with name and shapes."""
    layout = _build(nn.Linear(4, 3))
    with pytest.raises(ConfigError, match=r"parameter bias: found nothing, the model needs \(3,\)"):
        layout.spread({"weight": torch.zeros(3, 4)})
    with pytest.raises(ConfigError, match=r"parameter weight: found \(4, 3\)"):
        layout.spread({"weight": torch.zeros(4, 3), "bias": torch.zeros(3)})
