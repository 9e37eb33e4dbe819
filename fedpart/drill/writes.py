"""Checkpoints whose writer is killed."""

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from fedpart import checkpoint
from fedpart.errors import OutputError
from fedpart.server import ServerState

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


def kill_writer(path: Path, number: int, seconds: float | None) -> None:
    """Fork a process that writes checkpoints, and kill it.

    Args:
        path: the checkpoint.
        number: of the first one that it writes.
        seconds: how long after its start; None: in the midst of a write, whenever that is.
    """
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            write_for_ever(path, number)
        finally:
            # Never back into the caller's code, of which this process is a copy.
            os._exit(1)
    try:
        if seconds is not None:
            time.sleep(seconds)
        while seconds is None:
            if temporary.exists():
                os.kill(child, signal.SIGSTOP)
                os.waitpid(child, os.WUNTRACED)
                if temporary.exists():
                    break
                os.kill(child, signal.SIGCONT)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("the writer ended before it was killed")


def kill_writers(path: Path, times: int, seed: int) -> tuple[int, int]:
    """Kill the writer of a checkpoint again and again.

    Every other kill comes in the midst of a write, the rest at random instants, up to 50 ms after
    the writer was started.

    Args:
        path: the checkpoint.
        times: how often.
        seed: of the instants.
    Returns:
        how often the checkpoint could not be read, was of two halves or older than one before; and
        how often a write was under way.
    """
    rng = random.Random(seed)
    temporary = path.with_name(path.name + ".tmp")
    checkpoint.save(path, made_state(0), {"number": 0})
    bad, under_way, last = 0, 0, 0
    for kill in range(times):
        kill_writer(path, last + 1, rng.uniform(0, 0.05) if kill % 2 else None)
        under_way += temporary.exists()
        try:
            state, extra = checkpoint.load(path)
        except OutputError:
            bad += 1
            continue
        bad += not (is_whole(state) and extra["number"] == state.server_round >= last)
        last = state.server_round
    return bad, under_way


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
