"""Learnable affine augmentation: three published parameterisations of psi.

Each family turns noise in [-1, 1] and its raw values into one 2x3 matrix an image, which maps
target pixels to source pixels in coordinates where the image is [-1, 1]^2. Angles and shears are
those of pixels, also where the image is not square; a shift of 1 is half the side along its axis.
A custom family may change images in any way that is differentiable in its raw values.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpart.errors import ConfigError
from fedpart.models import noise_images, uniform
from fedpart.plugins import call_own, users_code
from fedpart.warp import compose, off_diagonal, warp

NAMES = ("rotation", "translate_x", "translate_y", "scale_x", "scale_y", "shear")
# From half-turns to radians; the other widths are in natural units.
NATURAL = torch.tensor([math.pi, 1.0, 1.0, 1.0, 1.0, 1.0])
AUGERINO_LIMIT = 10.0


class Augmentation(Protocol):
    """What a family of augmentations offers.

    Attributes:
        names: one for each raw value, [H].
        noise_size: numbers in [-1, 1] that one image needs.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """One for each raw value."""
        ...

    @property
    def noise_size(self) -> int:
        """Numbers in [-1, 1] that one image needs."""
        ...

    def initial(self) -> Tensor:
        """Raw values at the start, [H] float32."""
        ...

    def apply(self, images: Tensor, raw: Tensor, noise: Tensor) -> Tensor:
        """Changed images [n, c, h, w], each by its row of ``noise`` [n, noise_size]."""
        ...

    def readable(self, raw: Tensor) -> dict[str, float]:
        """Widths in plain units: degrees, fractions of half the image, factors."""
        ...


class _Affine(ABC):
    """Families that move pixels, by a matrix an image."""

    @abstractmethod
    def matrices(self, raw: Tensor, noise: Tensor, aspect: float = 1.0) -> Tensor:
        """One 2x3 matrix for each row of ``noise`` [n, noise_size]: [n, 2, 3].

        ``aspect`` is width / height of the images.
        """

    def apply(self, images: Tensor, raw: Tensor, noise: Tensor) -> Tensor:
        """Warped images, [n, c, h, w]."""
        height, width = images.shape[-2:]
        return warp(images, self.matrices(raw, noise, width / height))


def _softplus_inverse(width: float) -> float:
    return width + math.log(-math.expm1(-width))


@dataclass(frozen=True)
class Symmetric(_Affine):
    """Six widths, each transformation drawn uniformly from [-width, width].

    Units: rotation in half-turns (1 = pi radians), translation in half images, scale as log-factor,
    shear as slope: all of order one, so that one learning rate suits all.

    Attributes:
        start: width of every transformation at the start.
        transform: ``raw`` (the sign has no meaning), or ``softplus`` (always positive).
    Source: footnote of the random-search experiment (six scalars), Schwobel et al. for the order.
    """

    start: float
    transform: str = "raw"
    names: ClassVar[tuple[str, ...]] = NAMES
    noise_size: ClassVar[int] = 6

    def initial(self) -> Tensor:
        """[6] float32."""
        raw = _softplus_inverse(self.start) if self.transform == "softplus" else self.start
        return torch.full((6,), raw)

    def widths(self, raw: Tensor) -> Tensor:
        """[6], in the units above."""
        return F.softplus(raw) if self.transform == "softplus" else raw

    def matrices(self, raw: Tensor, noise: Tensor, aspect: float = 1.0) -> Tensor:
        """[n, 2, 3] for noise [n, 6] in [-1, 1]; ``aspect`` is width / height."""
        rotation, tx, ty, sx, sy, shear = (self.widths(raw) * noise).unbind(-1)
        shift = torch.stack([tx, ty], -1)
        shears, scales = (shear, torch.zeros_like(shear)), (sx.exp(), sy.exp())
        return compose(math.pi * rotation, shears, scales, shift, aspect)

    def readable(self, raw: Tensor) -> dict[str, float]:
        """Largest rotation in degrees, shift in half images, scale factor, shear slope."""
        return _readable(self.widths(raw).abs() * NATURAL)


def _readable(widths: Tensor) -> dict[str, float]:
    """Name widths given in radians, half images, log-factors and slopes, [6]."""
    rotation, tx, ty, sx, sy, shear = widths.double().tolist()
    return {
        "rotation_degrees": math.degrees(rotation),
        "translate_x": tx,
        "translate_y": ty,
        "scale_x_factor": math.exp(min(sx, 700.0)),
        "scale_y_factor": math.exp(min(sy, 700.0)),
        "shear": shear,
    }


