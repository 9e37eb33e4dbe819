"""Ctrl-C and SIGTERM sent to ``sim.py``: a quick and quiet end, and nothing lost."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl

import pytest
from command_line import SIM
from processes import RUN, Process, outcome

pytestmark = pytest.mark.process

LONG = (*RUN, "--rounds", "30")


def typed_ctrl_c(when: Callable[[bytes], bool], *words: str) -> tuple[int, bytes]:
    """Run ``sim.py WORDS`` in a terminal and type Ctrl-C; exit code and all that it showed.

    Args:
        when: told what is on the screen, whether to type it now.
        words: of the command line.
    """
    master, slave = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        ioctl(slave, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

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
        if select.select([master], [], [], 0.02)[0]:
            try:
                screen += os.read(master, 65536)
            except OSError:  # the other side is closed
                break
        if not typed and when(screen):
            typed = os.write(master, b"\x03") == 1
    os.close(master)
    code = process.wait(10)
    # The bar had hidden the cursor.
    assert screen.rindex(b"\x1b[?25h") > screen.rindex(b"\x1b[?25l")
    assert b"Traceback" not in screen
    return code, screen.rstrip()


def test_ctrl_c_during_start_up_leaves_one_line_and_no_file(home, wide_model):
    code, screen = typed_ctrl_c(lambda screen: b"\x1b[?25l" in screen, *RUN, "--out", "run")
    assert code == 130
    assert screen.endswith(b"\ninterrupted")
    assert not (home / "run").exists()


def test_a_run_stopped_twice_equals_a_run_without_a_break(home, sim, wide_model):
    """By Ctrl-C in a terminal, and by SIGTERM after it was resumed; each is told in run.json."""
    assert sim(*LONG, "--out", "whole")[0] == 0
    records = home / "run" / "rounds.jsonl"

    def some_rounds(screen: bytes) -> bool:
        return records.exists() and records.read_bytes().count(b"\n") >= 3

    code, screen = typed_ctrl_c(some_rounds, *LONG, "--out", "run")
    assert code == 130
    assert b"stopped after round " in screen
    assert screen.endswith(b"; go on with: python sim.py --resume run")

    done = records.read_bytes().count(b"\n")
    process = Process(home / "run", "--resume", "run")
    assert process.wait_until(lambda: process.rounds >= done + 2)
    code, _, err, seconds = process.interrupt(signal.SIGTERM)
    assert (code, err.count("\n")) == (143, 1)
    assert err.startswith("stopped after round ")
    assert err.endswith("; go on with: python sim.py --resume run\n")
    assert seconds < 10
    assert not process.left_behind()
    info = json.loads((home / "run" / "run.json").read_text())
    assert (info["exit"], info["exit_code"]) == ("terminated", 143)

    assert sim("--resume", "run")[::2] == (0, "")
    assert outcome(home / "run") == outcome(home / "whole")
