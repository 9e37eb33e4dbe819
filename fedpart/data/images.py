"""Images of any kind as they come: from image folders, or from a user's own function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedpart.data.cache import cached, listing_key
from fedpart.data.readers import class_labels, image_files, read_images
from fedpart.errors import DataError, FedpartError
from fedpart.plugins import call_own, users_code

# Part of every key: a change of what is stored must not meet old entries.
FORMAT = "1"
# Name of an array of one number: files of an image folder that are no images.
OTHERS = "others"
# Labels in one sentence.
_SHOWN = 5
# How many channels images have: grey, colour, colour with opacity.
_CHANNELS = (1, 3, 4)
# Grey values up to here look like another scale than 0 to 255, such as 0 to 1 or 0 to 16.
_DARK = 31


@dataclass(frozen=True, eq=False)
class Images:
    """Upright images as they come.

    Attributes:
        images: [n, c, h, w] uint8, read-only where it is memory-mapped.
        labels: [n] int64, 0..num_classes-1.
        test_images: [t, c, h, w] uint8, or None where there are none.
        test_labels: [t] int64, or None.
        source: one sentence for the user.
        num_classes: how many labels there are.
        mean: of each channel of images in [0, 1] (grey value / 255), taken off before the network;
            empty for nothing.
        std: of each channel of images in [0, 1], divided by; empty for nothing.
        validation: images that stay for validation where there are at least twice as many.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray | None = None
    test_labels: np.ndarray | None = None
    source: str = "a function of your own"
    num_classes: int = 10
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    validation: int = 10_000


def own_images(spec: str, data_dir: str | None) -> Images:
    """What ``module:function`` returns when called with ``data_dir``.

    Raises:
        DataError: it cannot be imported, raises, or returns something else, or images and labels
            that do not fit.
    """
    try:
        found = call_own("dataset", spec, data_dir=data_dir)
        with users_code("dataset", spec):
            if isinstance(found, Images):
                # Arrays will do.
                mean, std = (tuple(float(v) for v in some) for some in (found.mean, found.std))
                found = replace(found, mean=mean, std=std)
    except FedpartError as error:
        # One code for whatever is wrong with it: what it raises is about data more often than not.
        raise DataError(str(error)) from error
    if not isinstance(found, Images):
        raise DataError(
            f"dataset {spec!r} returned {type(found).__name__}, not a fedpart.data.Images"
        )
    if not isinstance(found.source, str):
        raise DataError(f"dataset {spec!r} has source {found.source!r}; it must be a sentence")
    if not isinstance(found.validation, int) or found.validation < 1:
        raise DataError(
            f"dataset {spec!r} has validation {found.validation!r}; it must be a number of images, "
            "at least 1"
        )
    labels = _labels(f"dataset {spec!r}", found.images, found.labels, found.num_classes)
    found = replace(found, labels=labels)
    tests, labels_of_tests = found.test_images, found.test_labels
    if (tests is None) != (labels_of_tests is None):
        raise DataError(f"dataset {spec!r} has test images or labels without the other; give both")
    if tests is not None and labels_of_tests is not None:
        labels = _labels(f"test set of {spec!r}", tests, labels_of_tests, found.num_classes)
        found = replace(found, test_labels=labels)
        if tests.shape[1:] != found.images.shape[1:]:
            shapes = [tuple(a.shape[1:]) for a in (tests, found.images)]
            raise DataError(f"test images of {spec!r} are {shapes[0]}, training images {shapes[1]}")
    channels = found.images.shape[1]
    for name, values in (("mean", found.mean), ("std", found.std)):
        if values and len(values) != channels:
            raise DataError(f"dataset {spec!r} has {len(values)} {name} values, not {channels}")
    unit = "of images in [0, 1], which is grey values / 255"
    if not all(0 <= value <= 1 for value in found.mean):
        raise DataError(f"dataset {spec!r} has mean {found.mean}; each must be 0 to 1, {unit}")
    if not all(0 < value <= 1 for value in found.std):
        raise DataError(
            f"dataset {spec!r} has std {found.std}; each must be above 0 and at most 1, {unit}"
        )
    return found


def order_warnings(shape: Sequence[int]) -> list[str]:
    """What a user should know whose images may have their channels last, in a sentence; or none.

    Args:
        shape: of inputs; of images, [n, channels, height, width].
    """
    if len(shape) != 4 or shape[3] not in _CHANNELS or shape[1] in _CHANNELS:
        return []
    _, channels, height, width = shape
    return [
        f"images are taken for {channels} channels of {height} by {width} pixels, as their order "
        "is [n, channels, height, width]; where it is [n, height, width, channels], have the data "
        "set return images.transpose(0, 3, 1, 2)"
    ]


def scale_warnings(images: np.ndarray) -> list[str]:
    """What a user should know whose grey values may have another scale, in a sentence; or none.

    Args:
        images: [n, c, h, w] uint8, n at least 1.
    """
    highest = int(images.max())
    if highest > _DARK:
        return []
    return [
        f"no grey value of the images is above {highest}, where 255 is white; if theirs have "
        "another scale, have the data set multiply them before it makes them uint8"
    ]


