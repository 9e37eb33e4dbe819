"""One file that holds all a bit-identical resume needs, written so that it is whole or absent."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from fedpart.server import ServerState
from fedpart.tensors import read_checkpoint, write_checkpoint


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
