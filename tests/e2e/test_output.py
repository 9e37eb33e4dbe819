"""Output that nobody reads, or that cannot be written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SIM, TINY

CENTRAL = (
    *("central", "--experiment", "mask-learning", "--seeds", "1", "--train-size", "60"),
    *("--iterations", "20", "--eval-every", "10"),
)


def shell(line: str, *words: str) -> subprocess.CompletedProcess:
    """``sim.py WORDS`` in bash, with ``line`` behind it; the exit code is that of sim.py."""
    command = f'"$@" {line}; exit "${{PIPESTATUS[0]}}"'
    return subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, str(SIM), *words],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--help",), "2>&1 | :"),
        (("table", "--help"), "| :"),
        (("table", str(SIM.parent / "results/digits-1.25k")), "| :"),
    ],
)
def test_a_command_whose_reader_has_gone_ends_without_a_word(home, words, line):
    done = shell(line, *words)
    # Whether the reader is gone by then is up to the system.
    assert done.returncode in (0, 141)
    assert "Traceback" not in done.stderr + done.stdout
    assert "Broken" not in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [(TINY, "2>&1 | head -n 1"), (CENTRAL, "| head -n 1")],
    ids=["federated", "central"],
)
def test_a_run_whose_reader_has_gone_stops_and_can_go_on(sim, home, words, line):
    done = shell(f"--out run {line}", *words)
    assert done.returncode == 141
    assert len(done.stdout.splitlines()) == 1
    again = "python sim.py central --resume run" if words == CENTRAL else "--resume run"
    assert (again in done.stderr) == ("2>&1" not in line)
    assert "Traceback" not in done.stderr
    info = json.loads((home / "run" / "run.json").read_text())
    assert (info["exit"], info["exit_code"]) == ("nobody reads the output any more", 141)
    code, _, err = sim(*words[:1] * (words == CENTRAL), "--resume", "run")
    assert code == 0, err
    assert json.loads((home / "run" / "run.json").read_text())["exit"] == "ok"


def test_between_two_seeds_it_is_told_how_to_go_on_too(sim, home):
    """The reader goes as the first summary is written: the second seed has not begun."""
    done = shell("--out run | (exec 0<&-; sleep 1)", *TINY, "--seeds", "2", "--json")
    advice = "stopped before the last seed; go on with: python sim.py --resume run"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (141, advice)
    # As the resume says that the first seed is finished.
    done = shell("--resume run | (exec 0<&-; sleep 1)")
    assert (done.returncode, done.stderr.splitlines()) == (141, [advice])
    assert sim("--resume", "run")[0] == 0
    assert len(list((home / "run").glob("*/summary.json"))) == 2


def test_where_nobody_read_from_the_start_there_is_nothing_to_go_on_with(home):
    done = shell("--out run | (exec 0<&-; sleep 1)", *TINY, "--seeds", "2")
    assert (done.returncode, "go on with" in done.stderr) == (141, False)
    assert not (home / "run").exists()


@pytest.mark.parametrize(
    "values",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["ascii", "C"],
)
def test_a_sign_that_the_encoding_lacks_costs_no_run(home, monkeypatch, values):
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    done = shell("--out run", *TINY)
    assert done.returncode == 0, done.stderr
    assert "rotation ?" in done.stdout


def test_a_run_that_cannot_warn_goes_on(home):
    done = shell("2> >(:)", *TINY, "--workers", "2", "--out", "run")
    assert done.returncode == 0
    assert "final accuracy" in done.stdout


@pytest.mark.parametrize("line", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_written_to_nowhere(home, line):
    done = shell(line, "table", str(SIM.parent / "results/digits-1.25k"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "Error" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize("word", [str(SIM.parent / "results/digits-1.25k"), "--help"])
def test_output_on_a_full_disk_is_one_sentence(home, word):
    done = shell("> /dev/full", "table", word)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == (
        "error: the output cannot be written: No space left on device; send it elsewhere"
    )
    assert "Traceback" not in done.stderr