def _labels(what: str, images: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Labels as int64, whatever whole numbers they are; images and labels that fit."""
    if not isinstance(num_classes, int | np.integer) or num_classes < 1:
        raise DataError(
            f"{what} has num_classes {num_classes!r}; it must be a whole number of at least 1"
        )
    for name, array in (("images", images), ("labels", labels)):
        if not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise DataError(f"{what} has {name} of type {kind}; they must be a NumPy array")
    if images.ndim != 4 or images.dtype != np.uint8:
        raise DataError(
            f"{what} has images of type {images.dtype} and shape {images.shape}; they must be "
            "uint8 [n, channels, height, width]"
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(
            f"{what} has labels of type {labels.dtype} and shape {labels.shape}; there must be one "
            f"whole number for each of the {len(images):,} images"
        )
    if not len(labels):
        raise DataError(f"{what} holds no images")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise DataError(f"{what} has labels {low} to {high}; they must be 0 to {num_classes - 1}")
    return labels.astype(np.int64)


def counted(arrays: Mapping[str, np.ndarray], kind: str, where: str) -> str:
    """``1,250 training and 200 test images from ...``, and what a user should know of them.

    That is how many files are no images, and which classes the test images lack: accuracy on them
    then means something else.
    """
    test = arrays.get("test_labels")
    tests = 0 if test is None else len(test)
    text = f"{len(arrays['train_labels']):,} training and {tests:,} test {kind} {where}"
    others = int(arrays[OTHERS][0]) if OTHERS in arrays else 0
    if others:
        files = f"{others:,} other file{'' if others == 1 else 's'}"
        text += f"; left out, for their ending or place: {files}"
    if test is not None and len(lacking := np.setdiff1d(arrays["train_labels"], test)):
        listed = ", ".join(map(str, lacking[:_SHOWN])) + (", ..." if len(lacking) > _SHOWN else "")
        text += (
            f"; no test image of {len(lacking):,} class{'' if len(lacking) == 1 else 'es'} (label "
            f"{listed}): test accuracy is that of the others"
        )
    return text


def part_arrays(
    part: str, images: np.ndarray, labels: np.ndarray, where: Path | str
) -> dict[str, np.ndarray]:
    """``<part>_images`` [n, c, h, w] and ``<part>_labels``; a channel is added to [n, h, w].

    Raises:
        DataError: there is no image.
    """
    if not len(images):
        raise DataError(f"{where} holds no images; put some there or name another data-dir")
    images = images[:, None] if images.ndim == 3 else images
    return {f"{part}_images": images, f"{part}_labels": labels}


def folder_arrays(
    place: Path, num_classes: int, shape: tuple[int, int], colour: bool, grey_too: bool = False
) -> tuple[Callable[[], str], Callable[[], dict[str, np.ndarray]]]:
    """Key and contents of an image folder ``train/<class>/*``, ``test/<class>/*``.

    Args:
        place: the folder.
        num_classes: at most so many.
        shape: (height, width) of every image.
        colour: three channels, or one.
        grey_too: whether grey images among colour ones are turned to colour, not refused.
    Returns:
        two functions: the key of what lies there, and its arrays by name.
    Raises:
        DataError: a folder that cannot be listed, too many classes, or one without images.
    """
    parts = ["train", *(["test"] if (place / "test").is_dir() else [])]
    listed = {part: image_files(place / part) for part in parts}
    files = {part: images for part, (images, _) in listed.items()}
    others = [file for _, some in listed.values() for file in some]
    # Classes of both parts together, so that a label means the same in each.
    names = sorted({name for part in files.values() for name in part})
    labels = class_labels(names, num_classes, place)
    for part, members in files.items():
        for name, some in members.items():
            if not some:
                raise DataError(
                    f"{place / part / name} holds no images; put some there or remove the folder"
                )

    def build() -> dict[str, np.ndarray]:
        arrays = {OTHERS: np.array([len(others)])}
        for part, members in files.items():
            images, values = read_images(members, labels, shape, colour, grey_too)
            arrays |= part_arrays(part, images, values, f"{place / part}/<class>")
        return arrays

    def key() -> str:
        every = [file for part in files.values() for members in part.values() for file in members]
        # A link that leads nowhere has no size to go by.
        there = [file for file in others if file.exists()]
        return listing_key(every + there, FORMAT, str(place.resolve()), *files)

    return key, build


def cached_arrays(
    name: str,
    key: Callable[[], str],
    build: Callable[[], dict[str, np.ndarray]],
    outside: Path | None,
) -> Mapping[str, np.ndarray]:
    """``fedpart.data.cache.cached`` under a key that may fail to be made."""
    try:
        entry = f"{name}-{key()}"
    except OSError:
        # A file that cannot be read: the reader says so by name.
        return build()
    return cached(entry, build, outside)
