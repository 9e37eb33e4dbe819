"""A run over Ray as users start and stop it: quiet, and nothing stays behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from command_line import SIM, TINY
from compare_commits import records

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
OVER_RAY = (*TINY, "--backend", "ray", "--workers", "2")


@pytest.fixture
def scratch(monkeypatch):
    """A temporary folder of our own; its name is short, since Ray's sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start(*words: str) -> subprocess.Popen:
    # A group of its own, as a shell gives it: Ctrl-C goes to all of it. A shell that starts us in
    # the background may have us ignore SIGINT.
    return subprocess.Popen(
        [sys.executable, str(SIM), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def read_until(process: subprocess.Popen, beginning: str) -> None:
    assert process.stdout is not None
    while not process.stdout.readline().startswith(beginning):
        assert process.poll() is None, process.stderr.read()


def processes_in(folder: Path) -> set[int]:
    """Processes that hold a file open in ``folder``: all of Ray's keep their logs there."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(f"{folder}/"):
                found.add(int(link.parts[2]))
    return found


def gone_within(seconds: float, folder: Path) -> bool:
    deadline = time.monotonic() + seconds
    while processes_in(folder) or any(folder.iterdir()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_run_is_quiet_leaves_nothing_behind_and_equals_inline(sim, home, scratch):
    process = start(*OVER_RAY, "--rounds", "4", "--out", "over-ray")
    # It may come with round 2, beside which round 1 is evaluated.
    read_until(process, "round 1/4")
    held = processes_in(scratch)
    # Ray's daemon, its helpers, the workers and the run itself.
    assert len(held) > 4
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("round 2/4")
    assert processes_in(scratch) == set()
    assert list(scratch.iterdir()) == []
    info = json.loads((home / "over-ray" / "run.json").read_text())
    assert (info["backend"], info["workers"]) == ("ray", 2)
    summary = json.loads((home / "over-ray" / "summary.json").read_text())
    assert sim(*TINY, "--rounds", "4", "--out", "inline")[0] == 0
    assert records(home / "over-ray") == records(home / "inline")
    inline = json.loads((home / "inline" / "run.json").read_text())
    assert (inline["backend"], inline["workers"]) == ("inline", None)
    # Two workers with torch in them: the whole tree counts, not only this process.
    assert summary["peak_rss_bytes"] > 600e6


def stopped(process: subprocess.Popen, scratch: Path) -> tuple[int, str]:
    """Exit code and errors of a process that was sent a signal, once all of Ray is gone."""
    _, err = process.communicate(timeout=60)
    assert gone_within(10, scratch)
    return process.returncode, err


def test_ctrl_c_while_ray_starts_ends_all_processes(home, scratch):
    process = start(*OVER_RAY, "--out", "run")
    read_until(process, "back end: ray, 2 workers")
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    advice = "stopped after round 0; go on with: python sim.py --resume run\n"
    assert stopped(process, scratch) == (130, advice)


def test_sigterm_during_a_round_ends_all_processes_and_inline_takes_the_run_up(sim, home, scratch):
    # Rounds enough that a busy machine does not come to their end before the signal.
    process = start(*OVER_RAY, "--rounds", "40", "--out", "run")
    read_until(process, "round 2/")
    process.terminate()
    code, err = stopped(process, scratch)
    assert (code, err.count("\n")) == (143, 1), err
    assert err.endswith("; go on with: python sim.py --resume run\n")
    info = json.loads((home / "run" / "run.json").read_text())
    assert (info["backend"], info["exit_code"]) == ("ray", 143)
    code, out, err = sim("--resume", "run", "--backend", "inline")
    assert (code, err) == (0, "")
    assert "back end: inline" in out
    assert sim(*TINY, "--rounds", "40", "--out", "whole")[0] == 0
    assert records(home / "run") == records(home / "whole")
    assert json.loads((home / "run" / "run.json").read_text())["backend"] == "inline"


def test_a_killed_run_takes_its_processes_and_files_with_it(home, scratch):
    process = start(*OVER_RAY, "--rounds", "100000", "--out", "run")
    read_until(process, "round 2/")
    process.kill()
    process.communicate(timeout=30)
    assert gone_within(10, scratch)


def test_clients_that_all_raise_end_the_run_and_all_processes(home, scratch):
    (home / "faulty.py").write_text(
        "from torch import nn\n\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.out = nn.Linear(784, 10)\n\n"
        "    def forward(self, x):\n"
        "        if self.training and len(x) > 2:\n"
        "            raise RuntimeError('too hot')\n"
        "        return self.out(x.flatten(1))\n\n\n"
        "def net(num_classes, in_channels):\n"
        "    return Net()\n"
    )
    process = start(*OVER_RAY, "--model", "faulty:net", "--samples", "3", "--out", "run")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 5
    first, second = err.splitlines()
    assert first.startswith("error: no reply counted in 2 rounds in a row; in round 2, client ")
    assert "RuntimeError: too hot (faulty.py, line 11, in forward)" in first
    assert second.startswith("stopped after round 2")
    assert processes_in(scratch) == set()
    assert list(scratch.iterdir()) == []
