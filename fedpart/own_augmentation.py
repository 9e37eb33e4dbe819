"""A family of augmentations of the user's own: tried out at the start, and watched later."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fedpart.errors import ConfigError
from fedpart.models import noise_images, uniform
from fedpart.plugins import call_own, users_code


@dataclass(frozen=True)
class OwnAugmentation:
    """A family as ``fedpart.augment.Augmentation`` describes it.

    Attributes:
        family: the user's.
        setting: what names it.
        names: one for each raw value, [H].
        noise_size: numbers in [-1, 1] that one image needs.
        told: the names that its ``readable`` gave at the start.
    """

    family: Any
    setting: str
    names: tuple[str, ...]
    noise_size: int
    told: tuple[str, ...]

    def initial(self) -> Tensor:
        """Raw values at the start, [H] float32."""
        raw: Tensor = self.family.initial()
        return raw

    def apply(self, images: Tensor, raw: Tensor, noise: Tensor) -> Tensor:
        """Changed images [n, c, h, w], each by its row of ``noise`` [n, noise_size]."""
        changed: Tensor = self.family.apply(images, raw, noise)
        return changed

    def readable(self, raw: Tensor) -> dict[str, float]:
        """Raw values in plain units.

        Raises:
            ConfigError: no names and finite numbers, or other names than at the start.
        """
        # What is told may not change what is trained.
        told = check_told(self.setting, self.family.readable(raw.detach().clone()))
        if told.keys() != set(self.told):
            now, before = (", ".join(names) or "nothing" for names in (told, self.told))
            raise ConfigError(
                f"augmentation {self.setting!r}: readable names {now} now, and named {before} at "
                "the start; it must give the same names each time"
            )
        return told


def check_told(setting: str, told: object) -> dict[str, float]:
    """What ``readable`` returned, as plain numbers.

    Raises:
        ConfigError: it is no dict of names, each on one line, and finite real numbers.
    """
    wrong = (
        f"augmentation {setting!r}: readable returns {told!r:.60}, not a dict of names and finite "
        "numbers"
    )
    if not isinstance(told, dict):
        raise ConfigError(wrong)
    numbers = {}
    for name, value in told.items():
        named = isinstance(name, str) and name.isprintable() and name
        if not named or not isinstance(value, Real) or isinstance(value, bool):
            raise ConfigError(wrong)
        try:
            numbers[name] = float(value)
        except OverflowError:
            raise ConfigError(wrong) from None
        if not math.isfinite(numbers[name]):
            raise ConfigError(wrong)
    return numbers


def own_augmentation(name: str, start: float, shape: tuple[int, int, int]) -> OwnAugmentation:
    """Make the user's family, and try it out on two images of noise.

    Args:
        name: ``module:Class``, called with ``start``.
        start: width at the start.
        shape: (channels, height, width) of the images.
    Raises:
        ConfigError: the class cannot be imported or made, lacks what a family offers, or fails.
    """
    own: Any = call_own("augmentation", name, start=start)
    with users_code("augmentation", name):
        raw, names = own.initial(), tuple(own.names)
    count = len(names)
    if not isinstance(raw, Tensor):
        raise ConfigError(f"augmentation {name!r}: initial returns no tensor")
    if tuple(raw.shape) != (count,) or raw.dtype != torch.float32:
        raise ConfigError(
            f"augmentation {name!r} has {count} names and initial values of shape "
            f"{tuple(raw.shape)} and type {raw.dtype}; there must be one float32 for each name"
        )
    if not torch.isfinite(raw).all():
        raise ConfigError(f"augmentation {name!r}: initial gives values that are not finite")
    leaf, images = raw.detach().clone().requires_grad_(), noise_images(shape[0], shape[1:])
    with users_code("augmentation", name):
        noise_size = int(own.noise_size)
        noise = uniform(torch.Generator().manual_seed(0), (2, noise_size), -1, 1)
        changed = own.apply(images.clone(), leaf.clone(), noise)
        told = own.readable(raw.detach().clone())
    known = check_told(name, told)
    if not isinstance(changed, Tensor):
        raise ConfigError(f"augmentation {name!r}: apply returns no tensor")
    if changed.shape != images.shape or changed.dtype != images.dtype:
        raise ConfigError(
            f"augmentation {name!r} makes images of shape {tuple(changed.shape)} and type "
            f"{changed.dtype} out of {tuple(images.shape)} and {images.dtype}; both must stay"
        )
    if not torch.isfinite(changed).all():
        raise ConfigError(f"augmentation {name!r}: apply gives values that are not finite")
    if count and not changed.requires_grad:
        raise ConfigError(
            f"augmentation {name!r}: apply gives images through which no gradient reaches its raw "
            "values, which would never be learned: leave detach and no_grad out of it"
        )
    return OwnAugmentation(own, name, names, noise_size, tuple(known))
