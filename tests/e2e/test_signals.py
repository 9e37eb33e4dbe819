"""Ctrl-C and SIGTERM at twenty instants of a run: a quick and quiet end, and nothing lost."""

import json
import os
import pty
import random
import select
import signal
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pytest
from command_line import SIM, TINY
from processes import RUN, Process, begin, measure, outcome

from fedpart.run_files import ended_well

SEED = 0
# When: while it loads its packages, while rounds go on, and while the last files are written.
INSTANTS = ("start", "rounds", "end") * 6 + ("start", "rounds")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def wait(process: Process, when: str, rng: random.Random, loading: float) -> bool:
    """Wait for an instant; False if the process reached its end before.

    Args:
        process: begun just now.
        when: see ``INSTANTS``.
        rng: chooses the instant.
        loading: seconds for the first part of a start.
    """
    if when == "start":
        # Python itself answers Ctrl-C with a traceback, before the first line of any program.
        return process.wait_for_handlers() and process.wait_for(rng.uniform(0, loading))
    if when == "rounds":
        return process.wait_for_rounds(rng.randint(0, 2)) and process.wait_for(rng.uniform(0, 0.1))
    last = rng.choice(["model.pt", "summary.json", "curves.png"])
    alive = process.wait_until(lambda: process.has_written(last))
    return alive and process.wait_for(rng.uniform(0, 0.1))


@pytest.mark.slow
def test_twenty_signals_cost_nothing(home, sim, wide_model):
    """Each ends the process within ten seconds, with its code, without a traceback or a process.

    Before the folder is there, nothing is left behind; after that, the run is taken up, and all
    that it has at its end equals a run without a break.
    """
    total, records = measure(home / "whole")
    expected = outcome(home / "whole")
    rng, begun, folders = random.Random(SEED), set(), {}
    for number, when in enumerate(INSTANTS):
        # Starts find no folder; the others take up where the last one of their kind was stopped.
        if when == "start" or when not in folders or ended_well(folders[when]):
            folders[when] = home / f"{when}-{number}"
        folder = folders[when]
        before = {p.name for p in home.iterdir()}
        process = begin(folder)
        if not wait(process, when, rng, 0.8 * (total - records)):
            process.end_well()
            continue
        sent = SIGNALS[number % 2]
        code, _, err, seconds = process.interrupt(sent)
        assert seconds < 10
        assert not process.left_behind()
        if not folder.exists():
            assert {p.name for p in home.iterdir()} == before
            assert (code, err) == (128 + sent, f"{WORDS[sent]}\n")
            continue
        assert_one_line(err, folder)
        begun.add(folder)
        # A run that had just ended is complete, whatever came then.
        assert code == 128 + sent or (code == 0 and ended_well(folder))
        if process.recorded and not ended_well(folder):
            assert json.loads((folder / "run.json").read_text())["exit_code"] == code
    for folder in begun:
        if not ended_well(folder):
            code, _, err = sim("--resume", folder)
            assert (code, err) == (0, "")
        assert outcome(folder) == expected


def assert_one_line(err: str, folder) -> None:
    """The one that says how to go on; none where all was done, or as good as."""
    lines = err.splitlines()
    assert len(lines) <= 1, err
    for line in lines:
        assert line.startswith(("stopped after round ", *WORDS.values()))
        assert ended_well(folder) or line.endswith(f"; go on with: python sim.py --resume {folder}")


@pytest.mark.parametrize("sent", SIGNALS)
@pytest.mark.parametrize(
    "words",
    [
        (*RUN, "--out", "new"),
        (*RUN, "--dry-run"),
        ("split", "--clients", "10", "--train-size", "60"),
        ("table", "."),
        ("compare", "."),
        ("drill",),
        ("central", "--experiment", "mask-learning", "--out", "new"),
        ("deploy", "--local", "2", "--train-size", "60", "--out", "new"),
    ],
    ids=lambda words: words[0],
)
def test_every_command_says_that_it_was_stopped(home, wide_model, words, sent):
    """As it starts, before there is anything to go on with: one line, its code, and no file."""
    process = Process(home / "new", *words)
    assert process.wait_for_handlers()
    code, _, err, _ = process.interrupt(sent)
    assert (code, err) == (128 + sent, f"{WORDS[sent]}\n")
    assert not (home / "new").exists()
    assert not process.left_behind()


def test_between_two_seeds_it_is_the_parent_that_goes_on(sim, home, monkeypatch):
    """A signal that comes before the second seed's folder is there."""
    whole = sys.modules["sim"]._one_run

    def second_is_stopped(config, *rest, **more):
        if config.seed:
            raise KeyboardInterrupt
        return whole(config, *rest, **more)

    monkeypatch.setattr("sim._one_run", second_is_stopped)
    code, _, err = sim(*TINY, "--seeds", "2", "--out", "both")
    line = "interrupted; go on with: python sim.py --resume both\n"
    assert (code, err) == (130, line)
    monkeypatch.undo()
    assert ended_well(home / "both" / "seed-0")


def test_ctrl_c_in_a_terminal_leaves_it_as_it_was(home, wide_model):
    """Typed as a user types it: the bar goes, the cursor comes back, the last line says how."""
    master, slave = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        ioctl(slave, termios.TIOCSCTTY, 0)

    words = (*RUN, "--rounds", "100000", "--out", "run")
    process = subprocess.Popen(
        [sys.executable, str(SIM), *words],
        **dict.fromkeys(("stdin", "stdout", "stderr"), slave),
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        preexec_fn=take_terminal,
    )
    os.close(slave)
    screen, typed = b"", False
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            try:
                screen += os.read(master, 65536)
            except OSError:  # the other side is closed
                break
        if not typed and (home / "run" / "rounds.jsonl").exists():
            typed = os.write(master, b"\x03") == 1
    os.close(master)
    assert process.wait(10) == 130
    assert b"\x1b[?25l" in screen
    assert screen.rindex(b"\x1b[?25h") > screen.rindex(b"\x1b[?25l")
    text = screen.decode()
    assert text.rstrip().endswith("go on with: python sim.py --resume run")
    assert "Traceback" not in text
