"""Faults of processes and disks, in processes of their own."""

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from fedpart.drill.case import Happened, Impossible, case
from fedpart.drill.runs import RUN, Place, outcome
from fedpart.run_files import read_lines


def _linux_only() -> None:
    if sys.platform == "win32":
        raise Impossible("Windows")


def reference(place: Place) -> dict[str, object]:
    """The outcome of a run that nothing happens to; made once."""
    folder = place.scratch / "reference"
    if not folder.exists():
        code, errors = place.train("reference", backend="algorithm")
        if code:
            raise RuntimeError(f"a run without a fault ends with {code}: {errors}")
    return outcome(folder)


def _verdict(place: Place, name: str) -> Happened:
    equal = outcome(place.scratch / name) == reference(place)
    return ("equal to the last bit" if equal else "NOT equal"), equal


@case("a client raises", "it alone fails in its round; the run ends well")
def raises(place: Place) -> Happened:
    """In the midst of its training."""
    code, _ = place.train("raises", strike=f"raise:5:{place.scratch / 'raised'}")
    rounds = read_lines(place.scratch / "raises" / "rounds.jsonl")
    reasons = [f["reason"] for r in rounds for f in r["failures"]]
    right = code == 0 and len(reasons) == 1 and reasons[0].startswith("ArithmeticError: a drill")
    return f"exit {code}, {len(reasons)} of {4 * len(rounds)} replies failed", right


@case(
    "kill -9 in the midst of a round; a full disk on the resume; a second resume",
    "the old checkpoint stays, exit 4 and a sentence; then the bits of a run without a break",
)
def killed_and_full(place: Place) -> Happened:
    """One run through all of it."""
    _linux_only()
    folder, name = place.scratch / "killed", "killed"
    code, _ = place.train(
        name, strike=f"kill:40:{place.scratch / 'killed-once'}", backend="algorithm"
    )
    if code != -signal.SIGKILL or (folder / "summary.json").exists():
        return f"the kill came too late, exit {code}", False
    before = (folder / "checkpoint.pt").read_bytes()
    code, errors = place.run("--resume", str(folder), limit=len(before) // 2)
    told = code == 4 and "cannot write" in errors and "checkpoint.pt" in errors
    kept = (folder / "checkpoint.pt").read_bytes() == before
    exit_code = json.loads((folder / "run.json").read_bytes())["exit_code"]
    told = told and "stopped after round" in errors and exit_code == 4
    if not (told and kept) or (folder / "summary.json").exists():
        return f"full disk: exit {code}, checkpoint {'kept' if kept else 'LOST'}", False
    code, errors = place.run("--resume", str(folder))
    text, equal = _verdict(place, name)
    resumed = json.loads((folder / "run.json").read_bytes())["resumed_from"]
    return f"exit 4, checkpoint kept; resumed from round {resumed[-1]}, {text}", equal


@case("kill -9 of a worker of Ray in the midst of a round", "it is replaced, its client runs again")
def worker_killed(place: Place) -> Happened:
    """Nobody fails."""
    _linux_only()
    if find_spec("ray") is None:
        raise Impossible("Ray is not installed")
    mark = place.scratch / "worker-killed"
    code, errors = place.train("ray", strike=f"kill:9:{mark}", backend="ray")
    if code or not mark.exists():
        return f"exit {code}, {'killed' if mark.exists() else 'not killed'}: {errors}", False
    return _verdict(place, "ray")


@case("two runs are started at once into one folder", "one is refused, the other is whole")
def two_at_once(place: Place) -> Happened:
    """The loser finds the folder locked, or no longer empty."""
    words = (*RUN, *place.into("both"), "--backend", "algorithm")
    both = [place.begin(*words) for _ in range(2)]
    ends = sorted(started.end() for started in both)
    codes, errors = zip(*ends, strict=True)
    if codes != (0, 4) or not ("another process" in errors[1] or "is not empty" in errors[1]):
        return f"exits {codes[0]} and {codes[1]}: {' '.join(errors).strip()}", False
    text, equal = _verdict(place, "both")
    return f"exits 0 and 4, {text}", equal


@case("the run folder is to be made beneath a file", "exit 4, a sentence, nothing is written")
def beneath_a_file(place: Place) -> Happened:
    """It is said before anything slow happens."""
    (place.scratch / "file").write_text("mine")
    code, errors = place.train("file/run")
    left = (place.scratch / "file").read_text() == "mine"
    return f"exit {code}, {errors.strip()}", code == 4 and left and errors.count("\n") == 1


@case(
    "50 kills of a process that writes checkpoints", "each time the old one or the new one is whole"
)
def killed_writers(place: Place) -> Happened:
    """In a process without threads, which may fork."""
    _linux_only()
    done = subprocess.run(
        [sys.executable, "-m", "fedpart.drill.writes", "checkpoint.pt", "50", "0"],
        cwd=place.scratch,
        env=place.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    bad, under_way = map(int, done.stdout.split())
    return (
        f"{bad} unreadable; {under_way} kills came in the midst of a write",
        bad == 0 and under_way >= 25,
    )


@case("the data in the cache are cut in half", "they are built again, the run is the same")
def cache_cut(place: Place) -> Happened:
    """The file of images."""
    reference(place)
    files = sorted((place.scratch / "cache").rglob("*.npy"), key=lambda f: f.stat().st_size)
    largest: Path = files[-1]
    whole = largest.stat().st_size
    with largest.open("r+b") as file:
        file.truncate(whole // 2)
    code, _ = place.train("mended")
    text, equal = _verdict(place, "mended")
    mended = largest.stat().st_size == whole
    return f"exit {code}, {'built again' if mended else 'NOT mended'}, {text}", equal and mended
