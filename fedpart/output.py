"""Standard output and errors, and what becomes of a program that nobody reads any more."""

import atexit
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from signal import SIGINT
from typing import TextIO, cast

from fedpart.errors import ClosedError, FedpartError, OutputError


class Output(io.TextIOWrapper):
    """A text stream whose faults are sentences, told once; what is written later is dropped."""

    fatal = True

    @classmethod
    def of(cls, stream: TextIO | None) -> "Output":
        """One to the same place; to nowhere for None, which stands for what a shell has closed."""
        if stream is None:
            return cls(open(os.devnull, "wb"))
        like = cast(io.TextIOWrapper, stream)
        # No run is lost for a sign that the encoding lacks; standard error spells it out already.
        errors = like.errors if like.errors == "backslashreplace" else "replace"
        return cls(
            like.buffer,
            like.encoding,
            errors,
            line_buffering=like.line_buffering,
            write_through=like.write_through,
        )

    def write(self, text: str) -> int:
        """Write.

        Raises:
            ClosedError: who read it has gone, as ``head`` does.
            OutputError: it cannot be written, for a full disk say.
        """
        with self._told():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write what has been kept back.

        Raises:
            ClosedError, OutputError: see ``write``.
        """
        with self._told():
            super().flush()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What was kept back goes nowhere, or it would fail once more as the process ends.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not self.fatal:
                return
            if isinstance(error, BrokenPipeError):
                raise ClosedError("nobody reads the output any more") from None
            raise OutputError(
                f"the output cannot be written: {error.strerror}; send it elsewhere"
            ) from None


class Errors(Output):
    """Standard error: what cannot be said there is no reason to stop."""

    fatal = False


def install() -> None:
    """Take both streams over, for a program that is started by a shell."""
    sys.stdout, sys.stderr = Output.of(sys.stdout), Errors.of(sys.stderr)
    atexit.register(flush)


def told(main: Callable[[], None]) -> int:
    """Run a command of one's own, ``python -m ...``; returns its exit code, see ``fedpart.errors``.

    A fault is a sentence on standard error, and so is an interruption.
    """
    install()
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 128 + SIGINT
    except FedpartError as error:
        if not isinstance(error, ClosedError):
            sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def flush() -> None:
    """Write what has been kept back, in silence, as the last thing that a process does."""
    with contextlib.suppress(FedpartError):
        sys.stdout.flush()
