"""Making and reading run folders, without anything heavy."""

import json
from pathlib import Path
from typing import Any

from fedpart.config import Config, load_toml, make_config
from fedpart.errors import ConfigError, OutputError


def check_free(path: Path) -> None:
    """Whether a run may use this folder: absent or empty.

    Raises:
        OutputError: it holds something, is a file, or cannot be looked into.
    """
    try:
        if path.exists() and any(path.iterdir()):
            raise OutputError(f"{path} is not empty: name another folder, or resume it")
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
        probe = path / ".writable"
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
        raise OutputError(f"{path} holds no config.toml: name {hint}")
    try:
        return make_config(load_toml(path / "config.toml"))
    except ConfigError as error:
        raise OutputError(f"{path} cannot be read: {error}") from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file; a last line cut short by a crash is left out.

    Raises:
        OutputError: a damaged line before the last, or no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}") from None
    # What follows the last line end is empty, or the part of a line that a crash has left.
    return [_parse(path, number, line) for number, line in enumerate(lines[:-1], 1)]


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise OutputError(f"{path} is damaged in line {number}: restore it or start anew")
    return value
