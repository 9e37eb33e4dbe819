"""A data set as a federation sees it: clients' images, validation and test images."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedpart.augment import compose, warp
from fedpart.config import Config
from fedpart.data.sources import load_digits
from fedpart.data.split import skew_labels, split_clients
from fedpart.errors import DataError
from fedpart.streams import numpy_rng

VALIDATION = 10_000
LEAST_VALIDATION = 100


@dataclass(frozen=True)
class FederatedData:
    """Images of all clients, and what they are judged on.

    Attributes:
        name: the data set.
        num_classes: labels are 0..num_classes-1.
        in_channels: channels of the images.
        images: training subset, [n, c, h, w] uint8.
        labels: [n] int64.
        angles: fixed rotation of each training image in radians, [n] float64; None where upright.
        client_indices: positions in ``images`` of each client's, ascending.
        val_images: [v, c, h, w] uint8.
        val_labels: [v] int64.
        test_images: [t, c, h, w] uint8, or None.
        test_labels: [t] int64, or None.
        source: one sentence on where the data came from.
    """

    name: str
    num_classes: int
    in_channels: int
    images: np.ndarray
    labels: np.ndarray
    angles: np.ndarray | None
    client_indices: tuple[np.ndarray, ...]
    val_images: np.ndarray
    val_labels: np.ndarray
    test_images: np.ndarray | None
    test_labels: np.ndarray | None
    source: str

    @cached_property
    def data_hash(self) -> str:
        """sha256 over everything that results depend on, hex."""
        digest = hashlib.sha256(self.name.encode())
        parts = [self.images, self.labels, *self.client_indices, self.val_images, self.val_labels]
        for part in parts:
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    def client(self, client_id: int) -> tuple[np.ndarray, np.ndarray]:
        """One client's images [n_i, c, h, w] uint8 and labels [n_i] int64."""
        index = self.client_indices[client_id]
        return self.images[index], self.labels[index]


def to_float(images: np.ndarray) -> Tensor:
    """Images in [0, 1] as float32, [n, c, h, w], from uint8."""
    return torch.from_numpy(np.ascontiguousarray(images)).to(torch.float32).div_(255)


def rotate(images: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotate each image by its angle: bilinear, outside is zero, back to uint8.

    Args:
        images: [n, c, h, w] uint8.
        angles: radians, [n].
    Source: Appendix "Datasets"; Immer et al. 2022 for the resampling.
    """
    pieces = []
    for start in range(0, len(images), 1000):
        angle = torch.from_numpy(angles[start : start + 1000]).float()
        zero, one = torch.zeros_like(angle), torch.ones_like(angle)
        matrices = compose(angle, (zero, zero), (one, one), torch.zeros(len(angle), 2))
        pixels = torch.from_numpy(np.array(images[start : start + 1000])).float()
        pieces.append(warp(pixels, matrices).clamp_(0, 255).to(torch.uint8).numpy())
    return np.concatenate(pieces)


def load_federated(config: Config) -> FederatedData:
    """Read, choose, rotate and split, all by ``data_seed``: equal for every method and run seed.

    Of 60,000 digits 10,000 are kept for validation; where fewer are at hand, what the training
    subset leaves.

    Raises:
        DataError: data missing or damaged, or a size or split that is impossible.
    Source: Appendix H, "Federated setup" and "Shared setting".
    """
    digits = load_digits(config.data_dir)
    total = len(digits.labels)
    validation = VALIDATION if total >= 3 * VALIDATION else max(0, total - config.train_size)
    most = total - max(validation, LEAST_VALIDATION)
    if config.train_size > most:
        raise DataError(
            f"train-size is {config.train_size}; with the {total} training digits at hand it can "
            f"be at most {most}: lower it, or give all of MNIST by data-dir"
        )
    order = numpy_rng(config.data_seed, "subset").permutation(total)
    train, val = order[: config.train_size], order[total - validation :]
    images, labels = digits.images[train], digits.labels[train]
    val_images, val_labels = digits.images[val], digits.labels[val]
    test_images, test_labels, angles = digits.test_images, digits.test_labels, None
    if config.dataset == "rotmnist":
        images, angles = _rotated(config, "train", images)
        val_images, _ = _rotated(config, "validation", val_images)
        if test_images is not None:
            test_images, _ = _rotated(config, "test", test_images)
    return FederatedData(
        name=config.dataset,
        num_classes=10,
        in_channels=1,
        images=images,
        labels=labels,
        angles=angles,
        client_indices=split_clients(config, skew_labels(config, labels, angles)),
        val_images=val_images,
        val_labels=val_labels,
        test_images=test_images,
        test_labels=test_labels,
        source=digits.source,
    )


def _rotated(config: Config, part: str, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    angles = numpy_rng(config.data_seed, f"angles-{part}").uniform(-np.pi, np.pi, len(images))
    return rotate(images, angles), angles
