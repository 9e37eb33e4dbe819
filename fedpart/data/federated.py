"""A data set as a federation sees it: clients' images, validation and test images."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedpart.config import Config
from fedpart.data.cifar import load_cifar10
from fedpart.data.images import Images, own_images
from fedpart.data.rotate import draw_angles, rotate
from fedpart.data.sources import load_digits
from fedpart.data.split import check_split, skew_groups, split_clients
from fedpart.data.tiny import load_tinyimagenet
from fedpart.errors import DataError
from fedpart.streams import numpy_rng


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Images of all clients, and what they are judged on.

    Attributes:
        name: the data set.
        num_classes: labels are 0..num_classes-1.
        in_channels: channels of the images.
        images: training subset, [n, c, h, w] uint8.
        labels: [n] int64.
        angles: fixed rotation of each training image in radians, [n] float64; None where upright.
        client_indices: positions in ``images`` of each client's, ascending int64.
        val_images: [v, c, h, w] uint8, owned by no client.
        val_labels: [v] int64.
        test_images: [t, c, h, w] uint8, or None.
        test_labels: [t] int64, or None.
        source: one sentence on where the data came from.
        mean: of each channel of images in [0, 1], taken off before the network; empty for nothing.
        std: of each channel of images in [0, 1], divided by; empty for nothing.
    """

    name: str
    num_classes: int
    in_channels: int
    images: np.ndarray
    labels: np.ndarray
    angles: np.ndarray | None
    client_indices: Sequence[np.ndarray]
    val_images: np.ndarray
    val_labels: np.ndarray
    test_images: np.ndarray | None
    test_labels: np.ndarray | None
    source: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def image_shape(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        height, width = self.images.shape[2:]
        return height, width

    @property
    def description(self) -> str:
        """Where the images came from, and their shape."""
        height, width = self.image_shape
        channels = f"{self.in_channels} channel{'' if self.in_channels == 1 else 's'}"
        return f"{self.source}; images of {channels}, {height} by {width} pixels (height, width)"

    @cached_property
    def data_hash(self) -> str:
        """sha256 over training images, labels, who owns which, and validation, hex."""
        parts = [self.images, self.labels, *self.client_indices, self.val_images, self.val_labels]
        return _sha256(self.name, parts)

    @cached_property
    def test_hash(self) -> str | None:
        """sha256 over test images and labels, hex, or None: training does not depend on them."""
        if self.test_images is None or self.test_labels is None:
            return None
        return _sha256(self.name, [self.test_images, self.test_labels])

    def client(self, client_id: int) -> tuple[np.ndarray, np.ndarray]:
        """One client's images [n_i, c, h, w] uint8 and labels [n_i] int64, as copies.

        Raises:
            IndexError: no such client.
        """
        if not 0 <= client_id < len(self.client_indices):
            raise IndexError(
                f"client {client_id}: ids are 0 to {len(self.client_indices) - 1} in this split"
            )
        index = self.client_indices[client_id]
        return self.images[index], self.labels[index]


def to_float(
    images: np.ndarray | Tensor, mean: Sequence[float] = (), std: Sequence[float] = ()
) -> Tensor:
    """Values 0..255 to [0, 1], less ``mean`` and over ``std`` of each channel where given.

    Args:
        images: [n, c, h, w] uint8.
        mean: [c], or empty.
        std: [c], or empty.
    Returns:
        [n, c, h, w] float32, newly allocated and contiguous, where the images are.
    Raises:
        TypeError: images of another type, which would be scaled twice.
    """
    if images.dtype not in (np.uint8, torch.uint8):
        raise TypeError(f"images are {images.dtype}; they must be uint8")
    if isinstance(images, Tensor):
        scaled = images.contiguous().to(torch.float32)
    else:
        scaled = torch.from_numpy(images.astype(np.float32, order="C"))
    scaled.div_(255)
    if mean:
        scaled.sub_(torch.tensor(mean, device=scaled.device).view(-1, 1, 1))
    if std:
        scaled.div_(torch.tensor(std, device=scaled.device).view(-1, 1, 1))
    return scaled


def load_federated(config: Config) -> FederatedData:
    """Read, choose, rotate and split, all by ``data_seed``: equal for every method and run seed.

    One permutation of the training images serves both ends: its first ``train_size`` go to the
    clients, its last 10,000 (CIFAR10: 5,000) are validation. So a smaller training set is part of
    a larger one. Where fewer than twice as many images are at hand, all that clients do not get is
    validation, at most that number.

    Raises:
        DataError: data missing or damaged, or a size or split that is impossible.
    Source: Appendix J, "Federated setup" and "Shared setting".
    """
    check_split(config.train_size, config.clients, config.alpha, config.min_examples)
    found = load_upright(config)
    train, validation = _choose(config, found)
    images, labels = found.images[train], found.labels[train]
    val_images, val_labels = found.images[validation], found.labels[validation]
    test_images, angles = found.test_images, None
    if config.rotated:
        images, angles = rotated_part(config.data_seed, "train", images)
        val_images, _ = rotated_part(config.data_seed, "validation", val_images)
        if test_images is not None:
            test_images, _ = rotated_part(config.data_seed, "test", test_images)
    client_indices = split_clients(
        skew_groups(config.skew, labels, angles),
        config.clients,
        config.alpha,
        numpy_rng(config.data_seed, "split"),
        concentration=config.concentration,
        sizes=config.sizes,
        min_examples=config.min_examples,
    )
    return FederatedData(
        name=config.dataset,
        num_classes=found.num_classes,
        in_channels=images.shape[1],
        images=images,
        labels=labels,
        angles=angles,
        client_indices=client_indices,
        val_images=val_images,
        val_labels=val_labels,
        test_images=test_images,
        test_labels=found.test_labels,
        source=found.source,
        mean=found.mean,
        std=found.std,
    )


def load_upright(config: Config) -> Images:
    """Images of the data set that ``config`` names, before any is chosen or rotated.

    Raises:
        DataError: missing or damaged.
    """
    upright = config.dataset.removeprefix("rot") if config.rotated else config.dataset
    return upright_images(upright, config.data_dir)


def upright_images(name: str, data_dir: str | None) -> Images:
    """Images of the data set called ``name``: one that is known, or a user's own.

    Raises:
        DataError: missing or damaged.
    """
    loaders = {"mnist": load_digits, "cifar10": load_cifar10, "tinyimagenet": load_tinyimagenet}
    return loaders[name](data_dir) if name in loaders else own_images(name, data_dir)


def _choose(config: Config, found: Images) -> tuple[np.ndarray, np.ndarray]:
    total = len(found.labels)
    # Of fewer images, too many would be left unused.
    whole = total >= 2 * found.validation
    least = found.validation if whole else max(1, total // 10)
    if config.train_size > total - least:
        raise DataError(
            f"train-size is {config.train_size:,}, but of the {total:,} training images at hand "
            f"{least:,} must stay for validation; use at most {total - least:,}, "
            "or name a folder with more of them by data-dir"
        )
    order = numpy_rng(config.data_seed, "subset").permutation(total)
    # From the far end, so that curves on the first images of it compare across train sizes.
    return order[: config.train_size], order[config.train_size :][::-1][: found.validation]


def rotated_part(seed: int, part: str, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, c, h, w], each turned by an angle of its own, and the angles in radians [n].

    Args:
        seed: of the data.
        part: ``train``, ``validation`` or ``test``, whose angles are drawn apart.
        images: upright.
    """
    angles = draw_angles(numpy_rng(seed, f"angles-{part}"), len(images))
    return rotate(images, angles), angles


def _sha256(name: str, arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256(name.encode())
    for array in arrays:
        # Little-endian, so that the hash does not depend on the machine.
        part = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        digest.update(part.data)
    return digest.hexdigest()
