"""Images to clients: a Dirichlet prior over groups (labels or angle bins) for each client."""

import heapq
import math
from collections.abc import Sequence
from typing import Literal, overload

import numpy as np

from fedpart.data.rotate import angle_bins
from fedpart.errors import DataError


class Ragged(Sequence[np.ndarray]):
    """Arrays of unequal length in one, so that a hundred thousand of them are two objects.

    Attributes:
        flat: all of them, one after the other, [n].
        stops: where each ends, [k] ascending.
    """

    def __init__(self, flat: np.ndarray, stops: np.ndarray) -> None:
        """Keep both."""
        self.flat, self.stops = flat, stops

    def __len__(self) -> int:
        """How many arrays."""
        return len(self.stops)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[np.ndarray]: ...
    def __getitem__(self, index: int | slice) -> np.ndarray | Sequence[np.ndarray]:
        """A view of one, or a tuple of views."""
        places = range(len(self))[index]
        if isinstance(places, range):
            return tuple(self[i] for i in places)
        start = self.stops[places - 1] if places else 0
        return self.flat[start : self.stops[places]]


def split_clients(
    groups: np.ndarray,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    *,
    concentration: Literal["prior", "class"] = "prior",
    sizes: Literal["multinomial", "equal"] = "multinomial",
    min_examples: int = 1,
) -> Sequence[np.ndarray]:
    """Give every image to exactly one client.

    Each client i draws a distribution over groups, q_i ~ Dir(alpha * p) with p the share of each
    group in the data. With ``sizes="multinomial"`` an image of group c goes to client i with
    probability q_i[c] / sum_j q_j[c]; with ``"equal"`` each client in turn draws N/K images. A
    client below ``min_examples`` then takes images from the largest one.

    Args:
        groups: what is skewed, [n] non-negative integers: labels, angle bins, or all equal (iid).
        clients: how many, K.
        alpha: above 0; small values give clients of one group.
        rng: the stream of the split.
        concentration: "prior" for Dir(alpha * p), "class" for Dir(alpha) in each group.
        sizes: "multinomial" or "equal".
        min_examples: images that each client has at least.
    Returns:
        K sorted int64 arrays of positions, each image in exactly one.
    Raises:
        DataError: alpha not above 0, or too few images.
    Source: Appendix J, "Non-iid partitioning"; Hsu et al. 2019; Reddi et al. 2021.
    """
    check_split(len(groups), clients, alpha, min_examples)
    _, groups = np.unique(groups, return_inverse=True)
    prior = np.bincount(groups) / len(groups)
    scale = prior if concentration == "prior" else np.ones(len(prior))
    log_q = log_dirichlet(rng, alpha * scale, clients)
    draw = _draw_equal if sizes == "equal" else _draw_multinomial
    owner = draw(rng, log_q, groups)
    _top_up(rng, owner, clients, min_examples)
    # One sort for all clients: a search for each would cost clients times images.
    order = owner.argsort(kind="stable")
    return Ragged(order, np.cumsum(np.bincount(owner, minlength=clients)))


def skew_groups(
    skew: Literal["label", "rotation", "iid"], labels: np.ndarray, angles: np.ndarray | None
) -> np.ndarray:
    """What is spread unevenly: the label, the bin of the angle, or nothing.

    Args:
        skew: which.
        labels: [n] int64.
        angles: radians in [-pi, pi), [n]; None for upright sets.
    Returns:
        [n] int64, 0..9.
    Raises:
        DataError: rotation skew of images that are not rotated.
    Source: Appendix J, "Non-i.i.d. partitioning".
    """
    if skew == "iid":
        return np.zeros(len(labels), np.int64)
    if skew == "label":
        return labels
    if angles is None:
        raise DataError("skew is 'rotation', but the images are not rotated; use label or iid")
    return angle_bins(angles)