@dataclass(frozen=True)
class Asymmetric(_Affine):
    """Fourteen scalars: the lower and upper end of each of seven intervals, unconstrained.

    Order: rotation [half-turns], scale x, scale y [factor], shear x, shear y [slope],
    translation x, y [half images]; first the seven lower ends, then the seven upper ends.

    Attributes:
        start: half the width of every interval at the start.
    Source: Schwobel et al. 2022, literally, but for half-turns.
    """

    start: float
    _order: ClassVar[tuple[str, ...]] = (
        "rotation",
        "scale_x",
        "scale_y",
        "shear_x",
        "shear_y",
        "translate_x",
        "translate_y",
    )
    noise_size: ClassVar[int] = 7

    @property
    def names(self) -> tuple[str, ...]:
        """``<transformation>_min`` and ``<transformation>_max``."""
        return tuple(f"{name}_{end}" for end in ("min", "max") for name in self._order)

    def initial(self) -> Tensor:
        """[14] float32."""
        centre = torch.tensor([0.0, 1, 1, 0, 0, 0, 0])
        return torch.cat([centre - self.start, centre + self.start])

    def matrices(self, raw: Tensor, noise: Tensor, aspect: float = 1.0) -> Tensor:
        """[n, 2, 3] for noise [n, 7] in [-1, 1]; ``aspect`` is width / height."""
        low, high = raw.view(2, 7)
        rotation, sx, sy, hx, hy, tx, ty = (low + (high - low) * (noise + 1) / 2).unbind(-1)
        shift = torch.stack([tx, ty], -1)
        return compose(math.pi * rotation, (hx, hy), (sx, sy), shift, aspect)

    def readable(self, raw: Tensor) -> dict[str, float]:
        """Half the rotation interval in degrees, and both ends of every interval."""
        low, high = raw.double().view(2, 7).tolist()
        ends = {f"{n}_min": a for n, a in zip(self._order, low, strict=True)} | {
            f"{n}_max": b for n, b in zip(self._order, high, strict=True)
        }
        rotation = {
            f"rotation_{e}_degrees": 180 * ends.pop(f"rotation_{e}") for e in ("min", "max")
        }
        return {"rotation_degrees": 90 * abs(high[0] - low[0])} | rotation | ends


@dataclass(frozen=True)
class Generators(_Affine):
    """Six widths along the generators of affine maps, through the matrix exponential.

    M = sum_i noise_i width_i G_i, A = expm(M), with G = rotation E21 - E12 [half-turns],
    translation E13, E23 [half images], scale E11, E22 [log-factor], shear E12 + E21. E12 and E21
    act on pixels; of their weights, M holds what ``off_diagonal`` makes of them.

    Attributes:
        start: width of every generator at the start.
        transform: ``raw`` or ``softplus``, as in ``Symmetric``.
    Source: Immer et al. 2022; Benton et al. 2020.
    """

    start: float
    transform: str = "raw"
    names: ClassVar[tuple[str, ...]] = NAMES
    noise_size: ClassVar[int] = 6

    def initial(self) -> Tensor:
        """[6] float32."""
        return Symmetric(self.start, self.transform).initial()

    def widths(self, raw: Tensor) -> Tensor:
        """[6], rotation in half-turns."""
        return Symmetric(self.start, self.transform).widths(raw)

    def matrices(self, raw: Tensor, noise: Tensor, aspect: float = 1.0) -> Tensor:
        """[n, 2, 3] for noise [n, 6] in [-1, 1]; ``aspect`` is width / height."""
        rotation, tx, ty, sx, sy, shear = (self.widths(raw) * noise).unbind(-1)
        zero = torch.zeros_like(rotation)
        rotation = math.pi * rotation
        xy, yx = off_diagonal(shear - rotation, shear + rotation, aspect)
        rows = [sx, xy, tx, yx, sy, ty, zero, zero, zero]
        return torch.matrix_exp(torch.stack(rows, -1).view(-1, 3, 3))[:, :2]

    def readable(self, raw: Tensor) -> dict[str, float]:
        """As ``Symmetric.readable``."""
        return Symmetric(self.start, self.transform).readable(raw)


@dataclass(frozen=True)
class OwnAugmentation:
    """A custom family; see ``Augmentation``."""

    names: tuple[str, ...]
    noise_size: int
    initial: Callable[[], Tensor]
    apply: Callable[[Tensor, Tensor, Tensor], Tensor]
    readable: Callable[[Tensor], dict[str, float]]


