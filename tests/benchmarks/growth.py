"""How a round, its memory and its start grow with the cohort and with the number of clients.

FedAvg on twelve images a client, so that what is not arithmetic shows. The images are the same
1,200 for all, however many clients there are, so that memory is what the clients take.
"""

import contextlib
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from fedpart.config import make_config
from fedpart.data import FederatedData
from fedpart.data.split import Ragged
from fedpart.machine import peak_rss
from fedpart.program import build_program
from fedpart.run_folder import RunFolder
from fedpart.runtime import prepare_process
from fedpart.server import initial_state
from tests.benchmarks.peer import Peer, Stepping, alternate
from tests.benchmarks.workloads import spread

IMAGES, EACH = 1200, 12
COHORTS = (10, 20, 50, 100)
POPULATIONS = (100, 1_000, 10_000, 100_000)


def shared_images(clients: int) -> FederatedData:
    """Every client owns twelve of the same 1,200 random images."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IMAGES, 1, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, IMAGES)
    owned = Ragged(np.arange(EACH * clients) % IMAGES, EACH * np.arange(1, clients + 1))
    held = (images[:1], labels[:1], None, None)
    return FederatedData("mnist", 10, 1, images, labels, None, owned, *held, "random numbers")


def rounds_of(
    connection: Connection, clients: int, cohort: int, rounds: int, workers: int | None
) -> None:
    """A run whose rounds are waited for: inline, or on so many of Ray's workers."""
    started = time.perf_counter()
    from clients.grid import inline_grid
    from clients.ray_grid import ray_grid
    from strategies.strategy import PartitionedStrategy

    prepare_process()
    settings = {"dataset": "mnist", "method": "fedavg", "rounds": rounds + 1}
    settings |= {"clients": clients, "clients-per-round": cohort, "train-size": EACH * clients}
    # Neither evaluation nor checkpoint is part of what is asked here.
    settings |= {"eval-every": rounds + 1, "checkpoint-every": rounds + 1}
    program, data = build_program(make_config(settings), 10, 1), shared_images(clients)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        folder = RunFolder(Path(scratch) / "run", program, data, lambda *_: None)
        state = initial_state(program)
        folder.create(state, ["benchmark"])
        if workers is None:
            grid = inline_grid(program, data)
        else:
            grid = stack.enter_context(ray_grid(program, data, workers))
        observer = Stepping(program, folder, connection)
        strategy = PartitionedStrategy(program, state, observer)
        strategy.join(grid)
        start_up = time.perf_counter() - started
        observer.more = lambda: {"peak": float(peak_rss())}
        connection.send({"start-up": start_up})
        connection.recv()
        observer.mark, observer.cpu_mark = time.perf_counter(), time.process_time()
        strategy.start(grid)


def grow(rounds: int, workers: int | None, cohorts: bool, ends: bool = False) -> dict[str, object]:
    """Rounds of all sizes in turn; ``cohorts`` of 100 clients, or 10 a round of ever more.

    With ``ends``, only the smallest and the largest.
    """
    sizes = COHORTS if cohorts else POPULATIONS
    sizes = (sizes[0], sizes[-1]) if ends else sizes
    peers, start_up = {}, {}
    for n in sizes:
        # One after the other: what starts beside it would count.
        peer = peers[str(n)] = Peer(
            rounds_of, *((100, n) if cohorts else (n, 10)), rounds + 1, workers
        )
        start_up[str(n)] = peer.hear()["start-up"]
    answers = alternate(peers, rounds)
    first = statistics.median(a["seconds"] for a in answers[str(sizes[0])])
    return {
        size: {
            "seconds a round": spread([a["seconds"] for a in found]),
            "of the smallest": statistics.median(a["seconds"] for a in found) / first,
            "start-up, seconds": start_up[size],
            "peak memory of all processes, MB": found[-1]["peak"] / 1e6,
        }
        for size, found in answers.items()
    }


def draw(report: dict[str, dict[str, dict[str, object]]], path: Path) -> None:
    """Seconds a round and peak memory against the number of clients and of those in a round."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, grown in zip(figure.subplots(1, 3), ("clients", "cohort", "memory"), strict=True):
        for where in ("inline", "ray"):
            points = report[f"{'clients' if grown == 'memory' else grown}, {where}"]
            key = "peak memory of all processes, MB" if grown == "memory" else "seconds a round"
            values = [p[key] if grown == "memory" else p[key]["median"] for p in points.values()]  # type: ignore[index]
            axes.plot([int(n) for n in points], values, marker="o", label=where)
        axes.set_xscale("log")
        axes.set_xlabel("clients in a round" if grown == "cohort" else "clients")
        axes.set_ylabel("MB, all processes" if grown == "memory" else "seconds a round")
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path, dpi=120)
