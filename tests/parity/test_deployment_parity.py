"""SuperLink and SuperNodes with TLS and node keys: same bits, same bytes, and who is refused."""

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny
from compare_commits import records
from counting_proxy import Proxy
from flwr.cli.build import build_fab_from_disk
from started import MARK, alive, assert_same_state, wait_until

from clients.deployment.check import check_superlink, explain
from clients.deployment.flower import Deployment, environment, flower_config, free_ports
from clients.deployment.keys import Authority
from clients.deployment.processes import Group
from fedpart.algorithm import run as run_algorithm
from fedpart.config import make_config
from fedpart.data import load_federated
from fedpart.errors import ConfigError
from fedpart.model_file import starting_state
from fedpart.plots_curves import draw_run
from fedpart.program import build_program
from fedpart.run_folder import RunFolder
from fedpart.wire import model_bytes

pytestmark = [pytest.mark.flwr, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "clients": 2,
    "clients-per-round": 2,
    "chunks": "0.5,0.5",
    "train-size": 60,
    "samples": 2,
    "rounds": 3,
    "eval-every": 1,
    "eval-size": 20,
    "checkpoint-every": 1,
}
# What goes to a node but no model: TLS handshakes, answers to polls, refusals.
NO_MODEL = 100_000


@pytest.fixture(scope="module")
def deployment(tmp_path_factory) -> Iterator[Deployment]:
    """A SuperLink that runs, and two nodes' keys registered; noise as digits."""
    digits, folder = tmp_path_factory.mktemp("digits"), tmp_path_factory.mktemp("deployment")
    tiny.write_noise(digits, 250, 30)
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPART_DATA", str(digits))
        patch.setenv("FEDPART_CACHE", str(folder / "cache"))
        patch.setenv("MPLBACKEND", "Agg")
        patch.setenv(MARK, mark)
        try:
            with Group(folder, {}) as group:
                made = Deployment(folder, 2, ROOT, group, database=folder / "superlink.db")
                made.start_superlink()
                made.register()
                yield made
        finally:
            # Of a process that was killed, the end takes a moment.
            wait_until(lambda: not alive(mark), 60)
            left = alive(mark)
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    assert left == {}


def finished(deployment: Deployment, run: str) -> str:
    """How a run has ended."""
    deadline = time.monotonic() + 500
    while time.monotonic() < deadline:
        status, why = deployment.status(run)
        if status.startswith("finished"):
            return f"{status} {why}"
        time.sleep(1)
    return "not finished"


# Of a package that Flower builds bundles with.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_same_bits_and_bytes_as_the_plain_loop(deployment, tmp_path):
    config = make_config(SETTINGS)
    data = load_federated(config)
    program = build_program(config, data.num_classes, data.in_channels)
    plain, out = tmp_path / "plain", tmp_path / "deployed"
    folder = RunFolder(plain, program, data, lambda record, evaluation: None)
    state = starting_state(program)
    folder.create(state, [])
    run_algorithm(program, data, state, folder)
    folder.finish(draw_run)

    # One node holds its own images, and nothing else of the data set.
    images, labels = data.client(1)
    np.savez(tmp_path / "site.npz", images=images[:, 0], labels=labels)
    with Proxy(deployment.address) as near, Proxy(deployment.address) as far:
        deployment.start_node(0, near.address)
        deployment.start_node(1, far.address, data_path=str(tmp_path / "site.npz"))
        ended = finished(deployment, deployment.run(**SETTINGS, out=str(out)))
        for node in range(2):
            deployment.group.stop(f"node-{node}")
    assert ended.startswith("finished:completed"), ended

    assert_same_state(out, plain)
    assert (out / "model.pt").read_bytes() == (plain / "model.pt").read_bytes()
    assert records(out)["rounds.jsonl"] == records(plain)["rounds.jsonl"]
    assert (out / "evaluations.jsonl").read_bytes() == (plain / "evaluations.jsonl").read_bytes()
    rounds = records(out)["rounds.jsonl"]
    assert rounds[0]["hyper"] != rounds[2]["hyper"]

    # What a counting proxy saw: the encoded messages, the bundle once, and of framing (TLS, HTTP,
    # polls, the query) at most 5 %.
    bundle = len(build_fab_from_disk(ROOT))
    for client_id, proxy in enumerate((near, far)):
        own = [next(c for c in r["clients"] if c["client_id"] == client_id) for r in rounds]
        for seen, name in ((proxy.up, "upload_wire_bytes"), (proxy.down, "download_wire_bytes")):
            counted = sum(c[name] for c in own)
            framed = seen - (bundle if name == "download_wire_bytes" else 0)
            assert 1 <= framed / counted < 1.05, (client_id, name, seen, counted, bundle)
    assert sum(c["chunk"] for c in rounds[0]["clients"]) == 1
    assert model_bytes(program, 0)[0] > model_bytes(program, 1)[0] > 20 * NO_MODEL


