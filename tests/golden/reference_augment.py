"""Independent affine matrices and bilinear warp in NumPy loops, nothing of fedpart."""

import math

import numpy as np


def product(angle, hx, hy, sx, sy, px, py):
    """source = R ShY ShX diag(sx, sy) (target - p), factor by factor, as 2x3."""
    c, s = math.cos(angle), math.sin(angle)
    a = (
        np.array([[c, -s], [s, c]])
        @ np.array([[1.0, 0.0], [hy, 1.0]])
        @ np.array([[1.0, hx], [0.0, 1.0]])
        @ np.diag([sx, sy])
    )
    return np.column_stack([a, -a @ np.array([px, py])])


def symmetric(widths, noise):
    """Order: rotation [half-turns], tx, ty, log sx, log sy, shear."""
    rotation, tx, ty, sx, sy, shear = np.asarray(widths) * np.asarray(noise)
    return product(math.pi * rotation, shear, 0.0, math.exp(sx), math.exp(sy), tx, ty)


def asymmetric(low, high, noise):
    """Order: rotation [half-turns], sx, sy, hx, hy, tx, ty; noise -1 gives low, 1 gives high."""
    low, high, u = np.asarray(low), np.asarray(high), (np.asarray(noise) + 1) / 2
    rotation, sx, sy, hx, hy, tx, ty = (1 - u) * low + u * high
    return product(math.pi * rotation, hx, hy, sx, sy, tx, ty)


def generators(widths, noise):
    """expm of the weighted generators, as a Taylor series of the matrix halved 20 times."""
    rotation, tx, ty, sx, sy, shear = np.asarray(widths) * np.asarray(noise)
    e = np.eye(3)
    m = math.pi * rotation * (np.outer(e[1], e[0]) - np.outer(e[0], e[1]))
    m = m + tx * np.outer(e[0], e[2]) + ty * np.outer(e[1], e[2])
    m = m + sx * np.outer(e[0], e[0]) + sy * np.outer(e[1], e[1])
    m = m + shear * (np.outer(e[0], e[1]) + np.outer(e[1], e[0]))
    small, term, total = m / 2**10, np.eye(3), np.eye(3)
    for n in range(1, 12):
        term = term @ small / n
        total = total + term
    for _ in range(10):
        total = total @ total
    return total[:2]


def of_pixels(matrix, height, width):
    """A map of pixels about the image's centre, its shift too, where the image is [-1, 1]^2."""
    scale = np.diag([width / 2, height / 2, 1.0])
    return (np.linalg.inv(scale) @ np.vstack([matrix, [0.0, 0.0, 1.0]]) @ scale)[:2]


def warp(image, matrix):
    """Bilinear resampling of one [h, w] image, zero outside; pixel i lies at (2 i + 1) / n - 1."""
    h, w = image.shape
    out = np.zeros((h, w))

    def pixel(i, j):
        return image[i, j] if 0 <= i < h and 0 <= j < w else 0.0

    for i in range(h):
        for j in range(w):
            x, y = matrix @ np.array([(2 * j + 1) / w - 1, (2 * i + 1) / h - 1, 1.0])
            col, row = ((x + 1) * w - 1) / 2, ((y + 1) * h - 1) / 2
            c0, r0 = math.floor(col), math.floor(row)
            a, b = col - c0, row - r0
            out[i, j] = (1 - b) * ((1 - a) * pixel(r0, c0) + a * pixel(r0, c0 + 1)) + b * (
                (1 - a) * pixel(r0 + 1, c0) + a * pixel(r0 + 1, c0 + 1)
            )
    return out


WIDTHS = [0.3, -0.2, 0.15, 0.25, -0.1, 0.4]
NOISE = [0.5, -0.8, 0.9, -0.6, 0.7, -0.3]
LOW = [-0.2, 0.8, 0.9, -0.3, -0.1, -0.2, 0.05]
HIGH = [0.4, 1.3, 1.0, 0.2, 0.3, -0.1, 0.25]
NOISE7 = [0.5, -0.8, 0.9, -0.6, 0.7, -0.3, 0.2]
IMAGE = np.array([[0.5, -1.0, 2.0, 0.0], [1.5, 0.25, -0.5, 1.0], [-2.0, 0.75, 1.0, -0.25]])


if __name__ == "__main__":
    np.set_printoptions(precision=7)
    print(symmetric(WIDTHS, NOISE))
    print(asymmetric(LOW, HIGH, NOISE7))
    print(generators(WIDTHS, NOISE))
    print(warp(IMAGE, symmetric(WIDTHS, NOISE)))
