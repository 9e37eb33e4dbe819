"""Standard output whose reader has gone, on a full disk, or in an encoding with few characters."""

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
    [(TINY, "2>&1 | head -n 1"), (CENTRAL, "| head -n 1")],
    ids=["federated", "central"],
)
def test_a_run_piped_into_head_ends_with_141_and_can_be_resumed(sim, home, words, line):
    """Also where standard error goes into the same pipe."""
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


@pytest.mark.parametrize(
    ("error", "exit_code", "reason"),
    [
        (BrokenPipeError, 141, "nobody reads the output any more"),
        (KeyboardInterrupt, 130, "interrupted"),
    ],
)
def test_a_command_stopped_between_two_seeds_says_how_to_go_on(
    sim, home, monkeypatch, error, exit_code, reason
):
    whole = sys.modules["sim"]._one_run

    def second_is_stopped(config, *rest, **more):
        if config.seed:
            raise error
        return whole(config, *rest, **more)

    monkeypatch.setattr("sim._one_run", second_is_stopped)
    code, _, err = sim(*TINY, "--rounds", "1", "--seeds", "2", "--out", "run")
    assert code == exit_code
    assert err == f"{reason}; go on with: python sim.py --resume run\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_output_on_a_full_disk_is_one_sentence(home):
    done = shell("> /dev/full", "table", str(SIM.parent / "results/digits-1.25k"))
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == (
        "error: the output cannot be written: No space left on device; send it elsewhere"
    )
    assert "Traceback" not in done.stderr


def test_a_character_that_the_encoding_lacks_becomes_a_question_mark(home, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = shell("", "table", str(SIM.parent / "results/digits-1.25k"))
    assert done.returncode == 0, done.stderr
    assert " ? " in done.stdout
