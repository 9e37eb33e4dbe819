"""Images, networks and psi of the paper's experiments on digits and objects."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpart.augment import build_augmentation
from fedpart.central.config import DATASETS, CentralConfig
from fedpart.central.task import Task
from fedpart.data import to_float
from fedpart.data.federated import rotated_part, upright_images
from fedpart.errors import ConfigError, DataError
from fedpart.models import build_model, noise_images, swap_dropout, try_out
from fedpart.streams import global_seed, numpy_rng, torch_seed

Part = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Split:
    """Images [n, c, h, w] uint8 and labels [n] of each part, and how they are read.

    Attributes:
        train: the first of a permutation that the data seed decides, so that a smaller set is
            part of a larger one, and the same as in a federation.
        test: in an order that the data seed decides; where there is none, images that are not
            trained on.
        validation: of the far end of that permutation; None where no images are left.
        num_classes: number of labels.
        source: one sentence.
        mean: of each channel, or empty.
        std: of each channel, or empty.
    """

    train: Part
    test: Part
    validation: Part | None
    num_classes: int
    source: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def tensors(self, part: Part, most: int | None = None) -> tuple[Tensor, Tensor]:
        """The first ``most`` images as the network wants them, and their labels."""
        images, labels = (array[:most] for array in part)
        return to_float(np.asarray(images), self.mean, self.std), torch.from_numpy(labels.copy())


@lru_cache(maxsize=1)
def load_split(dataset: str, data_dir: str | None, seed: int, train_size: int) -> Split:
    """Choose and rotate, by the data seed alone.

    Args:
        dataset: see the setting.
        data_dir: see the setting.
        seed: of the data.
        train_size: how many images to train on.
    Raises:
        DataError: data missing or damaged, or fewer than ``train_size``.
    Source: Appendix I, "Datasets" (RotMNIST); Section 5 (angles from U[-pi, pi], once).
    """
    rotated = dataset in DATASETS and dataset.startswith("rot")
    found = upright_images(dataset.removeprefix("rot") if rotated else dataset, data_dir)
    total, spare = len(found.labels), found.test_images is None
    if train_size > total - spare:
        keep = ", of which one at least must stay for the test, as there is no test set" * spare
        raise DataError(
            f"train-size is {train_size:,}, but {dataset} has {total:,} training images here{keep}:"
            f" use at most {total - spare:,}, or name a folder with more of them by data-dir"
        )
    order = numpy_rng(seed, "subset").permutation(total)
    rest = order[train_size:][::-1][: found.validation]

    def part(name: str, images: np.ndarray, labels: np.ndarray) -> Part:
        return (rotated_part(seed, name, images)[0] if rotated else images), labels

    train = part("train", *(a[order[:train_size]] for a in (found.images, found.labels)))
    validation = part("validation", found.images[rest], found.labels[rest]) if len(rest) else None
    if found.test_images is not None and found.test_labels is not None:
        images, labels = part("test", found.test_images, found.test_labels)
        # Folders come class by class, and some of the test set must be some of every class.
        mixed = numpy_rng(seed, "test-order").permutation(len(labels))
        test = images[mixed], labels[mixed]
    else:
        assert validation is not None
        # Halves, so that what psi is chosen by is not what it is judged by.
        half = len(rest) // 2
        test = validation[0][half:], validation[1][half:]
        validation = (validation[0][:half], validation[1][:half]) if half else None
    words = f"{found.source}; tested on {len(test[1]):,} others" if spare else found.source
    return Split(train, test, validation, found.num_classes, words, found.mean, found.std)


def image_task(config: CentralConfig) -> Task:
    """Model, images, augmentation and psi that the settings name.

    Raises:
        ConfigError: a model that cannot be built or has no stages to be psi, or values of psi that
            do not fit.
        DataError: see ``load_split``.
    Source: Section 5, "Learning invariances through data-augmentations".
    """
    split = load_split(config.dataset, config.data_dir, config.data_seed, config.train_size)
    channels, *side = split.train[0].shape[1:]
    with global_seed(torch_seed(config.seed, "init")):
        model = build_model(config.model, split.num_classes, channels, (side[0], side[1]))
    images = noise_images(channels, (side[0], side[1]))
    try_out(model, config.model, split.num_classes, images)
    # The paper's table of the network has none here; in a federation its rates are learned.
    swap_dropout(model, 0.0)
    if config.experiment == "feature-extractor":
        extractor_as_psi(model, config.model)
    augmentation = build_augmentation(
        config.augmentation, config.width_start, "raw", (channels, side[0], side[1])
    )
    searched = config.method == "random-search"
    return Task(
        model,
        split.tensors(split.train),
        split.tensors(split.test, config.test_size),
        split.source,
        augmentation,
        hyper=_fixed(config),
        validation=split.tensors(split.validation) if searched and split.validation else None,
    )


def _fixed(config: CentralConfig) -> Tensor | None:
    if config.method == "random-search":
        return draw_psi(config.seed, config.trial)
    if config.method == "retrain" and config.psi is not None:
        return torch.tensor(config.psi, dtype=torch.float32)
    return None


def draw_psi(seed: int, trial: int) -> Tensor:
    """Six widths at random, [6]: rotation up to U(0, pi), the others U(0, 1/2).

    Args:
        seed: of the run.
        trial: number of the draw; each is the same whichever others are made.
    Source: Appendix G, "How good are the hyperparameters found?", footnote on the ranges.
    """
    # Rotation is in half-turns.
    most = np.array([1.0, 0.5, 0.5, 0.5, 0.5, 0.5])
    drawn = numpy_rng(seed, "random-search", trial).uniform(0, most)
    return torch.from_numpy(drawn).float()


def _rms(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()


def extractor_as_psi(model: nn.Module, name: str) -> None:
    """Make the first convolution and the first two of three stages hyperparameters, in place.

    Their parameters become buffers, which no partition owns; people read the root mean square of
    each.

    Args:
        model: with ``conv1`` and ``stages``, as ``WideResNet``.
        name: the setting, for the sentence.
    Raises:
        ConfigError: a model without them.
    Source: Section 5, "Learning a feature extractor".
    """
    conv, stages = getattr(model, "conv1", None), getattr(model, "stages", None)
    if not isinstance(conv, nn.Module) or not isinstance(stages, nn.Sequential):
        raise ConfigError(
            f"model {name!r} has no conv1 and stages, whose first would be psi: use wide-resnet20"
        )
    parts: list[Any] = [*conv.modules(), *stages[0].modules(), *stages[1].modules()]
    for part in parts:
        own = dict(part.named_parameters(recurse=False))
        for key, value in own.items():
            delattr(part, key)
            part.register_buffer(key, value.detach().clone())
        if own:
            part.hyperparameters = dict.fromkeys(own, _rms)
