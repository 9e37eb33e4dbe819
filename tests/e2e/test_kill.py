"""``kill -9`` at many instants of a run of twelve rounds, resumed each time: nothing is lost."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SIM
from processes import RUN, Process, begin, measure, outcome, resumed

from fedpart.run_files import ended_well

SEED = 0
# When each of ten is killed: at any time, when a further round is on record, or while a checkpoint
# is written.
KILLS = ("any", "round", "checkpoint") * 3 + ("round",)


def strike(process: Process, when: str, rng: random.Random, total: float) -> bool:
    """Kill a process; False if it reached its end before.

    Args:
        process: begun just now.
        when: see ``KILLS``.
        rng: chooses the instant.
        total: seconds that a whole run takes.
    """
    if when == "any":
        alive = process.wait_for(rng.uniform(0, total))
    elif when == "round":
        alive = process.wait_for_rounds(rng.randint(1, 3))
        alive = alive and process.wait_for(rng.uniform(0, 0.1))
    else:
        alive = process.stop_while((process.folder / "checkpoint.pt.tmp").exists)
    if alive:
        process.kill()
    return alive


@pytest.mark.slow
@pytest.mark.parametrize(("tens", "every"), [(1, 2), pytest.param(3, 1, marks=pytest.mark.full)])
def test_kills_cost_nothing(home, sim, wide_model, tens, every):
    """Weights, psi, moments, JSON lines, totals: equal to those of a run without a break.

    What is asserted does not depend on when the kills come: a run that ends before its kill is
    compared, and another one is begun. With a checkpoint after every round, a kill costs at most
    one, whose bytes are not counted twice.
    """
    total, _ = measure(home / "whole", every)
    expected = outcome(home / "whole")
    rng, kills, number = random.Random(SEED), list(KILLS) * tens, 0
    # Rounds on record when the last process of this run was killed.
    done = 0
    while kills:
        folder = home / f"run-{number}"
        process = begin(folder, every)
        if strike(process, kills[-1], rng, total):
            kills.pop()
            if process.recorded and done:
                assert resumed(folder)[-1] >= done - every
            done = process.rounds
        else:
            process.end_well()
        if ended_well(folder):
            assert outcome(folder) == expected
            number, done = number + 1, 0
    if not ended_well(folder):
        code, _, err = sim("--resume", folder)
        assert (code, err) == (0, "")
        assert outcome(folder) == expected


# Runs sim.py, and kills it before a file of the given name takes the place of the one before.
KILLED = """
import os, pathlib, runpy, signal, sys

def replace(self, target):
    if target.name == name:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, target)

_, name, *sys.argv = sys.argv
whole, pathlib.Path.replace = pathlib.Path.replace, replace
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def kill_before(name: str, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, name, str(SIM), *words], capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.slow
def test_killed_before_each_file_has_its_name_it_leaves_none_behind(home, sim, wide_model):
    """What is half-written is written over when the run is taken up."""
    assert sim(*RUN, "--out", "whole")[0] == 0
    files = {path.name for path in (home / "whole").iterdir()}
    written = ["checkpoint.pt", "model.pt", "curves.png", "curves.csv", "summary.json"]
    assert files == {*written, "config.toml", "run.json", "rounds.jsonl", "evaluations.jsonl"}
    kill_before(written[0], *RUN, "--out", "run")
    for name in written[1:]:
        kill_before(name, "--resume", "run")
    assert sim("--resume", "run")[0] == 0
    assert outcome(home / "run") == outcome(home / "whole")


@pytest.mark.slow
def test_a_sweep_killed_before_each_file_has_its_name_leaves_none_behind(home, sim):
    words = ("central", "--experiment", "mask-learning", "--train-size", "60", "--test-size", "20")
    words = (*words, "--batch-size", "16", "--iterations", "2", "--eval-every", "1", "--seeds", "2")
    assert sim(*words, "--out", "whole")[0] == 0
    names = ["sweep.json", "checkpoint.pt", "model.pt", "curves.png", "summary.json", "sweep.png"]
    written = {str(path.relative_to("whole")) for path in Path("whole").rglob("*")}
    kill_before(names[0], *words, "--out", "run")
    for name in names[1:]:
        kill_before(name, "central", "--resume", "run")
    assert sim("central", "--resume", "run")[0] == 0
    assert {str(path.relative_to("run")) for path in Path("run").rglob("*")} == written
