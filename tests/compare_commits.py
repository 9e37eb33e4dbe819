"""Compare two commits on this machine: tiny runs must give the same records and weights.

    python -m tests.compare_commits BEFORE            # with the working tree
    python -m tests.compare_commits BEFORE AFTER

A refactoring keeps every bit. Expected bits cannot be committed, since they differ between
processors, so both commits run here. One more run begins at BEFORE, is terminated, and is resumed
at AFTER: a run folder outlives a new version. Ends with exit code 1 where anything differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
FEDERATED = (
    *("--clients", "10", "--clients-per-round", "4", "--train-size", "100", "--eval-size", "20"),
    *("--eval-every", "2", "--checkpoint-every", "1", "--backend", "inline"),
)
RUNS = {
    "partitioned": (*FEDERATED, "--rounds", "3"),
    "node": (*FEDERATED, "--rounds", "3", "--scheme", "node", "--augmentation", "generators"),
    "augerino": (*FEDERATED, "--rounds", "3", "--method", "augerino", "--dataset", "mnist"),
    "fedavg": (*FEDERATED, "--rounds", "3", "--method", "fedavg", "--precision", "bf16"),
    "central": (
        *("central", "--experiment", "data-size", "--dataset", "rotmnist", "--model", "mnist-cnn"),
        *("--method", "partitioned", "--train-size", "60", "--test-size", "20", "--seeds", "1"),
        *("--batch-size", "4", "--samples", "2", "--iterations", "6", "--eval-every", "2"),
        *("--eval-size", "10", "--checkpoint-every", "2"),
    ),
}
# Long enough to be terminated in their midst.
RESUMED = {
    "resumed": (*FEDERATED, "--rounds", "8", "--samples", "2"),
    "central-resumed": (*RUNS["central"], "--iterations", "40"),
}
TIMES = ("seconds", "seconds_per_round", "seconds_per_iteration", "peak_rss_bytes")
_TIMEOUT = 300


def main() -> None:
    """Run both commits and print one line a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", help="a commit; the working tree where left out")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        before = checkout(words.before, place / "before")
        after = checkout(words.after, place / "after") if words.after else ROOT

        def old() -> None:
            for name, flags in (RUNS | RESUMED).items():
                sim(before, *flags, "--out", str(place / "old" / name))

        def new() -> None:
            for name, flags in RUNS.items():
                sim(after, *flags, "--out", str(place / "new" / name))
            for name, flags in RESUMED.items():
                stopped = place / "new" / name
                terminate_midway(before, *flags, out=stopped)
                sim(after, *flags[: flags[0] == "central"], "--resume", str(stopped))

        with ThreadPoolExecutor() as pool:
            for side in [pool.submit(old), pool.submit(new)]:
                side.result()
        different = [
            name for name in RUNS | RESUMED if not same(place / "old" / name, place / "new" / name)
        ]
    sys.exit(1 if different else 0)


def checkout(commit: str, place: Path) -> Path:
    """The files of a commit, in a folder of their own."""
    place.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
    return place


def command(tree: Path, *flags: str) -> list[str]:
    """``python sim.py FLAG ...`` of one tree."""
    return [sys.executable, str(tree / "sim.py"), *flags]


def sim(tree: Path, *flags: str) -> None:
    """Run one command to its end."""
    subprocess.run(
        command(tree, *flags), check=True, stdout=subprocess.DEVNULL, timeout=_TIMEOUT, env=quiet()
    )


def quiet() -> dict[str, str]:
    """This process's environment, with a renderer that needs no screen."""
    return os.environ | {"MPLBACKEND": "Agg"}


def terminate_midway(tree: Path, *flags: str, out: Path) -> None:
    """Begin a run and end it by SIGTERM after its first checkpoint.

    Raises:
        RuntimeError: it came to its end before that.
    """
    process = subprocess.Popen(
        command(tree, *flags, "--out", str(out)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=quiet(),
    )
    saved = out / "checkpoint.pt"
    begun = saved.stat().st_mtime_ns if saved.exists() else None
    while process.poll() is None:
        time.sleep(0.01)
        if saved.exists():
            written = saved.stat().st_mtime_ns
            # The first one is written before the first round.
            if begun is not None and written != begun:
                process.terminate()
                break
            begun = written
    process.wait(_TIMEOUT)
    if (out / "summary.json").exists():
        raise RuntimeError(f"{out.name} ended before it could be terminated: give it more rounds")


def same(old: Path, new: Path) -> bool:
    """Whether two run folders hold the same records and weights; prints what differs."""
    left, right = outcome(old), outcome(new)
    different = [part for part in left if left[part] != right[part]]
    sys.stdout.write(f"{old.name}: {'differ: ' + ', '.join(different) if different else 'same'}\n")
    sys.stdout.flush()
    return not different


def outcome(folder: Path) -> dict[str, Any]:
    """Records without times, summary without times, weights and psi as bytes."""
    summary = timeless(json.loads((folder / "summary.json").read_text()))
    model = torch.load(folder / "model.pt", weights_only=True)
    return records(folder) | {"summary.json": summary, "model.pt": exact(model)}


def records(folder: Path) -> dict[str, Any]:
    """Rounds and evaluations of a run folder, without times, by file."""
    return {
        path.name: [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        for path in (folder / "rounds.jsonl", folder / "evaluations.jsonl")
        if path.exists()
    }


def timeless(value: Any) -> Any:
    """A record without durations and memory."""
    if isinstance(value, dict):
        return {name: timeless(v) for name, v in value.items() if name not in TIMES}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def exact(value: Any) -> Any:
    """Tensors as bytes, so that ``==`` compares every bit."""
    if isinstance(value, dict):
        return {name: exact(v) for name, v in value.items()}
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    main()
