"""Files of tensors and plain values: checkpoints, which carry a hash of it all, and models."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedpart.errors import DamagedError
from fedpart.files import write_atomic

_MAGIC = b"fedpart-checkpoint-2\n"


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
