"""The client program: train partitions ``chunk..C-1``, and measure the gradient of psi."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpart.data import to_float
from fedpart.layout import insert, subnetwork
from fedpart.program import Program, global_seed, log_likelihood
from fedpart.streams import numpy_rng, torch_rng, torch_seed


@dataclass(frozen=True)
class ClientTask:
    """What the server sends to one client.

    Attributes:
        server_round: counted from 1.
        client_id: 0..clients-1.
        chunk: the client's chunk, 0..C-1.
        theta: every parameter, [P] float32.
        hyper: psi, [H] float32.
    """

    server_round: int
    client_id: int
    chunk: int
    theta: Tensor
    hyper: Tensor


@dataclass(frozen=True)
class ClientReply:
    """What the client sends back.

    Attributes:
        server_round: the round it answers.
        client_id: who answers.
        chunk: the client's chunk.
        num_examples: images the client has.
        deltas: partition -> trained minus received values, [n_j] in wire order.
        hyper_gradient: gradient of the mean negative log-likelihood in psi, [H]; None for chunk 0.
        hyper_examples: images behind that gradient.
        train_loss: mean training loss over steps and partitions, nats an example.
        log_likelihood: mean out-of-sample log-likelihood, nats an example; None for chunk 0.
        seconds: time it took.
    """

    server_round: int
    client_id: int
    chunk: int
    num_examples: int
    deltas: dict[int, Tensor]
    hyper_gradient: Tensor | None
    hyper_examples: int
    train_loss: float
    log_likelihood: float | None
    seconds: float


def client_update(
    program: Program,
    task: ClientTask,
    images: np.ndarray,
    labels: np.ndarray,
) -> ClientReply:
    """One client's work in one round.

    Every partition ``j >= chunk`` starts from the server's values and is trained on its own, the
    others staying as received; the gradient of psi goes through the subnetwork that has never
    seen this chunk, so it does not depend on the training at all.

    Args:
        program: shared by all.
        task: what the server sent.
        images: the client's, [n, c, h, w] uint8.
        labels: [n] int64.
    Raises:
        ValueError: a client without images.
    Source: Appendix H, "Updating network partitions" and "Updating hyperparameters".
    """
    started = time.perf_counter()
    if len(labels) == 0:
        raise ValueError(f"client {task.client_id} has no images")
    x, y = to_float(images), torch.from_numpy(np.ascontiguousarray(labels))
    key = (task.server_round, task.client_id)
    with global_seed(torch_seed(program.config.seed, "client", *key)):
        gradient, likelihood, examples = None, None, 0
        if task.chunk >= 1 and program.hyper.size:
            gradient, likelihood, examples = hyper_gradient(program, task, x, y)
        deltas, losses = {}, []
        for partition in range(task.chunk, program.layout.num_partitions):
            deltas[partition], loss = train_partition(program, task, partition, x, y)
            losses.append(loss)
    return ClientReply(
        *(task.server_round, task.client_id, task.chunk, len(y), deltas, gradient, examples),
        train_loss=float(np.mean(losses)),
        log_likelihood=likelihood,
        seconds=time.perf_counter() - started,
    )


def train_partition(
    program: Program, task: ClientTask, partition: int, images: Tensor, labels: Tensor
) -> tuple[Tensor, float]:
    """Plain SGD on one partition, through the subnetwork that ends with it.

    Args:
        program: shared by all.
        task: the server's values.
        partition: j, trained through subnetwork j + 1 (partitions 0..j).
        images: [n, c, h, w] in [0, 1].
        labels: [n].
    Returns:
        trained minus received values [n_j] in wire order, and the mean loss in nats.
    Source: Appendix H: w_j <- argmax log p(D_i | (w_1..w_j, what_{j+1}..what_C), psi).
    """
    config, layout = program.config, program.layout
    key = (task.server_round, task.client_id, partition)
    rng, shuffle = torch_rng(config.seed, "train", *key), numpy_rng(config.seed, "order", *key)
    index = layout.index(partition)
    flat = task.theta
    if partition + 1 < layout.num_partitions:
        flat = subnetwork(flat, program.default, layout.ids, partition + 1)
    received = values = flat.index_select(0, index)
    losses: list[float] = []
    for _ in range(config.local_epochs):
        order = torch.from_numpy(shuffle.permutation(len(labels)))
        for batch in torch.split(order, config.batch_size):
            if losses:
                flat = insert(flat, index, values)
            gradient, loss = weight_gradient(
                program, flat, task.hyper, images[batch], labels[batch], rng
            )
            values = values - gradient.index_select(0, index).mul_(config.client_lr)
            losses.append(loss)
    return values - received, float(np.mean(losses))


def weight_gradient(
    program: Program,
    flat: Tensor,
    hyper: Tensor,
    images: Tensor,
    labels: Tensor,
    rng: torch.Generator,
) -> tuple[Tensor, float]:
    """Gradient of the mean negative log-likelihood of one batch in all weights.

    Args:
        program: shared by all.
        flat: the subnetwork's weights, [P].
        hyper: psi, [H], constant here.
        images: the batch, [b, c, h, w].
        labels: [b].
        rng: noise of augmentation and dropout.
    Returns:
        [P], and the loss in nats.
    Source: eq. (nn_param_opt_target), psi held fixed.
    """
    leaves = {n: t.requires_grad_() for n, t in program.layout.leaves(flat).items()}
    total, loss = None, 0.0
    micro = program.micro_batch
    for x, y in zip(torch.split(images, micro), torch.split(labels, micro), strict=True):
        merged = program.layout.merge(leaves)
        likelihood, _ = log_likelihood(program, merged, hyper, x, y, rng)
        part = -likelihood.sum() / len(labels)
        grads = torch.autograd.grad(part, list(leaves.values()), materialize_grads=True)
        loss += float(part.detach())
        # Out of place: autograd may hand out one tensor twice, or a broadcast view.
        total = grads if total is None else tuple(map(torch.add, total, grads))
    assert total is not None  # a batch is never empty
    return program.layout.flatten(dict(zip(leaves, total, strict=True))), loss


def hyper_gradient(
    program: Program, task: ClientTask, images: Tensor, labels: Tensor
) -> tuple[Tensor, float, int]:
    """Gradient of the out-of-sample loss in psi, through subnetwork ``chunk``.

    Args:
        program: shared by all.
        task: the server's values; ``task.chunk >= 1``.
        images: the client's, [n, c, h, w] in [0, 1].
        labels: [n].
    Returns:
        gradient [H] of the mean negative log-likelihood, the mean log-likelihood in nats, and the
        number of images used (all, or ``hyper_batch_size`` drawn without replacement).
    Source: eq. (final-approximate-objective-learning-speed-marglik): data of chunk k is scored by
        the subnetwork that was trained on the chunks before it; weights are constants.
    """
    config = program.config
    key = (task.server_round, task.client_id)
    rng = torch_rng(config.seed, "hyper", *key)
    if config.hyper_batch_size and config.hyper_batch_size < len(labels):
        drawn = numpy_rng(config.seed, "hyper-batch", *key).permutation(len(labels))
        batch = torch.from_numpy(drawn[: config.hyper_batch_size])
        images, labels = images[batch], labels[batch]
    flat = subnetwork(task.theta, program.default, program.layout.ids, task.chunk)
    parameters = program.layout.merge(program.layout.leaves(flat))
    hyper = task.hyper.clone().requires_grad_()
    gradient, loss = torch.zeros_like(task.hyper), 0.0
    micro = program.micro_batch
    for x, y in zip(torch.split(images, micro), torch.split(labels, micro), strict=True):
        likelihood, _ = log_likelihood(program, parameters, hyper, x, y, rng)
        part = -likelihood.sum() / len(labels)
        # A model may declare dropout and never call it: no graph then leads to psi.
        if part.requires_grad:
            gradient += torch.autograd.grad(part, hyper)[0]
        loss += float(part.detach())
    return gradient, -loss, len(labels)
