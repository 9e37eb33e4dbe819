"""Ctrl-C and SIGTERM: what they do while a program starts, works and ends."""

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Literal

Phase = Literal["quit", "raise", "hold", "end"]


class Terminated(BaseException):
    """SIGTERM has come; no ``except Exception`` on the way may keep it."""


class Interrupts:
    """Lets a signal end a process soon, in order and without a traceback.

    While nothing is worth saving, a signal ends the process at once: compiled code that is being
    imported bears no exception in its midst. In ``working`` a signal raises. In ``held`` it waits
    for the end of the block. In ``ending``, which saves what there is, a first one is asked to
    wait and a second one ends the process at once; files are written so that this costs no more
    than the work since the last checkpoint.

    Attributes:
        seen: the first signal that came, or None.
        exit_code: what the process ends with once its work is done, whatever comes then.
        before_quit: called before the process ends at once; puts the terminal right.
        advice: what the line that says so ends with, such as how to go on.
        told: whether that line, or a better one, has been written.
    """

    def __init__(self) -> None:
        """Do nothing yet: whoever calls a program as a function keeps its own handlers."""
        self.seen: signal.Signals | None = None
        self.exit_code: int | None = None
        self.before_quit: Callable[[], None] = lambda: None
        self.advice, self.told = "", False
        self._phase: Phase = "quit"
        self._waiting = self._asked = False

    def install(self) -> None:
        """Take the two signals over, in the main thread.

        Also where a shell has a job in the background ignore Ctrl-C: who sends the signal means it,
        and a script that is stopped leaves no run behind.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)
        # First in, last out: only compiled code follows, and a signal would spoil the exit code.
        atexit.register(self._ignore)
        report = sys.unraisablehook

        def unraisable(about: "sys.UnraisableHookArgs") -> None:
            # One that came up inside a destructor is lost there; ``check`` raises it again.
            if not isinstance(about.exc_value, KeyboardInterrupt | Terminated):
                report(about)

        sys.unraisablehook = unraisable

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """From here on a signal raises ``KeyboardInterrupt`` or ``Terminated``."""
        with self._in("raise"):
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A signal that comes in this block takes effect at its end."""
        with self._in("hold"):
            yield
        if self._waiting:
            self._waiting = False
            self._act()

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Save what there is, and say how to go on; no signal raises any more."""
        self.told = True
        with self._in("end"):
            yield

    @property
    def word(self) -> str:
        """``interrupted``, or ``terminated`` by SIGTERM."""
        return "terminated" if self.seen is signal.SIGTERM else "interrupted"

    @property
    def sentence(self) -> str:
        """``word`` and ``advice``."""
        return f"{self.word}{self.advice}"

    def check(self) -> None:
        """Raise what has come and was lost on its way."""
        if self.seen is not None and self._phase == "raise":
            self._act()

    @contextlib.contextmanager
    def _in(self, phase: Phase) -> Iterator[None]:
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def _ignore(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.seen = self.seen or signal.Signals(number)
        self._act()

    def _act(self) -> None:
        if self._phase == "hold":
            self._waiting = True
        elif self._phase == "raise":
            raise KeyboardInterrupt if self.seen is signal.SIGINT else Terminated
        elif self._phase == "end" and not self._asked:
            self._asked = True
            self._write("saving; once more to stop without")
        else:
            self._quit()

    def _write(self, line: str) -> None:
        with contextlib.suppress(Exception):
            # Not print: the signal may have come in the midst of one.
            os.write(sys.stderr.fileno(), f"{line}\n".encode())

    def _quit(self) -> None:
        assert self.seen is not None
        with contextlib.suppress(Exception):
            self.before_quit()
        if self.exit_code is None and not self.told:
            self._write(self.sentence)
        os._exit(128 + self.seen if self.exit_code is None else self.exit_code)


INTERRUPTS = Interrupts()