def start(deployment: Deployment, name: str, superlink: str, key: Path, ca: Path | None) -> None:
    """A SuperNode that is to be refused; in plain text where there is no ``ca``."""
    words = ["flower-supernode", "--superlink", superlink, "--port", str(free_ports(1)[0])]
    words += ["--node-config", flower_config(partition_id=0)]
    if ca is None:
        words += ["--insecure"]
    else:
        words += ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    home = deployment.folder / "flwr" / name
    home.mkdir(parents=True)
    deployment.group.start(name, words, deployment.log(name), environment(FLWR_HOME=str(home)))


def assert_says(deployment: Deployment, name: str, sentence: str) -> None:
    """A node says why it has no connection; it is given five minutes to."""

    def text() -> str:
        return explain(deployment.log(name).read_text())

    wait_until(lambda: sentence in text(), 300)
    assert sentence in text(), name


def test_who_is_refused_gets_no_model_and_is_told_which_check(deployment):
    from clients.deployment.keys import node_key

    ca = deployment.folder / "tls" / "ca.crt"
    other = Authority(deployment.folder / "other").folder / "ca.crt"
    stranger = deployment.folder / "keys" / "stranger"
    node_key(stranger)
    revoked = deployment.folder / "keys" / "revoked"
    answer = deployment.flwr("supernode", "register", str(node_key(revoked)))
    deployment.flwr("supernode", "unregister", str(answer["node-id"]))
    good = deployment.key(0)
    key = "refuses the node's key"
    # Name: the key, the authority, the address that the proxy listens on, and the sentence.
    cases = {
        "wrong-ca": (good, other, "127.0.0.1", "not signed by the authority"),
        "wrong-host": (good, ca, "127.0.0.2", "for another host"),
        "plain-text": (good, None, "127.0.0.1", "plain text"),
        "unknown-key": (stranger, ca, "127.0.0.1", key),
        "revoked-key": (revoked, ca, "127.0.0.1", key),
    }
    with contextlib.ExitStack() as stack:
        proxies = {
            name: stack.enter_context(Proxy(deployment.address, case[2]))
            for name, case in cases.items()
        }
        for name, (node, authority, _, _) in cases.items():
            start(deployment, name, proxies[name].address, node, authority)
        for name, (_, authority, _, sentence) in cases.items():
            assert_says(deployment, name, sentence)
            if name in ("wrong-ca", "wrong-host"):
                with pytest.raises(ConfigError, match=sentence):
                    check_superlink(proxies[name].address, authority)
            assert proxies[name].up > 0, name
            assert proxies[name].down < NO_MODEL, name
        for name in cases:
            deployment.group.stop(name)
    assert "are right" in check_superlink(deployment.address, ca)


def test_an_expired_certificate_is_refused(deployment):
    ca = deployment.folder / "tls" / "ca.crt"
    deployment.group.stop("superlink")
    Authority(deployment.folder / "tls").certify(["127.0.0.1"], days=-1)
    deployment.start_superlink(wait=False)
    assert wait_until(lambda: refusal(deployment.address, ca).endswith("make a new one"), 300)
    with Proxy(deployment.address) as proxy:
        start(deployment, "expired", proxy.address, deployment.key(0), ca)
        assert_says(deployment, "expired", "has expired")
        assert 0 < proxy.down < NO_MODEL
    deployment.group.stop("expired")


def refusal(address: str, ca: Path) -> str:
    try:
        return check_superlink(address, ca)
    except ConfigError as error:
        return str(error)
