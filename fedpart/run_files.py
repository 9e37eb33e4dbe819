"""Making and reading run folders, without anything heavy."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from fedpart.config import Config, load_toml, make_config
from fedpart.errors import ConfigError, OutputError

if sys.platform != "win32":
    import fcntl

_PROBE = ".writable"
# What a process that was killed before config.toml was there may leave behind.
_LEFTOVERS = frozenset({_PROBE, "config.toml.tmp"})


def check_free(path: Path) -> None:
    """Whether a run may use this folder: absent or empty, leftovers of a killed start apart.

    Raises:
        OutputError: it holds something, is a file, or cannot be looked into.
    """
    try:
        if path.exists() and any(p.name not in _LEFTOVERS for p in path.iterdir()):
            advice = "name another folder, delete it, or go on with it by --resume"
            raise OutputError(f"{path} is not empty: {advice}")
    except OSError as error:
        raise OutputError(f"cannot write to {path}: {error.strerror or error}") from None


def new_folder(path: Path) -> None:
    """Make an empty folder for a run.

    Raises:
        OutputError: it holds something already, or cannot be made.
    """
    check_free(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / _PROBE
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(f"cannot write to {path}: {error.strerror or error}") from None


def read_config(path: Path) -> Config:
    """Settings of an earlier run.

    Raises:
        OutputError: no run folder.
    """
    if not (path / "config.toml").is_file():
        seeds = sorted(p.parent.name for p in path.glob("seed-*/config.toml"))
        hint = f"one of its runs, such as {path / seeds[0]}" if seeds else "the folder of a run"
        raise OutputError(f"{path} holds no config.toml, so no run began there: name {hint}")
    try:
        return make_config(load_toml(path / "config.toml"))
    except ConfigError as error:
        raise OutputError(f"{path} cannot be read: {error}") from None


def lock_run(path: Path) -> int:
    """Keep a run folder for this process until the handle is closed, or the process ends.

    Returns:
        a handle for ``os.close``. Where the file system has no locks, it keeps nothing.
    Raises:
        OutputError: another process works on the run, or there is no config.toml.
    """
    try:
        handle = os.open(path / "config.toml", os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}") from None
    if sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise OutputError(
                f"another process is working on {path}: wait for its end, or stop it"
            ) from None
        except OSError:
            # Some network file systems have no locks.
            pass
    return handle


def read_lines(path: Path, count: int | None = None) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file; a last line cut short by a crash is left out.

    Args:
        path: the file.
        count: read so many lines at most; what follows may be damaged.
    Raises:
        OutputError: a damaged line before the last, or no such file.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}") from None
    # What follows the last line end is empty, or the part of a line that a crash has left.
    return [_parse(path, number, line) for number, line in enumerate(lines[:-1][:count], 1)]


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:  # no JSON, or no UTF-8
        value = None
    if not isinstance(value, dict):
        raise OutputError(f"{path} is damaged in line {number}: restore it or start anew")
    return value
