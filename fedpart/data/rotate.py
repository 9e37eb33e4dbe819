"""Rotation of images by fixed angles, and the bins that make an angle a kind of label."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from fedpart.warp import off_diagonal

NUM_BINS = 10
# Bounds the memory of the sampling grid.
_CHUNK = 1000


def draw_angles(rng: np.random.Generator, n: int) -> np.ndarray:
    """``n`` angles ~ U[-pi, pi) in radians, float64."""
    return rng.uniform(-math.pi, math.pi, n)


def rotate(images: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotate each image about its centre, bilinear, zeros from outside.

    The angle is that of pixels, also where the image is not square.

    The arithmetic is float64, so that machines whose float32 kernels differ round to the same
    grey values.

    Args:
        images: [n, c, h, w] uint8.
        angles: radians, counterclockwise as seen, [n].
    Returns:
        [n, c, h, w] uint8, rounded and clamped.
    Source: Appendix I, "Datasets"; the recipe of RotatedMNIST in Immer et al. 2022.
    """
    rotated = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), _CHUNK):
        part = slice(start, start + _CHUNK)
        # np.array: a memory-mapped input is read-only, which torch warns about.
        x = torch.from_numpy(np.array(images[part], np.float64))
        angle = torch.from_numpy(np.array(angles[part], np.float64))
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        # affine_grid maps output to input positions and y points down.
        xy, yx = off_diagonal(-sin, sin, x.shape[-1] / x.shape[-2])
        affine = torch.stack([cos, xy, zero, yx, cos, zero], 1).view(-1, 2, 3)
        grid = F.affine_grid(affine, list(x.shape), align_corners=False)
        y = F.grid_sample(x, grid, "bilinear", "zeros", align_corners=False)
        rotated[part] = y.round_().clamp_(0, 255).to(torch.uint8).numpy()
    return rotated


def angle_bins(angles: np.ndarray) -> np.ndarray:
    """Angles in [-pi, pi) -> one of 10 bins of 36 degrees, int64 [n]."""
    bins = np.floor((angles + math.pi) / (2 * math.pi) * NUM_BINS).astype(np.int64)
    return np.clip(bins, 0, NUM_BINS - 1)
