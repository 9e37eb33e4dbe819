"""Checkpoints whose writer is killed, or whose disk is full."""

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from fedpart import checkpoint
from fedpart.errors import OutputError
from fedpart.server import ServerState

if sys.platform != "win32":
    import resource

# Values of a checkpoint that takes a few milliseconds to write.
_SIZE = 50_000


def made_state(number: int, size: int = _SIZE) -> ServerState:
    """A state all of whose values say which it is: halves of two would show."""
    full = torch.full((size,), float(number))
    return ServerState(
        *(number, full, full, full, torch.tensor([number]), full[:3], full[:3], full[:3], number)
    )


def is_whole(state: ServerState) -> bool:
    """Whether every value is of the one state that ``server_round`` names."""
    tensors = (state.theta, state.m, state.v, state.hyper, state.hyper_m, state.hyper_v)
    return all(bool((t == state.server_round).all()) for t in (*tensors, state.steps))


def write_for_ever(path: Path, number: int) -> NoReturn:
    """Write checkpoint after checkpoint, from ``number`` on."""
    while True:
        checkpoint.save(path, made_state(number), {"number": number})
        number += 1


def kill_writer(path: Path, number: int, seconds: float) -> None:
    """Fork a process that writes checkpoints, and kill it so long after its first line of code."""
    ready, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, b"x")
            write_for_ever(path, number)
        finally:
            # Never back into the caller's code, of which this process is a copy.
            os._exit(1)
    try:
        os.read(ready, 1)
        time.sleep(seconds)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(ready)
        os.close(write)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("the writer ended before it was killed")


def kill_writers(path: Path, times: int, seed: int) -> tuple[int, int]:
    """Kill the writer of a checkpoint again and again, each at a random instant.

    Args:
        path: the checkpoint.
        times: how often.
        seed: of the instants, up to 20 ms after the writer has begun.
    Returns:
        how often the checkpoint could not be read, was of two halves or older than one before; and
        how often the kill came while a write was under way.
    """
    rng = random.Random(seed)
    temporary = path.with_name(path.name + ".tmp")
    checkpoint.save(path, made_state(0), {"number": 0})
    bad, under_way, last = 0, 0, 0
    for _ in range(times):
        kill_writer(path, last + 1, rng.uniform(0, 0.02))
        under_way += temporary.exists()
        try:
            state, extra = checkpoint.load(path)
        except OutputError:
            bad += 1
            continue
        bad += not (is_whole(state) and extra["number"] == state.server_round >= last)
        last = state.server_round
    return bad, under_way


@contextlib.contextmanager
def full_disk(free: int) -> Iterator[None]:
    """No file can grow beyond ``free`` bytes, as on a full disk; for this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def main(argv: Sequence[str]) -> None:
    """``python -m fedpart.drill.writes FILE TIMES SEED``: prints both counts of ``kill_writers``.

    A process of its own, because one with threads must not fork.
    """
    path, times, seed = argv
    # torch's threads would not be there in a forked process.
    torch.set_num_threads(1)
    sys.stdout.write("{} {}\n".format(*kill_writers(Path(path), int(times), int(seed))))


if __name__ == "__main__":
    main(sys.argv[1:])