def own_augmentation(name: str, start: float, shape: tuple[int, int, int]) -> OwnAugmentation:
    """Make a custom family, and try it on two images of noise.

    Args:
        name: ``module:Class``, called with ``start``.
        start: width at the start.
        shape: (channels, height, width) of the images.
    Returns:
        the family; its ``readable`` raises a ConfigError where a number is not finite, or is named
        otherwise than at the start, since records with either could not be read.
    Raises:
        ConfigError: it cannot be imported, raises, gives values or images that do not fit or are
            not finite, or keeps the gradient from its values.
    """
    own: Any = call_own("augmentation", name, start=start)

    def readable(raw: Tensor) -> dict[str, float]:
        # A clone: it may not change psi.
        told = own.readable(raw.detach().clone())
        numbers = {str(key): float(value) for key, value in told.items()}
        if numbers.keys() != set(columns) or not all(map(math.isfinite, numbers.values())):
            raise ConfigError(
                f"augmentation {name!r}: readable gives {numbers!s:.60}; it must give finite "
                f"numbers, each time by the names {', '.join(map(repr, columns))}"
            )
        return numbers

    with users_code("augmentation", name):
        raw, names = own.initial().detach().clone().requires_grad_(), tuple(own.names)
        columns = tuple(map(str, own.readable(raw.detach().clone())))
        noise = uniform(torch.Generator().manual_seed(0), (2, own.noise_size), -1, 1)
        images = noise_images(shape[0], shape[1:])
        changed = own.apply(images.clone(), raw.clone(), noise)
        wrong = ""
        if raw.shape != (len(names),) or raw.dtype != torch.float32:
            wrong = "initial must give one float32 for each of its names"
        elif changed.shape != images.shape or changed.dtype != images.dtype:
            wrong = "apply must keep the shape and the type of the images"
        elif not (raw.isfinite().all() and changed.isfinite().all()):
            wrong = "initial or apply gives values that are not finite"
        elif names and not changed.requires_grad:
            wrong = "no gradient reaches its raw values: leave detach and no_grad out of apply"
        if wrong:
            raise ConfigError(f"augmentation {name!r}: {wrong}")
        readable(raw)
        return OwnAugmentation(names, own.noise_size, own.initial, own.apply, readable)


def build_augmentation(
    name: str, start: float, transform: str, shape: tuple[int, int, int] = (1, 28, 28)
) -> Augmentation | None:
    """The family called ``name``; None for ``none``.

    Args:
        name: of the setting, or ``module:Class`` of the user's own, called with ``start``.
        start: width at the start.
        transform: see ``Symmetric``.
        shape: (channels, height, width) of the images, on which the user's own is tried out.
    Raises:
        ConfigError: the user's class cannot be imported or made, lacks what a family offers, or
            fails.
    """
    if name == "none":
        return None
    if name == "symmetric":
        return Symmetric(start, transform)
    if name == "asymmetric":
        return Asymmetric(start)
    if name == "generators":
        return Generators(start, transform)
    return own_augmentation(name, start, shape)


def natural_widths(family: Augmentation | None, raw: Tensor) -> Tensor:
    """Widths in radians, half images, log-factors and slopes, [6], differentiable in ``raw``.

    Raises:
        TypeError: an augmentation without widths.
    """
    if not isinstance(family, Symmetric | Generators):
        raise TypeError(f"{type(family).__name__} has no widths")
    return family.widths(raw) * NATURAL.to(raw)


def natural_values(family: Symmetric | Asymmetric | Generators, raw: Tensor) -> Tensor:
    """Every raw value in natural units, [H]: rotation in radians, where 1 is half a turn."""
    if isinstance(family, Asymmetric):
        return raw * torch.tensor([math.pi, 1, 1, 1, 1, 1, 1] * 2)
    return natural_widths(family, raw)


def augerino_reward(widths: Tensor, safe: bool) -> Tensor:
    """Augerino's reward for wide augmentation: the norm of the widths.

    Rotation counts up to half a turn, beyond which nothing changes: without that bound it would
    grow until the safe variant gave up the reward for all widths.

    Args:
        widths: in radians, half images, log-factors and slopes, [6], rotation first.
        safe: no reward, value and gradient, as soon as one width reaches 10; the unsafe variant
            is unbounded below whatever its weight.
    Returns:
        [], differentiable in ``widths``.
    Source: Benton et al. 2020 and their ``safe_unif_aug_loss``; the paper's Appendix E, "Note on
        Augerino".
    """
    bounded = torch.cat([widths[:1].clamp(-math.pi, math.pi), widths[1:]])
    norm: Tensor = torch.linalg.vector_norm(bounded)
    return norm * (bounded.abs() < AUGERINO_LIMIT).all() if safe else norm
