"""Who takes part in a round, who drops out, and whose reply counts: the same in every back end."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedpart.client import ClientReply, without_hyper
from fedpart.config import Config
from fedpart.errors import DROPPED, ConfigError
from fedpart.files import read_text
from fedpart.streams import numpy_rng


@dataclass(frozen=True)
class Failure:
    """A client whose reply did not count.

    Attributes:
        client_id: who.
        chunk: the client's chunk.
        reason: one line.
        unused: nothing was wrong with the reply, which was not needed or came with too few others.
    """

    client_id: int
    chunk: int
    reason: str
    unused: bool = False


@dataclass(frozen=True)
class Cohort:
    """The clients of one round.

    Attributes:
        order: client ids as they were drawn; the first replies in this order count.
        dropped: those of them that drop out, by ``client_failure_rate``: they are sent the weights
            and never answer.
    """

    order: tuple[int, ...]
    dropped: frozenset[int]

    @property
    def clients(self) -> list[int]:
        """Client ids, ascending."""
        return sorted(self.order)


def draw_cohort(config: Config, server_round: int) -> Cohort:
    """Clients of a round, uniformly without replacement from those that are available.

    Raises:
        ConfigError: see ``availability``.
    """
    ids = np.arange(config.clients)
    if config.availability is not None:
        table = availability(config.availability, config.clients)
        ids = ids[table[:, (server_round - 1) % table.shape[1]]]
    rng = numpy_rng(config.seed, "cohort", server_round)
    drawn = rng.choice(ids, min(config.cohort_size, len(ids)), replace=False)
    order = tuple(int(i) for i in drawn)
    return Cohort(order, frozenset(i for i in order if _drops_out(config, server_round, i)))


def _drops_out(config: Config, server_round: int, client_id: int) -> bool:
    if not config.client_failure_rate:
        return False
    draw = numpy_rng(config.seed, "failure", server_round, client_id).random()
    return bool(draw < config.client_failure_rate)


def counted(config: Config, good: Sequence[int]) -> list[int]:
    """Clients whose replies count, of those with a good one; none where too few have.

    Args:
        config: its ``clients_per_round`` and ``min_replies``.
        good: client ids in the order in which they were drawn.
    """
    return list(good[: config.clients_per_round]) if len(good) >= config.min_replies else []


@lru_cache(maxsize=4)
def availability(path: str, clients: int) -> np.ndarray:
    """Who is there in which round; a longer run starts over from the first column.

    Args:
        path: text file, a line of 0 and 1 for each client, a column for each round, separated by
            commas.
        clients: how many lines it must have.
    Returns:
        [clients, rounds] bool.
    Raises:
        ConfigError: it cannot be read, or does not look like that.
    """
    # Spreadsheets write an empty line at the end.
    text = read_text(path, "availability").rstrip()
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    for number, row in enumerate(rows, 1):
        odd = next((cell for cell in row if cell not in ("0", "1")), None)
        if odd is not None:
            raise ConfigError(f"availability {path}, line {number}: {odd!r:.40} is neither 0 nor 1")
        if len(row) != len(rows[0]):
            raise ConfigError(
                f"availability {path}, line {number}: {len(row)} rounds, where line 1 has "
                f"{len(rows[0])}"
            )
    if len(rows) != clients:
        raise ConfigError(
            f"availability {path} has {len(rows)} lines; it must have one for each of {clients} "
            "clients"
        )
    return np.array([[cell == "1" for cell in row] for row in rows])


def settle(
    config: Config,
    cohort: Cohort,
    chunks: Sequence[int],
    answers: Mapping[int, ClientReply | str],
) -> tuple[list[ClientReply], list[Failure]]:
    """Whose reply counts, once all are there or the round's time is over.

    Norms are judged first. Then the first ``clients_per_round`` replies count, in the order in
    which their clients were drawn, not in the order of their arrival, so that no bit depends on
    who was quick. Where fewer than ``min_replies`` are left, none counts.

    Args:
        config: its limits.
        cohort: who was asked.
        chunks: of every client.
        answers: client id -> a reply that has passed the gate, or why there is none; those that
            drop out are looked up in ``cohort``.
    Returns:
        replies that count, and clients whose replies do not, both in client order.
    """
    answers = {**answers, **dict.fromkeys(cohort.dropped, DROPPED)}
    if config.max_update_norm is not None:
        answers |= _judge_norms(answers, config.max_update_norm)
    good = [i for i in cohort.order if isinstance(answers[i], ClientReply)]
    used = counted(config, good)
    surplus = f"not needed: {config.clients_per_round} replies were there before it"
    if not used:
        surplus = f"only {len(good)} of at least {config.min_replies} replies (min-replies) came"
    replies, failures = [], []
    for i in cohort.clients:
        answer = answers[i]
        if isinstance(answer, str):
            failures.append(Failure(i, chunks[i], answer))
        elif i in used:
            replies.append(answer)
        else:
            failures.append(Failure(i, chunks[i], surplus, unused=True))
    return replies, failures


def _judge_norms(
    answers: Mapping[int, ClientReply | str], limit: float
) -> dict[int, ClientReply | str]:
    """Replies that are refused or lose their gradient of psi, because it is far too large.

    Each tensor is held against the same tensor of the others: chunks send different ones.
    """
    replies = [a for _, a in sorted(answers.items()) if isinstance(a, ClientReply)]
    judged: dict[int, ClientReply | str] = {}
    gradients = {r.client_id: r.hyper_gradient for r in replies if r.hyper_gradient is not None}
    for client_id, excess in _too_large(gradients, limit):
        judged[client_id] = without_hyper(
            next(r for r in replies if r.client_id == client_id), f"hyper {excess}"
        )
    for partition in sorted({j for r in replies for j in r.deltas}):
        deltas = {r.client_id: r.deltas[partition] for r in replies if partition in r.deltas}
        for client_id, excess in _too_large(deltas, limit):
            if not isinstance(judged.get(client_id), str):
                judged[client_id] = f"refused: partition-{partition} {excess}"
    return judged


def _too_large(tensors: Mapping[int, Tensor], limit: float) -> Iterator[tuple[int, str]]:
    norms = {i: float(torch.linalg.vector_norm(t, dtype=torch.float64)) for i, t in tensors.items()}
    middle = statistics.median(norms.values()) if norms else 0.0
    for client_id, norm in norms.items():
        # Where most send nothing but zeros, there is no measure.
        if norm > limit * middle > 0:
            yield client_id, f"has norm {norm:.3g}, {norm / middle:.3g} times the cohort's median"
