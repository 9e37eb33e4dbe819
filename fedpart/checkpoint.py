"""One file that holds all a bit-identical resume needs, written so that it is whole or absent."""

import hashlib
import io
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from fedpart.errors import OutputError
from fedpart.server import ServerState

_MAGIC = b"fedpart-checkpoint-1\n"


def write_atomic(path: Path, content: bytes) -> None:
    """Write under a temporary name, sync, rename: readers see the old file or the new one.

    Raises:
        OutputError: the disk is full or the place cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def save(path: Path, state: ServerState, extra: dict[str, Any]) -> None:
    """Write ``state`` and ``extra`` (plain numbers, strings, lists, dicts) to ``path``.

    Raises:
        OutputError: see ``write_atomic``; the old checkpoint stays whole.
    """
    buffer = io.BytesIO()
    torch.save({"state": asdict(state), "extra": extra}, buffer)
    body = buffer.getvalue()
    write_atomic(path, _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def load(path: Path) -> tuple[ServerState, dict[str, Any]]:
    """Read what ``save`` wrote.

    Raises:
        OutputError: no such file, another format, or a hash that does not match.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OutputError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    digest, _, body = content.removeprefix(_MAGIC).partition(b"\n")
    if not content.startswith(_MAGIC) or hashlib.sha256(body).hexdigest().encode() != digest:
        raise OutputError(f"checkpoint {path} is damaged or of another version: start the run anew")
    loaded = torch.load(io.BytesIO(body), weights_only=True)
    state = ServerState(**{f.name: loaded["state"][f.name] for f in fields(ServerState)})
    return state, loaded["extra"]
