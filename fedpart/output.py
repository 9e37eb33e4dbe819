"""How a command ends: its exit code, and one sentence on standard error about what ended it."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from signal import SIGINT, SIGTERM
from typing import TextIO

from fedpart.errors import DivergedError, FedpartError, OutputError
from fedpart.interrupts import INTERRUPTS, WORDS, Terminated

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
            tell(reason)
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
        return WORDS[SIGINT], INTERRUPTED
    if isinstance(error, Terminated) or INTERRUPTS.seen is SIGTERM:
        return WORDS[SIGTERM], TERMINATED
    if isinstance(error, FedpartError):
        return str(error), error.exit_code
    if isinstance(error, BrokenPipeError):
        return "nobody reads the output any more", CLOSED
    # Writing to any other file raises OutputError.
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the output cannot be written: {error.strerror}; send it elsewhere", 4
    return f"{type(error).__name__}: {error}", 1


@contextlib.contextmanager
def closing_on_error(
    close: Callable[[str, int], int | None], unit: str, again: str
) -> Iterator[None]:
    """Close a run that ends early, and tell why it ended and how to go on.

    Args:
        close: called with the reason and the exit code; returns the progress that a resume keeps,
            or None where nothing was begun.
        unit: of that progress, "round" or "iteration".
        again: the command that resumes the run.
    Raises:
        SystemExit: instead of the error, once all is told.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, Terminated) as error:
        reason, code = outcome(error)
        done = None
        # A full disk, say: the first error is the one to show.
        with contextlib.suppress(OutputError):
            done = close(reason, code)
        # A run that diverged would do so again.
        if done is None or isinstance(error, DivergedError):
            raise
        if code not in (1, INTERRUPTED, TERMINATED, CLOSED):
            tell(f"error: {reason}")
        tell(f"stopped after {unit} {done:,}; go on with: {again}")
        if code == 1:
            raise
        raise SystemExit(code) from error


def stopped(error: BaseException, again: str) -> SystemExit:
    """Tell how to go on with several runs that were stopped between two of them.

    Args:
        error: a signal or a closed pipe.
        again: the command that resumes them.
    Returns:
        what to raise instead.
    """
    reason, code = outcome(error)
    tell(f"{reason}; go on with: {again}")
    return SystemExit(code)


def tell(line: str) -> None:
    """Write a line to standard error, which may be closed too."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")


def _flush_or_drop(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        # What is left in the buffer would fail again when the interpreter shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
