"""Measure Ray against one process: ``python -m tests.benchmarks.ray_round --out FILE``.

The same rounds (partitioned, 1,250 images, S = 10) by ``inline`` on one thread and by Ray's
workers, alternating in one run, with equal weights after each. Then the same messages again to
clients that train nothing: what is left is the price of messages and of the model's transfer.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import flwr
import numpy as np
import ray
import torch

from clients.grid import LocalGrid, inline_grid
from clients.ray_executor import Worker, ray_grid
from fedpart.client import ClientReply, ClientTask
from fedpart.config import make_config
from fedpart.data import load_federated
from fedpart.machine import available_cores
from fedpart.program import Program, build_program
from fedpart.runtime import prepare_process
from fedpart.server import initial_state
from strategies.strategy import PartitionedStrategy
from tests.benchmarks.__main__ import processor, spread


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
    strategy = PartitionedStrategy(program, initial_state(program), Seconds(), True)
    strategy._roster.wait(grid, program.config.clients, 60)
    seconds = []
    for server_round in range(1, rounds + 1):
        messages = strategy.configure_train(
            server_round, strategy.arrays(), flwr.app.ConfigRecord(), grid
        )
        started = time.perf_counter()
        replies = list(grid.send_and_receive(messages))
        seconds.append(time.perf_counter() - started)
        assert not any(reply.has_error() for reply in replies)
    return seconds


def measure(workers: int, rounds: int) -> dict[str, object]:
    """Rounds of both, in turn; the first of each is for warming up."""
    config = make_config({"rounds": rounds + 1})
    data = load_federated(config)
    program = build_program(config, data.num_classes, data.in_channels)
    times = {"inline": Seconds(), "ray": Seconds()}
    with ray_grid(program, data, workers) as over_ray:
        grids = {"inline": inline_grid(program, data), "ray": over_ray}
        strategies = {
            name: PartitionedStrategy(program, initial_state(program), times[name], True)
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
        "clients_per_round": config.clients_per_round,
        "images": len(data.labels),
        "samples": config.samples,
        "parameters": program.layout.num_parameters,
        "inline": spread(times["inline"].rounds[1:]),
        "ray": spread(times["ray"].rounds[1:]),
        "ratio": medians["ray"] / medians["inline"],
        "messages": spread(transfer[1:]),
        "messages_share": statistics.median(transfer[1:]) / medians["ray"],
    }


def main(argv: list[str] | None = None) -> None:
    """Parse, measure, print, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds of each")
    args = parser.parse_args(argv)
    prepare_process()
    result = measure(args.workers, args.rounds)
    report = {
        "command": "python -m tests.benchmarks.ray_round "
        f"--workers {args.workers} --rounds {args.rounds}",
        "machine": {
            "processor": processor(),
            "system": platform.platform(),
            "cores": available_cores(),
            "torch_threads": 1,
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "flwr": flwr.__version__,
            "numpy": np.__version__,
            "ray": ray.__version__,
        },
        "results": [result],
    }
    sys.stdout.write(
        f"ray / inline = {result['ratio']:.3f}, messages {100 * result['messages_share']:.1f} %\n"
    )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
