"""What runs on Windows, where much of Unix is not there; shown on Linux, by taking it away."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SIM, TINY

pytestmark = pytest.mark.process

CENTRAL = (
    *("central", "--experiment", "mask-learning", "--seeds", "1", "--train-size", "60"),
    *("--test-size", "20", "--batch-size", "8", "--iterations", "4", "--eval-every", "2"),
)


@pytest.mark.skipif(sys.platform != "linux", reason="takes away what Linux has")
def test_runs_in_one_process_need_nothing_of_unix(home):
    """Help, a run that ends early, its resume, and what is done with its folder."""
    # Nobody is there in round 2.
    (home / "seen.csv").write_text("1,0,1\n" * 10)
    early = ("--rounds", "3", "--availability", "seen.csv", "--max-empty-rounds", "1")
    auto = [word for word in TINY if word not in ("--backend", "inline")]
    commands = [
        (["--help"], 0),
        ([*TINY, *early, "--out", "run"], 5),
        (["--resume", "run"], 0),
        ([*TINY, "--backend", "algorithm", "--out", "plain"], 0),
        ([*auto, "--out", "auto"], 0),
        ([*CENTRAL, "--out", "central"], 0),
        (["compare", "run", "--out", "curves.png"], 0),
        (["table", "run"], 0),
        ([*auto, "--backend", "ray", "--out", "none"], 2),
        (["deploy", "--local", "2", "--out", "none"], 2),
    ]
    script = Path(__file__).with_name("without_unix.py")
    done = subprocess.run(
        [sys.executable, str(script), str(SIM), json.dumps([words for words, _ in commands])],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    *errors, codes = done.stderr.splitlines()
    assert json.loads(codes) == [code for _, code in commands], done.stderr
    assert errors == [
        *(line for line in errors if "no reply counted in 1 rounds in a row" in line),
        "stopped after round 2; go on with: python sim.py --resume run",
        "error: backend is 'ray', but ray's workers need Linux or macOS; inline runs anywhere",
        "error: deploy starts Flower's own processes, which need Linux or macOS: leave deploy out",
    ]
    # Of the resume, the plain loop and the last run over clients.
    assert done.stdout.count(" MB at most") == 3
    assert "back end: inline (ray's workers need Linux or macOS" in done.stdout
    for run in ("run", "plain", "auto", "central"):
        assert json.loads((home / run / "run.json").read_text())["exit"] == "ok"
