"""``sim.py deploy --local N``: killed nodes, a killed SuperLink, Ctrl-C; nothing stays behind."""

import contextlib
import json
import os
import re
import signal
import uuid
from pathlib import Path

import numpy as np
import pytest
from command_line import SIM
from processes import MODEL, Process, outcome
from started import MARK, alive, wait_until

from fedpart import algorithm, checkpoint, machine, side_by_side
from fedpart.config import make_config
from fedpart.data import load_federated
from fedpart.errors import ConfigError
from fedpart.folder_lock import lock_run
from fedpart.model_file import starting_state
from fedpart.program import build_program
from fedpart.run_files import read_config, read_lines

pytestmark = [pytest.mark.flwr, pytest.mark.slow]

SIZE = ("--train-size", "60", "--samples", "2", "--eval-size", "20", "--eval-every", "1")


@pytest.fixture
def mark(home, monkeypatch):
    """By which all processes of this test are found; none is left at its end."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield mark
    wait_until(lambda: not alive(mark), 60)
    left = alive(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == {}


def those(mark: str, *words: str) -> set[int]:
    """Processes whose command has all these words."""
    return {pid for pid, command in alive(mark).items() if all(w in command for w in words)}


def at_work(mark: str, node: int) -> set[int]:
    """Processes of a node that train: they have PyTorch, which is imported for nothing else.

    One that is killed before it has its message costs nothing: Flower starts another.
    """
    (command,) = [c for c in alive(mark).values() if f"keys/node-{node} " in c] or [""]
    port = re.search(r"--port (\d+)", command)
    apps = those(mark, "flwr-clientapp", f"127.0.0.1:{port[1]}") if port else set()
    return {pid for pid in apps if has_torch(pid)}


def has_torch(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"libtorch" in Path(f"/proc/{pid}/maps").read_bytes()
    return False


def ended(process: Process, mark: str) -> tuple[int, str]:
    """Exit code and errors of a process that has left none behind."""
    code, _, errors = process.end(300)
    assert wait_until(lambda: not alive(mark), 60), alive(mark)
    return code, errors


# Flower refuses the key of a killed node for a minute, and each message starts a process: minutes.
@pytest.mark.full
def test_a_killed_client_and_a_killed_node_cost_their_rounds_and_nothing_else(home, mark):
    out = home / "run"
    process = Process(out, "deploy", "--local", "3", *SIZE, "--rounds", "40", "--out", str(out))
    assert process.wait_until(lambda: process.rounds == 1)
    process.signal(signal.SIGINT)
    code, errors = ended(process, mark)
    assert code == 130
    assert f"go on with: python sim.py deploy --resume {out}" in errors
    # A deadline that the others keep on this machine.
    done = len(read_lines(out / "rounds.jsonl"))
    deadline = max(20.0, 3 * read_lines(out / "rounds.jsonl")[0]["seconds"])

    process = Process(out, "deploy", "--resume", str(out), "--round-timeout", str(deadline))
    assert process.wait_for_records()
    assert process.wait_until(lambda: at_work(mark, 0))
    for pid in at_work(mark, 0):
        os.kill(pid, signal.SIGKILL)
    assert process.wait_until(lambda: process.rounds == done + 1)

    assert process.wait_until(lambda: at_work(mark, 1))
    (node,) = those(mark, "flower-supernode", "keys/node-1 ")
    os.kill(node, signal.SIGKILL)

    def back() -> bool:
        lines = read_lines(out / "rounds.jsonl")[done + 2 :]
        return any(c["client_id"] == 1 and c["status"] == "ok" for r in lines for c in r["clients"])

    # Another process of Flower's, with the key that was refused for a minute.
    assert process.wait_until(back)
    assert those(mark, "flower-supernode", "keys/node-1 ").isdisjoint({node})
    process.signal(signal.SIGINT)
    assert ended(process, mark)[0] == 130

    rounds = read_lines(out / "rounds.jsonl")
    failed = {(r["round"], f["client_id"]): f["reason"] for r in rounds for f in r["failures"]}
    assert [c for n, c in failed if n == done + 1] == [0]
    assert [c for n, c in failed if n == done + 2] == [1]
    assert {c for n, c in failed if n > done + 2} <= {1}
    assert all(r["seconds"] < 2 * deadline for r in rounds)

    # The state is that of the plain loop in which the same clients fail in the same rounds.
    state, _ = checkpoint.load(out / "checkpoint.pt")
    config = read_config(out).model_copy(update={"rounds": state.server_round})
    data = load_federated(config)
    program = build_program(config, data.num_classes, data.in_channels)
    expected = plain_loop(program, data, set(failed))
    assert expected.theta.numpy().tobytes() == state.theta.numpy().tobytes()
    assert expected.hyper.numpy().tobytes() == state.hyper.numpy().tobytes()


def plain_loop(program, data, failed):
    update = side_by_side.client_update

    def failing(program, task, images, labels):
        if (task.server_round, task.client_id) in failed:
            raise RuntimeError("killed")
        return update(program, task, images, labels)

    class Silent:
        def after_round(self, *told):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpart.side_by_side.client_update", failing)
        return algorithm.run(program, data, starting_state(program), Silent())


def test_a_run_goes_on_after_its_superlink_was_killed(home, mark, sim):
    out, plain = home / "run", home / "plain"
    words = (*SIZE, "--rounds", "3", "--data-seed", "1")
    process = Process(out, "deploy", "--local", "2", *words, "--out", str(out))
    assert process.wait_until(lambda: process.rounds == 1)
    keys = {p.name: p.read_bytes() for p in (out / "deployment" / "keys").iterdir()}
    (superlink,) = those(mark, "flower-superlink")
    os.kill(superlink, signal.SIGKILL)
    code, errors = ended(process, mark)
    assert code == 5
    assert "SuperLink has ended" in errors
    assert "go on with" in errors

    process = Process(out, "deploy", "--resume", str(out))
    assert ended(process, mark) == (0, "")
    assert {p.name: p.read_bytes() for p in (out / "deployment" / "keys").iterdir()} == keys
    chunks = ("--chunks", ",".join(map(str, read_config(out).chunks)))
    clients = ("--clients", "2", "--clients-per-round", "2", "--checkpoint-every", "1")
    code, _, _ = sim(*words, *chunks, *clients, "--backend", "algorithm", "--out", plain)
    assert code == 0
    one, other = outcome(out), outcome(plain)
    assert [f for f in one.pop("files") if f != "deployment"] == other.pop("files")
    assert one == other

    code, errors = ended(Process(out, "deploy", "--resume", str(out)), mark)
    assert code == 4
    assert "is finished" in errors


RUN = (*SIZE, "--rounds", "2", "--clients", "2", "--clients-per-round", "2", "--chunks", "0.5,0.5")


@pytest.fixture
def begun(sim, home):
    """A run that a deployment can take up, and that has not ended."""
    assert sim(*RUN, "--backend", "inline", "--out", "run")[0] == 0
    (home / "run" / "summary.json").unlink()
    return home / "run"


def test_a_run_that_cannot_be_taken_up_is_refused_before_anything_starts(begun, sim, mark):
    """In the sentence of ``sim.py --resume``, alone, and with its code."""

    def refused(file, text, sentence):
        before = file.read_text() if file.exists() else None
        file.write_text(text)
        files = {p.name: p.read_bytes() for p in begun.iterdir()}
        code, _, errors = sim("deploy", "--resume", "run", "--json")
        assert (code, errors.count("\n")) == (4, 1), errors
        # One names the folder as it was typed.
        assert errors.replace(str(begun), "run") == sim("--resume", "run", "--json")[2]
        assert sentence in errors
        assert {p.name: p.read_bytes() for p in begun.iterdir()} == files
        file.unlink() if before is None else file.write_text(before)

    config, rounds = (begun / name for name in ("config.toml", "rounds.jsonl"))
    text = config.read_text().replace("rounds = 2\n", "rounds = 4\n").replace("samples = 2\n", "")
    changed = "began with other settings: samples was 2 and is 10 now, rounds was 2 and is 4 now"
    refused(config, text, changed)
    refused(rounds, "", "lacks records up to round 2")
    other = lock_run(begun)
    refused(config, config.read_text(), "another process is working on")
    os.close(other)
    assert alive(mark) == {}


def test_a_resume_that_does_not_come_to_begin_says_how_to_go_on(begun, sim, monkeypatch):
    """Not that it stopped before the first round, which is behind it."""

    def fails(deployment):
        raise ConfigError("no port")

    monkeypatch.setattr("clients.deployment.flower.Deployment.start_superlink", fails)
    code, _, errors = sim("deploy", "--resume", "run", "--json")
    line = f"stopped after round 2; go on with: python sim.py deploy --resume {begun}\n"
    assert (code, errors) == (2, f"error: no port\n{line}")
    code, _, errors = sim("deploy", "--local", "2", *SIZE, "--out", "new", "--json")
    assert errors == "error: no port\n"


def test_of_two_rehearsals_in_one_folder_one_is_refused(home, sim, mark):
    """Before it writes keys over those of the other."""
    place = home / "new" / "deployment"
    place.mkdir(parents=True)
    other = lock_run(place)
    code, _, errors = sim("deploy", "--local", "2", *SIZE, "--out", "new", "--json")
    os.close(other)
    busy = f"error: another process is working on {place}: wait for its end, or stop it\n"
    assert (code, errors) == (4, busy)
    assert list(place.iterdir()) == []
    assert alive(mark) == {}


# A data set that reads a file beside it, and a model, for the processes of servers and nodes.
OWN = """
import numpy as np
from fedpart.data import Images


