"""Several clients of a round at once: the same client program, batched over clients.

Many small clients leave a GPU idle. Here, ``torch.func.vmap`` sends their batches through their
own weights together. Every client keeps its own streams and its own batches, so that it computes
what it would compute alone but for the order of sums; clients with fewer images are padded with
images of weight zero.
"""

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedpart.client import ClientReply, ClientTask, client_update, draw_batches, draw_hyper_batch
from fedpart.data import FederatedData
from fedpart.device import moved, on_device
from fedpart.errors import ConfigError, cause
from fedpart.gradients import reward_gradient
from fedpart.layout import insert, subnetwork
from fedpart.likelihood import Partitioned, log_likelihood
from fedpart.models import Streams
from fedpart.program import Program
from fedpart.streams import torch_rng


@dataclass(frozen=True)
class Shares:
    """The images of several clients, one client after the other.

    Attributes:
        images: [n, c, h, w] in [0, 1].
        labels: [n].
        counts: images of each client.
    """

    images: Tensor
    labels: Tensor
    counts: tuple[int, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each client's images begin."""
        return tuple(accumulate(self.counts, initial=0))[:-1]


@dataclass(frozen=True)
class Part:
    """What goes through the network at once: a micro-batch of each of some clients.

    Attributes:
        clients: which, by their place among those that compute together.
        rows: images of each.
        index: their positions in ``Shares.images``, [b, s] int64, where s is the largest of
            ``rows``; padding repeats a client's first.
        weights: 1 / images of a client's whole batch, 0 for padding, [b, s].
        lanes: ``clients`` as a tensor, [b].
    """

    clients: tuple[int, ...]
    rows: tuple[int, ...]
    index: Tensor
    weights: Tensor
    lanes: Tensor


def parts_of(program: Partitioned, batches: Sequence[Tensor], like: Tensor) -> list[Part]:
    """Cut one batch of each client into micro-batches, and lay those of the same number together.

    Args:
        program: says how large a micro-batch is.
        batches: positions in ``Shares.images``, [b_i] int64 for each client; may be empty.
        like: type and device of the weights.
    """
    cut = [torch.split(b, program.micro_size(len(b))) if len(b) else () for b in batches]
    parts = []
    for number in range(max(map(len, cut))):
        clients = tuple(i for i, pieces in enumerate(cut) if number < len(pieces))
        pieces = [cut[i][number] for i in clients]
        rows = tuple(len(piece) for piece in pieces)
        index = torch.stack([torch.cat([p, p[:1].expand(max(rows) - len(p))]) for p in pieces])
        weights = torch.zeros(index.shape, dtype=like.dtype)
        for line, client, own in zip(weights, clients, rows, strict=True):
            line[:own] = 1 / len(batches[client])
        lanes = torch.tensor(clients)
        parts.append(Part(clients, rows, *(t.to(like.device) for t in (index, weights, lanes))))
    return parts


def likelihoods(
    program: Partitioned,
    flats: Tensor,
    hyper: Tensor,
    shares: Shares,
    part: Part,
    generators: Sequence[torch.Generator],
) -> Tensor:
    """``log_likelihood`` of one part, each client through weights and psi of its own.

    Args:
        program: shared by all.
        flats: weights, [b, P].
        hyper: psi, [b, H].
        shares: all clients' images.
        part: the micro-batches.
        generators: noise of all clients, by their place among those that compute together.
    Returns:
        weighted sum of each client's, [b] nats.
    """
    own = [generators[client] for client in part.clients]
    padded = part.index.shape[1]

    def one(flat: Tensor, hyper: Tensor, images: Tensor, labels: Tensor, lane: Tensor) -> Tensor:
        parameters = program.layout.merge(program.leaves(flat))
        streams = Streams(own, part.rows, padded, lane)
        return log_likelihood(program, parameters, hyper, images, labels, streams)[0]

    x, y = shares.images[part.index], shares.labels[part.index]
    return (vmap(one)(flats, hyper, x, y, part.lanes) * part.weights).sum(1)


def check_side_by_side(program: Program, data: FederatedData) -> None:
    """Try the network and the augmentation out on one image of each of two clients.

    Args:
        program: shared by all.
        data: whose shape the images have.
    Raises:
        ConfigError: they cannot be batched over clients.
    """
    config, program = program.config, on_device(program)
    images = program.to_float(data.images[:1])
    shares = Shares(images, torch.zeros(1, dtype=torch.int64, device=images.device), (1,))
    (part,) = parts_of(program, [torch.zeros(1, dtype=torch.int64)] * 2, images)
    rngs = [torch_rng(0, "try-out", i, device=config.device) for i in range(2)]
    flats = program.initial.repeat(2, 1).requires_grad_()
    psi = program.hyper.initial().to(images.device).repeat(2, 1).requires_grad_()
    try:
        total = likelihoods(program, flats, psi, shares, part, rngs).sum()
        torch.autograd.grad(total, [flats, psi], allow_unused=True)
    except Exception as error:  # whatever a network of the user's own raises under vmap
        raise ConfigError(
            f"clients-at-once is {config.clients_at_once}, but model {config.model!r} with "
            f"augmentation {config.augmentation!r} cannot be batched over clients: "
            f"{cause(traceback.format_exc())}; leave clients-at-once out, or draw its noise "
            "from fedpart.models.uniform"
        ) from error


Item = TypeVar("Item")


def groups(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Which clients of a round compute together: ``size`` of them each time, in order."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def cohort_update(
    program: Program, tasks: Sequence[ClientTask], data: FederatedData
) -> list[ClientReply]:
    """``client_update`` for several clients of one round, side by side; for one, the thing itself.

    Args:
        program: shared by all.
        tasks: what the server sent, the same weights and psi to each; in the order of the draw.
        data: each client's images.
    Returns:
        a reply for each task; ``seconds`` is an equal part of the time it took.
    Raises:
        ValueError: a client without images.
    Source: Appendix J.
    """
    if len(tasks) == 1:
        return [client_update(program, tasks[0], *data.client(tasks[0].client_id))]
    started = time.perf_counter()
    device, first = program.config.device, tasks[0]
    program = on_device(program)
    theta, hyper = moved(first.theta, device), first.hyper.to(device)
    shares = _shares(program, data, tasks)
    gradients = psi_gradients(program, tasks, theta, hyper, shares)
    deltas: list[dict[int, Tensor]] = [{} for _ in tasks]
    losses: list[list[Tensor]] = [[] for _ in tasks]
    for partition in range(program.layout.num_partitions):
        trained = train_partition(program, tasks, partition, theta, hyper, shares)
        for client, (delta, loss) in trained.items():
            deltas[client][partition] = delta
            losses[client].append(loss)
    # Only here does anything wait for the device.
    sent = [{j: delta.cpu() for j, delta in own.items()} for own in deltas]
    seconds = (time.perf_counter() - started) / len(tasks)
    replies = []
    for client, task in enumerate(tasks):
        gradient, likelihood, examples = gradients.get(client, (None, None, 0))
        replies.append(
            ClientReply(
                *(task.server_round, task.client_id, task.chunk, shares.counts[client]),
                *(sent[client], None if gradient is None else gradient.cpu(), examples),
                train_loss=float(torch.stack(losses[client]).double().mean()),
                log_likelihood=None if likelihood is None else float(likelihood),
                seconds=seconds,
            )
        )
    return replies


def train_partition(
    program: Program,
    tasks: Sequence[ClientTask],
    partition: int,
    theta: Tensor,
    hyper: Tensor,
    shares: Shares,
) -> dict[int, tuple[Tensor, Tensor]]:
    """``fedpart.client.train_partition`` for all clients that train this partition.

    Args:
        program: shared by all.
        tasks: of all clients that compute together.
        partition: j.
        theta: the server's values, [P].
        hyper: psi, [H].
        shares: their images.
    Returns:
        place of a client -> trained minus received values [n_j], and the mean loss [] in nats.
    Source: Appendix J.
    """
    config, layout = program.config, program.layout
    busy = [i for i, task in enumerate(tasks) if task.chunk <= partition]
    if not busy:
        return {}
    keys = [(tasks[i].server_round, tasks[i].client_id, partition) for i in busy]
    rngs = [torch_rng(config.seed, "train", *key, device=config.device) for key in keys]
    batches = [
        [shares.starts[i] + batch for batch in draw_batches(config, key, shares.counts[i])]
        for i, key in zip(busy, keys, strict=True)
    ]
    empty = torch.empty(0, dtype=torch.int64)
    steps = [
        parts_of(program, [own[t] if t < len(own) else empty for own in batches], theta)
        for t in range(max(map(len, batches)))
    ]
    received = subnetwork(theta, program.default, layout.ids, partition + 1)
    index, start = layout.index(partition), layout.take(theta, partition)
    delta = torch.zeros(len(busy), len(start), dtype=theta.dtype, device=theta.device)
    loss = torch.zeros(len(busy), dtype=theta.dtype, device=theta.device)
    put = vmap(insert, in_dims=(None, None, 0))
    for parts in steps:
        gradient = torch.zeros_like(delta)
        for part in parts:
            values = (start + delta[part.lanes]).requires_grad_()
            psi = hyper.expand(len(values), -1)
            flats = put(received, index, values)
            own = -likelihoods(program, flats, psi, shares, part, rngs)
            gradient.index_add_(0, part.lanes, torch.autograd.grad(own.sum(), values)[0])
            loss.index_add_(0, part.lanes, own.detach())
        delta.sub_(gradient, alpha=config.client_lr)
    return {client: (delta[i], loss[i] / len(batches[i])) for i, client in enumerate(busy)}


def psi_gradients(
    program: Program,
    tasks: Sequence[ClientTask],
    theta: Tensor,
    hyper: Tensor,
    shares: Shares,
) -> dict[int, tuple[Tensor, Tensor, int]]:
    """``fedpart.client.hyper_gradient`` for all clients that measure one.

    Args:
        program: shared by all.
        tasks: of all clients that compute together.
        theta: the server's values, [P].
        hyper: psi, [H].
        shares: their images.
    Returns:
        place of a client -> gradient [H], mean log-likelihood [] in nats, number of images.
    Source: equation (4).
    """
    config, layout = program.config, program.layout
    scored = {i: k for i, t in enumerate(tasks) if (k := program.scoring(t.chunk)) is not None}
    if not scored:
        return {}
    keys = [(tasks[i].server_round, tasks[i].client_id) for i in scored]
    rngs = [torch_rng(config.seed, "hyper", *key, device=config.device) for key in keys]
    batches = [
        shares.starts[i] + draw_hyper_batch(config, key, shares.counts[i])
        for i, key in zip(scored, keys, strict=True)
    ]
    flats = torch.stack(
        [subnetwork(theta, program.default, layout.ids, k) for k in scored.values()]
    )
    gradient = torch.zeros(len(scored), len(hyper), dtype=theta.dtype, device=theta.device)
    total = torch.zeros(len(scored), dtype=theta.dtype, device=theta.device)
    for part in parts_of(program, batches, theta):
        psi = hyper.repeat(len(part.clients), 1).requires_grad_()
        own = likelihoods(program, flats[part.lanes], psi, shares, part, rngs)
        if own.requires_grad:
            gradient.index_add_(0, part.lanes, torch.autograd.grad(-own.sum(), psi)[0])
        total.index_add_(0, part.lanes, own.detach())
    if config.method == "augerino":
        safe = config.augerino == "safe"
        gradient -= config.augerino_weight * reward_gradient(program, hyper, safe)
    return {client: (gradient[i], total[i], len(batches[i])) for i, client in enumerate(scored)}


def _shares(program: Program, data: FederatedData, tasks: Sequence[ClientTask]) -> Shares:
    owned = [data.client_indices[task.client_id] for task in tasks]
    for task, own in zip(tasks, owned, strict=True):
        if len(own) == 0:
            raise ValueError(f"client {task.client_id} has no images")
    images, labels = _resident(program, data)
    index = torch.from_numpy(np.concatenate(owned)).to(labels.device)
    return Shares(program.to_float(images[index]), labels[index], tuple(map(len, owned)))


@lru_cache(maxsize=1)
def _resident(program: Program, data: FederatedData) -> tuple[Tensor, Tensor]:
    """All training images [n, c, h, w] uint8 and labels [n] where clients compute, once a run."""
    device = program.config.device
    return torch.tensor(data.images, device=device), torch.tensor(data.labels, device=device)
