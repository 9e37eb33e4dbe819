"""The paper's larger networks: sizes, where dropout stands, what FixUp starts from."""

import pytest
import torch
from torch import nn

from fedpart.layout import affine_roles
from fedpart.models import MLP, FixupResNet, ResNet9, ResNet9Narrow, WideResNet, build_model
from fedpart.models.dropout import ConcreteDropout, swap_dropout
from fedpart.models.resnet9 import Residual


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        (lambda: ResNet9(), 6_573_120),
        (lambda: ResNet9Narrow(), 2_447_946),
        (lambda: FixupResNet(8), 74_827),
        (lambda: FixupResNet(14), 171_610),
        (lambda: WideResNet(20, 1), 272_282),
        (lambda: WideResNet(20, 2), 1_079_642),
        (lambda: WideResNet(20, 4), 4_298_970),
        (lambda: WideResNet(20, 10), 26_797_914),
        (lambda: WideResNet(50, 1, 200), 770_712),
        (lambda: MLP(1, 30), 73_985),
        (lambda: MLP(2, 30), 74_242),
    ],
)
def test_number_of_parameters(build, parameters):
    """As counted by hand from the description, affine parameters once."""
    assert sum(p.numel() for p in build().parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "classes", "channels", "side"),
    [
        ("resnet9", 10, 3, 32),
        ("resnet9-narrow", 10, 3, 32),
        ("fixup-resnet8", 10, 3, 32),
        ("fixup-resnet14", 10, 1, 28),
        ("wide-resnet20", 10, 3, 32),
        ("resnet50", 200, 3, 64),
        ("mlp", 4, 3, 5),
    ],
)
def test_logits_by_name(name, classes, channels, side):
    """Each name gives a network for any number of classes and channels."""
    network = build_model(name, classes, channels, (side, side))
    assert network(torch.rand(2, channels, side, side)).shape == (2, classes)


@pytest.mark.parametrize("network", [ResNet9(), ResNet9Narrow()])
def test_dropout_stands_between_the_convolutions_of_each_residual_block(network):
    """Two logits, each in a block, and its noise reaches the second convolution only."""
    names = swap_dropout(network, 0.5)
    assert names == ["features.2.dropout.logit", "features.5.dropout.logit"]
    block = network.features[2]
    assert isinstance(block, Residual)
    seen = {}
    for part in ("first", "dropout", "second"):
        getattr(block, part).register_forward_hook(
            lambda _, given, out, part=part: seen.update({part: (given[0], out)})
        )
    x = torch.rand(1, 128, 4, 4)
    out = block.train()(x)
    assert isinstance(block.dropout, ConcreteDropout)
    assert seen["first"][0] is x
    assert seen["dropout"][0] is seen["first"][1]
    assert seen["second"][0] is seen["dropout"][1]
    assert torch.equal(out, x + seen["second"][1])


def test_pooling_before_the_relu_changes_nothing():
    """Against the order of the description: convolution, norm, ReLU, pooling."""
    layer = ResNet9().features[1]
    x = torch.randn(2, 64, 8, 8)
    described = nn.functional.max_pool2d(nn.functional.relu(layer.norm(layer.conv(x))), 2)
    assert torch.equal(layer(x), described)


def test_fixup_has_scalar_scales_and_biases_with_their_roles():
    """17 at depth 8, 32 at depth 14; each one number; weights of layers are not among them."""
    for depth, scalars in ((8, 17), (14, 32)):
        network = FixupResNet(depth)
        roles, own = affine_roles(network), dict(network.named_parameters())
        assert len(roles) == scalars
        assert all(own[name].shape == (1,) for name in roles)
        assert {name.rsplit(".", 2)[-2] for name, r in roles.items() if r == "product"} == {"scale"}
        for name, role in roles.items():
            assert float(own[name].detach()) == (1 if role == "product" else 0)


def test_fixup_starts_as_the_identity_that_predicts_nothing():
    """Second convolutions and the last layer at zero, first ones spread by depth."""
    network = FixupResNet(14)
    assert not network(torch.rand(2, 3, 32, 32)).any()
    for block in network.blocks:
        assert not block.conv2.weight.any()
        expected = (2 / (block.conv1.out_channels * 9)) ** 0.5 * 6**-0.5
        assert float(block.conv1.weight.detach().std()) == pytest.approx(expected, rel=0.1)
        x = torch.rand(1, block.conv1.in_channels, 4, 4)
        out, channels = block(x), block.conv1.in_channels
        assert torch.equal(out[:, :channels], x[:, :, :: block.stride, :: block.stride])
        assert not out[:, channels:].any()
