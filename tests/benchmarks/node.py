"""What one batch over several subnetworks saves beside a batch for each of them."""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedpart.layout import subnetwork
from fedpart.models.build import MODELS
from fedpart.nodes import read_nodes
from fedpart.runtime import prepare_process
from fedpart.single_batch import mixed_forward
from tests.benchmarks.workloads import spread

SHARES = (0.7, 0.2, 0.1)


def _contestants(
    name: str, channels: int, side: int, batch: int
) -> dict[str, Callable[[], Tensor]]:
    torch.manual_seed(0)
    network = MODELS[name](10, channels, (side, side)).eval()
    images, labels = torch.rand(batch, channels, side, side), torch.randint(10, (batch,))
    nodes = read_nodes(network, images[:2])
    layout = nodes.layout(network, SHARES, np.random.default_rng(0))
    theta = layout.spread(dict(network.named_parameters()))
    default = layout.defaults(theta, zero=True)
    # As many examples of each subnetwork as its chunk has, at least one.
    k = 1 + torch.searchsorted(torch.tensor(SHARES).cumsum(0), (torch.arange(batch) + 0.5) / batch)

    def gradient(leaves: dict[str, Tensor], logits: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(logits, y, reduction="sum") / batch
        found = torch.autograd.grad(loss, list(leaves.values()))
        return layout.flatten(dict(zip(leaves, found, strict=True)))

    def single() -> Tensor:
        leaves = {n: t.requires_grad_() for n, t in layout.leaves(theta).items()}
        return gradient(leaves, mixed_forward(network, nodes, layout, leaves, images, k), labels)

    def one(j: int, mine: Tensor) -> Tensor:
        flat = subnetwork(theta, default, layout.ids, j)
        leaves = {n: t.requires_grad_() for n, t in layout.leaves(flat).items()}
        logits = functional_call(network, layout.merge(leaves), images[mine])
        return gradient(leaves, logits, labels[mine])

    def separate() -> Tensor:
        total = torch.zeros_like(theta)
        for j in range(1, len(SHARES) + 1):
            own = layout.index(j - 1)
            total[own] = one(j, k == j)[own]
        return total

    torch.testing.assert_close(single(), separate(), rtol=1e-4, atol=1e-6)
    everything = torch.ones(batch, dtype=torch.bool)
    return {
        "a batch for each": separate,
        "single batch": single,
        "plain batch, whole network": lambda: one(len(SHARES), everything),
    }


def node(quick: bool) -> dict[str, object]:
    """Gradients of three subnetworks, chunks 0.7, 0.2, 0.1: one batch, or one for each.

    Weights made of theta and gradients are counted, augmentation and steps are not; beside them, a
    batch as large through the whole network without masks.
    """
    prepare_process()
    record: dict[str, object] = {}
    for name, channels, side, batch in (
        *(("mlp", 1, 28, 64), ("mnist-cnn", 1, 28, 20), ("mnist-cnn", 1, 28, 64)),
        ("resnet9-narrow", 3, 32, 16),
    ):
        contestants = _contestants(name, channels, side, batch)
        seconds: dict[str, list[float]] = {n: [] for n in contestants}
        for _ in range(3 if quick else 25):
            for contestant, compute in contestants.items():
                started = time.perf_counter()
                compute()
                seconds[contestant].append(time.perf_counter() - started)
        below = statistics.median(seconds["a batch for each"])
        record[f"{name}, {batch} images"] = {n: spread(s) for n, s in seconds.items()} | {
            f"{n} / a batch for each": statistics.median(s) / below
            for n, s in seconds.items()
            if n != "a batch for each"
        }
    return record
