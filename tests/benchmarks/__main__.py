"""Measure the product against a bare PyTorch loop: ``python -m tests.benchmarks --out FILE``.

Both do the same rounds, alternating in one process on one thread; the file holds seconds, their
median and spread, and the ratio of medians.
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
import torch

from clients.grid import inline_grid
from fedpart.config import make_config
from fedpart.data import load_federated
from fedpart.program import build_program
from fedpart.runtime import prepare_process
from fedpart.server import initial_state
from strategies.app import run
from tests.benchmarks.bare import BareLoop


class Stopwatch:
    """An observer that keeps the seconds of the rounds it is told of."""

    def __init__(self) -> None:
        self.marks = [time.perf_counter()]

    def after_round(self, *_: object) -> None:
        self.marks.append(time.perf_counter())


def spread(seconds: list[float]) -> dict[str, object]:
    """Median, quartiles and number of measurements."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"median": middle, "quartiles": [low, high], "n": len(seconds), "seconds": seconds}


def measure(method: str, rounds: int) -> dict[str, object]:
    """Rounds of the product through Flower in this process, and of the bare loop, in turn."""
    config = make_config({"method": method, "rounds": rounds + 1})
    data = load_federated(config)
    program = build_program(config, data.num_classes, data.in_channels)
    bare = BareLoop(program, data)
    times: dict[str, list[float]] = {"inline": [], "bare": []}

    class Alternate(Stopwatch):
        """After each round of the product, the same round of the bare loop."""

        def after_round(self, state, *_: object) -> None:  # type: ignore[no-untyped-def]
            times["inline"].append(time.perf_counter() - self.marks[-1])
            started = time.perf_counter()
            bare(state.server_round)
            times["bare"].append(time.perf_counter() - started)
            self.marks.append(time.perf_counter())

    run(program, initial_state(program), Alternate(), inline_grid(program, data))
    # The first round of each is for warming up.
    result = {name: spread(seconds[1:]) for name, seconds in times.items()}
    ratio = statistics.median(times["inline"][1:]) / statistics.median(times["bare"][1:])
    return {
        "method": method,
        "clients_per_round": config.clients_per_round,
        "images": len(data.labels),
        "inline": result["inline"],
        "bare": result["bare"],
        "ratio": ratio,
    }


def processor() -> str:
    """The processor's name, where Linux tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def main(argv: list[str] | None = None) -> None:
    """Parse, measure, print, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds of each")
    args = parser.parse_args(argv)
    prepare_process()
    results = [measure(method, args.rounds) for method in ("partitioned", "fedavg")]
    report = {
        "command": f"python -m tests.benchmarks --rounds {args.rounds}",
        "machine": {"processor": processor(), "system": platform.platform(), "torch_threads": 1},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "flwr": flwr.__version__,
            "numpy": np.__version__,
        },
        "results": results,
    }
    for r in results:
        sys.stdout.write(f"{r['method']}: inline / bare = {r['ratio']:.3f}\n")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
