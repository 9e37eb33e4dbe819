"""The parts of a deployment that need no Flower: keys, processes, checks, watching."""

import errno
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from started import MARK, alive, wait_until

from clients.deployment import check, keys
from clients.deployment.check import check_superlink, explain
from clients.deployment.flower import environment, flower_config, free_ports
from clients.deployment.keys import Authority, node_key
from clients.deployment.processes import Group
from clients.deployment.rehearsal import rehearsed
from fedpart.errors import ConfigError, OutputError
from fedpart.files import write_atomic

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_keys_are_what_flower_reads_and_nobody_elses(tmp_path):
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.certify(["127.0.0.1", "server.lan"])
    assert {mode(p) for p in (key, tmp_path / "tls" / "ca.key")} == {0o600}
    read = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(n) for n in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["server.lan"]
    ca = x509.load_pem_x509_certificate((tmp_path / "tls" / "ca.crt").read_bytes())
    read.verify_directly_issued_by(ca)

    public = node_key(tmp_path / "n0")
    private = load_ssh_private_key((tmp_path / "n0").read_bytes(), None)
    assert isinstance(private.curve, ec.SECP384R1)
    assert load_ssh_public_key(public.read_bytes()) == private.public_key()
    assert mode(tmp_path / "n0") == 0o600


def test_an_authority_and_a_nodes_key_stay(tmp_path):
    """They are who the server and the node are; only the server's certificate is made anew."""
    Authority(tmp_path).certify(["a"])
    node_key(tmp_path / "n0")
    names = ("ca.crt", "ca.key", "n0", "n0.pub", "server.crt")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    Authority(tmp_path).certify(["a"])
    node_key(tmp_path / "n0")
    changed = {name for name in names if (tmp_path / name).read_bytes() != before[name]}
    assert changed == {"server.crt"}


def test_the_command_makes_what_the_readme_says(tmp_path, capsys):
    keys.main([str(tmp_path), "--host", "10.0.0.1", "--node", "site-0", "site-1"])
    made = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert made == ["ca.crt", "server.crt", "server.key", "site-0.pub", "site-1.pub"]
    assert (tmp_path / "site-1").exists()


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        (["--host", "a"], OutputError, "cannot be used .*put them back from a copy"),
        *(
            (["--node", "n1", name], ConfigError, "cannot be the name of a key: take letters")
            for name in ("../n0", "", "..", "ca.key", "server.crt", "n0.pub", "n0.tmp", "a\nb")
        ),
        *(
            (["sub", "--host", "a", host], ConfigError, "is no name or address of a machine")
            for host in ("ä", "a" * 64, "", "a b", "https://a", "a:9092", "a\n")
        ),
        (["ca.key/sub", "--node", "n0"], OutputError, "cannot write .*Not a directory"),
        (["--node", "damaged"], OutputError, "damaged is no private key that can be used"),
    ],
)
def test_keys_that_cannot_be_made_are_a_sentence(tmp_path, words, kind, sentence):
    """Nothing is made then, and nothing that is there is touched."""
    Authority(tmp_path)
    for name in ("ca.key", "damaged"):
        (tmp_path / name).write_text("damaged")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*")}
    at = [] if words[0].startswith("-") else [words[0]]
    with pytest.raises(kind, match=sentence):
        keys.main([str(tmp_path.joinpath(*at)), *words[len(at) :]])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*")} == before


def pem(key, password: bytes | None = None) -> bytes:
    lock = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)


# openssl ecparam -name secp112r1 -genkey -noout
SMALL_CURVE = """-----BEGIN EC PRIVATE KEY-----
MD4CAQEEDnaGK1g0N3neVWn2RgW9oAcGBSuBBAAGoSADHgAEvkGD5KdUU0QU8kHa
CVPP2Pp5nyAzC0KQjBhKFg==
-----END EC PRIVATE KEY-----
"""


