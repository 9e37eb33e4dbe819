"""Ray against one process.

The same rounds (partitioned, 1,250 images, S = 10) by ``inline`` on one thread and by Ray's
workers, alternating in one run, with equal weights after each. Then the same messages again to
clients that train nothing: what is left is the price of messages and of the model's transfer.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import ConfigRecord

from clients.grid import LocalGrid, inline_grid
from clients.ray_grid import ray_grid
from clients.ray_worker import Worker
from fedpart.client import ClientReply, ClientTask
from fedpart.program import Program
from fedpart.run_folder import RunFolder
from fedpart.runtime import prepare_process
from fedpart.server import initial_state
from strategies.strategy import PartitionedStrategy
from tests.benchmarks.workloads import spread, workload


class Seconds:
    """An observer that keeps the seconds of each round."""

    def __init__(self) -> None:
        self.rounds: list[float] = []

    def after_round(self, state, replies, failures, wire, seconds) -> None:  # type: ignore[no-untyped-def]
        assert not failures
        self.rounds.append(seconds)


def no_training(program: Program, task: ClientTask, images: object, labels: object) -> ClientReply:
    """A reply of the right arrays and sizes, at once."""
    sizes = program.layout.sizes
    deltas = {j: torch.zeros(sizes[j]) for j in range(task.chunk, len(sizes))}
    gradient = torch.zeros_like(task.hyper) if task.chunk else None
    scored, measured = (1, -1.0) if task.chunk else (0, None)
    return ClientReply(
        *(task.server_round, task.client_id, task.chunk, 1, deltas, gradient, scored),
        train_loss=1.0,
        log_likelihood=measured,
        seconds=0.0,
    )


def stop_training(worker: Worker) -> None:
    """In a worker: clients answer at once."""
    import clients.app

    clients.app.client_update = no_training  # type: ignore[assignment]


def messages_only(program: Program, grid: LocalGrid, rounds: int) -> list[float]:
    """Seconds from the first message of a round to its last reply, nothing being trained."""
    strategy = PartitionedStrategy(program, initial_state(program), Seconds())
    strategy.join(grid)
    seconds = []
    for server_round in range(1, rounds + 1):
        messages = strategy.configure_train(server_round, strategy.arrays(), ConfigRecord(), grid)
        started = time.perf_counter()
        replies = list(grid.send_and_receive(messages))
        seconds.append(time.perf_counter() - started)
        assert not any(reply.has_error() for reply in replies)
    return seconds


def ray_against_inline(workers: int, rounds: int) -> dict[str, object]:
    """Rounds of both, in turn; the first of each is for warming up."""
    prepare_process()
    program, data = workload("partitioned-1.25k", rounds + 1)
    times = {"inline": Seconds(), "ray": Seconds()}
    with ray_grid(program, data, workers) as over_ray:
        grids = {"inline": inline_grid(program, data), "ray": over_ray}
        strategies = {
            name: PartitionedStrategy(program, initial_state(program), times[name])
            for name in grids
        }
        for server_round in range(1, rounds + 2):
            for name, grid in grids.items():
                strategies[name].start(grid, num_rounds=server_round)
            thetas = [s.state.theta for s in strategies.values()]
            assert torch.equal(*thetas)
        over_ray.executor.everywhere(stop_training)  # type: ignore[attr-defined]
        transfer = messages_only(program, over_ray, rounds + 1)
    medians = {name: statistics.median(t.rounds[1:]) for name, t in times.items()}
    return {
        "workers": workers,
        "inline": spread(times["inline"].rounds[1:]),
        "ray": spread(times["ray"].rounds[1:]),
        "ray / inline": medians["ray"] / medians["inline"],
        "messages and transfer": spread(transfer[1:]),
        "messages and transfer, share of a round": statistics.median(transfer[1:]) / medians["ray"],
    }


def evaluation_beside(workers: int, runs: int) -> dict[str, object]:
    """Runs of ten rounds with two evaluations of 2,000 images, both ways in turn."""
    prepare_process()
    program, data = workload("partitioned-1.25k", 10, **{"eval-every": 5})
    few = {f"val_{name}": getattr(data, f"val_{name}")[:2000] for name in ("images", "labels")}
    data = replace(data, **few)
    seconds: dict[str, list[float]] = {"at once": [], "beside": []}
    records = set()
    with ray_grid(program, data, workers) as grid, tempfile.TemporaryDirectory() as scratch:
        for run in range(-1, runs):
            for name, found in seconds.items():
                path = Path(scratch) / f"{name}{run}"
                folder = RunFolder(path, program, data, lambda *_: None, name == "beside")
                state = initial_state(program)
                folder.create(state, ["benchmark"])
                strategy = PartitionedStrategy(program, state, folder)
                started = time.perf_counter()
                # The first of each is for warming up, and short.
                strategy.start(grid, num_rounds=1 if run < 0 else None)
                if run >= 0:
                    found.append(time.perf_counter() - started)
                    records.add((path / "evaluations.jsonl").read_text())
                folder.close("ok", 0)
    assert len(records) == 1
    ratio = statistics.median(seconds["beside"]) / statistics.median(seconds["at once"])
    return {
        "workers": workers,
        "seconds": seconds,
        "beside / at once": ratio,
    }
