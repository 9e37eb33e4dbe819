"""Processes that a test has started, wherever in the tree of processes they are; Linux only."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import torch

from fedpart import checkpoint
from fedpart.server import ServerState

MARK = "FEDPART_TEST"


def alive(mark: str) -> dict[int, str]:
    """Processes with ``mark`` in their environment, by number, and what they run."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                words = (process / "cmdline").read_bytes().split(b"\0")
                found[int(process.name)] = b" ".join(words).decode(errors="replace")[:1000]
    return found


def wait_until(done: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(done())


def assert_same_state(one: Path, other: Path) -> None:
    """The checkpoints of two run folders hold the same bits."""
    states = [checkpoint.load(folder / "checkpoint.pt")[0] for folder in (one, other)]
    for field in fields(ServerState):
        a, b = (getattr(state, field.name) for state in states)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype, field.name
            a, b = a.numpy().tobytes(), b.numpy().tobytes()
        assert a == b, field.name
