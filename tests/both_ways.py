"""Several subnetworks in one batch, and a batch for each of them."""

import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedpart.layout import subnetwork
from fedpart.models import noise
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
