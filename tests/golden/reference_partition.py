"""Independent arithmetic for partitions: exact fractions and plain NumPy, nothing of fedpart."""

from fractions import Fraction

import numpy as np


def largest_remainder(total, percents):
    """Hamilton's method with whole percents, exactly: floors, then the largest remainders."""
    shares = [Fraction(p * total, 100) for p in percents]
    counts = [int(s) for s in shares]
    for _ in range(total - sum(counts)):
        rest = [s - c for s, c in zip(shares, counts, strict=True)]
        counts[rest.index(max(rest))] += 1
    return counts


def affine(copies_of_scale, copies_of_bias, k):
    """s^(k) = prod of the first k scales, b^(k) = sum of the first k biases, [n] each."""
    scale, bias = np.ones(len(copies_of_scale[0])), np.zeros(len(copies_of_bias[0]))
    for s, b in zip(copies_of_scale[:k], copies_of_bias[:k], strict=True):
        scale, bias = scale * s, bias + b
    return scale, bias


if __name__ == "__main__":
    for total in (10, 25, 4, 1):
        print(total, largest_remainder(total, (70, 20, 10)))
    scales = [[2.0, -0.5], [-1.5, 3.0], [0.5, -2.0]]
    biases = [[0.25, -1.0], [-0.75, 0.5], [1.5, -0.25]]
    for k in range(4):
        print(k, *affine(scales, biases, k))