def expire(folder: Path) -> None:
    """A certificate of the same authority that ended yesterday."""
    (folder / "ca.crt").unlink()
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    now, name = datetime.now(timezone.utc), x509.Name([])
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 1)
    certificate = certificate.not_valid_before(now - timedelta(days=9))
    certificate = certificate.not_valid_after(now - timedelta(days=1)).sign(key, hashes.SHA384())
    (folder / "ca.crt").write_bytes(certificate.public_bytes(Encoding.PEM))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda ours, other: (ours / "ca.crt").unlink(), "No such file"),
        (lambda ours, other: (ours / "ca.key").unlink(), "No such file"),
        (lambda ours, other: shutil.copy(other / "ca.crt", ours), "ca.crt is not that of ca.key"),
        (
            lambda ours, other: (ours / "ca.key").write_bytes(
                pem(ec.generate_private_key(ec.SECP384R1()), b"word")
            ),
            "[Pp]assword",
        ),
        (
            lambda ours, other: (ours / "ca.key").write_bytes(
                pem(ed25519.Ed25519PrivateKey.generate())
            ),
            "not of an elliptic curve",
        ),
        (lambda ours, other: (ours / "ca.key").write_text(SMALL_CURVE), "not supported"),
        (lambda ours, other: expire(ours), "has expired, 20"),
    ],
    ids=["no certificate", "no key", "another's certificate", "encrypted", "kind", "curve", "late"],
)
def test_an_authority_that_is_none_is_refused_and_stays(tmp_path, damage, sentence):
    for name in ("ours", "other"):
        Authority(tmp_path / name)
    damage(tmp_path / "ours", tmp_path / "other")
    before = {path: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    with pytest.raises(OutputError, match=f"cannot be used .*{sentence}"):
        Authority(tmp_path / "ours")
    assert {path: path.read_bytes() for path in (tmp_path / "ours").iterdir()} == before


def test_keys_are_whole_or_absent(tmp_path, monkeypatch):
    """After a full disk the same command makes what is missing."""

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="n0: No space left"):
            node_key(tmp_path / "n0")
        with pytest.raises(OutputError, match=r"ca\.key: No space left"):
            Authority(tmp_path)
        room = [None] * 2
        patch.setattr(os, "fsync", lambda handle: room.pop() if room else full(handle))
        with pytest.raises(OutputError, match=r"ca\.crt: No space left"):
            Authority(tmp_path)
    assert list(tmp_path.iterdir()) == []
    Authority(tmp_path / "tls")
    public = node_key(tmp_path / "n0").read_bytes()
    (tmp_path / "n0.pub").unlink()
    assert node_key(tmp_path / "n0").read_bytes() == public
    assert mode(tmp_path / "n0") == 0o600
    # ssh-keygen ends it with a word of its own.
    (tmp_path / "n0.pub").write_bytes(public.strip() + b" me@here\n")
    assert node_key(tmp_path / "n0").read_bytes() != public
    for wrong in (b"damaged", node_key(tmp_path / "n1").read_bytes()):
        (tmp_path / "n0.pub").write_bytes(wrong)
        with pytest.raises(OutputError, match=r"n0\.pub is not that of n0: remove it"):
            node_key(tmp_path / "n0")
    (tmp_path / "n2").write_bytes(pem(ed25519.Ed25519PrivateKey.generate()))
    with pytest.raises(OutputError, match="n2 is no private key that can be used"):
        node_key(tmp_path / "n2")


def test_a_secret_is_nobody_elses_at_any_moment(tmp_path, monkeypatch):
    """Nor where a file of that name is left from before."""
    seen, fsync = [], os.fsync

    def look(handle):
        seen.append(os.fstat(handle).st_mode & 0o777)
        fsync(handle)

    (tmp_path / "n0.tmp").touch(0o644)
    monkeypatch.setattr(os, "fsync", look)
    write_atomic(tmp_path / "n0", b"secret", secret=True)
    assert seen[0] == 0o600
    assert mode(tmp_path / "n0") == 0o600


def test_a_long_first_name_of_a_server_fits_its_certificate(tmp_path):
    host = ".".join(["a" * 60] * 3)
    (certificate, _) = Authority(tmp_path).certify([host])
    read = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [host]


@pytest.mark.parametrize(
    "address",
    [
        "a b:1",
        "a\nb:1",
        "..:443",
        ".a:443",
        "ä.b:1",
        "a" * 300 + ":1",
        "https://a:1",
        "[::1:1",
        "a:٣",
    ],
)
def test_what_is_no_address_is_a_sentence(tmp_path, address):
    Authority(tmp_path)
    with pytest.raises(ConfigError, match="is no address; it must be host:port"):
        check_superlink(address, tmp_path / "ca.crt")


