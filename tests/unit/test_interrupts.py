"""What a signal does in each phase of a program."""

import atexit
import os
import signal
import sys

import pytest

from fedpart.interrupts import Interrupts, Terminated

BOTH = pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)


class Quit(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def interrupts(monkeypatch):
    """Installed, with the tests' own handlers put back afterwards."""

    def quit_(code):
        raise Quit(code)

    monkeypatch.setattr(os, "_exit", quit_)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    made = Interrupts()
    made.install()
    yield made
    atexit.unregister(made._ignore)
    for number, handler in before.items():
        signal.signal(number, handler)


@BOTH
def test_while_a_program_starts_it_quits_at_once(interrupts, number, error, capfd):
    """After the terminal is put right, with the code that shells give and a line that says so."""
    told = []
    interrupts.before_quit = lambda: told.append(1)
    interrupts.advice = "; go on"
    with pytest.raises(Quit, match=str(128 + number)):
        signal.raise_signal(number)
    assert told == [1]
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert capfd.readouterr().err == f"{word}; go on\n"


def test_what_fails_before_it_quits_does_not_keep_it(interrupts):
    """A terminal that is gone, say."""

    def fails():
        raise OSError("gone")

    interrupts.before_quit = fails
    with pytest.raises(Quit, match="130"):
        signal.raise_signal(signal.SIGINT)


@BOTH
def test_while_it_works_a_signal_raises(interrupts, number, error):
    """The phase ends with its block, whatever happens in it."""
    with pytest.raises(error), interrupts.working():
        signal.raise_signal(number)
    assert interrupts.seen is number
    with pytest.raises(Quit):
        signal.raise_signal(number)


@BOTH
def test_a_block_that_must_not_break_holds_it_back(interrupts, number, error):
    """It takes effect at the end of the block, once."""
    done = []

    def hold():
        with interrupts.held():
            signal.raise_signal(number)
            done.append(1)

    with interrupts.working():
        with pytest.raises(error):
            hold()
        with interrupts.held():
            done.append(2)
    assert done == [1, 2]


def test_while_it_saves_the_first_is_asked_to_wait(interrupts, capfd):
    """And the second quits, with the code of the signal that began it all."""
    with pytest.raises(KeyboardInterrupt), interrupts.working():
        signal.raise_signal(signal.SIGINT)
    with interrupts.ending():
        signal.raise_signal(signal.SIGTERM)
        assert capfd.readouterr().err == "saving; once more to stop without\n"
        with pytest.raises(Quit, match="130"):
            signal.raise_signal(signal.SIGTERM)
        assert capfd.readouterr().err == ""


def test_when_the_work_is_done_its_exit_code_stays(interrupts, capfd):
    """A signal that comes too late to stop anything, and of which there is nothing to say."""
    interrupts.exit_code = 0
    with pytest.raises(Quit, match="0"):
        signal.raise_signal(signal.SIGTERM)
    assert capfd.readouterr().err == ""
    interrupts._ignore()
    signal.raise_signal(signal.SIGTERM)


def test_one_that_is_lost_in_a_destructor_is_raised_again(interrupts, capfd):
    """Python prints what a destructor raises and goes on; here nothing is printed."""

    class Loses:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    with interrupts.working():
        interrupts.check()
        Loses()
        assert interrupts.seen is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert capfd.readouterr().err == ""


def test_other_errors_of_destructors_are_reported_as_before(interrupts, monkeypatch):
    """Only signals are kept quiet."""
    monkeypatch.undo()
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    interrupts.install()

    class Fails:
        def __del__(self):
            raise ValueError("mine")

    Fails()
    assert [type(about.exc_value) for about in seen] == [ValueError]


def test_a_job_that_was_told_to_ignore_ctrl_c_heeds_it(interrupts):
    """As a shell tells those that a script starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupts.install()
    with pytest.raises(Quit, match="130"):
        signal.raise_signal(signal.SIGINT)
