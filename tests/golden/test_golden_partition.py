"""Counts and affine merges against ``reference_partition.py``."""

import pytest
import reference_partition
import tiny
import torch

from fedpart.layout import Entry, Layout, largest_remainder, subnetwork

SCALES = [[2.0, -0.5], [-1.5, 3.0], [0.5, -2.0]]
BIASES = [[0.25, -1.0], [-0.75, 0.5], [1.5, -0.25]]


@pytest.mark.parametrize(
    ("total", "counts"), [(10, [7, 2, 1]), (25, [18, 5, 2]), (4, [3, 1, 0]), (1, [1, 0, 0])]
)
def test_largest_remainder_equals_exact_fractions(total, counts):
    """Shares of 25 are 17.5, 5, 2.5: floors 17, 5, 2, and the tie of .5 goes to the first.

    Shares of 4 are 2.8, 0.8, 0.4: floors 2, 0, 0, and the two largest remainders are .8 and .8.
    """
    assert reference_partition.largest_remainder(total, (70, 20, 10)) == counts
    assert largest_remainder(total, (0.7, 0.2, 0.1)) == counts


@pytest.mark.parametrize("percents", [(70, 20, 10), (80, 10, 10), (90, 10), (1, 98, 1), (33, 67)])
def test_largest_remainder_equals_exact_fractions_for_every_small_total(percents):
    """Decimal shares, which floats cannot hold, are counted as if they were exact."""
    shares = [p / 100 for p in percents]
    for total in range(300):
        exact = reference_partition.largest_remainder(total, percents)
        assert largest_remainder(total, shares) == exact


@pytest.mark.parametrize(
    ("k", "scale", "bias"),
    [
        (0, [1.0, 1.0], [0.0, 0.0]),
        (1, [2.0, -0.5], [0.25, -1.0]),
        (2, [-3.0, -1.5], [-0.5, -0.5]),
        (3, [-1.5, 3.0], [1.0, -0.75]),
    ],
)
def test_affine_merge_of_subnetwork_k(k, scale, bias):
    """The first k copies count: 2 * -1.5 * 0.5 = -1.5, 0.25 - 0.75 + 1.5 = 1; none give 1 and 0."""
    ids = torch.tensor([0, 0, 1, 1, 2, 2] * 2, dtype=torch.uint8)
    entries = [Entry("s", (2,), "product", 0, 6), Entry("b", (2,), "sum", 6, 12)]
    layout = Layout(entries, ids, 3)
    theta = torch.tensor([SCALES, BIASES]).reshape(-1)
    default = layout.defaults(theta, zero=False)
    merged = layout.merge(layout.leaves(subnetwork(theta, default, ids, k)))
    assert merged["s"].tolist() == scale
    assert merged["b"].tolist() == bias
    again = reference_partition.affine(SCALES, BIASES, k)
    assert [again[0].tolist(), again[1].tolist()] == [scale, bias]


def test_bare_program_of_the_other_goldens_is_laid_out_as_they_assume():
    """Wire order of ids 0 1 0 1 1 is positions 0 2 and then 1 3 4."""
    layout = tiny.bare_program([0, 1, 0, 1, 1], 2, chunks=(0.5, 0.5)).layout
    assert layout.order.tolist() == [0, 2, 1, 3, 4]