@pytest.mark.parametrize("date", ["garbage", "", "Mon, 99 Foo 2026 00:00:00 GMT"])
def test_a_server_that_tells_no_date_is_no_superlink(tmp_path, date):
    authority = Authority(tmp_path)
    with (
        TlsServer(authority, ["127.0.0.1"], 1, date) as address,
        pytest.raises(ConfigError, match="which is none: something else"),
    ):
        check_superlink(address, tmp_path / "ca.crt")


@pytest.mark.process
def test_keys_and_check_end_as_sim_py_does(tmp_path):
    """A fault is one sentence and an exit code; a reader that has gone is no fault."""
    root = Path(keys.__file__).parents[2]
    # What is kept back until the end meets the closed pipe too late to be an exception.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}

    def run(name, *words, **to):
        command = [sys.executable, "-m", f"clients.deployment.{name}", *words]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, cwd=root, env=env, **to)
        return done.returncode, done.stderr

    reader, writer = os.pipe()
    os.close(reader)
    assert run("keys", str(tmp_path), "--host", "a", stdout=writer) == (141, "")
    os.close(writer)
    sentence = "error: cannot write /dev/null/a: Not a directory\n"
    assert run("keys", "/dev/null/a", "--host", "a") == (4, sentence)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "clients.deployment.check", address]
        command += ["--root-certificates", str(tmp_path / "ca.crt")]
        waits = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root)
        with silent.accept()[0]:
            waits.send_signal(signal.SIGINT)
            assert waits.communicate()[1] == "interrupted\n"
        assert waits.returncode == 130
    code, err = run("check", "server", "--root-certificates", str(tmp_path / "ca.crt"))
    assert (code, err) == (2, "error: 'server' is no address; it must be host:port\n")


class TlsServer:
    """Answers every request over TLS with an empty page that has this date."""

    def __init__(
        self, authority: Authority, hosts: list[str], days: float, date: str, status: int = 200
    ) -> None:
        import http.server

        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response_only(status)
                self.send_header("Date", date)
                self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *about: object) -> None:
                pass

        certificate, key = authority.certify(hosts, days)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server = Server(("127.0.0.1", 0), Page)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self.address

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def now(shift: float = 0.0) -> str:
    from email.utils import formatdate

    return formatdate(time.time() + shift, usegmt=True)


@pytest.mark.parametrize(
    ("hosts", "days", "shift", "status", "sentence"),
    [
        (["127.0.0.1"], 1, 0, 200, None),
        (["127.0.0.1"], -1, 0, 200, "the server's certificate, or its authority's, has expired"),
        (["server.lan"], 1, 0, 200, "is for another host"),
        (["127.0.0.1"], 1, -60, 200, r"clock is \+\d+ s off"),
        (["127.0.0.1"], 1, 600, 200, r"clock is -\d+ s off"),
        (["127.0.0.1"], 1, 0, 502, "status 502: SuperLink is not running behind the proxy"),
    ],
)
def test_a_server_is_looked_at_as_a_node_would(tmp_path, hosts, days, shift, status, sentence):
    authority = Authority(tmp_path)
    with TlsServer(authority, hosts, days, now(shift), status) as address:
        if sentence is None:
            assert "are right" in check_superlink(address, tmp_path / "ca.crt")
        else:
            with pytest.raises(ConfigError, match=sentence):
                check_superlink(address, tmp_path / "ca.crt")


def test_another_authority_no_tls_and_nobody_are_told_apart(tmp_path, capsys):
    authority = Authority(tmp_path / "one")
    other = Authority(tmp_path / "two").folder / "ca.crt"
    with (
        TlsServer(authority, ["127.0.0.1"], 1, now()) as address,
        pytest.raises(ConfigError, match="not signed by the authority"),
    ):
        check_superlink(address, other)
    (port,) = free_ports(1)
    command = [address, "--root-certificates", str(other)]
    command[0] = f"127.0.0.1:{port}"
    with pytest.raises(ConfigError, match="nobody answers at"):
        check.main(command)
    with pytest.raises(ConfigError, match="must be host:port"):
        check_superlink("server", other)
    with pytest.raises(ConfigError, match="no certificate that can be read"):
        check_superlink(address, tmp_path / "none.crt")


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (
            "\x1b[91mERROR \x1b[0m:     Exit Code: 305\nFailed to initialize the connection to the "
            "SuperLink.\n[code: 2004] Failed to activate SuperNode.\nThe SuperNode could not",
            "refuses the node's key",
        ),
        (
            "Exit Code: 305\nFailed to initialize the connection to the SuperLink.\n[SSL: "
            "CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (x)\n",
            "has expired",
        ),
        (
            "Option `--insecure` was set. Starting\nConnection attempt failed, retrying in 1 s\n",
            "plain text",
        ),
        ("one\n\nlast words \n", "last words"),
        ("", "it said nothing"),
    ],
)
def test_what_a_node_says_is_put_plainly(log, sentence):
    assert sentence in explain(log)


