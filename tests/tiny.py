"""Small models, settings, data and replies that the tests of the numerical core share."""

import os
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from fedpart.client import ClientReply
from fedpart.config import Config, make_config
from fedpart.data import FederatedData
from fedpart.layout import Entry, Layout
from fedpart.program import Program, build_program
from fedpart.psi import HyperSpec
from fedpart.run_folder import RunFolder

SIDE = 12
CLASSES = 3


def small_cnn(num_classes: int, in_channels: int) -> nn.Module:
    """One convolution, one dropout, one linear layer, for 12x12 images."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(4 * 6 * 6, num_classes),
    )


def norm_cnn(num_classes: int, in_channels: int) -> nn.Module:
    """As ``small_cnn``, with a GroupNorm, whose scale and bias are affine parameters."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 6 * 6, num_classes),
    )


def linear(num_classes: int, in_channels: int) -> nn.Module:
    """Logits linear in the 2x2 pixels, behind dropout: small enough for a NumPy twin."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(4 * in_channels, num_classes))


class _Twins(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(num_classes, SIDE * SIDE) / SIDE)
        self.two = nn.Parameter(torch.randn(num_classes, SIDE * SIDE) / SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.flatten(1), self.one + self.two)


def twins(num_classes: int, in_channels: int) -> nn.Module:
    """Two weights that are only used as their sum, so that autograd gives both one gradient."""
    return _Twins(num_classes)


class _Writer(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(SIDE * SIDE, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.out.weight.mul_(0.5)
        return self.out(x.flatten(1))


def writer(num_classes: int, in_channels: int) -> nn.Module:
    """Writes to its weights in every forward pass."""
    return _Writer(num_classes)


class _UnusedDropout(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(SIDE * SIDE, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x.flatten(1))


def unused_dropout(num_classes: int, in_channels: int) -> nn.Module:
    """Declares a dropout layer that its forward never calls."""
    return _UnusedDropout(num_classes)


class _GlobalNoise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x) if self.training else x


class _OwnNoise(nn.Module):
    hyperparameters: ClassVar = {"log_std": torch.exp}

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_std", torch.tensor(-3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return x + self.log_std.exp() * torch.randn(x.shape, generator=self.generator)


def global_noise(num_classes: int, in_channels: int) -> nn.Module:
    """Draws from torch's global generator."""
    return nn.Sequential(_GlobalNoise(), small_cnn(num_classes, in_channels))


