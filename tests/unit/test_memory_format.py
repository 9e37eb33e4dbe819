"""Custom networks train as in plain PyTorch, however they depend on the order of memory."""

from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from torchvision.models import resnet18

from fedpart.central import Training, make_settings
from fedpart.client import ClientTask, client_update
from fedpart.errors import ConfigError
from fedpart.gradients import weight_gradient
from fedpart.likelihood import allows_channels_last
from fedpart.models import MODELS
from fedpart.program import build_program, noise_images
from fedpart.server import assign_chunks, initial_state
from fedpart.side_by_side import check_side_by_side, cohort_update

SIDE = 16
FLAT = 4 * (SIDE - 2) ** 2


class Cifar(nn.Module):
    """The network of PyTorch's CIFAR10 tutorial, for images of 16 by 16 pixels."""

    def __init__(self, num_classes, in_channels, flatten=None):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(in_channels, 6, 5), nn.Conv2d(6, 16, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2 = nn.Linear(16 * 2 * 2, 84), nn.Linear(84, num_classes)
        self.flatten = flatten or (lambda x: torch.flatten(x, 1))

    def forward(self, x):
        x = self.pool(F.relu(self.conv2(self.pool(F.relu(self.conv1(x))))))
        return self.fc2(F.relu(self.fc1(self.flatten(x))))


def viewed(num_classes, in_channels):
    return Cifar(num_classes, in_channels, lambda x: x.view(-1, 16 * 2 * 2))


def flattened(num_classes, in_channels):
    return Cifar(num_classes, in_channels)


def reshaped(num_classes, in_channels):
    return Cifar(num_classes, in_channels, lambda x: x.reshape(len(x), -1))


def permuted(num_classes, in_channels):
    return Cifar(num_classes, in_channels, lambda x: x.permute(0, 2, 3, 1).flatten(1))


def strided(num_classes, in_channels):
    """Raises in no order, and computes something else where channels are last."""
    return Cifar(
        num_classes, in_channels, lambda x: torch.as_strided(x, (len(x), 64), (64, 1)).clone()
    )


class Rows(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.lstm = nn.LSTM(SIDE * in_channels, 8, batch_first=True)
        self.out = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.out(self.lstm(x.view(len(x), SIDE, -1))[0][:, -1])


def resnet(num_classes, in_channels):
    model = resnet18(num_classes=num_classes, norm_layer=lambda n: nn.GroupNorm(2, n))
    model.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
    return model


# Whether channels may be last.
NETWORKS = {
    "viewed": False,
    "flattened": True,
    "reshaped": True,
    "permuted": True,
    "strided": False,
    "Rows": True,
    "resnet": True,
}
NAMES = [name for name in NETWORKS if name != "Rows"]


def side(name):
    """Of a map of one pixel, PyTorch's gradient in bfloat16 holds what was never written."""
    return 64 if name == "resnet" else SIDE


def build(name, **changes):
    return tiny.program(side(name), model=f"{__name__}:{name}", **changes)


def owned(name):
    return tiny.data(clients=3, side=side(name))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_channels_are_last_only_where_nothing_depends_on_it(name, precision):
    assert build(name, precision=precision).channels_last is NETWORKS[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_is_that_of_plain_pytorch(name):
    built = build(name, method="fedavg", dropout=0)
    images, labels = noise_images(1, (side(name),) * 2), torch.tensor([2, 0])
    found, loss = weight_gradient(
        built, built.leaves(built.initial), built.hyper.initial(), images, labels, torch.Generator()
    )
    plain = build(name, method="fedavg", dropout=0).network
    expected = F.cross_entropy(plain(images), labels)
    gradients = torch.autograd.grad(expected, list(plain.parameters()))
    named = dict(zip(dict(plain.named_parameters()), gradients, strict=True))
    torch.testing.assert_close(loss, expected.item(), rtol=1e-5, atol=0)
    torch.testing.assert_close(found, built.layout.flatten(named), rtol=1e-3, atol=1e-5)


def tasks(built):
    chunks, state = assign_chunks(built.config), initial_state(built)
    return [ClientTask(1, i, int(chunks[i]), state.theta, state.hyper) for i in range(3)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["partitioned", "fedavg", "augerino"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_client_trains(name, method, precision):
    built, data = build(name, method=method, precision=precision), owned(name)
    for task in tasks(built)[: 1 if name == "resnet" else 3]:
        reply = client_update(built, task, *data.client(task.client_id))
        assert all(delta.isfinite().all() and delta.any() for delta in reply.deltas.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_clients_train_side_by_side(name, precision):
    """All but the LSTM, which PyTorch cannot batch over clients."""
    built, data = build(name, precision=precision, clients_at_once=2), owned(name)
    check_side_by_side(built, data)
    for reply in cohort_update(built, tasks(built)[:2], data):
        assert all(delta.isfinite().all() and delta.any() for delta in reply.deltas.values())


def test_a_network_that_cannot_be_batched_is_refused_in_one_sentence():
    with pytest.raises(ConfigError, match="cannot be batched over clients"):
        check_side_by_side(build("Rows", clients_at_once=2), tiny.data(side=SIDE))


@pytest.mark.parametrize("name", NETWORKS)
def test_trains_in_one_place(name):
    inputs, labels = torch.rand(20, 1, side(name), side(name)), torch.arange(20) % tiny.CLASSES
    settings = make_settings(chunks=(0.5, 0.5), iterations=2, batch_size=4)
    network = globals()[name](tiny.CLASSES, 1)
    training = Training(network, TensorDataset(inputs, labels), settings)
    assert training.program.channels_last is NETWORKS[name]
    before = training.state.theta
    training.run()
    assert not training.state.theta.equal(before)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_built_in_networks_have_channels_last(name, precision):
    """They are not tried, but would pass."""
    shape = (1, (28, 28)) if name == "mnist-cnn" else (3, (32, 32))
    config = tiny.config(model=name, precision=precision)
    built = build_program(config, 10, *shape)
    assert built.channels_last
    assert allows_channels_last(built, built.hyper.initial(), noise_images(*shape), name)


class Doubles(nn.Linear):
    """A product of two types where weights are bfloat16, which autocast does not know."""

    def __init__(self, num_classes, in_channels):
        super().__init__(SIDE * SIDE * in_channels, num_classes)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return x.flatten(1) @ self.weight.t() + self.bias


def test_a_network_that_fails_in_the_precision_of_the_run_is_refused():
    assert build("Doubles").channels_last
    with pytest.raises(ConfigError, match=r"precision bf16 and model '.*Doubles': RuntimeError"):
        build("Doubles", precision="bf16")


def test_what_normalises_its_input_is_not_refused():
    """On blank images it would give 0 / 0, which clients never have."""
    built = build("Normalises")
    assert built.channels_last
    reply = client_update(built, tasks(built)[0], *tiny.data(side=SIDE).client(0))
    assert all(delta.isfinite().all() for delta in reply.deltas.values())


class Normalises(nn.Linear):
    def __init__(self, num_classes, in_channels):
        super().__init__(SIDE * SIDE * in_channels, num_classes)

    def forward(self, x):
        x = x.flatten(1)
        return super().forward((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))


def test_an_image_of_another_order_reaches_the_network_contiguous():
    """What an augmentation leaves transposed, ``view`` takes as plain PyTorch's loaders give it."""
    built = build("viewed", samples=1)
    images = noise_images(1, (SIDE, SIDE)).transpose(2, 3)
    bare = replace(built, hyper=replace(built.hyper, augmentation=None))
    gradient, _ = weight_gradient(
        *(bare, bare.leaves(bare.initial), bare.hyper.initial()),
        images,
        torch.tensor([0, 1]),
        torch.Generator(),
    )
    assert gradient.isfinite().all()
