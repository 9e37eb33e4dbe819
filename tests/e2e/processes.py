"""Runs of ``sim.py`` in processes of their own, to be interrupted."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import compare_commits
from command_line import SIM

from fedpart import checkpoint

# Twelve rounds of a second in all, whose checkpoint of 6 MB takes its time to be written.
MODEL = """
from torch import nn


def wide(num_classes, in_channels):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784 * in_channels, 600),
        nn.Dropout(0.1),
        nn.Linear(600, num_classes),
    )
"""
RUN = (
    *("--clients", "10", "--clients-per-round", "3", "--train-size", "60"),
    *("--rounds", "12", "--samples", "2", "--eval-every", "4"),
    *("--checkpoint-every", "2", "--model", "wide_model:wide", "--backend", "inline"),
)


class Process:
    """``python sim.py ...`` in a session of its own.

    Attributes:
        folder: the run folder.
    """

    def __init__(self, folder: Path, *words: str) -> None:
        """Start it, with Ctrl-C as in a terminal whatever started the tests."""
        self.folder = folder
        self._before = {path: stamp(path) for path in folder.glob("*")}
        self.process = subprocess.Popen(
            [sys.executable, str(SIM), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait_until(self, true: Callable[[], bool]) -> bool:
        """Whether it came true while the process was running."""
        while self.running:
            if true():
                return True
            time.sleep(0.001)
        return False

    def has_written(self, name: str) -> bool:
        """Whether a file of the run folder is new since the process began."""
        path = self.folder / name
        return stamp(path) not in (None, self._before.get(path))

    @property
    def recorded(self) -> bool:
        """Whether it has made its run folder, or taken it up."""
        return self.has_written("run.json")

    def wait_for_records(self) -> bool:
        """Until it is ``recorded``."""
        return self.wait_until(lambda: self.recorded)

    @property
    def rounds(self) -> int:
        """Rounds on record."""
        with contextlib.suppress(OSError):
            return (self.folder / "rounds.jsonl").read_bytes().count(b"\n")
        return 0

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def interrupt(self, number: int) -> tuple[int, str, str, float]:
        """Send a signal; exit code, output, errors, and the seconds that it took to end."""
        started = time.monotonic()
        self.signal(number)
        return *self.end(), time.monotonic() - started

    def end(self, timeout: float = 120) -> tuple[int, str, str]:
        """Exit code, output and errors."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out.decode(), err.decode()

    def left_behind(self) -> bool:
        """Whether any process of its session lives on."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is replaced or written; None where there is none."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def outcome(folder: Path) -> dict[str, object]:
    """All that two equal runs agree on: every file but pictures, every value but times."""
    state, extra = checkpoint.load(folder / "checkpoint.pt")
    return compare_commits.outcome(folder) | {
        "files": sorted(p.name for p in folder.iterdir()),
        "state": compare_commits.exact(vars(state)),
        "bytes": extra["bytes"],
    }
