"""CIFAR10: torchvision's files, an image folder, or an archive of either."""

import os
import pickle
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedpart.data.cache import content_key
from fedpart.data.download import Download, downloaded
from fedpart.data.images import (
    FORMAT,
    Images,
    cached_arrays,
    counted,
    folder_arrays,
    part_arrays,
)
from fedpart.data.readers import check_labels
from fedpart.errors import DataError

SIDE = 32
NUM_CLASSES = 10
VALIDATION = 5_000
# Of the training images, a value a channel. Source: Immer et al. 2022, who divide 125.3, 123.0,
# 113.9 and 63.0, 62.1, 66.7 by 255.
MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
_BATCHES = "cifar-10-batches-py"
_FILES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
_DOWNLOAD = Download(
    "CIFAR10", _BATCHES, "", "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
)
_ARCHIVE = "cifar*10*.tar*"

Arrays = Mapping[str, np.ndarray]


def load_cifar10(data_dir: str | None) -> Images:
    """CIFAR10 from ``data_dir`` or ``$FEDPART_DATA``; else a download.

    Raises:
        DataError: files missing or damaged, or no way to get any.
    """
    named = data_dir or os.environ.get("FEDPART_DATA")
    if named:
        arrays, where = _from_folder(named)
    else:
        place = downloaded(_DOWNLOAD, _complete)
        if place is None:
            raise DataError(
                "no CIFAR10: it cannot be downloaded here; name a folder that holds it by data-dir"
            )
        arrays = cached_arrays("cifar10-batches", *_batches(place), None)
        where = f"from torchvision's download in {place}"
    return Images(
        arrays["train_images"],
        arrays["train_labels"],
        arrays.get("test_images"),
        arrays.get("test_labels"),
        source=counted(arrays, "images", where),
        num_classes=NUM_CLASSES,
        mean=MEAN,
        std=STD,
        validation=VALIDATION,
    )


def _from_folder(named: str) -> tuple[Arrays, str]:
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DataError(f"data-dir {named} is not a folder; name one that holds CIFAR10")
    for place in (folder / "cifar10", folder):
        if (found := _files(place)) is not None:
            name, key, build, where = found
            return cached_arrays(name, key, build, folder), where
        archives = sorted(place.glob(_ARCHIVE))
        if len(archives) > 1:
            names = ", ".join(archive.name for archive in archives)
            raise DataError(f"{place} holds several archives, {names}; leave one there")
        if archives:
            return _from_archive(archives[0], folder), f"from the archive {archives[0]}"
    raise DataError(
        f"data-dir {named} holds no CIFAR10; put torchvision's folder {_BATCHES}, image folders "
        "train/<class>/* and test/<class>/*, or an archive of either (cifar10*.tar.xz), there or "
        "in its sub-folder cifar10"
    )


Found = tuple[str, Callable[[], str], Callable[[], dict[str, np.ndarray]], str]


def _files(place: Path) -> Found | None:
    """Name, key and contents of what lies in a folder, and words for it; None for nothing."""
    for batches in (place / _BATCHES, place):
        if (batches / "data_batch_1").is_file():
            return ("cifar10-batches", *_batches(batches), f"from the batches in {batches}")
    if (place / "train").is_dir():
        made = folder_arrays(place, NUM_CLASSES, (SIDE, SIDE), colour=True)
        return ("cifar10-folder", *made, f"from the image folder {place}")
    return None


def _from_archive(archive: Path, data_dir: Path) -> Arrays:
    def build() -> dict[str, np.ndarray]:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                with tarfile.open(archive) as tar:
                    tar.extractall(scratch, filter="data")
            except (tarfile.TarError, OSError, EOFError) as error:
                raise DataError(
                    f"{archive} cannot be unpacked ({error}); replace it by a fresh copy"
                ) from None
            top = Path(scratch)
            for place in (top, *(p for p in top.iterdir() if p.is_dir())):
                if (found := _files(place)) is not None:
                    return found[2]()
        raise DataError(f"{archive} holds neither {_BATCHES} nor train/<class>/*")

    return cached_arrays(
        "cifar10-archive", lambda: content_key([archive], FORMAT, "archive"), build, data_dir
    )


def _complete(place: Path) -> bool:
    return all((place / name).is_file() for names in _FILES.values() for name in names)


def _batches(place: Path) -> tuple[Callable[[], str], Callable[[], dict[str, np.ndarray]]]:
    """Key and contents of torchvision's files; the test batch may be absent."""
    paths = {
        part: [place / name for name in names]
        for part, names in _FILES.items()
        if part == "train" or (place / names[0]).is_file()
    }

    def build() -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        for part, files in paths.items():
            read = [_read_batch(file) for file in files]
            images, labels = (np.concatenate(some) for some in zip(*read, strict=True))
            arrays |= part_arrays(part, images, labels, place)
        return arrays

    return lambda: content_key([f for some in paths.values() for f in some], FORMAT), build


class _ArrayUnpickler(pickle.Unpickler):
    """Takes NumPy arrays and nothing else: a pickle may otherwise run any code."""

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _read_batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """One batch: images [n, 3, 32, 32] uint8 and labels [n] int64."""
    try:
        with file.open("rb") as stream:
            # Written by Python 2, whose strings were bytes.
            batch = _ArrayUnpickler(stream, encoding="latin1").load()
        pixels, labels = batch["data"], np.array(batch["labels"], np.uint8)
        images = np.array(pixels, np.uint8).reshape(-1, 3, SIDE, SIDE)
    except FileNotFoundError:
        raise DataError(
            f"{file.parent} lacks {file.name}, one of five batches; copy it there too"
        ) from None
    # Damaged pickles raise nearly anything.
    except Exception as error:
        raise DataError(
            f"{file} is no batch of CIFAR10 ({type(error).__name__}: {error}); "
            "replace it by a fresh copy"
        ) from None
    return images, check_labels(labels, len(images), NUM_CLASSES, file)
