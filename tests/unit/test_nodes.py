"""Which units a network has, which partition each gets, and what cannot be had."""

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from fedpart.config import Config, make_config
from fedpart.errors import ConfigError
from fedpart.layout import subnetwork
from fedpart.models import MLP, MnistCNN, ResNet9, build_model, swap_dropout, try_out
from fedpart.nodes import read_nodes
from fedpart.streams import numpy_rng

SHARES = (0.5, 0.3, 0.2)


class _Net(nn.Module):
    """A convolution, something in between, and a linear layer."""

    def __init__(self, middle, channels=4):
        super().__init__()
        self.first, self.middle = nn.Conv2d(1, channels, 3, padding=1), middle
        self.out = nn.Linear(channels, 3)

    def forward(self, x):
        return self.out(self.middle(F.relu(self.first(x))).mean((2, 3)))


class _Do(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _written(x):
    y = torch.zeros(x.shape)
    y[:] = x
    return y


def _blank(side=8, channels=1):
    return torch.zeros(2, channels, side, side)


def _layout(module, images, shares=SHARES, seed=0):
    return read_nodes(module, images).layout(module, shares, numpy_rng(seed, "assignment"))


def _ids(layout):
    return {e.name: layout.ids[e.start : e.stop].view(-1, *e.shape) for e in layout.entries}


def test_units_of_the_digits_cnn():
    """Each layer's weights go by their outputs; the last by its inputs, its bias has copies."""
    module = MnistCNN()
    nodes = read_nodes(module, _blank(28))
    assert list(nodes.sizes.values()) == [20, 50, 500, 50]
    groups = {name: role.group for name, role in nodes.roles.items()}
    assert groups["fc1.weight"] == groups["fc1.bias"] != groups["conv2.weight"]
    assert groups["fc3.weight"] == groups["fc2.weight"]
    assert {name: r.dim for name, r in nodes.roles.items() if r.dim} == {"fc3.weight": 1}
    assert nodes.copied == {"fc3.bias"}


def test_shares_are_of_whole_units_and_follow_the_seed():
    """7, 2 and 1 of ten units; rows of one partition, the output layer's columns likewise."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 3))
    ids = _ids(_layout(module, _blank(), (0.7, 0.2, 0.1)))
    parts = ids["1.bias"][0]
    assert parts.bincount().tolist() == [7, 2, 1]
    assert torch.equal(ids["1.weight"][0], parts[:, None].expand(10, 64))
    assert torch.equal(ids["3.weight"][0], parts.expand(3, 10))
    assert ids["3.bias"].tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
    again, other = (_ids(_layout(module, _blank(), (0.7, 0.2, 0.1), seed)) for seed in (0, 1))
    assert torch.equal(again["1.bias"][0], parts)
    assert not torch.equal(other["1.bias"][0], parts)


def test_an_output_layer_behind_a_flattened_image_goes_by_channels():
    """All pixels of a channel have its partition."""
    ids = _ids(_layout(tiny.small_cnn(3, 1), _blank(12)))
    assert torch.equal(ids["4.weight"][0, 0], ids["0.bias"][0].repeat_interleave(36))


def test_added_channels_have_the_same_partition_and_norms_that_of_their_channel():
    """Both branches of a residual block; the layer between them is free."""
    ids = _ids(_layout(ResNet9(), _blank(8, 3)))
    into, inside, back = (
        f"features.{n}" for n in ("1.conv.weight", "2.first.conv.weight", "2.second.conv.weight")
    )
    parts = {n: ids[n][0, :, 0, 0, 0] for n in (into, inside, back)}
    assert torch.equal(parts[into], parts[back])
    assert not torch.equal(parts[into], parts[inside])
    for name in ("weight", "bias"):
        assert torch.equal(ids[f"features.2.first.norm.{name}"][0], parts[inside])


@pytest.mark.parametrize("tried", [False, True])
def test_layers_that_share_a_weight_share_their_units(tried):
    """A matrix used twice makes the same units both times."""
    twice = nn.Linear(6, 6)
    module = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), twice, nn.ReLU(), twice, nn.ReLU()),
        nn.Linear(6, 3),
    )
    if tried:
        # As before every run; torch puts nothing back into a layer that is held twice.
        try_out(module, "twice", 3, _blank())
    ids = _ids(_layout(module, _blank()))
    assert torch.equal(ids["1.bias"], ids["3.bias"])


@pytest.mark.parametrize("name", ["wide-resnet20", "resnet9-narrow", "resnet18"])
def test_units_beyond_a_subnetwork_are_zero_everywhere(name):
    """Zero weights alone silence them, behind GroupNorm and sums too; torchvision's net as well."""
    if name == "resnet18":
        resnet = pytest.importorskip("torchvision.models").resnet18
        module = resnet(num_classes=10, norm_layer=lambda n: nn.GroupNorm(2, n))
    else:
        module = build_model(name, 10, 3, (32, 32))
    swap_dropout(module, 0.1)
    layout = _layout(module, _blank(32, 3))
    theta = torch.randn(layout.num_parameters, generator=torch.Generator().manual_seed(0))
    ids, seen = _ids(layout), {}
    norms = {n: m for n, m in module.named_modules() if isinstance(m, nn.GroupNorm)}
    for norm_name, norm in norms.items():
        norm.register_forward_hook(lambda *told, n=norm_name: seen.__setitem__(n, told[-1]))
    for k in range(4):
        weights = layout.leaves(subnetwork(theta, torch.zeros_like(theta), layout.ids, k))
        functional_call(module, layout.merge(weights), torch.rand(2, 3, 32, 32))
        for norm_name, output in seen.items():
            has = ids[f"{norm_name}.weight"][0] < k
            assert (output[:, ~has] == 0).all()
            assert (output[:, has] != 0).any() or k == 0


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_subnetwork_is_the_smaller_network_of_its_units(name, k):
    """Built with fewer units and given the rows and columns that are left."""
    if name == "mlp":
        module, pixels = MLP(3, 64), 1
        parents = {"fc1": None, "fc2": "fc1", "fc3": "fc2"}
    else:
        module, pixels = MnistCNN(3), 49
        parents = {"conv1": None, "conv2": "conv1", "fc1": "conv2", "fc2": "fc1", "fc3": "fc2"}
    images = torch.rand(4, 1, *((8, 8) if name == "mlp" else (28, 28)))
    layout = _layout(module.eval(), images)
    theta = torch.randn(layout.num_parameters, generator=torch.Generator().manual_seed(0)) / 20
    weights = layout.merge(layout.leaves(subnetwork(theta, torch.zeros_like(theta), layout.ids, k)))
    expected = functional_call(module, weights, images)
    ids, smaller = _ids(layout), {}
    for layer, parent in parents.items():
        rows = ids[f"{layer}.bias"][0] < k if layer != "fc3" else torch.ones(3, dtype=torch.bool)
        weight = weights[f"{layer}.weight"][rows]
        if parent is not None:
            columns = ids[f"{parent}.bias"][0] < k
            if layer == "fc1":
                columns = columns.repeat_interleave(pixels)
            weight = weight[:, columns]
        smaller |= {f"{layer}.weight": weight, f"{layer}.bias": weights[f"{layer}.bias"][rows]}
    torch.testing.assert_close(functional_call(module, smaller, images), expected)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (_Net(nn.Sigmoid()), "its units go through sigmoid"),
        (_Net(nn.Softmax(1)), "its units go through softmax"),
        (_Net(nn.AlphaDropout(0.1)), "its units go through alpha_dropout"),
        (_Net(_Do(lambda x: x + 1)), "its units go through add with something else"),
        (_Net(_Do(lambda x: 1 / x)), "its units go through "),
        (_Net(_Do(lambda x: torch.div(x, 0.0))), "its units go through div"),
        (_Net(nn.Hardtanh(1.0, 2.0)), "its units go through hardtanh"),
        (_Net(_Do(lambda x: x.mean(1))), "its units go through mean"),
        (_Net(_Do(lambda x: x.mean(1, keepdim=True).expand_as(x))), "its units go through mean"),
        (_Net(_Do(lambda x: x.transpose(0, 1).transpose(0, 1))), "its units go through transpose"),
        (_Net(_Do(lambda x: torch.cat(x.chunk(2, 1), 1))), "its units go through chunk"),
        (_Net(_Do(lambda x: torch.cat([x], 1))), "its units go through cat"),
        (_Net(_Do(_written)), "its units go through setitem"),
        (_Net(nn.Conv2d(4, 4, 1, groups=2)), "conv2d of something else than all units"),
        (_Net(nn.GroupNorm(2, 4, affine=False)), "group_norm without a scale for each unit"),
        (_Net(nn.LayerNorm(8)), "layer_norm without a scale for each unit"),
        (_Net(nn.PReLU(4)), "its units go through prelu"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "an output layer sees images"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Softmax(1)), "go through softmax"),
        (tiny.twins(3, 1), "linear takes weights that are computed"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.LayerNorm(3)),
            "its outputs are also inputs of a layer or norm",
        ),
    ],
)
def test_what_is_not_understood_is_refused_and_named(module, why):
    """One sentence that says what the matter is, and what to do."""
    side = tiny.SIDE if isinstance(module, tiny._Twins) else 8
    with pytest.raises(ConfigError, match=why) as refused:
        read_nodes(module, _blank(side))
    assert str(refused.value).endswith("use --scheme random")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 2 * x / 3,
        lambda x: -x * torch.ones(1, 4, 1, 1),
        lambda x: x * x.tanh() - x,
        lambda x: x.clone().mul_(2).relu_(),
        lambda x: F.adaptive_avg_pool2d(x.contiguous(), 2),
        nn.Sequential(nn.Dropout2d(0.1), nn.AvgPool2d(2), nn.ELU()),
    ],
)
def test_what_keeps_units_apart_and_zero_at_zero_is_let_through(function):
    """Arithmetic, pooling, dropout, activations; in place too."""
    nodes = read_nodes(_Net(_Do(function)), _blank())
    assert set(nodes.roles) == {"first.weight", "first.bias", "out.weight"}


