"""Affine maps of images: a 2x3 matrix an image, from target to source pixels.

Coordinates are those in which an image is [-1, 1]^2.
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


def compose(
    angle: Tensor, shear: tuple[Tensor, Tensor], scale: tuple[Tensor, Tensor], shift: Tensor
) -> Tensor:
    """A = R(angle) ShY(hy) ShX(hx) diag(sx, sy), source = A (target - shift).

    Args:
        angle: radians, [n].
        shear: (hx, hy), [n] each.
        scale: (sx, sy), factors, [n] each.
        shift: fraction of half the image, [n, 2].
    Returns:
        [n, 2, 3].
    Source: Schwobel et al. 2022, the spatial transform of their MNIST experiments.
    """
    (hx, hy), (sx, sy) = shear, scale
    c, s = angle.cos(), angle.sin()
    a = torch.stack(
        [
            torch.stack([sx * c - hy * sx * s, hx * sy * c - sy * s - s * sy * hx * hy], -1),
            torch.stack([sx * s + hy * sx * c, c * sy * hx * hy + hx * sy * s + sy * c], -1),
        ],
        -2,
    )
    return torch.cat([a, -a @ shift.unsqueeze(-1)], -1)
