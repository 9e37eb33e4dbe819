"""Ctrl-C and SIGTERM: they end a program that is loading, and interrupt one that is working."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# Seconds after the first signal during which others are ignored: `timeout` sends its signal twice.
_REPEATED = 1.0
# Shows the cursor that a progress bar hides, and ends its line.
_END_BAR = b"\x1b[?25h\n"


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is Ctrl-C: ``except Exception`` does not catch it."""


class Interrupts:
    """Ends a process soon after a signal, in order and without a traceback.

    While packages are imported, a signal ends the process at once: compiled modules do not survive
    an exception during their import. In ``working``, the first signal raises, so that the run can
    be saved, and another one ends the process at once. Files are written under a temporary name
    (``files.write_atomic``), so this loses no more than the work since the last checkpoint.

    Attributes:
        seen: the first signal that came, or None.
    """

    def __init__(self) -> None:
        """Do nothing yet: a caller of a program as a function keeps its own handlers."""
        self.seen: signal.Signals | None = None
        self._since = 0.0
        self._working = False

    def install(self) -> None:
        """Handle both signals, in the main thread.

        Also where a shell has a background job ignore Ctrl-C: a script that is stopped shall leave
        no run behind.
        """
        for number in WORDS:
            signal.signal(number, self._receive)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """In this block the first signal raises ``KeyboardInterrupt`` or ``Terminated``."""
        self._working = True
        try:
            yield
        finally:
            self._working = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.seen is None:
            self.seen, self._since = signal.Signals(number), time.monotonic()
            if self._working:
                raise KeyboardInterrupt if self.seen is signal.SIGINT else Terminated
        elif time.monotonic() - self._since < _REPEATED:
            return
        with contextlib.suppress(OSError):
            # Not print: the signal may have come in the midst of one.
            if os.isatty(1):
                os.write(1, _END_BAR)
            os.write(2, f"{WORDS[self.seen]}\n".encode())
        os._exit(128 + self.seen)


INTERRUPTS = Interrupts()
