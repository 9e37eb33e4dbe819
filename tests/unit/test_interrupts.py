"""What Ctrl-C and SIGTERM do while a program loads and while it works."""

import os
import signal

import pytest

from fedpart import output
from fedpart.interrupts import Interrupts, Terminated

BOTH = pytest.mark.parametrize(
    ("number", "error", "word"),
    [
        (signal.SIGINT, KeyboardInterrupt, "interrupted"),
        (signal.SIGTERM, Terminated, "terminated"),
    ],
)


class Exit(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def interrupts(monkeypatch):
    """Installed, in a job that a shell has told to ignore Ctrl-C."""

    def exit_(code):
        raise Exit(code)

    monkeypatch.setattr(os, "_exit", exit_)
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    made = Interrupts()
    made.install()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


@BOTH
def test_a_signal_during_loading_ends_the_process_at_once(interrupts, capfd, number, error, word):
    with pytest.raises(Exit, match=str(128 + number)):
        signal.raise_signal(number)
    assert capfd.readouterr().err == f"{word}\n"


@BOTH
def test_the_first_signal_during_work_raises(interrupts, number, error, word):
    with pytest.raises(error), interrupts.working():
        signal.raise_signal(number)
    assert interrupts.seen is number


def test_a_second_signal_ends_the_process_unless_it_follows_at_once(interrupts, monkeypatch):
    """With the exit code of the first."""
    with interrupts.working():
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr("fedpart.interrupts._REPEATED", 0.0)
        with pytest.raises(Exit, match="143"):
            signal.raise_signal(signal.SIGINT)


def test_an_error_after_a_signal_counts_as_the_signal(interrupts, monkeypatch):
    """An import that a signal has cut short may fail with another exception."""
    monkeypatch.setattr(output, "INTERRUPTS", interrupts)
    assert output.outcome(ImportError("half")) == ("ImportError: half", 1)
    with pytest.raises(Terminated), interrupts.working():
        signal.raise_signal(signal.SIGTERM)
    assert output.outcome(ImportError("half")) == ("terminated", 143)
