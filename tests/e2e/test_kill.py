"""``kill -9`` while files are written: a resumed run ends as one without a break.

``unit/test_run_folder`` does so before every file operation of a run, without a process.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SIM
from processes import RUN, outcome

# Runs sim.py, and kills it before a file is renamed to the given name for the given time.
KILLED = """
import os, pathlib, runpy, signal, sys

def replace(self, target):
    if target.name == name:
        times.pop()
        if not times:
            os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, target)

_, name, count, *sys.argv = sys.argv
times = [None] * int(count)
whole, pathlib.Path.replace = pathlib.Path.replace, replace
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def kill_before(name: str, count: int, *words: str) -> None:
    command = [sys.executable, "-c", KILLED, name, str(count), str(SIM), *words]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.slow
def test_a_run_killed_while_it_writes_equals_a_run_without_a_break(home, sim, wide_model):
    """In the midst of its rounds, and once more at its end; no temporary file stays."""
    assert sim(*RUN, "--out", "whole")[0] == 0
    kill_before("checkpoint.pt", 4, *RUN, "--out", "run")
    kill_before("curves.png", 1, "--resume", "run")
    assert sim("--resume", "run")[0] == 0
    assert outcome(home / "run") == outcome(home / "whole")


@pytest.mark.slow
def test_a_sweep_killed_while_it_writes_leaves_no_temporary_file(home, sim):
    words = ("central", "--experiment", "mask-learning", "--train-size", "60", "--test-size", "20")
    words = (*words, "--batch-size", "16", "--iterations", "2", "--eval-every", "1", "--seeds", "2")
    assert sim(*words, "--out", "whole")[0] == 0
    written = {str(path.relative_to("whole")) for path in Path("whole").rglob("*")}
    kill_before("sweep.json", 1, *words, "--out", "run")
    kill_before("sweep.png", 1, "central", "--resume", "run")
    assert sim("central", "--resume", "run")[0] == 0
    assert {str(path.relative_to("run")) for path in Path("run").rglob("*")} == written
