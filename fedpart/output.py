"""How a command ends: its exit code, and one sentence on standard error about what ended it."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable
from signal import SIGINT, SIGTERM
from typing import TextIO

from fedpart.errors import FedpartError
from fedpart.interrupts import INTERRUPTS, Terminated

# As shells count signals; the last is that of SIGPIPE.
INTERRUPTED, TERMINATED, CLOSED = 128 + SIGINT, 128 + SIGTERM, 141


def run_command(command: Callable[[], int | None]) -> int:
    """Run a command; a fault becomes one sentence on standard error.

    Args:
        command: may return an exit code; None stands for 0.
    Returns:
        the exit code, see ``outcome``.
    Raises:
        Exception: a mistake of this program.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the encoding lacks becomes "?".
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            code = command() or 0
        except SystemExit as ended:  # --help, or the reason has been written already
            code = int(ended.code or 0)
        sys.stdout.flush()
        return code
    except (Exception, KeyboardInterrupt, Terminated) as error:
        reason, code = outcome(error)
        if code == 1:
            raise
        if code in (INTERRUPTED, TERMINATED):
            if not INTERRUPTS.told:
                tell(INTERRUPTS.sentence)
        elif code != CLOSED:
            tell(f"error: {reason}")
        return code
    finally:
        _flush_or_drop(sys.stdout)
        _flush_or_drop(sys.stderr)


def outcome(error: BaseException) -> tuple[str, int]:
    """Why a command ended, in a few words, and its exit code; 1 for a mistake of this program."""
    # What a signal raises may come out of an import or a library as another exception.
    if isinstance(error, KeyboardInterrupt) or INTERRUPTS.seen is SIGINT:
        return "interrupted", INTERRUPTED
    if isinstance(error, Terminated) or INTERRUPTS.seen is SIGTERM:
        return "terminated", TERMINATED
    if isinstance(error, FedpartError):
        return str(error), error.exit_code
    if isinstance(error, BrokenPipeError):
        return "nobody reads the output any more", CLOSED
    # Writing to any other file raises OutputError.
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the output cannot be written: {error.strerror}; send it elsewhere", 4
    return f"{type(error).__name__}: {error}", 1


def _flush_or_drop(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        # What is left in the buffer would fail again when the interpreter shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(line: str) -> None:
    """Write a line to standard error, which may be closed too."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")
