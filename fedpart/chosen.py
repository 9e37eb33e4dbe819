"""Files at places that somebody has typed: whether they may be written, and writing them."""

import errno
import os
import secrets
from pathlib import Path

from fedpart.errors import ConfigError, OutputError
from fedpart.files import replace_file, writing
from fedpart.run_files import RUN_MARKS

PICTURES = (".png", ".svg")
# Files that tell what a folder is -> files that are its own.
_OWN = {
    RUN_MARKS: frozenset(
        {
            *RUN_MARKS,
            *("config.toml", "rounds.jsonl", "checkpoint.pt", "model.pt"),
            *("curves.csv", "curves.png"),
        }
    ),
    ("sweep.json",): frozenset({"config.toml", "sweep.json", "sweep.png", "table.md"}),
    ("config.toml",): frozenset({"config.toml"}),
}
# A file that can be written, where another cannot take its place: the folder is not ours, or the
# file is mounted by itself.
_IRREPLACEABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def check_chosen(out: Path, endings: tuple[str, ...] = ()) -> None:
    """Whether ``--out`` can be the name of a file to write.

    Args:
        out: as it was typed.
        endings: what it must end in; nothing if all the same.
    Raises:
        ConfigError: it is empty, or ends in something else.
        OutputError: it is a folder, or a file that a run has written into its own.
    """
    if out.name in ("", ".."):
        raise ConfigError(f"--out is {str(out)!r}; it must be the name of a file")
    if endings and out.suffix not in endings:
        raise ConfigError(f"--out is {out}; its name must end in {' or '.join(endings)}")
    if os.path.isdir(out):
        raise OutputError(f"cannot write {out}: {os.strerror(errno.EISDIR)}")
    folder, name = os.path.split(os.path.realpath(out))
    for marks, own in _OWN.items():
        if name in own and any(os.path.isfile(os.path.join(folder, mark)) for mark in marks):
            raise OutputError(f"{out} is a file of the run in {folder}: name another")


def write_chosen(path: Path, content: bytes) -> None:
    """Write to a place that somebody has typed; its folders are made.

    A file is replaced as a whole, with the mode that it has, also at the end of a link. A device
    and a pipe are written to; so is a file that another cannot take the place of.

    Args:
        path: the file, link, device or pipe.
        content: all that it will hold.
    Raises:
        OutputError: the disk is full or the place cannot be written.
    """
    with writing(path):
        # Not that of a device or a pipe: a pipe has no path.
        place = Path(os.path.realpath(path)) if path.is_file() or not path.exists() else path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        there = place.is_file()
        if there:
            # A file that may not be written may not be replaced either.
            place.open("ab").close()
        if there or not os.path.lexists(place):
            # Several processes may write here, and the file's own name may leave no room for more.
            temporary = place.with_name(f".{secrets.token_hex(8)}.tmp")
            try:
                replace_file(place, temporary, [content], mode_of=place if there else None)
                return
            except OSError as error:
                if error.errno not in _IRREPLACEABLE:
                    raise
        with place.open("wb") as file:
            file.write(content)
