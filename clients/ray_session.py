"""Ray, started quietly and ended with every process and file it has brought."""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from fedpart.errors import ConfigError, OutputError

T = TypeVar("T")

# In the environment of every process that Ray starts here, with the session's folder.
_MARK = "FEDPART_RAY_SESSION"
# Read by Ray when it is imported.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # What the raylet says of dead workers; it goes to standard output.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# One thread, because the number of threads changes the order of sums and so the bits.
_WORKERS_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_LOG_LEVEL": "ERROR",
}
# Seconds that Ray has to end by itself; it takes about 1.3.
_GRACE = 4.0
_CONNECT_SECONDS = 5.0
# Ray refuses a store of less than 75 MiB.
_LEAST_STORE = 80 * 2**20
# A socket's path may have 107 bytes (103 on macOS). Ray's longest is
# <folder>/session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store; mkdtemp adds 17.
_SOCKET_PATH = (103 if sys.platform == "darwin" else 107) - len(
    "/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"
)


class RaySession:
    """A Ray of our own on this machine, or a connection to a cluster.

    Ray is only ever called by one thread, which belongs to it. The others stay clear of what Ray
    does to signals: started from the main thread it takes SIGTERM for itself, and an exception
    that a signal handler raises inside one of its calls comes out as ``SystemError``, seconds
    later. ``call`` waits outside Ray, where signals do what they do anywhere else.

    Attributes:
        ray: the package.
        resources: what Ray may hand out, by Ray's names (``CPU``, ``GPU``).
    """

    def __init__(
        self, cpus: int = 1, gpus: int = 0, store_bytes: int = 0, address: str | None = None
    ) -> None:
        """Start Ray with so many CPUs and GPUs, or connect to ``address``.

        Args:
            cpus: what Ray hands out; it need not be what the machine has.
            gpus: as ``cpus``.
            store_bytes: what the object store must hold at once.
            address: ``host:port`` of a cluster that this machine is part of, or ``auto``; the
                cluster has its own CPUs, GPUs and store.

        Raises:
            ConfigError: nobody answers at ``address``.
            OutputError: no temporary folder with a name short enough.
        """
        self.ray = _import_ray()
        self.resources: dict[str, float] = {}
        self._folder = None if address else _short_folder()
        self._todo: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="ray", daemon=True)
        self._thread.start()
        try:
            if address:
                self.call(lambda: self._connect(address))
            else:
                self.call(lambda: self._start(cpus, gpus, store_bytes))
            self.resources = self.call(self.ray.cluster_resources)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RaySession":
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See ``close``."""
        self.close()

    def call(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises when Ray's thread calls it."""
        return self.submit(function).result()

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Have Ray's thread call ``function``, after what it was given before."""
        done: Future[T] = Future()
        self._todo.put((done, function))
        return done

    def close(self) -> None:
        """End Ray and all its processes, and remove its folder; at most some seconds."""
        self.submit(self.ray.shutdown)
        self._todo.put(None)
        try:
            # Longer only where Ray hangs, or is interrupted while it starts.
            self._thread.join(_GRACE)
        finally:
            if self._folder is not None:
                _kill_session(self._folder)
                shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        while (task := self._todo.get()) is not None:
            done, function = task
            try:
                done.set_result(function())
            except BaseException as error:  # belongs to the one who called
                done.set_exception(error)

    def _start(self, cpus: int, gpus: int, store_bytes: int) -> None:
        store_bytes = max(store_bytes, _LEAST_STORE)
        with _environment({**_WORKERS_ENVIRONMENT, _MARK: str(self._folder)}):
            self.ray.init(
                # Even where RAY_ADDRESS is set.
                address="local",
                num_cpus=cpus,
                num_gpus=gpus,
                object_store_memory=store_bytes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                _temp_dir=str(self._folder),
                _plasma_directory=str(_store_folder(store_bytes) or self._folder),
            )

    def _connect(self, address: str) -> None:
        _check_answers(address)
        try:
            self.ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                runtime_env={"env_vars": _WORKERS_ENVIRONMENT},
            )
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise ConfigError(f"ray-address is {address!r}: {first}") from error


def _import_ray() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    # Ray would keep one in the home folder. Only we, and whom we start, may use our Ray.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    return ray


def _check_answers(address: str) -> None:
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigError(f"ray-address is {address!r}; it must be host:port, or auto")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
            pass
    except (OSError, OverflowError) as error:
        raise ConfigError(f"ray-address is {address!r}, where no Ray answers: {error}") from None


def _short_folder() -> Path:
    for parent in (tempfile.gettempdir(), "/tmp"):
        # mkdtemp's name has a slash, the prefix and eight letters.
        if len(os.fsencode(parent)) + 17 <= _SOCKET_PATH:
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="fedpart-", dir=parent))
    raise OutputError(
        f"no folder for Ray's sockets: {tempfile.gettempdir()} is too long a name for them (at "
        f"most {_SOCKET_PATH - 17} bytes) or cannot be written, nor can /tmp; set TMPDIR to another"
    )


def _store_folder(store_bytes: int) -> Path | None:
    """Shared memory where it is large enough (containers often have 64 MB), else None."""
    shared = Path("/dev/shm")
    try:
        status = os.statvfs(shared)
    except OSError:
        return None
    enough = status.f_bavail * status.f_frsize > 1.1 * store_bytes
    return shared if enough and os.access(shared, os.W_OK) else None


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _kill_session(folder: Path) -> None:
    """Kill what a session has started and not ended, wherever it hangs in the process tree."""
    mark = os.fsencode(f"{_MARK}={folder}") + b"\0"
    for _ in range(20):
        found = False
        for entry in Path("/proc").glob("[0-9]*"):
            # Processes end meanwhile, and others belong to somebody else.
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() + b"\0":
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
        if not found:
            return
        time.sleep(0.05)
