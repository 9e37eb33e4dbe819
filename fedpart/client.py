"""The client program: train partitions ``chunk..C-1``, and measure the gradient of psi."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedpart.config import Config
from fedpart.device import moved, on_device
from fedpart.gradients import psi_gradient, reward_gradient, weight_gradient
from fedpart.layout import insert, subnetwork
from fedpart.program import Program
from fedpart.streams import global_seed, numpy_rng, torch_rng, torch_seed


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
        hyper_fault: why gradient and log-likelihood do not count, although the weights do, or None.
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
    hyper_fault: str | None = None


def without_hyper(reply: ClientReply, fault: str) -> ClientReply:
    """A reply of which only the weights count; ``fault`` says what is wrong with the rest."""
    return replace(
        reply, hyper_gradient=None, hyper_examples=0, log_likelihood=None, hyper_fault=fault
    )


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
    Source: Appendix J, "Updating network partitions" and "Updating hyperparameters".
    """
    started = time.perf_counter()
    if len(labels) == 0:
        raise ValueError(f"client {task.client_id} has no images")
    device = program.config.device
    program = on_device(program)
    task = replace(task, theta=moved(task.theta, device), hyper=task.hyper.to(device))
    x = program.to_float(images)
    y = torch.from_numpy(np.ascontiguousarray(labels)).to(device)
    key = (task.server_round, task.client_id)
    with global_seed(torch_seed(program.config.seed, "client", *key), device):
        gradient, likelihood, examples = None, None, 0
        if program.scoring(task.chunk) is not None:
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
    Source: Appendix J: w_j <- argmax log p(D_i | (w_1..w_j, what_{j+1}..what_C), psi).
    """
    config, layout = program.config, program.layout
    key = (task.server_round, task.client_id, partition)
    rng = torch_rng(config.seed, "train", *key, device=config.device)
    leaves, delta = received_leaves(program, task.theta, partition + 1), None
    losses: list[float] = []
    for batch in draw_batches(config, key, len(labels)):
        if delta is not None:
            flat = subnetwork(task.theta, program.default, layout.ids, partition + 1)
            values = layout.take(task.theta, partition) + delta
            leaves = program.leaves(insert(flat, layout.index(partition), values))
        gradient, loss = weight_gradient(
            program, leaves, task.hyper, images[batch], labels[batch], rng
        )
        step = layout.take(gradient, partition).mul_(-config.client_lr)
        delta = step if delta is None else delta.add_(step)
        losses.append(loss)
    assert delta is not None  # there is at least one image
    return delta.cpu(), float(np.mean(losses))


def draw_batches(config: Config, key: tuple[int, int, int], count: int) -> Iterator[Tensor]:
    """The batches of a client's steps on one partition: every image once an epoch.

    Args:
        config: epochs, batch size, seed.
        key: round, client, partition.
        count: images of the client.
    Returns:
        positions of each batch's images, [b] int64.
    """
    shuffle = numpy_rng(config.seed, "order", *key)
    for _ in range(config.local_epochs):
        order = torch.from_numpy(shuffle.permutation(count))
        yield from torch.split(order, config.batch_size)


def draw_hyper_batch(config: Config, key: tuple[int, int], count: int) -> Tensor:
    """The images behind a client's gradient of psi: all, or ``hyper_batch_size`` of them.

    Args:
        config: batch size, seed.
        key: round, client.
        count: images of the client.
    Returns:
        positions, without replacement, [b] int64.
    """
    if not config.hyper_batch_size or config.hyper_batch_size >= count:
        return torch.arange(count)
    drawn = numpy_rng(config.seed, "hyper-batch", *key).permutation(count)
    return torch.from_numpy(drawn[: config.hyper_batch_size])


def received_leaves(program: Program, theta: Tensor, k: int) -> dict[str, Tensor]:
    """Leaves of subnetwork ``k`` as the server sent it: built once for all clients of a round.

    Args:
        program: shared by all.
        theta: the server's values, [P], one object for all clients of a round in a process.
        k: 0..C.
    """
    leaves = _received_leaves(program, theta, k)
    if any(leaf._version for leaf in leaves.values()):
        # A model that writes to its weights does so for one client only.
        _received_leaves.cache_clear()
        leaves = _received_leaves(program, theta, k)
    return leaves


@lru_cache(maxsize=4)
def _received_leaves(program: Program, theta: Tensor, k: int) -> dict[str, Tensor]:
    return program.leaves(subnetwork(theta, program.default, program.layout.ids, k))


def hyper_gradient(
    program: Program, task: ClientTask, images: Tensor, labels: Tensor
) -> tuple[Tensor, float, int]:
    """Gradient of the loss in psi, through the subnetwork that scores the client's chunk.

    Args:
        program: shared by all.
        task: the server's values; of a chunk that ``Program.scoring`` has a subnetwork for.
        images: the client's, [n, c, h, w] in [0, 1].
        labels: [n].
    Returns:
        gradient [H] of the mean negative log-likelihood (for Augerino less its reward), the mean
        log-likelihood in nats, and the number of images used (all, or ``hyper_batch_size`` drawn
        without replacement).
    Source: equation (4): data of chunk k is scored by
        the subnetwork that was trained on the chunks before it; weights are constants.
    """
    config = program.config
    key = (task.server_round, task.client_id)
    rng = torch_rng(config.seed, "hyper", *key, device=config.device)
    batch = draw_hyper_batch(config, key, len(labels))
    images, labels = images[batch], labels[batch]
    k = program.scoring(task.chunk)
    assert k is not None
    leaves = received_leaves(program, task.theta, k)
    gradient, loss = psi_gradient(program, leaves, task.hyper, images, labels, rng)
    if config.method == "augerino":
        safe = config.augerino == "safe"
        gradient -= config.augerino_weight * reward_gradient(program, task.hyper, safe)
    return gradient.cpu(), -loss, len(labels)
