"""Readers of image files: IDX, packed or not, and folders with one sub-folder a class."""

import gzip
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
from PIL import Image

from fedpart.errors import DataError

# Those of torchvision's ImageFolder, and GIF.
IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
)
_PIXELS = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
_GREY = frozenset({"1", "L", "LA"})
# Names in one sentence.
_SHOWN = 12
_IDX_TYPES = {0x08: ">u1", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """One IDX file; gzip is recognised by content, whatever the name.

    Args:
        path: the file.
        ndim: dimensions it must have: 3 for images, 1 for labels.
    Returns:
        uint8, float32 or float64 as stored, in the shape that the header states.
    Raises:
        DataError: unreadable, cut, another format, or more bytes than stated.
    Source: "THE IDX FILE FORMAT", http://yann.lecun.com/exdb/mnist/
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        # EOFError: the archive ends early; the other two: its bytes were changed.
        raise DataError(f"{path} is cut or damaged ({error}); replace it by a fresh copy") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; check the file") from None
    if len(raw) < 4:
        raise DataError(
            f"{path} has {len(raw)} bytes and no IDX header; replace it by a fresh copy"
        )
    magic, header = int.from_bytes(raw[:4], "big"), 4 + 4 * ndim
    dtype = _IDX_TYPES.get(raw[2])
    if raw[:2] != b"\0\0" or dtype is None or raw[3] != ndim:
        raise DataError(
            f"{path} starts with 0x{magic:08x}, but IDX data of {ndim} dimension(s) "
            f"starts with 0x{0x800 + ndim:08x}; check that it is the right file"
        )
    shape = tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(4, header, 4))
    # Python integers: a damaged header may state sizes that overflow or exhaust memory.
    stated = header + math.prod(shape) * np.dtype(dtype).itemsize
    if len(raw) != stated:
        fault = "is cut" if len(raw) < stated else "has too many bytes"
        raise DataError(
            f"{path} {fault}: {len(raw):,} bytes where its header states {stated:,}; "
            "replace it by a fresh copy"
        )
    array = np.frombuffer(raw, dtype, offset=header).reshape(shape)
    native: np.ndarray = array.astype(array.dtype.newbyteorder("="), copy=False)
    return native


def to_uint8(images: np.ndarray, where: Path | str) -> np.ndarray:
    """Grey values as uint8; floats are read as 0..1 if none exceeds 1, else as 0..255.

    Raises:
        DataError: NaN, infinity or a value outside 0..255.
    """
    if images.dtype == np.uint8:
        return images
    if not np.isfinite(images).all():
        count = int((~np.isfinite(images)).any(axis=tuple(range(1, images.ndim))).sum())
        raise DataError(
            f"{where} holds NaN or infinite values in {count} image(s); repair or remove them"
        )
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if low < 0 or high > 255:
        raise DataError(
            f"{where} holds grey values from {low:g} to {high:g}; scale them to 0..255 or 0..1"
        )
    pixels: np.ndarray = np.rint(images * 255 if high <= 1 else images).astype(np.uint8)
    return pixels


def check_labels(labels: np.ndarray, num_images: int, num_classes: int, where: Path) -> np.ndarray:
    """Labels as int64, [n].

    Raises:
        DataError: not whole numbers, not one an image, or outside 0..num_classes-1.
    """
    if labels.dtype != np.uint8:
        raise DataError(f"{where} holds {labels.dtype} labels; they must be unsigned bytes")
    if len(labels) != num_images:
        raise DataError(
            f"{where} holds {len(labels):,} labels for {num_images:,} images; "
            "replace the two files by a pair that belongs together"
        )
    if num_images and labels.max() >= num_classes:
        raise DataError(
            f"{where} holds label {int(labels.max())}; labels must be 0 to {num_classes - 1}"
        )
    return labels.astype(np.int64)


def image_files(folder: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """What is in a folder with one sub-folder a class, hidden names apart.

    Returns:
        class name -> its image files at any depth, both in alphabetical order, as torchvision's
        ``ImageFolder`` has them; and all other files, which it passes over without a word.
    Raises:
        DataError: a folder that cannot be listed.
    """
    try:
        entries = sorted(entry for entry in folder.iterdir() if entry.name[0] != ".")
        below = {entry.name: sorted(_files_below(entry)) for entry in entries if entry.is_dir()}
    except OSError as error:
        raise DataError(f"cannot list {folder}: {error.strerror}; check the folder") from None
    images = {
        name: [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
        for name, files in below.items()
    }
    others = {file for files in below.values() for file in files}
    others.difference_update(file for files in images.values() for file in files)
    return images, sorted(others) + [entry for entry in entries if not entry.is_dir()]


def _files_below(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> NoReturn:
        raise error

    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] != "."]
        yield from (Path(place, name) for name in names if name[0] != ".")


def class_labels(names: list[str], num_classes: int, where: Path) -> dict[str, int]:
    """Class name -> label: digits name themselves, other names count in alphabetical order.

    Raises:
        DataError: more classes than the data set has.
    """
    if all(name.isascii() and name.isdigit() and int(name) < num_classes for name in names):
        return {name: int(name) for name in names}
    if len(names) > num_classes:
        odd = [name for name in names if not name.isdigit() or int(name) >= num_classes]
        shown = ", ".join(odd[:_SHOWN]) + (", ..." if len(odd) > _SHOWN else "")
        raise DataError(
            f"{where} has {len(names)} class folders, but the data set has {num_classes} classes; "
            f"remove what does not belong to it, among {shown}"
        )
    return {name: label for label, name in enumerate(sorted(names))}


def read_images(
    files: dict[str, list[Path]],
    labels: dict[str, int],
    shape: tuple[int, int],
    colour: bool,
    grey_too: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Decode an image folder.

    Args:
        files: from ``image_files``.
        labels: from ``class_labels``.
        shape: (height, width) in pixels that each image must have.
        colour: red, green and blue; else grey, to which colour images are turned.
        grey_too: whether grey images among colour ones are turned to colour.
    Returns:
        images uint8 [n, h, w], or [n, 3, h, w] in colour, and labels [n] int64.
    Raises:
        DataError: a file that is no image, is cut, has another size, or is grey among colour ones
            where ``grey_too`` is not set.
    """
    pairs = [(file, labels[name]) for name, members in files.items() for file in members]
    images = np.empty((len(pairs), *((3, *shape) if colour else shape)), np.uint8)
    for position, (file, _) in enumerate(pairs):
        pixels = _read_image(file, shape, colour, grey_too)
        images[position] = pixels.transpose(2, 0, 1) if colour else pixels
    return images, np.array([label for _, label in pairs], np.int64)


def _read_image(file: Path, shape: tuple[int, int], colour: bool, grey_too: bool) -> np.ndarray:
    try:
        with Image.open(file) as image:
            if image.mode not in _PIXELS:
                # 16-bit and float modes would be clipped at 255 without a word.
                raise DataError(
                    f"{file} has pixels of mode {image.mode!r}; "
                    f"convert it to 8-bit {'colour' if colour else 'grey'}"
                )
            if colour and not grey_too and image.mode in _GREY:
                raise DataError(
                    f"{file} is grey (mode {image.mode!r}) among colour images; "
                    "convert it to RGB or remove it"
                )
            if image.size != shape[::-1]:
                raise DataError(
                    f"{file} is {image.width}x{image.height} pixels; "
                    f"images must be {shape[1]}x{shape[0]}"
                )
            return np.asarray(image.convert("RGB" if colour else "L"))
    # Pillow's decoders raise each of these on damaged files.
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} is no readable image ({error}); replace or remove it") from None
