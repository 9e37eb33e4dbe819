"""Gradients of the likelihood: equation (3) in the weights, equation (4) in psi."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpart.augment import augerino_reward, natural_widths
from fedpart.likelihood import Partitioned, log_likelihood


def weight_gradient(
    program: Partitioned,
    leaves: Mapping[str, Tensor],
    hyper: Tensor,
    images: Tensor,
    labels: Tensor,
    rng: torch.Generator,
) -> tuple[Tensor, float]:
    """Gradient of the mean negative log-likelihood of one batch in all weights.

    Args:
        program: shared by all.
        leaves: the subnetwork's weights, see ``Partitioned.leaves``.
        hyper: psi, [H], constant here.
        images: the batch, [b, c, h, w].
        labels: [b].
        rng: noise of augmentation and dropout.
    Returns:
        [P], and the loss in nats.
    Source: equation (3), psi held fixed.
    """
    total, loss = None, 0.0
    for leaf in leaves.values():
        leaf.requires_grad_()
    for x, y in program.micro_batches(images, labels):
        merged = program.layout.merge(leaves)
        likelihood, _ = log_likelihood(program, merged, hyper, x, y, rng)
        part = -likelihood.sum() / len(labels)
        grads = torch.autograd.grad(part, list(leaves.values()), materialize_grads=True)
        loss += float(part.detach())
        gradient = program.layout.flatten(dict(zip(leaves, grads, strict=True)))
        total = gradient if total is None else total.add_(gradient)
    assert total is not None  # a batch is never empty
    return total, loss


def reward_gradient(program: Partitioned, hyper: Tensor, safe: bool = True) -> Tensor:
    """Gradient of ``augerino_reward`` in psi, [H].

    Args:
        program: whose augmentation has widths.
        hyper: psi, [H].
        safe: see ``augerino_reward``.
    Raises:
        TypeError: an augmentation without widths.
    """
    hyper = hyper.clone().requires_grad_()
    widths = natural_widths(program.hyper.augmentation, program.hyper.split(hyper)[0])
    return torch.autograd.grad(augerino_reward(widths, safe), hyper)[0]


def psi_gradient(
    program: Partitioned,
    leaves: Mapping[str, Tensor],
    hyper: Tensor,
    images: Tensor,
    labels: Tensor,
    rng: torch.Generator,
) -> tuple[Tensor, float]:
    """Gradient of the mean negative log-likelihood of one batch in psi, weights held fixed.

    Args:
        program: shared by all.
        leaves: weights of a subnetwork that has not seen the batch, see ``Partitioned.leaves``.
        hyper: psi, [H].
        images: the batch, [b, c, h, w].
        labels: [b].
        rng: noise of augmentation and dropout.
    Returns:
        [H], and the loss in nats.
    Source: equation (4).
    """
    parameters = program.layout.merge({name: leaf.detach() for name, leaf in leaves.items()})
    hyper = hyper.clone().requires_grad_()
    gradient, loss = torch.zeros_like(hyper), 0.0
    for x, y in program.micro_batches(images, labels):
        likelihood, _ = log_likelihood(program, parameters, hyper, x, y, rng)
        part = -likelihood.sum() / len(labels)
        # A model may declare dropout and never call it: no graph then leads to psi.
        if part.requires_grad:
            gradient += torch.autograd.grad(part, hyper)[0]
        loss += float(part.detach())
    return gradient, loss
