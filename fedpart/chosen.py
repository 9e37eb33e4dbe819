"""Files at places that somebody has typed: whether they may be written, and writing them."""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from fedpart.errors import ConfigError, OutputError
from fedpart.files import replace_file, writing

PICTURES = (".png", ".svg")
# What tells a run folder, also where only its small files are kept.
_MARKS = ("config.toml", "summary.json", "sweep.json")
_OF_A_RUN = frozenset(
    {
        *_MARKS,
        *("run.json", "rounds.jsonl", "evaluations.jsonl", "checkpoint.pt", "model.pt"),
        *("curves.csv", "curves.png", "sweep.png", "table.md"),
    }
)


def check_chosen(out: Path, endings: tuple[str, ...] = ()) -> None:
    """Whether ``--out`` can be the name of a file to write.

    Args:
        out: as it was typed.
        endings: what it must end in; nothing if all the same.
    Raises:
        ConfigError: it is empty, or ends in something else.
        OutputError: it is a file that a run has written into its folder.
    """
    if out.name in ("", ".."):
        raise ConfigError(f"--out is {str(out)!r}; it must be the name of a file")
    if endings and out.suffix not in endings:
        raise ConfigError(f"--out is {out}; its name must end in {' or '.join(endings)}")
    place = Path(os.path.realpath(out))
    if place.name in _OF_A_RUN and any((place.parent / mark).is_file() for mark in _MARKS):
        raise OutputError(f"{out} is a file of the run in {place.parent}: name another")


def write_chosen(path: Path, content: bytes) -> None:
    """Write to a place that somebody has typed; its folders are made.

    A file is replaced as a whole, with the mode that it has, also at the end of a link. A device
    and a pipe are written to; so is a file in a folder where nothing may be replaced.

    Args:
        path: the file, link, device or pipe.
        content: all that it will hold.
    Raises:
        OutputError: the disk is full or the place cannot be written.
    """
    with writing(path):
        place = Path(os.path.realpath(path))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        there = place.is_file()
        if there:
            # A file that may not be written may not be replaced either.
            place.open("ab").close()
        if there or not (place.exists() or place.is_symlink()):
            # Several processes may write here, and the file's own name may leave no room for more.
            temporary = place.with_name(f".{secrets.token_hex(8)}.tmp")
            with contextlib.suppress(PermissionError):
                replace_file(place, temporary, [content], mode_of=place if there else None)
                return
        with place.open("wb") as file:
            file.write(content)