def check_split(images: int, clients: int, alpha: float, min_examples: int) -> None:
    """Whether the split is possible at all.

    Raises:
        DataError: it is not.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise DataError(f"alpha is {alpha:g}; it must be a finite number above 0")
    if clients < 1 or min_examples < 1:
        raise DataError(
            f"{clients} clients with at least {min_examples} images each are impossible; "
            "both numbers must be at least 1"
        )
    if clients * min_examples > images:
        raise DataError(
            f"{clients} clients with at least {min_examples} image(s) each need "
            f"{clients * min_examples:,} images, but there are {images:,}; "
            "use fewer clients or a larger train-size"
        )


def log_dirichlet(rng: np.random.Generator, concentration: np.ndarray, n: int) -> np.ndarray:
    """Logarithms of ``n`` draws from Dir(concentration), exact where the draws underflow.

    Gamma(a) = Gamma(a + 1) * U^(1/a) in distribution, so its logarithm is finite however small a
    is; NumPy's own sampler gives zeros and NaN from about a = 1e-3 down.

    Args:
        rng: the stream.
        concentration: [g], above 0.
        n: how many.
    Returns:
        [n, g], finite; each row's exponentials sum to 1.
    Source: Marsaglia and Tsang 2000, section 6 (the boost for a < 1).
    """
    # Outside, log(U) / a or the gamma itself would overflow. The draws are one-hot, or equal to
    # eight digits, long before.
    a = np.clip(concentration, 1e-200, 1e15)
    shape = (n, len(a))
    log_gamma = np.log(rng.gamma(a + 1, size=shape))
    # 1 - U lies in (0, 1], whose logarithm is finite.
    log_u = np.log1p(-rng.random(shape))
    log_gamma = log_gamma + log_u / a
    top = log_gamma.max(1, keepdims=True)
    log_q: np.ndarray = log_gamma - top - np.log(np.exp(log_gamma - top).sum(1, keepdims=True))
    return log_q


def _softmax(values: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.exp(values - values.max())
    weights /= weights.sum()
    return weights


def _draw_multinomial(
    rng: np.random.Generator, log_q: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    owner = np.empty(len(groups), np.int64)
    for group in range(log_q.shape[1]):
        here = np.flatnonzero(groups == group)
        # In log space: a column that underflows everywhere still has a largest entry.
        owner[here] = rng.choice(len(log_q), len(here), p=_softmax(log_q[:, group]))
    return owner


def _draw_equal(rng: np.random.Generator, log_q: np.ndarray, groups: np.ndarray) -> np.ndarray:
    clients, num_groups = log_q.shape
    pools = [rng.permutation(np.flatnonzero(groups == group)) for group in range(num_groups)]
    left = np.array([len(pool) for pool in pools])
    share, extra = divmod(len(groups), clients)
    owner = np.empty(len(groups), np.int64)
    for client, log_p in enumerate(log_q):
        wanted = share + (client < extra)
        while wanted:
            # Groups that are used up drop out and the rest is renormalised.
            drawn = rng.choice(num_groups, wanted, p=_softmax(np.where(left > 0, log_p, -np.inf)))
            # Draws count up to the first that its group cannot serve, as if made one by one. The
            # first draw never is one, so that each turn of the loop serves at least one image.
            rank = np.empty(wanted, np.int64)
            for group in np.unique(drawn):
                where = np.flatnonzero(drawn == group)
                rank[where] = np.arange(len(where))
            unserved = np.flatnonzero(rank >= left[drawn])
            served = drawn[: unserved[0]] if len(unserved) else drawn
            for group, count in enumerate(np.bincount(served, minlength=num_groups)):
                owner[pools[group][left[group] - count : left[group]]] = client
                left[group] -= count
            wanted -= len(served)
    return owner


def _top_up(rng: np.random.Generator, owner: np.ndarray, clients: int, least: int) -> None:
    counts = np.bincount(owner, minlength=clients)
    short = np.flatnonzero(counts < least)
    # Largest first, ties to the lowest client. A donor never falls short itself: while one client
    # is below the minimum, the largest is above it, because together they have enough.
    donors = [(-int(count), client) for client, count in enumerate(counts)]
    heapq.heapify(donors)
    held: dict[int, list[int]] = {}
    for client in short:
        for _ in range(least - int(counts[client])):
            size, donor = donors[0]
            if donor not in held:
                held[donor] = rng.permutation(np.flatnonzero(owner == donor)).tolist()
            owner[held[donor].pop()] = client
            heapq.heapreplace(donors, (size + 1, donor))