def noise(data_dir):
    pixels = np.load("noise.npy")
    return Images(pixels, np.arange(len(pixels)) % 2, num_classes=2, source="noise")
"""


def test_files_beside_the_user_are_found_and_the_run_says_what_was_typed(home, mark, monkeypatch):
    """As in a simulation: modules in the folder and on PYTHONPATH, and paths that are relative."""
    (home / "own_data.py").write_text(OWN)
    (home / "more").mkdir()
    (home / "more" / "wide_model.py").write_text(MODEL)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SIM.parent), "more"]))
    noise = np.random.default_rng(0).integers(0, 256, (90, 1, 28, 28), dtype=np.uint8)
    np.save(home / "noise.npy", noise)
    before = {p.name for p in home.iterdir()} | {"__pycache__"}
    names = ("--dataset", "own_data:noise", "--model", "wide_model:wide")
    words = ("deploy", "--local", "2", *names, *SIZE, "--rounds", "1", "--out", "run")
    assert ended(Process(home / "run", *words), mark) == (0, "")
    assert {p.name for p in home.iterdir()} <= before | {"run"}
    info = json.loads((home / "run" / "run.json").read_text())
    assert info["command"] == ["sim.py", *words]
    assert info["commit"] == machine.commit()
    assert info["data_source"] == "noise"


def test_a_run_is_taken_up_with_as_many_nodes_as_it_has_clients(sim, home):
    (home / "run").mkdir()
    config = make_config({"clients": 3, "clients-per-round": 3})
    (home / "run" / "config.toml").write_text(config.to_toml())
    code, _, errors = sim("deploy", "--local", "5", "--resume", "run")
    assert code == 2
    assert "run is a run of 3 clients, but --local starts 5 nodes" in errors


def test_one_that_is_stopped_in_its_first_round_says_so(home, mark):
    """All is gone when the command returns, and ``run.json`` tells as that of a simulation does."""
    out = home / "run"
    process = Process(out, "deploy", "--local", "2", *SIZE, "--rounds", "3", "--out", str(out))
    assert process.wait_for_records()
    process.signal(signal.SIGINT)
    code, _, errors = process.end(120)
    assert alive(mark) == {}
    assert code == 130
    assert f"go on with: python sim.py deploy --resume {out}" in errors
    info = json.loads((out / "run.json").read_text())
    assert (info["exit"], info["exit_code"]) == ("interrupted", 130)
    assert info["ended"] is not None


def test_a_dry_run_foretells_what_a_simulation_of_it_would_do_and_starts_nothing(sim, home):
    own = ("--clients", "2", "--clients-per-round", "2", "--chunks", "0.5,0.5")
    code, out, errors = sim(
        "deploy", "--local", "2", *SIZE, "--workers", "2", "--dry-run", "--json"
    )
    assert (code, out) == (0, sim(*own, *SIZE, "--dry-run", "--json")[1])
    assert errors == "warning: settings of no use: workers 2 (the clients are Flower's nodes)\n"
    assert list(home.iterdir()) == []


def test_settings_that_no_rehearsal_can_have_are_refused(sim, home):
    cases = {
        "": "deploy needs --local N",
        "--local 0": "--local is 0; it must be at least 1",
        "--local 3 --clients 5": "use --local 5, or clients 3",
        "--local 3 --clients 2": "use --local 2, or clients 3",
        "--local 3 --clients 2 --min-replies 3": "use --local 2, or clients 3",
        "--local 3 --clients x": "clients is 'x'",
        "--local 3 --clients 0": "clients is '0'",
        "--local 5 --clients 3 --clients-per-round 3": "use --local 3, or clients 5",
        "--local 3 --seeds 2": "a rehearsal has one",
        "--local 3 --clients-at-once 3": "each node is one client",
        "--local 3 --train-size 100 --init missing.pt": "No such file",
        "--resume run --dry-run": "--resume and --dry-run do not go together",
        "--local 3 --round 3": "did you mean '--rounds'",
    }
    for words, sentence in cases.items():
        code, _, errors = sim("deploy", *words.split())
        assert (code, errors.count("\n")) == (2, 1), errors
        assert sentence in errors
    assert list(Path(home).iterdir()) == []
