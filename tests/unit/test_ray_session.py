"""How Ray is started and ended, with a Ray that does what the test wants."""

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from clients import ray_session
from clients.ray_reaper import end_session
from clients.ray_session import RaySession
from fedpart.errors import ConfigError, OutputError

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class FakeRay:
    def __init__(self, init=lambda **arguments: None) -> None:
        self.arguments: dict = {}
        self.shut_down, self.threads, self._init = 0, set(), init

    def init(self, **arguments):
        self.arguments = arguments
        self.environment = dict(os.environ)
        self.threads.add(threading.current_thread())
        self._init(**arguments)

    def cluster_resources(self):
        return {"CPU": 2.0}

    def shutdown(self):
        self.threads.add(threading.current_thread())
        self.shut_down += 1


@pytest.fixture
def fake(monkeypatch):
    """Have sessions start a fake Ray."""

    def make(*args) -> FakeRay:
        ray = FakeRay(*args)
        monkeypatch.setattr(ray_session, "_import_ray", lambda: ray)
        return ray

    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    yield make
    os.environ.pop("RAY_AUTH_TOKEN", None)


def sleeper(*words: object, **kwargs: object) -> subprocess.Popen:
    command = [sys.executable, "-c", "import time; time.sleep(60)", *map(str, words)]
    return subprocess.Popen(command, **kwargs)


@pytest.mark.process
def test_a_session_starts_quietly_and_leaves_nothing(fake, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "1.2.3.4:6379")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    ray = fake()
    with RaySession(3, 1, 10**6) as session:
        folder = Path(ray.arguments["_temp_dir"])
        assert folder.is_dir()
        assert session.resources == {"CPU": 2.0}
        assert session.call(lambda: threading.current_thread().name) == "ray"
        with pytest.raises(ZeroDivisionError):
            session.call(lambda: 1 / 0)
    assert (ray.arguments["address"], ray.arguments["num_cpus"]) == ("local", 3)
    assert ray.arguments["num_gpus"] == 1
    assert not ray.arguments["include_dashboard"]
    # Ray refuses less.
    assert ray.arguments["object_store_memory"] == 80 * 2**20
    # For what it starts, and only that.
    assert ray.environment["OMP_NUM_THREADS"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert len(ray.environment["RAY_AUTH_TOKEN"]) == 64
    assert ray.shut_down == 1
    assert {thread.name for thread in ray.threads} == {"ray"}
    assert not folder.exists()


@pytest.mark.process
def test_a_ray_that_cannot_start_is_a_sentence_and_leaves_nothing(fake):
    def fail(**arguments):
        raise RuntimeError("no sockets here\nlong story")

    ray = fake(fail)
    with pytest.raises(ConfigError) as caught:
        RaySession(2)
    assert str(caught.value) == (
        "Ray cannot start here: no sockets here; --backend inline runs without it"
    )
    assert not Path(ray.arguments["_temp_dir"]).exists()


def test_a_cluster_gets_its_own_address_and_no_folder(fake):
    ray = fake()
    with RaySession(address="head:6379"):
        pass
    assert ray.arguments["address"] == "head:6379"
    assert "_temp_dir" not in ray.arguments
    assert ray.arguments["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "1"
    # That is the user's to give.
    assert "RAY_AUTH_TOKEN" not in ray.environment


def test_a_cluster_that_refuses_is_a_sentence(fake):
    def refuse(**arguments):
        raise ConnectionError("Failed to connect")

    fake(refuse)
    with pytest.raises(ConfigError, match="ray-address is 'head:6379': Failed to connect"):
        RaySession(address="head:6379")


@pytest.mark.process
def test_ctrl_c_while_ray_starts_does_not_wait_for_it(fake, monkeypatch):
    release, dropped = threading.Event(), []

    def unheard(arguments):
        unheard.told.append(arguments)

    unheard.told = []
    ray = fake(lambda **arguments: release.wait(30))
    monkeypatch.setattr(ray_session, "_HASTE", 0.2)
    monkeypatch.setattr(atexit, "unregister", dropped.append)
    monkeypatch.setattr(threading, "excepthook", unheard)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        RaySession(2)
    assert time.monotonic() - started < 5
    assert dropped == [ray.shutdown]
    # Ray's own threads complain in vain, others do not.
    for name, count in (("ray_listen_error_messages", 0), ("mine", 1)):
        thread = threading.Thread(name=name)
        threading.excepthook(threading.ExceptHookArgs((OSError, OSError(), None, thread)))
        assert len(unheard.told) == count
    # The folder is gone, and the reaper stays until this process ends.
    assert not Path(ray.arguments["_temp_dir"]).exists()
    reaper = ray_session._abandoned.pop()
    assert reaper.poll() is None
    reaper.communicate()
    release.set()


@pytest.mark.process
@linux
def test_sigterm_stays_pythons(fake):
    heard = []
    mine = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    # As Ray's library does, behind Python's back: here, to have it ignored (1 is SIG_IGN).
    take = ctypes.CDLL(None).signal
    take.argtypes = (ctypes.c_int, ctypes.c_void_p)
    fake(lambda **arguments: take(signal.SIGTERM, 1))
    try:
        with RaySession(1):
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, mine)


def test_sockets_get_a_folder_with_a_short_name(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = ray_session._short_folder()
    folder.rmdir()
    assert folder.parent == Path("/tmp")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(OSError))
    with pytest.raises(OutputError, match=r"too long a name for them .* set TMPDIR to another"):
        ray_session._short_folder()


def test_small_shared_memory_is_not_used(monkeypatch):
    class Status:
        f_bavail, f_frsize = 64, 2**20

    monkeypatch.setattr(os, "statvfs", lambda path: Status)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    assert ray_session._store_folder(100 * 2**20) is None
    assert ray_session._store_folder(10 * 2**20) == Path("/dev/shm")
    monkeypatch.setattr(os, "statvfs", lambda path: (_ for _ in ()).throw(OSError))
    assert ray_session._store_folder(1) is None


@pytest.mark.process
@linux
def test_who_works_in_the_folder_is_ended_and_nobody_else(tmp_path):
    folder, other = tmp_path / "session", tmp_path / "session2"
    folder.mkdir()
    other.mkdir()
    with (folder / "log").open("w") as log, (other / "log").open("w") as elsewhere:
        by_file = sleeper(stdout=log)
        by_name = sleeper(f"--logs={folder}/logs")
        spared = sleeper(f"--logs={folder}/logs")
        stranger = sleeper(f"--logs={other}/logs", stdout=elsewhere)
        end_session(folder, {os.getpid(), spared.pid})
    try:
        assert by_file.wait(5) == by_name.wait(5) == -signal.SIGKILL
        assert spared.poll() is stranger.poll() is None
        assert not folder.exists()
        assert other.exists()
    finally:
        for process in (spared, stranger):
            process.kill()
            process.wait()


@pytest.mark.process
@linux
def test_the_reaper_ends_the_session_when_its_parent_has_died(tmp_path):
    folder = tmp_path / "session"
    folder.mkdir()
    orphan = sleeper(f"--logs={folder}/logs")
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from clients.ray_session import _reaper\n"
        "reaper = _reaper(Path(sys.argv[1]))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=Path(__file__).parents[2]
    )
    assert parent.returncode == -signal.SIGKILL
    assert orphan.wait(10) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()
