"""Flower's processes: how they are called, and what their command line is told."""

import json
import os
import socket
import ssl
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients.deployment.check import explain
from clients.deployment.keys import Authority, node_key
from clients.deployment.processes import Group
from fedpart.errors import ClientFailure, ConfigError
from fedpart.spelling import kebab

_BIN = Path(sys.executable).parent
# Flower reads them when it is imported. No installation of packages for every message.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # One thread, because the number of threads changes the order of sums and so the bits.
    "OMP_NUM_THREADS": "1",
}
# Of the caller's environment: what would have every message's process compile the bundle anew, or
# change Flower or Ray.
_FOREIGN = ("PYTHONDONTWRITEBYTECODE", "FLWR_", "RAY_")
_CHECKOUT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
# What a SuperNode says once it is connected.
_CONNECTED = b"SuperNode ID: "
_LOOPBACK = "127.0.0.1"
# As Flower spells it.
_IN_MEMORY = ":flwr-in-memory:"


def environment(**more: str) -> dict[str, str]:
    """The caller's environment without what is foreign to Flower's processes, and ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    path = f"{_BIN}{os.pathsep}{kept.get('PATH', os.defpath)}"
    # Modules of the user's own, but not the checkout in place of the bundle.
    places = kept.pop("PYTHONPATH", "").split(os.pathsep)
    if own := [place for place in places if place and Path(place).resolve() != _CHECKOUT]:
        kept["PYTHONPATH"] = os.pathsep.join(own)
    return {**kept, **QUIET, "PATH": path, **more}


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody uses at the moment, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((_LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def flower_config(**values: object) -> str:
    """Keys and values for ``--node-config`` and ``--run-config``; what is None is left out."""
    # A JSON string, number or boolean is spelled the same in TOML.
    given = {kebab(name): value for name, value in values.items() if value is not None}
    return " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())


@dataclass
class Deployment:
    """SuperLink, SuperNodes and Flower's command line on this machine, with TLS and node keys.

    Attributes:
        folder: keys, logs and Flower's own files.
        nodes: how many.
        app: folder of the app, with its ``pyproject.toml``.
        group: of all processes.
        poll: seconds between two looks of a process for work that it may start.
        database: file that keeps keys, runs and messages over a restart of the SuperLink; in memory
            where None. Many nodes on a busy disk lose messages to it: "database is locked".
        ports: the SuperLink's, and one for each node's own use.
    """

    folder: Path
    nodes: int
    app: Path
    group: Group
    poll: float = 0.0
    database: Path | None = None
    ports: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make keys, or take up those that are there; nothing is started."""
        # A look takes a few milliseconds at both ends, and all nodes share this machine.
        self.poll = self.poll or max(0.1, self.nodes / 40)
        self._commands: dict[int, list[str]] = {}
        self._ended: dict[int, float] = {}
        # Bytes of each node's log that are of an earlier run.
        self._said: dict[int, int] = {}
        authority = Authority(self.folder / "tls")
        self._certificate, self._key = authority.certify([_LOOPBACK, "localhost"])
        self._ca = authority.folder / "ca.crt"
        for node in range(self.nodes):
            node_key(self.key(node))
            self._home(f"node-{node}").mkdir(parents=True, exist_ok=True)
        for name in ("superlink", "cli"):
            self._home(name).mkdir(parents=True, exist_ok=True)
        (self.folder / "logs").mkdir(exist_ok=True)
        self.ports = self.ports or free_ports(self.nodes + 1)
        (self._home("cli") / "config.toml").write_text(
            f'[superlink]\ndefault = "deployment"\n\n[superlink.deployment]\n'
            f'address = "{self.address}"\nroot-certificates = {json.dumps(str(self._ca))}\n'
        )

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{_LOOPBACK}:{self.ports[0]}"

    def key(self, node: int) -> Path:
        """A node's private key."""
        return self.folder / "keys" / f"node-{node}"

    def log(self, name: str) -> Path:
        """What a process has printed."""
        return self.folder / "logs" / f"{name}.log"

    def start_superlink(self, wait: bool = True) -> None:
        """Start it.

        Args:
            wait: until it answers.
        Raises:
            ConfigError: it does not start.
        """
        words = [
            *("flower-superlink", "--host", _LOOPBACK, "--port", str(self.ports[0])),
            *("--ssl-ca-certfile", str(self._ca), "--ssl-certfile", str(self._certificate)),
            *("--ssl-keyfile", str(self._key), "--enable-supernode-auth"),
            *("--database", _IN_MEMORY if self.database is None else str(self.database)),
            "--disable-runtime-dependency-installation",
        ]
        self._start("superlink", words)
        deadline = time.monotonic() + _START_SECONDS
        while wait and not self._answers():
            if not self.group.runs("superlink") or time.monotonic() > deadline:
                raise ConfigError(self._words("superlink", "SuperLink does not start"))
            time.sleep(0.1)

    def start_node(self, node: int, superlink: str | None = None, **config: object) -> None:
        """Start a SuperNode.

        Args:
            node: its number, which is its client's.
            superlink: another address of the SuperLink, such as a proxy's.
            config: further keys of its ``--node-config``, such as ``data_path``.
        """
        words = [
            *("flower-supernode", "--root-certificates", str(self._ca)),
            *("--superlink", superlink or self.address),
            *("--host", _LOOPBACK, "--port", str(self.ports[node + 1])),
            *("--auth-supernode-private-key", str(self.key(node))),
            *(
                "--node-config",
                flower_config(partition_id=node, num_partitions=self.nodes)
                + " "
                + flower_config(**config),
            ),
        ]
        log = self.log(f"node-{node}")
        self._said[node] = log.stat().st_size if log.exists() else 0
        self._commands[node] = words
        self._start(f"node-{node}", words)

    def connected(self) -> int:
        """How many nodes have reached the SuperLink, as they say."""
        return sum(
            _CONNECTED in self.log(f"node-{node}").read_bytes()[self._said[node] :]
            for node in self._commands
        )

    def check(self) -> None:
        """Whether the SuperLink runs.

        Raises:
            ClientFailure: it has ended.
        """
        if not self.group.runs("superlink"):
            raise ClientFailure(self._words("superlink", "SuperLink has ended"))

    def restart_nodes(self, delay: float) -> Iterator[str]:
        """Start nodes again ``delay`` seconds after they have ended; says so in a sentence each.

        A supervisor's work: Flower refuses a node that was killed for up to 60 s, and it ends.
        """
        now = time.monotonic()
        for node, words in self._commands.items():
            name = f"node-{node}"
            if self.group.runs(name):
                self._ended.pop(node, None)
            elif node not in self._ended:
                self._ended[node] = now
                yield self._words(name, f"node {node} has ended and will be started again")
            elif now - self._ended[node] >= delay:
                del self._ended[node]
                self._start(name, words)

    def register(self) -> None:
        """Tell the SuperLink the public key of every node.

        Raises:
            ConfigError: it refuses one.
        """
        for node in range(self.nodes):
            self.flwr("supernode", "register", f"{self.key(node)}.pub", "--name", f"node-{node}")

    def run(self, **settings: object) -> str:
        """Submit the app; returns the run's number."""
        words = ("run", str(self.app), "deployment", "--run-config", flower_config(**settings))
        return str(self.flwr(*words)["run-id"])

    def status(self, run: str) -> tuple[str, str]:
        """What Flower says of a run: ``running``, ``finished:completed``, ...; and why."""
        listed = self.flwr("list", "--run-id", run)["runs"][0]
        return str(listed["status"]), str(listed.get("status-details", ""))

    def flwr(self, *words: str) -> dict[str, Any]:
        """What a command of ``flwr`` answers.

        Raises:
            ConfigError: it fails.
        """
        done = self.group.call(["flwr", *words, "--format", "json"], self._environment("cli"))
        start = done.stdout.find("{")
        try:
            answer = json.loads(done.stdout[start:]) if start >= 0 else {}
        except ValueError:
            answer = {}
        if done.returncode != 0 or answer.get("success") is False or not answer:
            said = answer.get("error-message") or done.stderr.strip() or done.stdout.strip()
            raise ConfigError(f"flwr {' '.join(words[:2])} failed: {' '.join(str(said).split())}")
        return dict(answer)

    def _start(self, name: str, words: Sequence[str]) -> None:
        self.group.start(name, words, self.log(name), self._environment(name))

    def _environment(self, name: str) -> Mapping[str, str]:
        # Each unpacks the app for itself, as on machines of their own.
        return environment(
            FLWR_HOME=str(self._home(name)), FLWR_SUPEREXEC_TASK_POLL_INTERVAL=f"{self.poll:g}"
        )

    def _home(self, name: str) -> Path:
        return self.folder / "flwr" / name

    def _answers(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._ca))
        try:
            urllib.request.urlopen(
                f"https://{self.address}/health", timeout=2, context=context
            ).close()
        except OSError:
            return False
        return True

    def _words(self, name: str, what: str) -> str:
        log = self.log(name)
        return f"{what} ({explain(log.read_text(errors='replace'))}); see {log}"