def test_parameters_that_no_unit_has_are_refused():
    """One that the forward pass never meets, for example."""
    module = _Net(nn.Identity())
    module.spare = nn.Parameter(torch.ones(2))
    with pytest.raises(ConfigError, match="parameter spare belongs to no unit"):
        read_nodes(module, _blank())


def test_a_layer_too_narrow_for_the_first_partition_is_refused():
    """Subnetwork 1 would be cut in two."""
    module = _Net(nn.Identity())
    with pytest.raises(ConfigError, match=r"a layer of 4 units has none for .* 0\.1"):
        _layout(module, _blank(), (0.1, 0.9))


def test_a_forward_pass_that_fails_in_training_only_is_told():
    """Eval mode was tried before."""
    module = _Net(nn.Identity())
    module.middle.register_forward_hook(lambda m, *_: 1 / 0 if m.training else None)
    with pytest.raises(ConfigError, match="in training it fails: ZeroDivisionError"):
        read_nodes(module.eval(), _blank())


def test_reading_leaves_the_network_as_it_was():
    """Mode, weights, and the noise of anyone else."""
    module = _Net(nn.Dropout(0.1)).eval()
    before = {n: p.clone() for n, p in module.named_parameters()}
    read_nodes(module, _blank())
    assert not module.training
    assert all(torch.equal(p, before[n]) for n, p in module.named_parameters())


def test_scheme_node_takes_zero_as_default_and_no_other():
    assert make_config({"scheme": "node"}).defaults == "zero"
    assert make_config({}).defaults == Config().defaults == "init"
    with pytest.raises(ConfigError, match=r"defaults is 'init'.* use zero"):
        make_config({"scheme": "node", "defaults": "init"})


def test_a_program_of_units():
    """Partitions are of units, and what a subnetwork lacks is zero; logits of subnetwork 0 are."""
    program = tiny.program(scheme="node")
    ids = _ids(program.layout)
    assert torch.equal(ids["0.weight"][0, :, 0, 0, 0], ids["0.bias"][0])
    assert not program.default.any()
    with pytest.raises(ConfigError, match="no node partitioning"):
        tiny.program(scheme="node", model="tiny:twins")