def own_noise(num_classes: int, in_channels: int) -> nn.Module:
    """Draws from the generator that it is lent, by a function of torch's."""
    return nn.Sequential(_OwnNoise(), small_cnn(num_classes, in_channels))


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIDE * SIDE, 5), nn.Linear(SIDE * SIDE, 5)
        self.second.weight = self.first.weight
        # Stays as it is, though it differs from itself.
        self.register_buffer("missing", torch.tensor(float("nan")), persistent=False)
        self.out = nn.Linear(5, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.out(self.first(x.flatten(1)).relu() - self.second(x.flatten(1)).relu())


class Remembers(nn.Linear):
    """A layer that counts, in a buffer, how often it was called while training."""

    def __init__(self, num_classes: int, in_channels: int, leave: bool = False) -> None:
        super().__init__(SIDE * SIDE, num_classes)
        self.leave = leave
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        if self.leave:
            sys.exit("enough")
        self.calls += self.training
        return super().forward(x.flatten(1))


def leaves(num_classes: int, in_channels: int) -> nn.Module:
    """A network whose forward pass ends the process."""
    return Remembers(num_classes, in_channels, leave=True)


def frozen_twice(num_classes: int, in_channels: int) -> nn.Module:
    """A layer under two names whose weight is not trained."""
    inner = nn.Linear(5, 5)
    inner.weight.requires_grad_(False)
    first, last = nn.Linear(SIDE * SIDE, 5), nn.Linear(5, num_classes)
    return nn.Sequential(nn.Flatten(), first, inner, nn.ReLU(), inner, last)


def double(num_classes: int, in_channels: int) -> nn.Module:
    """Weights of another precision."""
    return small_cnn(num_classes, in_channels).double()


def exits(num_classes: int, in_channels: int) -> nn.Module:
    """A user's function from a script that ends its process."""
    sys.exit("enough")


def raises(num_classes: int, in_channels: int) -> nn.Module:
    """A user's function with a mistake."""
    raise RuntimeError("no weights on this planet")


def no_module(num_classes: int, in_channels: int) -> str:
    """A user's function that returns something else."""
    return "not a module"


def wrong_shape(num_classes: int, in_channels: int) -> nn.Module:
    """One output too many."""
    return small_cnn(num_classes + 1, in_channels)


def probabilities(num_classes: int, in_channels: int) -> nn.Module:
    """A softmax at its end."""
    return nn.Sequential(small_cnn(num_classes, in_channels), nn.Softmax(1))


def log_probabilities(num_classes: int, in_channels: int) -> nn.Module:
    """A softmax at its end, in logarithms, which are logits too."""
    return nn.Sequential(small_cnn(num_classes, in_channels), nn.LogSoftmax(1))


class _Squeezes(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.pool, self.out = nn.AdaptiveAvgPool2d((1, 4)), nn.Linear(4, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.pool(x).squeeze().flatten(1))


def squeezes(num_classes: int, in_channels: int) -> nn.Module:
    """Takes all sides of length 1 away, that of a batch of one image too."""
    return _Squeezes(num_classes)


def fails_forward(num_classes: int, in_channels: int) -> nn.Module:
    """A linear layer of the wrong width."""
    return nn.Sequential(nn.Flatten(), nn.Linear(7, num_classes))


def batch_norm(num_classes: int, in_channels: int) -> nn.Module:
    """Keeps running statistics."""
    return nn.Sequential(nn.Conv2d(in_channels, 4, 3), nn.BatchNorm2d(4), nn.Flatten())


def config(**changes: object) -> Config:
    """Settings of a run of seconds: 10 clients in chunks of 5, 3 and 2, two copies an image."""
    values: dict[str, object] = {
        "dataset": "mnist",
        "skew": "iid",
        "model": "tiny:small_cnn",
        "clients": 10,
        "clients_per_round": 10,
        "chunks": (0.5, 0.3, 0.2),
        "rounds": 3,
        "samples": 2,
        "batch_size": 4,
    }
    return make_config(values | changes)


def program(side: int = SIDE, **changes: object) -> Program:
    """Program of ``config(**changes)`` for grey images of ``side`` pixels and three classes."""
    return build_program(config(**changes), CLASSES, 1, (side, side))


def without_hyper_steps(built: Program) -> Program:
    """The same program with psi fixed: a learning rate that the settings do not allow."""
    return replace(built, config=built.config.model_copy(update={"hyper_lr": 0.0}))


def images(n: int, seed: int = 0, side: int = SIDE) -> tuple[np.ndarray, np.ndarray]:
    """Random images [n, 1, side, side] uint8 and labels [n] int64."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, 1, side, side), dtype=np.uint8)
    return pixels, rng.integers(0, CLASSES, n)


def data(clients: int = 10, seed: int = 0, side: int = SIDE) -> FederatedData:
    """Random images for clients of 3, 4, 5, ... of them, and eight for validation."""
    counts = [3 + i for i in range(clients)]
    x, y = images(sum(counts), seed, side)
    val_x, val_y = images(8, seed + 1000, side)
    stops = np.cumsum(counts)
    owned = tuple(np.arange(b - n, b) for n, b in zip(counts, stops, strict=True))
    return FederatedData(
        *("random", CLASSES, 1, x, y, None, owned, val_x, val_y, None, None, "random numbers")
    )


def write_idx(folder: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Write one half of MNIST's own files.

    Args:
        folder: where to.
        part: ``train`` or ``t10k``.
        images: [n, 28, 28] uint8.
        labels: [n] uint8.
    """
    head = struct.pack(">4I", 0x803, *images.shape)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
    head = struct.pack(">2I", 0x801, len(labels))
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def write_noise(folder: Path, train: int, test: int) -> None:
    """A data folder of noise: ``train`` training and ``test`` test images."""
    rng = np.random.default_rng(0)
    for part, n in (("train", train), ("t10k", test)):
        pixels = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        write_idx(folder, part, pixels, rng.integers(0, 10, n, dtype=np.uint8))


class Silent:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.rounds: list[tuple] = []

    def after_round(self, *told: object) -> None:
        self.rounds.append(told)


def reply(client_id: int, chunk: int, deltas: dict[int, torch.Tensor], **rest) -> ClientReply:
    """What a client of ``chunk`` sends back, as far as the server looks at it."""
    fields = {"hyper_gradient": None, "hyper_examples": 0, "server_round": 1} | rest
    return ClientReply(
        client_id=client_id,
        chunk=chunk,
        num_examples=5,
        deltas=deltas,
        train_loss=1.0,
        log_likelihood=None,
        seconds=0.0,
        **fields,
    )


def bare_program(ids: list[int], num_partitions: int, num_hyper: int = 0, **changes) -> Program:
    """A program without a network, for the server: partition of every scalar as given."""
    layout = Layout(
        [Entry("w", (len(ids),), "plain", 0, len(ids))],
        torch.tensor(ids, dtype=torch.uint8),
        num_partitions,
    )
    zeros = torch.zeros(len(ids))
    names = tuple(f"drop{i}.logit" for i in range(num_hyper))
    hyper = HyperSpec(None, names, (0.0,) * num_hyper)
    return Program(nn.Identity(), layout, zeros, zeros, hyper, config(**changes))


def release(folder: RunFolder) -> None:
    """What the kernel does with the lock of a process that has ended."""
    if folder._lock is not None:
        os.close(folder._lock)
        folder._lock = None
