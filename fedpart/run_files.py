"""Making and reading run folders, without anything heavy."""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedpart.config import Config, load_toml, make_config
from fedpart.errors import ConfigError, DamagedError, OutputError, TakenError
from fedpart.folder_lock import lock_run
from fedpart.spelling import kebab

# Keys, logs and Flower's own files of a rehearsal; there before the run is.
DEPLOYMENT = "deployment"
# Files that tell a run's folder, also where only its small files are kept. Not config.toml: the
# parent of several seeds has one too, and so have other programs.
RUN_MARKS = ("summary.json", "run.json", "evaluations.jsonl")
# What a process that was killed before config.toml was there may leave behind.
_LEFTOVERS = frozenset({"config.toml.tmp", DEPLOYMENT})


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def check_free(path: Path) -> None:
    """Whether a run may use this folder: absent or empty, what a killed start left apart.

    Raises:
        TakenError: it holds something.
        OutputError: it is a file, or cannot be looked into.
    """
    try:
        # Where it is beneath a file, say so before anything slow happens.
        beneath = next(p for p in (path, *path.absolute().parents) if p.exists())
        if path != beneath and not beneath.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if path.exists() and any(p.name not in _LEFTOVERS for p in path.iterdir()):
            # Not to delete it: it may hold other runs, or one at work.
            advice = "name another folder, or go on with it by --resume"
            raise TakenError(f"{path} is not empty: {advice}")
    except OSError as error:
        raise _unwritable(path, error) from None


class Named(Protocol):
    """Settings that say where a run goes."""

    @property
    def out(self) -> str | None: ...  # noqa: D102
    @property
    def name(self) -> str | None: ...  # noqa: D102
    @property
    def run_name(self) -> str: ...  # noqa: D102


def choose_folder(config: Named) -> Path:
    """``out``, or a folder under ``runs/``: ``<name>``, or ``<name>-2`` and so on if that is taken.

    Only a name that nobody chose gives way; a chosen one that is taken is refused elsewhere.
    """
    if config.out is not None:
        return Path(config.out)
    path = Path("runs") / config.run_name
    taken = 1
    while config.name is None and path.exists() and (not path.is_dir() or any(path.iterdir())):
        taken += 1
        path = path.with_name(f"{config.run_name}-{taken}")
    return path


