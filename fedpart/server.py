"""The server program: who takes part, and Adam on every partition and on psi."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedpart.client import ClientReply
from fedpart.config import Config
from fedpart.layout import largest_remainder
from fedpart.optimisers import adam
from fedpart.program import Program
from fedpart.streams import numpy_rng

# Values that are summed and updated at once.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class ServerState:
    """All that changes from round to round.

    Attributes:
        server_round: rounds that are done.
        theta: every parameter, [P] float32.
        m: Adam's first moments, [P].
        v: Adam's second moments, [P].
        steps: Adam's step counter of each partition, [C] int64.
        hyper: psi, [H] float32.
        hyper_m: its first moments, [H].
        hyper_v: its second moments, [H].
        hyper_steps: its step counter.
    """

    server_round: int
    theta: Tensor
    m: Tensor
    v: Tensor
    steps: Tensor
    hyper: Tensor
    hyper_m: Tensor
    hyper_v: Tensor
    hyper_steps: int


def initial_state(program: Program, theta: Tensor | None = None) -> ServerState:
    """Before round 1: initial weights (or ``theta`` [P]), initial psi, moments at zero."""
    theta = program.initial.clone() if theta is None else theta.clone()
    hyper = program.hyper.initial()
    return ServerState(
        0,
        theta,
        torch.zeros_like(theta),
        torch.zeros_like(theta),
        torch.zeros(program.layout.num_partitions, dtype=torch.int64),
        hyper,
        torch.zeros_like(hyper),
        torch.zeros_like(hyper),
        0,
    )


def assign_chunks(config: Config) -> np.ndarray:
    """Chunk of every client, [clients] int64: exact counts, shuffled by the run's seed.

    Source: Appendix J ("the marginal distribution of partitions follows a pre-determined ratio").
    """
    counts = largest_remainder(config.clients, config.chunks)
    chunks = np.repeat(np.arange(config.num_partitions), counts)
    return numpy_rng(config.seed, "chunks").permutation(chunks)


def pseudo_gradient(
    replies: Sequence[ClientReply], partition: int, part: slice = slice(None)
) -> Tensor | None:
    """Server minus client, averaged over the clients that sent a partition.

    Args:
        replies: in client order, since a sum of floats depends on its order.
        partition: j.
        part: which of its values.
    Returns:
        [n_j] (or as long as ``part``) float32, the mean taken in float64; None where nobody sent
        it.
    Source: Reddi et al. 2021, Algorithm 1 and 2; Appendix J.
    """
    sent = [r.deltas[partition][part] for r in replies if partition in r.deltas]
    if not sent:
        return None
    total = sent[0].to(torch.float64, copy=True)
    for delta in sent[1:]:
        total += delta
    return total.div_(-len(sent)).float()


def mean_hyper_gradient(replies: Sequence[ClientReply]) -> Tensor | None:
    """Gradient of psi over all images it was measured on, [H] float32, or None.

    Source: Appendix J, "this approach to updating psi corresponds to federated SGD".
    """
    measured = [
        (r.hyper_gradient, r.hyper_examples) for r in replies if r.hyper_gradient is not None
    ]
    if not measured:
        return None
    total = sum((g.double() * n for g, n in measured), torch.zeros(1, dtype=torch.float64))
    return (total / sum(n for _, n in measured)).float()


def server_update(
    program: Program, state: ServerState, replies: Sequence[ClientReply]
) -> ServerState:
    """The state after one round.

    A partition that nobody sent keeps its weights, moments and counter; a round without a
    gradient of psi leaves psi alone.

    Args:
        program: shared by all.
        state: before the round; not changed.
        replies: what arrived, in any order; may be empty.
    Source: Appendix J.
    """
    config, layout = program.config, program.layout
    replies = sorted(replies, key=lambda r: r.client_id)
    theta, m, v, steps = (t.clone() for t in (state.theta, state.m, state.v, state.steps))
    for partition in range(layout.num_partitions):
        if not any(partition in r.deltas for r in replies):
            continue
        steps[partition] += 1
        values = [layout.take(t, partition) for t in (theta, m, v)]
        # Block by block, which stays in the processor's caches and changes no bit.
        for start in range(0, layout.sizes[partition], _BLOCK):
            part = slice(start, start + _BLOCK)
            gradient = pseudo_gradient(replies, partition, part)
            assert gradient is not None
            old = [t[part] for t in values]
            new = adam(
                *(old[0], gradient, old[1], old[2], int(steps[partition])),
                lr=config.server_lr,
                eps=config.adam_eps,
            )
            for target, result in zip(old, new, strict=True):
                target.copy_(result)
        for whole, taken in zip((theta, m, v), values, strict=True):
            layout.put(whole, partition, taken)
    state = replace(state, server_round=state.server_round + 1, theta=theta, m=m, v=v, steps=steps)
    gradient = mean_hyper_gradient(replies)
    if gradient is None:
        return state
    hyper, hyper_m, hyper_v = adam(
        *(state.hyper, gradient, state.hyper_m, state.hyper_v, state.hyper_steps + 1),
        lr=config.hyper_lr,
        eps=config.adam_eps,
    )
    return replace(
        state, hyper=hyper, hyper_m=hyper_m, hyper_v=hyper_v, hyper_steps=state.hyper_steps + 1
    )
