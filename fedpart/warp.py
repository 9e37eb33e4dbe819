"""Affine maps of images: a 2x3 matrix an image, from target to source pixels.

Coordinates are those in which an image is [-1, 1]^2; angles and shears are those of pixels, also
where the image is not square.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor


def warp(images: Tensor, matrices: Tensor) -> Tensor:
    """Resample images bilinearly; what lies outside is zero.

    Args:
        images: [n, c, h, w].
        matrices: target to source, [n, 2, 3].
    Returns:
        [n, c, h, w]; differentiable in ``matrices``.
    Source: Jaderberg et al. 2015; ``align_corners=False`` throughout.
    """
    height, width = images.shape[-2:]
    base = _pixels(height, width, matrices.dtype, matrices.device).expand(len(matrices), -1, -1)
    # The numbers of F.affine_grid to the bit, but vmap goes through it.
    grid = base.bmm(matrices.transpose(1, 2)).view(len(matrices), height, width, 2)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _pixels(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Centres of all pixels, [1, height * width, 3]: x, y and 1.

    Made in an evaluation, they must be good for training too.
    """
    x, y = (
        torch.linspace(-1, 1, n, dtype=dtype, device=device) * (n - 1) / n for n in (width, height)
    )
    x, y = x.expand(height, width), y.unsqueeze(1).expand(height, width)
    return torch.stack([x, y, torch.ones_like(x)], -1).view(1, height * width, 3)


def off_diagonal(xy: Tensor, yx: Tensor, aspect: float) -> tuple[Tensor, Tensor]:
    """From a linear map A of pixels to coordinates where the image is [-1, 1]^2.

    D^-1 A D with D = diag(width, height) / 2, which leaves the diagonal as it is. With aspect 1 all
    keeps its bits.

    Args:
        xy: what y adds to x under A, [n].
        yx: what x adds to y under A, [n].
        aspect: width / height of the image.
    Returns:
        The same two of D^-1 A D, [n] each.
    """
    return xy / aspect, yx * aspect


def compose(
    angle: Tensor,
    shear: tuple[Tensor, Tensor],
    scale: tuple[Tensor, Tensor],
    shift: Tensor,
    aspect: float = 1.0,
) -> Tensor:
    """A = R(angle) ShY(hy) ShX(hx) diag(sx, sy) of pixels, source = D^-1 A D (target - shift).

    Args:
        angle: radians, [n].
        shear: (hx, hy), pixels a pixel, [n] each.
        scale: (sx, sy), factors, [n] each.
        shift: (x, y), fractions of half the width and half the height, [n, 2].
        aspect: width / height of the images.
    Returns:
        [n, 2, 3]; D as in ``off_diagonal``.
    Source: Schwobel et al. 2022, the spatial transform of their MNIST experiments.
    """
    (hx, hy), (sx, sy) = shear, scale
    c, s = angle.cos(), angle.sin()
    xx, xy = sx * c - hy * sx * s, hx * sy * c - sy * s - s * sy * hx * hy
    yx, yy = sx * s + hy * sx * c, c * sy * hx * hy + hx * sy * s + sy * c
    xy, yx = off_diagonal(xy, yx, aspect)
    a = torch.stack([torch.stack([xx, xy], -1), torch.stack([yx, yy], -1)], -2)
    return torch.cat([a, -a @ shift.unsqueeze(-1)], -1)
