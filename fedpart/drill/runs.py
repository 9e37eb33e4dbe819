"""Runs of ``sim.py`` in processes of their own, to be broken on purpose."""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpart.drill.network import VARIABLE
from fedpart.run_files import read_lines

# Six rounds of four clients, a tenth of a second each; a checkpoint after every other one.
RUN = (
    *("--model", "fedpart.drill.network:faulty", "--train-size", "60", "--clients", "10"),
    *("--clients-per-round", "4", "--rounds", "6", "--samples", "2", "--eval-every", "3"),
    *("--eval-size", "20", "--checkpoint-every", "2", "--json"),
)
_TIMEOUT = 120


def write_digits(folder: Path, train: int = 120, test: int = 20) -> None:
    """Noise in the format of MNIST's own files: ``train`` training and ``test`` test images."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", train), ("t10k", test)):
        pixels = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        head = struct.pack(">4I", 0x803, n, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = struct.pack(">2I", 0x801, n)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


@dataclass(frozen=True)
class Place:
    """Where a drill happens.

    Attributes:
        sim: the script that is drilled.
        scratch: a folder of its own, gone after the drill.
    """

    sim: Path
    scratch: Path

    def environment(self) -> dict[str, str]:
        """Of all processes of the drill: the data and the cache are its own."""
        path = [str(self.sim.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "FEDPART_DATA": str(self.scratch / "digits"),
            "FEDPART_CACHE": str(self.scratch / "cache"),
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "Agg",
            "PYTHONPATH": os.pathsep.join(path),
        }

    def begin(self, *words: str, strike: str = "", limit: int | None = None) -> "Started":
        """Start ``python sim.py WORD ...``.

        Args:
            words: the command line.
            strike: what the network does, see ``fedpart.drill.network``.
            limit: no file can grow beyond so many bytes.
        """

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if limit is not None:
                import resource

                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        process = subprocess.Popen(
            [sys.executable, str(self.sim), *words],
            env=self.environment() | {VARIABLE: strike},
            cwd=self.scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=None if sys.platform == "win32" else prepare,
        )
        return Started(process)

    def run(self, *words: str, strike: str = "", limit: int | None = None) -> tuple[int, str]:
        """Exit code and standard error of a command."""
        return self.begin(*words, strike=strike, limit=limit).end()

    def train(self, name: str, strike: str = "", backend: str = "inline") -> tuple[int, str]:
        """A run into the folder ``name``: exit code and standard error."""
        return self.run(*RUN, *self.into(name), "--backend", backend, strike=strike)

    def into(self, name: str) -> tuple[str, str]:
        """The flag that names the run folder ``name``."""
        return "--out", str(self.scratch / name)


@dataclass(frozen=True)
class Started:
    """A process that was started."""

    process: "subprocess.Popen[str]"

    def end(self) -> tuple[int, str]:
        """Exit code (negative: the signal that ended it) and standard error."""
        with ended(self.process):
            _, errors = self.process.communicate(timeout=_TIMEOUT)
        return self.process.returncode, errors


@contextlib.contextmanager
def ended(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Leave no process behind, whatever happens."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def outcome(folder: Path) -> dict[str, Any]:
    """All that two equal runs agree on: records without times, bytes, weights.

    Raises:
        OSError, FedpartError: the run has not come to its end.
    """
    summary = json.loads((folder / "summary.json").read_bytes())
    times = ("seconds", "seconds_per_round", "peak_rss_bytes")
    return {
        "rounds": _timeless(read_lines(folder / "rounds.jsonl")),
        "evaluations": _timeless(read_lines(folder / "evaluations.jsonl")),
        "summary": {name: value for name, value in summary.items() if name not in times},
        "model": (folder / "model.pt").read_bytes(),
    }


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(v) for name, v in value.items() if name != "seconds"}
    return [_timeless(v) for v in value] if isinstance(value, list) else value
