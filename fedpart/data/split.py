"""Which client owns which image: label skew, rotation skew, or none."""

import numpy as np

from fedpart.config import Config
from fedpart.errors import DataError
from fedpart.streams import numpy_rng

ANGLE_BINS = 10


def skew_labels(config: Config, labels: np.ndarray, angles: np.ndarray | None) -> np.ndarray:
    """What is unevenly spread: the label, the bin of the angle (36 degrees each), or nothing.

    Args:
        config: ``skew``.
        labels: [n] int64.
        angles: radians in [-pi, pi), [n], for rotated sets.
    Returns:
        [n] int64, from 0.
    Source: Appendix H, "Non-i.i.d. partitioning".
    """
    if config.skew == "iid":
        return np.zeros(len(labels), dtype=np.int64)
    if config.skew == "label":
        return labels
    if angles is None:
        raise DataError(f"skew is 'rotation', but {config.dataset} is not rotated: use label or iid")
    bins = np.floor((angles + np.pi) / (2 * np.pi) * ANGLE_BINS).astype(np.int64)
    return np.clip(bins, 0, ANGLE_BINS - 1)


def log_dirichlet(rng: np.random.Generator, concentration: np.ndarray, size: int) -> np.ndarray:
    """Logarithms of Dirichlet draws, which do not underflow for tiny concentrations.

    Uses Gamma(a) = Gamma(a + 1) U^(1/a).

    Args:
        rng: source of the draws.
        concentration: [k], above 0.
        size: number of draws.
    Returns:
        [size, k]; each row's exponentials sum to 1.
    """
    shape = (size, len(concentration))
    log_gamma = np.log(rng.gamma(concentration + 1, size=shape))
    # 1 - U lies in (0, 1], whose logarithm is finite.
    log_gamma += np.log1p(-rng.random(shape)) / concentration
    log_gamma = np.maximum(log_gamma, -1e300)
    top = log_gamma.max(1, keepdims=True)
    return log_gamma - top - np.log(np.exp(log_gamma - top).sum(1, keepdims=True))


def split_clients(config: Config, kinds: np.ndarray) -> tuple[np.ndarray, ...]:
    """Give every image to one client; the same for every seed of a run and every method.

    Each client draws a distribution over kinds, q_i ~ Dir(alpha * prior) (or alpha for each kind).
    ``sizes = "multinomial"``: an image of kind c goes to client i with probability proportional to
    q_i[c]. ``sizes = "equal"``: clients draw their kinds one image at a time until all have N / K.
    A client below ``min_examples`` is then given images of the largest one.

    Args:
        config: clients, alpha, concentration, sizes, min_examples, data_seed.
        kinds: [n] int64, from ``skew_labels``.
    Returns:
        ascending positions of each client's images; every image is in one of them.
    Raises:
        DataError: fewer images than the clients need.
    Source: Hsu et al. 2019 and Reddi et al. 2021 (recipe); Appendix H.
    """
    n, clients = len(kinds), config.clients
    if n < clients * config.min_examples:
        raise DataError(
            f"{clients} clients with at least {config.min_examples} image(s) each need "
            f"{clients * config.min_examples} images, and there are {n}: use fewer clients or "
            "a larger train-size"
        )
    rng = numpy_rng(config.data_seed, "split")
    values, kinds = np.unique(kinds, return_inverse=True)
    prior = np.bincount(kinds) / n
    scale = prior if config.concentration == "prior" else np.ones(len(values))
    log_q = log_dirichlet(rng, config.alpha * scale, clients)
    draw = _multinomial if config.sizes == "multinomial" else _equal
    owner = draw(rng, log_q, kinds)
    _top_up(rng, owner, clients, config.min_examples)
    return tuple(np.flatnonzero(owner == i) for i in range(clients))


def _multinomial(rng: np.random.Generator, log_q: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    owner = np.empty(len(kinds), dtype=np.int64)
    for kind in range(log_q.shape[1]):
        here = np.flatnonzero(kinds == kind)
        weights = np.exp(log_q[:, kind] - log_q[:, kind].max())
        owner[here] = rng.choice(len(log_q), size=len(here), p=weights / weights.sum())
    return owner


def _equal(rng: np.random.Generator, log_q: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    clients = len(log_q)
    sizes = np.full(clients, len(kinds) // clients)
    sizes[: len(kinds) % clients] += 1
    pools = [list(rng.permutation(np.flatnonzero(kinds == k))) for k in range(log_q.shape[1])]
    owner = np.empty(len(kinds), dtype=np.int64)
    for client, size in enumerate(sizes):
        for _ in range(size):
            left = np.array([len(p) > 0 for p in pools])
            masked = np.where(left, log_q[client], -np.inf)
            weights = np.exp(masked - masked.max())
            kind = rng.choice(len(pools), p=weights / weights.sum())
            owner[pools[kind].pop()] = client
    return owner


def _top_up(rng: np.random.Generator, owner: np.ndarray, clients: int, least: int) -> None:
    counts = np.bincount(owner, minlength=clients)
    for client in range(clients):
        while counts[client] < least:
            largest = int(counts.argmax())
            moved = rng.choice(np.flatnonzero(owner == largest))
            owner[moved] = client
            counts[largest] -= 1
            counts[client] += 1
