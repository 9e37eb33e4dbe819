"""One file that holds all a bit-identical resume needs, written so that it is whole or absent."""

import contextlib
import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from fedpart.errors import DamagedError, OutputError
from fedpart.server import ServerState

# What writes a small file as a whole.
Writer = Callable[[Path, bytes], None]
_MAGIC = b"fedpart-checkpoint-2\n"


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
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync a folder, and say so.
        if not (error.errno == errno.EINVAL and path.is_dir()):
            raise
    finally:
        os.close(handle)


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write under a temporary name, sync, rename: readers see the old file or the new one.

    Raises:
        OutputError: the disk is full or the place cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
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


def save(path: Path, state: ServerState, extra: dict[str, Any]) -> None:
    """Write ``state`` and ``extra`` (numbers, strings, tensors, lists, dicts) to ``path``.

    Tensors that are the same are written once.

    Raises:
        OutputError: see ``write_atomic``; the old checkpoint stays whole.
    """
    write_checkpoint(path, {"state": vars(state), "extra": extra})


def load(path: Path) -> tuple[ServerState, dict[str, Any]]:
    """Read what ``save`` wrote.

    Raises:
        OutputError: see ``read_checkpoint``.
    """
    loaded = read_checkpoint(path)
    state = ServerState(**{f.name: loaded["state"][f.name] for f in fields(ServerState)})
    return state, loaded["extra"]


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write tensors, plain numbers, strings, lists and dicts, with a hash of all.

    Raises:
        OutputError: see ``write_atomic``; the old checkpoint stays whole.
    """
    body = _encoded(content)
    write_atomic(path, _MAGIC, hashlib.sha256(body).hexdigest().encode(), b"\n", body)


def write_tensors(path: Path, content: Mapping[str, object]) -> None:
    """Write what ``torch.load(path, weights_only=True)`` reads.

    Raises:
        OutputError: see ``write_atomic``.
    """
    write_atomic(path, _encoded(content))


def _encoded(content: Mapping[str, object]) -> memoryview:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read what ``write_checkpoint`` wrote.

    Raises:
        OutputError: no such file, another format, or a hash that does not match.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    digest, _, body = content.removeprefix(_MAGIC).partition(b"\n")
    if not content.startswith(_MAGIC) or hashlib.sha256(body).hexdigest().encode() != digest:
        raise DamagedError(
            f"checkpoint {path} is damaged or of another version: start the run anew"
        )
    loaded: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
    return loaded
