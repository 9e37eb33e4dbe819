"""Ray, started quietly and ended with every process and file it has brought."""

import atexit
import contextlib
import gc
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from clients.ray_reaper import end_session
from fedpart.errors import ConfigError, OutputError

T = TypeVar("T")

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
# Seconds that Ray has to end by itself, when nobody waits and when somebody does; it takes about
# 1.3, or several where the machine is busy.
_PATIENCE, _HASTE = 10.0, 1.5
# Ray refuses a store of less than 75 MiB.
_LEAST_STORE = 80 * 2**20
# A socket's path may have 107 bytes (103 on macOS). Ray's longest is
# <folder>/session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store; mkdtemp adds 16.
_SOCKET_PATH = (103 if sys.platform == "darwin" else 107) - len(
    "/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"
)
# Reapers that wait for this process to end.
_abandoned: list[object] = []


class RaySession:
    """A Ray of our own on this machine, or a connection to a cluster.

    Ray is only ever called by one thread, which belongs to it. The others stay clear of what Ray
    does to signals: started from the main thread it takes SIGTERM for itself, and an exception
    that a signal handler raises inside one of its calls comes out as ``SystemError``, seconds
    later. ``call`` waits outside Ray, where signals do what they do anywhere else.

    Attributes:
        ray: the package; None until Ray's thread has imported it.
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
                cluster has its own CPUs, GPUs and store, and may ask for a token of the user's.

        Raises:
            ConfigError: Ray cannot start, or connect to ``address``.
            OutputError: no temporary folder with a name short enough.
        """
        self.ray: Any = None
        self.resources: dict[str, float] = {}
        self._folder: Path | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self._todo: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="ray", daemon=True)

        def begin() -> None:
            # Here, since an import that Ctrl-C has cut short leaves half of Ray behind.
            self.ray = _import_ray()
            if address:
                self._connect(address)
            else:
                self._start(cpus, gpus, store_bytes)
            self.resources = self.ray.cluster_resources()

        try:
            if not address:
                self._folder = _short_folder()
                self._reaper = _reaper(self._folder)
            self._thread.start()
            begun = self.submit(begin)
            while not wait([begun], timeout=0.05).done:
                _keep_sigterm()
            begun.result()
            _keep_sigterm()
        except BaseException as error:
            self.close(hurry=not isinstance(error, Exception))
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
        self.close(hurry=kind is not None and not issubclass(kind, Exception))

    def call(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises when Ray's thread calls it."""
        return self.submit(function).result()

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Have Ray's thread call ``function``, after what it was given before."""
        done: Future[T] = Future()
        self._todo.put((done, function))
        return done

    def close(self, hurry: bool = False) -> None:
        """End Ray and all its processes, and remove its folder.

        Args:
            hurry: somebody has pressed Ctrl-C; what does not end by itself at once is killed.
        """
        _keep_sigterm()
        if hurry and sys.platform != "win32":
            # Where SIGTERM came before it was Python's again, the process would abort.
            signal.alarm(0)
        if not hurry:
            # Ids begin anew with every session: what a cycle keeps of this one would, when it is
            # collected, take the object of the same id from the next.
            gc.collect()
        self.submit(lambda: self.ray.shutdown())
        self._todo.put(None)
        try:
            if self._thread.is_alive():
                self._thread.join(_HASTE if hurry else _PATIENCE)
        finally:
            abandoned = self._thread.is_alive()
            if abandoned:
                self._abandon()
            spared = {os.getpid()} | ({self._reaper.pid} if self._reaper else set())
            if self._folder is not None:
                end_session(self._folder, spared)
            if self._reaper is not None and not abandoned:
                self._reaper.communicate()

    def _abandon(self) -> None:
        """Prepare for a thread that is inside Ray while its processes are killed."""
        # It may yet start some, which the reaper ends once this process has ended.
        _abandoned.append(self._reaper)
        if self.ray is not None:
            # Ray would shut down at exit too, and wait for processes that are dead.
            atexit.unregister(self.ray.shutdown)
        shown = threading.excepthook

        def hook(arguments: threading.ExceptHookArgs) -> None:
            # Ray's own threads have names that begin so, and lose their connections.
            if arguments.thread is None or not arguments.thread.name.startswith("ray"):
                shown(arguments)

        threading.excepthook = hook

    def _serve(self) -> None:
        while (task := self._todo.get()) is not None:
            done, function = task
            try:
                done.set_result(function())
            except BaseException as error:  # belongs to the one who called
                done.set_exception(error)

    def _start(self, cpus: int, gpus: int, store_bytes: int) -> None:
        store_bytes = max(store_bytes, _LEAST_STORE)
        # Only we, and whom we start, may use our Ray; it would keep a token in the home folder.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        try:
            with _environment(_WORKERS_ENVIRONMENT):
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
        except Exception as error:
            raise ConfigError(
                f"Ray cannot start here: {_first_line(error)}; --backend inline runs without it"
            ) from error

    def _connect(self, address: str) -> None:
        try:
            self.ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                runtime_env={"env_vars": _WORKERS_ENVIRONMENT},
            )
        except Exception as error:
            raise ConfigError(
                f"ray-address is {address!r}: {_first_line(error)} (where it wants a token: set "
                "RAY_AUTH_MODE to token, beside the token)"
            ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def _import_ray() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


def _short_folder() -> Path:
    for parent in (tempfile.gettempdir(), "/tmp"):
        # mkdtemp's name has a slash, the prefix and eight letters.
        if len(os.fsencode(parent)) + 16 <= _SOCKET_PATH:
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="fedray-", dir=parent))
    raise OutputError(
        f"no folder for Ray's sockets: {tempfile.gettempdir()} is too long a name for them (at "
        f"most {_SOCKET_PATH - 16} bytes) or cannot be written, nor can /tmp; set TMPDIR to another"
    )


def _reaper(folder: Path) -> "subprocess.Popen[bytes]":
    """A process that ends the session where this one cannot, because it was killed."""
    script = str(Path(__file__).with_name("ray_reaper.py"))
    # A session of its own: Ctrl-C in a terminal goes to everybody else.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
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


def _keep_sigterm() -> None:
    """Give SIGTERM back to Python.

    Ray's library takes it at some moment of its start: it would print a stack trace, and set an
    alarm that aborts the process three seconds later.
    """
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
