"""Processes that are killed, disks that are full, many that want one thing at once."""

import subprocess
import sys

import pytest
from command_line import SIM

import fedpart.drill.drill  # noqa: F401  fills CASES
from fedpart.drill.case import CASES, Impossible, case
from fedpart.drill.drill import Result, drill
from fedpart.drill.runs import Place, write_digits

RAY = "worker of Ray"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    scratch = tmp_path_factory.mktemp("drill")
    write_digits(scratch / "digits")
    return Place(SIM, scratch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [pytest.param(c, marks=[pytest.mark.ray] if RAY in c.done else []) for c in CASES],
    ids=lambda c: c.done[:40],
)
def test_each_case_of_the_drill(fault, place, monkeypatch):
    """As ``sim.py drill`` does them; nothing is left out on this machine."""
    monkeypatch.setenv("FEDPART_CACHE", str(place.scratch / "cache"))
    happened, right = fault.action(place)
    assert right, happened


def test_the_table_says_what_went_wrong_and_what_was_not_done(monkeypatch, sim):
    """And the exit code is 1 where anything did; a case that raises is a line of its own."""
    monkeypatch.setattr("fedpart.drill.case.CASES", [])
    monkeypatch.setattr("fedpart.drill.drill.CASES", cases := [])
    monkeypatch.setattr("fedpart.drill.case.CASES", cases)

    @case("nothing", "nothing")
    def right(place):
        assert (place.scratch / "digits").is_dir()
        return "nothing", True

    @case("something", "nothing")
    def wrong(place):
        return "something", False

    @case("a mistake", "none")
    def broken(place):
        raise ZeroDivisionError("oops")

    @case("magic", "magic")
    def impossible(place):
        raise Impossible("no wand")

    results = list(drill(SIM))
    assert [(r.right, r.happened) for r in results] == [
        (True, "nothing"),
        (False, "something"),
        (False, "ZeroDivisionError: oops"),
        (None, "not done here: no wand"),
    ]
    assert all(isinstance(r, Result) for r in results)
    code, out, _ = sim("drill")
    assert code == 1
    assert "WRONG  something" in out
    assert "4 faults in 0 s, 2 of them went wrong" in out
    del cases[1:]
    assert sim("drill")[0] == 0


def test_a_drill_has_no_settings(sim):
    code, _, err = sim("drill", "--seed", "1")
    assert code == 2
    assert "--seed" in err


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("times", [25, pytest.param(1000, marks=pytest.mark.full)])
def test_kills_while_a_checkpoint_is_written(times, tmp_path):
    """Each time there is one that can be read, is of one piece, and not older than before."""
    done = subprocess.run(
        [sys.executable, "-m", "fedpart.drill.writes", "checkpoint.pt", str(times), "1"],
        cwd=tmp_path,
        env=Place(SIM, tmp_path).environment(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    unreadable, under_way = map(int, done.stdout.split())
    assert unreadable == 0
    assert under_way >= times // 2


MANY = """
import os, sys, time
from pathlib import Path
import numpy as np
from fedpart.data.cache import cached

log = Path(sys.argv[1])

def build():
    with log.open("a") as file:
        file.write("x")
    time.sleep(0.2)
    return {"images": np.arange(100_000)}

children = []
for _ in range(100):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            arrays = cached("entry", build)
            mapped = isinstance(arrays["images"], np.memmap)
            code = 0 if mapped and arrays["images"].sum() == 4_999_950_000 else 2
        finally:
            os._exit(code)
    children.append(child)
print(sorted({os.waitpid(child, 0)[1] for child in children}))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_hundred_processes_that_want_the_data_at_once(tmp_path):
    """One builds them; all of them map the one copy."""
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "log")],
        env=Place(SIM, tmp_path).environment(),
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("[0]\n", "")
    assert (tmp_path / "log").read_text() == "x"
