"""Writing files so that they are whole or absent, and what the system says about it."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from fedpart.errors import OutputError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Explain what the system says about ``path``.

    Raises:
        OutputError: the disk is full or the place cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, from the system's memory onto the disk.

    Raises:
        OSError: the disk is full or broken.
    """
    folder = path.is_dir()
    try:
        # Windows syncs only what may be written.
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        # Some network file systems cannot sync a folder, nor can Windows open one; both say so.
        if not (folder and error.errno in (errno.EINVAL, errno.EACCES)):
            raise


def write_atomic(path: Path, *parts: bytes | memoryview, secret: bool = False) -> None:
    """Write under a temporary name, sync, rename: readers see the old file or the new one.

    For a folder that one process writes: what ``kill -9`` leaves under the temporary name is
    written over when the file is written again.

    Args:
        path: the file.
        parts: what it will hold, one after the other.
        secret: nobody but its owner may read it, at no moment.
    Raises:
        OutputError: the disk is full or the place cannot be written.
    """
    with writing(path):
        replace_file(path, path.with_name(path.name + ".tmp"), parts, secret)


def replace_file(
    path: Path,
    temporary: Path,
    parts: Iterable[bytes | memoryview],
    secret: bool = False,
    mode_of: Path | None = None,
) -> None:
    """``write_atomic`` with a temporary name of the caller's choice, in the same folder.

    Args:
        path: the file.
        temporary: gone again, unless the process is killed.
        parts: what it will hold, one after the other.
        secret: nobody but its owner may read it, at no moment.
        mode_of: file whose permissions it gets.
    Raises:
        OSError: what the system says.
    """
    try:
        with _new_secret(temporary) if secret else temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if mode_of is not None:
            shutil.copymode(mode_of, temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    # The new name is on the disk only when its folder is.
    sync(path.parent)


def _new_secret(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def write_anyhow(path: Path, content: bytes) -> None:
    """``write_atomic``, or over the file itself where the disk has no room for another.

    That needs none while the content fits the blocks that the file has. It is for a small file at
    the end of a process: a crash in its midst would leave half of it.

    Raises:
        OutputError: the place cannot be written.
    """
    try:
        write_atomic(path, content)
    except OutputError:
        with writing(path), path.open("r+b", buffering=0) as file:
            file.write(content)
            file.truncate()
            os.fsync(file.fileno())
