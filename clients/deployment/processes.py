"""Processes that end with this one, in order and all of them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from clients.deployment.reaper import PATIENCE
from fedpart.machine import process_tree


class Group:
    """Child processes and all that they start, in a process group of their own.

    The group keeps a terminal's Ctrl-C away from them, so that they end in the order that suits
    them, and it is all there is to know to end them: as long as its first process lives, its
    number is nobody else's. That process ends the group where this one was killed.

    Attributes:
        environment: of every process.
        folder: where they work.
        busy: whether something that they have started still has to save what it has.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing runs yet but the reaper."""
        self.folder, self.environment, self.busy = folder, dict(environment), busy
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # What has left the group: Flower gives a ServerApp a session of its own.
        self._strays: dict[int, str] = {}
        # Not through ``start``: it makes the group that all others join.
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))],
            stdin=subprocess.PIPE,
            **_in_group(0),
        )

    def __enter__(self) -> "Group":
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See ``close``."""
        self.close()

    def start(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> int:
        """Start a process, in place of one of this name that has ended; returns its number.

        Args:
            name: for ``runs`` and ``stop``.
            command: words.
            log: what it prints is added there.
            environment: beside that of all.
        """
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**self.environment, **environment},
                **_in_group(self._reaper.pid),
            )
        self._running[name] = process
        return process.pid

    def call(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end; returns what it prints and its exit code."""
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env={**self.environment, **environment},
            **_in_group(self._reaper.pid),
        )

    def runs(self, name: str) -> bool:
        """Whether a process that was started has not ended."""
        return self._running[name].poll() is None

    def stop(self, name: str, patience: float = PATIENCE) -> None:
        """Ask a process to end, and kill it where it does not; what it started may live on."""
        process = self._running.pop(name, None)
        if process is not None and process.poll() is None:
            self._note(process)
            process.terminate()
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Ask everybody to end, wait for it, kill whatever is left, and wait until it is gone."""
        for process in self._running.values():
            self._note(process)
        os.killpg(self._reaper.pid, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not self._ended():
            time.sleep(0.05)
        os.killpg(self._reaper.pid, signal.SIGKILL)
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._running.values():
            process.wait()
        self._running.clear()
        self._reaper.communicate()
        # What they have started is no child of this process, and takes a moment to go.
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and (_lives(self._reaper.pid) or self._left()):
            time.sleep(0.02)

    def _note(self, process: "subprocess.Popen[bytes]") -> None:
        """Remember what a process has started, before it can no longer be told who did."""
        for pid in process_tree(process.pid)[1:]:
            if _stat(pid)[1] != str(self._reaper.pid):
                self._strays[pid] = _stat(pid)[2]

    def _left(self) -> list[int]:
        """Strays that have not ended; a number that another process has got since is none."""
        stats = {pid: _stat(pid) for pid in self._strays}
        return [
            pid
            for pid, (state, _, began) in stats.items()
            if state not in "ZX" and began == self._strays[pid]
        ]

    def _ended(self) -> bool:
        return not self.busy() and all(p.poll() is not None for p in self._running.values())


def _lives(group: int) -> bool:
    """Whether a process of the group has not ended; one that nobody has waited for has."""
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    stats = [_stat(int(place.name)) for place in Path("/proc").glob("[0-9]*")]
    # Without /proc, the system's word counts.
    return not stats or any(n == str(group) and state not in "ZX" for state, n, _ in stats)


def _stat(pid: int) -> tuple[str, str, str]:
    """State, group, and when it began, of a process; ``X`` and nothing where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[2], fields[19]
    except (OSError, IndexError):  # it has gone meanwhile
        return "X", "", ""


def _in_group(number: int) -> dict[str, Any]:
    """How ``Popen`` puts a process into a group before the process can do anything."""
    if sys.version_info >= (3, 11):
        return {"process_group": number}
    return {"preexec_fn": lambda: os.setpgid(0, number)}