def check_packages(logger: str) -> None:
    """Whether all that writes a run folder is installed, with this ``logger``.

    Raises:
        ConfigError: matplotlib is not, or tensorboard where it is asked for.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("matplotlib is not installed; pip install 'fedpart[sim]' brings it")
    if logger == "tensorboard" and find_spec("tensorboard") is None:
        raise ConfigError(
            "logger is 'tensorboard', which is not installed; pip install 'fedpart[tensorboard]'"
        )


def claim_folder(path: Path) -> int:
    """Make an empty folder for a run, and keep it for this process; see ``lock_run``.

    Of two processes that are started at once, one gets it.

    Returns:
        the handle of ``lock_run``.
    Raises:
        BusyError: another process works on it.
        TakenError: it holds something already.
        OutputError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    handle = lock_run(path)
    try:
        check_free(path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write to {path}: {error.strerror or error}")


def read_config(path: Path) -> Config:
    """Settings of an earlier run, or of the parent of several seeds.

    Raises:
        OutputError: no run folder, or one of ``sim.py central``.
    """
    if not (path / "config.toml").is_file():
        seeds = sorted(p.parent.name for p in path.glob("seed-*/config.toml"))
        hint = f"one of its runs, such as {path / seeds[0]}" if seeds else "the folder of a run"
        raise OutputError(f"{path} holds no config.toml, so no run began there: name {hint}")
    values = stored_settings(path / "config.toml")
    if "experiment" in values:
        raise OutputError(
            f"{path} is a central run: take it up with sim.py central --resume {path}"
        )
    try:
        return make_config(values)
    except ConfigError as error:
        raise DamagedError(f"{path / 'config.toml'} cannot be used: {error}") from None


def stored_settings(file: Path) -> dict[str, object]:
    """What a run has written as its ``config.toml``, not yet checked.

    Raises:
        DamagedError: it cannot be read, is no TOML, or ends early.
    """
    try:
        values = load_toml(file)
    except ConfigError as error:
        raise DamagedError(f"{error}: put it back from a copy, or start anew") from None
    # The last key that a run writes; without it, defaults would take the place of what is lost.
    if "json" not in values:
        raise damaged(file, None, "it ends early, without the key json")
    return values


def is_central(path: Path) -> bool:
    """Whether a run folder is one of ``sim.py central``, as far as its files tell."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return bool(json.loads((path / "summary.json").read_bytes())["kind"] == "central")
    with contextlib.suppress(ConfigError):
        return "experiment" in load_toml(path / "config.toml")
    return False


def check_shape(path: Path, several: bool) -> None:
    """Whether a folder that is taken up is of several runs, or of one, as its settings are.

    Args:
        path: the folder.
        several: what its settings ask for.
    Raises:
        OutputError: it is not.
    """
    words = ("one run", "several") if several else ("several runs", "one")
    one = (path / "run.json").is_file()
    # Within one run, others are somebody's own affair.
    if one if several else not one and any(path.glob("**/seed-*/run.json")):
        raise OutputError(
            f"{path} is the folder of {words[0]}, and its config.toml asks for {words[1]} now: "
            f"set it back, and give {words[1]} a new folder"
        )


def ended_well(path: Path) -> bool:
    """Whether a run has written all its files: run.json says so, the last of them."""
    try:
        ok = json.loads((path / "run.json").read_bytes())["exit"] == "ok"
        return ok and (path / "summary.json").is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def never_saved(path: Path) -> bool:
    """Whether a run was killed before its first checkpoint, and starts from its beginning."""
    # Results that were copied without their checkpoint are not a run that has yet to begin.
    names = ("checkpoint.pt", "rounds.jsonl", "evaluations.jsonl", "summary.json")
    files = [path / name for name in names]
    return not any(file.exists() and file.stat().st_size > 0 for file in files)


def find_runs(folder: Path) -> list[Path]:
    """Run folders at or below ``folder``: itself, or else all beneath, seed 10 after seed 9.

    Raises:
        OutputError: no such folder, or no run in it.
    """
    runs = list(_runs(folder, set()))
    if not runs:
        reason = "holds no run" if folder.is_dir() else "is no folder"
        raise OutputError(
            f"{folder} {reason}: name the folder of a run, or a folder that holds such folders"
        )
    return runs


def _runs(folder: Path, seen: set[Path]) -> Iterator[Path]:
    place = folder.resolve()
    if place in seen:  # a link that leads back
        return
    seen.add(place)
    if any((folder / mark).is_file() for mark in RUN_MARKS):
        yield folder
        return
    try:
        below = [p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")]
    except OSError:
        return
    for path in sorted(below, key=_natural):
        yield from _runs(path, seen)


def _natural(path: Path) -> list[tuple[str, int]]:
    return [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", path.name)]


def differences(
    configs: Sequence[Config], keys: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """Settings in which runs differ.

    Args:
        configs: one a run.
        keys: fields to look at; by default all that results depend on, but for ``seed``.
    Returns:
        TOML key -> its different values, in the order of the runs.
    """
    names = keys if keys is not None else [n for n in Config.result_fields() if n != "seed"]
    found = {}
    for name in names:
        values = [_spell(getattr(config, name)) for config in configs]
        if len(set(values)) > 1:
            found[kebab(name)] = list(dict.fromkeys(values))
    return found


def _spell(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


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
        raise DamagedError(f"cannot read {path}: {error.strerror or error}") from None
    # What a run has finished, no crash has cut.
    if count is None and (path.parent / "summary.json").exists():
        if lines == [b""]:
            raise damaged(path, None, "it is empty")
        if lines[-1]:
            raise damaged(path, len(lines), "cut short")
    # What follows the last line end is empty, or the part of a line that a crash has left.
    return [_parse(path, number, line) for number, line in enumerate(lines[:-1][:count], 1)]


def damaged(path: Path, line: int | None = None, what: str = "") -> DamagedError:
    """The sentence that names a file, the line, and what is wrong there as far as it is known."""
    where = "" if line is None else f" in line {line}"
    return DamagedError(
        f"{path} is damaged{where}{what and f' ({what})'}: put it back from a copy, or start anew"
    )


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:  # no JSON, or no UTF-8
        value = None
    if not isinstance(value, dict):
        raise damaged(path, number)
    return value
