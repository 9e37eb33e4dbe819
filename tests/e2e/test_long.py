"""Two thousand rounds leave memory and open files as they were after two hundred."""

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from clients.grid import inline_grid
from fedpart.client import ClientReply
from fedpart.run_folder import RunFolder
from fedpart.server import initial_state
from strategies.app import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def quick_reply(program, task, images, labels) -> ClientReply:
    """Right in form, without training: a test of the machinery round it."""
    rng = np.random.default_rng((task.server_round, task.client_id))
    layout = program.layout
    deltas = {
        j: torch.from_numpy(rng.normal(0, 1e-3, layout.sizes[j]).astype(np.float32))
        for j in range(task.chunk, layout.num_partitions)
    }
    scored = program.scoring(task.chunk) is not None
    return ClientReply(
        *(task.server_round, task.client_id, task.chunk, len(labels), deltas),
        hyper_gradient=torch.zeros(program.hyper.size) if scored else None,
        hyper_examples=len(labels) if scored else 0,
        train_loss=1.0,
        log_likelihood=-1.0 if scored else None,
        seconds=0.0,
    )


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("rounds", [400, pytest.param(2000, marks=pytest.mark.full)])
def test_memory_and_open_files_are_flat(rounds, tmp_path, monkeypatch):
    """Strategy, messages, gate, server step, records, evaluations and checkpoints.

    Clients drop out and are not needed; 4 MB are for what a run has to remember of each round, and
    for what the allocator keeps.
    """
    monkeypatch.setattr("fedpart.side_by_side.client_update", quick_reply)
    program = tiny.program(
        rounds=rounds,
        eval_every=rounds,
        checkpoint_every=50,
        clients_per_round=6,
        over_select=1.5,
        client_failure_rate=0.1,
        max_update_norm=5,
    )
    data, seen = tiny.data(), {}

    def watch(record, evaluation):
        if record.round in (200, rounds - 1):
            seen[record.round] = resident(), open_files()

    folder = RunFolder(tmp_path / "run", program, data, watch)
    state = initial_state(program)
    folder.create(state, [])
    run(program, state, folder, inline_grid(program, data))
    folder.close("ok", 0)
    (before, files), (after, files_after) = seen[200], seen[rounds - 1]
    assert files_after == files
    assert after - before < 4e6, f"{before:,} bytes, then {after:,}"