@pytest.mark.process
def test_a_group_ends_with_all_that_it_has_started(tmp_path):
    mark = uuid.uuid4().hex
    # A child that asks to live on, and starts another that does.
    stubborn = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)']);"
        "time.sleep(0.5); sys.exit()"
    )
    with Group(tmp_path, environment(**{MARK: mark})) as group:
        group.start("one", SLEEP, tmp_path / "one.log", {})
        group.start("two", [sys.executable, "-S", "-c", stubborn], tmp_path / "two.log", {})
        assert wait_until(lambda: not group.runs("two"), 30)
        assert group.runs("one")
        assert len(alive(mark)) >= 2
        started = group.start("one-more", SLEEP, tmp_path / "one.log", {})
        assert os.getpgid(started) != os.getpgid(0)
        group.stop("one-more")
        assert started not in alive(mark)
    assert alive(mark) == {}


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("by_name", [True, False])
def test_who_has_left_the_group_is_ended_too(tmp_path, by_name):
    """As a ServerApp does, in a session of its own; also where its parent was stopped before."""
    mark = uuid.uuid4().hex
    parent = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-S', '-c', 'import signal, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'],"
        "start_new_session=True); time.sleep(600)"
    )
    with Group(tmp_path, environment(**{MARK: mark})) as group:
        group.start("one", [sys.executable, "-S", "-c", parent], tmp_path / "one.log", {})
        assert wait_until(lambda: len(alive(mark)) == 2, 30)
        if by_name:
            group.stop("one")
            assert len(alive(mark)) == 1
    assert alive(mark) == {}


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_group_ends_when_its_owner_is_killed(tmp_path):
    mark = uuid.uuid4().hex
    code = (
        "import sys, time; from pathlib import Path\n"
        "from clients.deployment.processes import Group\n"
        "from clients.deployment.flower import environment\n"
        f"group = Group(Path({str(tmp_path)!r}), environment())\n"
        f"group.start('one', {SLEEP!r}, Path({str(tmp_path / 'log')!r}), {{}})\n"
        "print('up', flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[2]
    env = {**os.environ, MARK: mark, "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"up\n"
        assert len(alive(mark)) == 3
        owner.kill()
    assert wait_until(lambda: not alive(mark), 30)


def test_a_search_path_of_the_users_own_is_handed_on_but_not_the_checkout(monkeypatch):
    """Which would be imported where the bundle that nodes get lacks a module."""
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, "/one", "", root + "/", "two"]))
    assert environment()["PYTHONPATH"] == os.pathsep.join(["/one", "two"])
    monkeypatch.setenv("PYTHONPATH", root)
    assert "PYTHONPATH" not in environment()


def test_settings_are_spelled_as_flower_reads_them():
    text = flower_config(partition_id=1, data_path='/data/a "b"', json=False, name=None)
    assert text == 'partition-id=1 data-path="/data/a \\"b\\"" json=false'


@pytest.mark.parametrize(
    ("values", "nodes", "chunks"),
    [
        ({}, 1, (1.0,)),
        ({}, 2, (0.5, 0.5)),
        ({}, 3, (1 / 3,) * 3),
        ({}, 20, (0.7, 0.2, 0.1)),
        ({"chunks": "0.5,0.5"}, 3, (0.5, 0.5)),
        ({"method": "fedavg"}, 3, (1.0,)),
    ],
)
def test_every_chunk_of_a_rehearsal_has_a_node(values, nodes, chunks):
    config = rehearsed(values, nodes)
    assert config.chunks == pytest.approx(chunks)
    assert (config.clients, config.clients_per_round) == (nodes, nodes)
    assert config.checkpoint_every == 1


def test_what_is_given_wins_in_a_rehearsal():
    config = rehearsed({"clients": 4, "clients-per-round": 2, "checkpoint-every": 7}, 4)
    assert (config.clients_per_round, config.checkpoint_every) == (2, 7)
