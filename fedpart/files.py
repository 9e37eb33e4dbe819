"""Writing files so that they are whole or absent, reading what users wrote, and what fails."""

import codecs
import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fedpart.errors import ConfigError, OutputError

# What pictures are drawn as.
PICTURES = (".png", ".svg")


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

    What ``kill -9`` leaves under the temporary name is written over when the file is written again.

    Args:
        path: the file.
        parts: what it will hold, one after the other.
        secret: nobody but its owner may read it, at no moment.
    Raises:
        OutputError: the disk is full or the place cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            with _new_secret(temporary) if secret else temporary.open("wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        # The new name is on the disk only when its folder is.
        sync(path.parent)


def check_out(out: Path, endings: tuple[str, ...] = ()) -> None:
    """Whether ``--out`` can be the name of a file to write.

    Args:
        out: as it was typed.
        endings: what it must end in; nothing if all the same.
    Raises:
        ConfigError: it is empty, or ends in something else.
        OutputError: it is a folder.
    """
    if out.name in ("", ".."):
        raise ConfigError(f"--out is {str(out)!r}; it must be the name of a file")
    if endings and out.suffix not in endings:
        raise ConfigError(f"--out is {out}; its name must end in {' or '.join(endings)}")
    if out.is_dir():
        raise OutputError(f"cannot write {out}: {os.strerror(errno.EISDIR)}")


def write_out(path: Path, content: bytes) -> None:
    """Write to a place that somebody has typed, or at the end of a link there; make its folders.

    Raises:
        OutputError: the disk is full or the place cannot be written.
    """
    place = Path(os.path.realpath(path))
    with writing(path):
        place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, content)


def _new_secret(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def read_text(path: str | Path, what: str) -> str:
    """What a file holds, without the byte order mark that some editors put first.

    Args:
        path: the file; it may be a pipe.
        what: is read from it, for the sentence.
    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {what} from {path}: {error.strerror}") from None
    # Its mark, or a first letter of two bytes.
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:2]:
        kind = "UTF-16 text"
    else:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            kind = "not UTF-8 text"
    raise ConfigError(f"{path} is {kind}; save it as UTF-8")
