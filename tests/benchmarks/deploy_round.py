"""What a round costs on SuperNodes of one machine: seconds, and seconds of processor time.

``python -m tests.benchmarks.deploy_round --label after --out results/benchmarks/deploy.json`` adds
an entry to the file. The network is small and each node has twenty images, so that what is
measured is the way to them and back.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedpart import machine
from fedpart.run_files import read_lines

ROOT = Path(__file__).parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> float:
    """Processor time of a process and all below it, those that have ended included."""
    total = 0
    for pid in machine.process_tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / _TICKS


def measure(nodes: int, rounds: int) -> dict[str, object]:
    """One deployment; the first round is left out, in which nodes unpack the app."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        words = ("--local", str(nodes), "--rounds", str(rounds + 1), "--samples", "2")
        size = ("--train-size", str(20 * nodes), "--eval-size", "20", "--eval-every", "1000")
        command = [sys.executable, str(ROOT / "sim.py"), "deploy", *words, *size]
        started, at = time.monotonic(), []
        process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL)
        while process.poll() is None:
            file = out / "rounds.jsonl"
            if file.exists() and len(read_lines(file)) > len(at):
                at.append((time.monotonic(), cpu_seconds(process.pid)))
            time.sleep(0.05)
        lines = read_lines(out / "rounds.jsonl")
        failures = [line["failures"] for line in lines if line["failures"]]
        if process.returncode or failures:
            sys.exit(f"{nodes} nodes: exit code {process.returncode}, failures {failures}")
        seconds = [line["seconds"] for line in lines[1:]]
        cpu = [b[1] - a[1] for a, b in itertools.pairwise(at)]
        return {
            "nodes": nodes,
            "rounds": rounds,
            "seconds_a_round": {"median": statistics.median(seconds), "all": seconds},
            "cpu_seconds_a_round": {"median": statistics.median(cpu), "all": cpu},
            "seconds_to_the_first_round_done": at[0][0] - started,
            "load_average": os.getloadavg()[0],
        }


def main() -> None:
    """Measure and add to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--label", required=True)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 10, 20])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    known = parser.parse_args()
    entry = {
        "label": known.label,
        "command": " ".join(["python -m tests.benchmarks.deploy_round", *sys.argv[1:]]),
        "commit": machine.commit(),
        "hardware": machine.hardware(),
        "versions": machine.versions(),
        "measured": [measure(nodes, known.rounds) for nodes in known.nodes],
    }
    text = json.dumps(entry, indent=2)
    if known.out is not None:
        before = json.loads(known.out.read_text()) if known.out.exists() else []
        text = json.dumps([*(e for e in before if e["label"] != known.label), entry], indent=2)
        known.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
