"""Who owns which image. Expected shares are those of 100 clients and 5,000 images."""

import pickle

import numpy as np
import pytest

from fedpart.data.split import Ragged, log_dirichlet, skew_groups, split_clients
from fedpart.errors import DataError
from fedpart.plots_split import group_counts, summarise
from fedpart.streams import numpy_rng

LABELS = np.arange(5000) % 10


def split(labels=LABELS, clients=100, alpha=0.1, seed=0, **options):
    return split_clients(labels, clients, alpha, numpy_rng(seed, "split"), **options)


def statistics(draws=40, n=5000, **options):
    labels = np.arange(n) % 10
    found = [
        summarise(group_counts(split(labels, seed=seed, **options), labels, 10))
        for seed in range(draws)
    ]
    return {
        "over": np.mean([s.over_batch for s in found]) / 100,
        "one_sided": np.mean([s.one_sided for s in found]),
        "single": np.mean([s.single_group for s in found]),
        "smallest": min(s.smallest for s in found),
        "largest": max(s.largest for s in found),
    }


def test_L10_default_recipe_fits_the_papers_remarks():
    found = statistics()
    assert found["over"] == pytest.approx(0.155, abs=0.02)
    assert found["one_sided"] == pytest.approx(0.81, abs=0.02)
    assert found["single"] == pytest.approx(0.67, abs=0.03)


def test_default_sizes():
    found = statistics(n=1250)
    assert found["over"] < 0.001
    assert found["smallest"] >= 1
    assert found["largest"] < 75


@pytest.mark.parametrize(
    ("options", "over", "one_sided", "single"),
    [
        ({"concentration": "class"}, 0.086, 0.15, 0.03),
        ({"sizes": "equal"}, 0.0, 0.78, 0.65),
        ({"sizes": "equal", "concentration": "class"}, 0.0, 0.15, 0.05),
    ],
)
def test_other_recipes(options, over, one_sided, single):
    found = statistics(draws=20, **options)
    assert found["over"] == pytest.approx(over, abs=0.02)
    assert found["one_sided"] == pytest.approx(one_sided, abs=0.03)
    assert found["single"] == pytest.approx(single, abs=0.03)


def test_equal_sizes_differ_by_one_at_most():
    sizes = [len(index) for index in split(LABELS[: 4950 + 37], sizes="equal")]
    assert sizes == [50] * 87 + [49] * 13


def test_L10_same_for_one_data_seed_only():
    one, two, other = split(), split(), split(seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("sizes", ["multinomial", "equal"])
@pytest.mark.parametrize("alpha", [1e-300, 1e-6])
def test_tiny_alpha_gives_one_label(alpha, sizes):
    found = statistics(draws=3, alpha=alpha, sizes=sizes)
    # Under equal sizes clients that come late take what is left.
    assert found["single"] > (0.99 if sizes == "multinomial" else 0.6)


def test_tiny_alpha_assigns_a_label_that_no_client_prefers():
    # Two clients cannot prefer ten labels: most columns underflow in both.
    indices = split(clients=2, alpha=1e-6)
    assert sorted(np.concatenate(indices)) == list(range(5000))


def test_huge_alpha_is_close_to_iid():
    for options in ({"alpha": 1e6}, {"alpha": 1e300, "concentration": "class"}):
        counts = group_counts(split(clients=5, **options), LABELS, 10)
        assert np.abs(counts - 100).max() < 50


def test_iid_spreads_every_label():
    groups = skew_groups("iid", LABELS, None)
    counts = group_counts(split(groups, clients=5), LABELS, 10)
    assert np.abs(counts - 100).max() < 50
    sizes = [len(index) for index in split(groups, clients=7, sizes="equal")]
    assert max(sizes) - min(sizes) == 1


def test_missing_and_rare_labels():
    labels = np.array([2] * 40 + [7] * 2)
    for concentration in ("prior", "class"):
        indices = split(labels, clients=6, concentration=concentration)
        assert sorted(np.concatenate(indices)) == list(range(42))


def test_top_up_takes_from_the_largest():
    plain = [len(index) for index in split(alpha=0.01, clients=400)]
    filled = [len(index) for index in split(alpha=0.01, clients=400, min_examples=10)]
    assert min(plain) < 10
    assert min(filled) == 10
    # Those that neither took nor gave keep their images.
    level = max(filled)
    assert all(
        after == (10 if before < 10 else before if before < level - 1 else after)
        for before, after in zip(plain, filled, strict=True)
    )
    exact = [len(index) for index in split(LABELS[:60], clients=20, min_examples=3)]
    assert exact == [3] * 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 5001}, "5001 clients"),
        ({"min_examples": 51}, "5,100 images"),
        ({"clients": 0}, "at least 1"),
        ({"min_examples": 0}, "at least 1"),
        ({"alpha": 0.0}, "alpha is 0"),
        ({"alpha": -1.0}, "alpha is -1"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"alpha": float("inf")}, "alpha is inf"),
    ],
)
def test_impossible_splits(change, message):
    with pytest.raises(DataError, match=message):
        split(**change)


def test_skews():
    angles = np.linspace(-np.pi, np.pi, 5000, endpoint=False)
    assert np.array_equal(skew_groups("label", LABELS, angles), LABELS)
    assert np.bincount(skew_groups("rotation", LABELS, angles)).tolist() == [500] * 10
    with pytest.raises(DataError, match="not rotated"):
        skew_groups("rotation", LABELS, None)


def test_log_dirichlet_has_the_moments_of_a_dirichlet():
    a = np.array([0.05, 0.5, 3.0])
    q = np.exp(log_dirichlet(np.random.default_rng(0), a, 40_000))
    mean = a / a.sum()
    assert np.allclose(q.sum(1), 1)
    assert np.allclose(q.mean(0), mean, atol=0.005)
    assert np.allclose(q.var(0), mean * (1 - mean) / (a.sum() + 1), atol=0.005)


def test_log_dirichlet_of_tiny_concentrations():
    drawn = log_dirichlet(np.random.default_rng(0), np.array([1e-7, 1e-7, 5e-324]), 1000)
    assert np.isfinite(drawn).all()
    assert np.allclose(np.exp(drawn).sum(1), 1)
    assert np.exp(drawn[:, 0]).mean() == pytest.approx(0.5, abs=0.06)


def test_ragged_is_a_sequence_of_its_arrays():
    """Also empty ones, from the end, as a slice, and after a pickle."""
    pieces = [np.array([3, 1]), np.array([], dtype=np.int64), np.array([2])]
    ragged = pickle.loads(pickle.dumps(Ragged(np.concatenate(pieces), np.array([2, 2, 3]))))
    assert [list(a) for a in ragged] == [list(a) for a in pieces]
    assert list(ragged[-1]) == [2]
    assert [list(a) for a in ragged[:2]] == [[3, 1], []]
    with pytest.raises(IndexError):
        ragged[3]


def test_a_split_of_many_clients_is_light():
    """What workers are sent is the positions, not an object for each client."""
    groups = np.zeros(20_000, dtype=np.int64)
    owned = split_clients(groups, 10_000, 1.0, np.random.default_rng(0))
    assert len(pickle.dumps(owned)) < 1.1 * 8 * (20_000 + 10_000)
