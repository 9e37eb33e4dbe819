"""The README's ``flwr run`` gives the same bits as ``sim.py``, and leaves no process behind."""

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from compare_commits import records
from started import MARK, alive, assert_same_state, wait_until

pytestmark = [pytest.mark.flwr, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PORT = "39091"
# As short as can be, with all three chunks among the clients that are drawn.
SHORT = {
    "train-size": 200,
    "samples": 2,
    "rounds": 3,
    "eval-every": 1,
    "eval-size": 20,
}


def readme() -> tuple[dict[str, str], str, str]:
    """What the README types: the environment, the run, and how it stops the SuperLink."""
    spec = importlib.util.spec_from_file_location("readme", ROOT / ".ci" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    commands = module.typed(ROOT / "README.md")
    export, run, stop = [c for c in commands if module.of_flowers_runtime(c)]
    assert export.startswith("export ")
    return dict(word.split("=") for word in export.split()[1:]), run, stop


def run_config(**settings: object) -> str:
    # A JSON string, number or boolean is spelled the same in TOML.
    return " ".join(f"{k.replace('_', '-')}={json.dumps(v)}" for k, v in settings.items())


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Iterator[dict[str, str]]:
    """The README's, with nothing shared with the user's own Flower and Ray; noise as digits."""
    digits, home = tmp_path_factory.mktemp("digits"), tmp_path_factory.mktemp("home")
    tiny.write_noise(digits, 250, 30)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # Ray puts sockets there, whose names may have 107 characters.
    ray = tempfile.mkdtemp(prefix="fedpart-", dir="/tmp")
    # PYTHONPATH would show the checkout where the bundle is not found; other tests in this process
    # have set variables of Flower's, such as its log level.
    foreign = ("PYTHONPATH", "FLWR_", "RAY_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    yield {
        **inherited,
        **readme()[0],
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_TMPDIR": ray,
        "RAY_USAGE_STATS_ENABLED": "0",
        "FEDPART_DATA": str(digits),
        "FEDPART_CACHE": str(home / "cache"),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        # By this the processes of this test are told from all others.
        MARK: uuid.uuid4().hex,
    }
    shutil.rmtree(ray, ignore_errors=True)


class Flower:
    """A SuperLink of its own, where ``flwr run`` looks for one before it starts one."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        """Start it in ``folder``, far from any checkout whose code could stand in for a bundle."""
        self.environment, self.folder = environment, folder
        self.port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
        command = [BIN / "flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1"]
        with (folder / "superlink.log").open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--port", self.port],
                env=environment,
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def ready(self) -> bool:
        if self.process.poll() is not None:
            return False
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1).close()
            return True
        return False

    def type(self, command: str) -> str:
        """Type ``command`` into a shell in the checkout; returns what it prints."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail"],
            input=command,
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, command: str, **settings: object) -> tuple[dict[str, str], str]:
        """Type ``flwr run``, further options behind; returns what Flower lists, and the log."""
        assert wait_until(self.ready, 60), (self.folder / "superlink.log").read_text()
        log = self.type(f"{command} --run-config {shlex.quote(run_config(**settings))}")
        runs = json.loads(self.type("flwr list --format json"))["runs"]
        return max(runs, key=lambda run: run["pending-at"]), log


@pytest.fixture(scope="module")
def flower(environment, tmp_path_factory) -> Iterator[Flower]:
    flower = Flower(environment, tmp_path_factory.mktemp("superlink"))
    try:
        yield flower
    finally:
        # Whatever has failed before; children end with it.
        flower.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            flower.process.wait(30)
        wait_until(lambda: not alive(environment[MARK]), 30)
        left = alive(environment[MARK])
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        flower.process.wait(10)
    assert left == {}


def sim(monkeypatch, environment: dict[str, str], *argv: str) -> None:
    """``python sim.py ...`` in this process, which has torch already."""
    for name in ("FEDPART_DATA", "FEDPART_CACHE", "MPLBACKEND"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    import sim

    assert sim.main(argv) == 0


def test_same_bits_and_records_as_inline(flower, tmp_path, monkeypatch):
    _, command, _ = readme()
    words = shlex.split(command)
    given = words[words.index("--run-config") + 1].split()
    flags = [part for word in given for part in shlex.split(f"--{word}".replace("=", " ", 1))]
    flags += [part for key, value in SHORT.items() for part in (f"--{key}", str(value))]
    inline, out = tmp_path / "inline", tmp_path / "flower"
    sim(monkeypatch, flower.environment, *flags, "--backend", "inline", "--out", str(inline))

    # Two workers whatever the machine has, so that replies come in any order.
    listed, log = flower.run(
        f"{command} --federation-config init-args-num-cpus=2", **SHORT, out=str(out)
    )
    assert listed["status"] == "finished:completed", log
    assert records(out)["rounds.jsonl"] == records(inline)["rounds.jsonl"]
    assert (out / "evaluations.jsonl").read_bytes() == (inline / "evaluations.jsonl").read_bytes()
    assert (out / "model.pt").read_bytes() == (inline / "model.pt").read_bytes()
    assert_same_state(out, inline)

    # The comparison is one of three rounds and three chunks, in which psi has moved.
    rounds = records(inline)["rounds.jsonl"]
    assert len(rounds) == 3
    assert {client["chunk"] for r in rounds for client in r["clients"]} == {0, 1, 2}
    assert rounds[0]["hyper"] != rounds[2]["hyper"]
    # The code was not this checkout's but the bundle's, which git does not know.
    assert json.loads((out / "run.json").read_text())["commit"] is None
    # The user sees what happens.
    assert f"run folder: {out}" in log
    assert "round 3/3: 10 of 10 clients" in log


def test_a_run_that_fails_says_so(flower, tmp_path):
    # Flower's default is two nodes.
    command = "flwr run . --stream --federation-config init-args-num-cpus=2"
    listed, log = flower.run(command, **SHORT, out=str(tmp_path / "out"))
    sentence = "clients is 100, but nodes were started for 2: give flwr run --federation-config"
    assert listed["status"] == "finished:failed"
    assert sentence in listed["status-details"]
    assert sentence in log
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(shutil.which("pgrep") is None, reason="pgrep is not installed")
def test_the_readme_stops_the_superlink(flower):
    assert flower.process.poll() is None
    _, _, stop = readme()
    assert PORT in stop
    flower.type(stop.replace(PORT, flower.port))
    flower.process.wait(30)
