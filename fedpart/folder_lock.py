"""Which process works on a run folder: one at a time."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from fedpart.errors import BusyError, OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Seconds between two looks at a folder that another process keeps.
_LOOK = 0.05
# Seconds that a process may keep a folder for which it only asks whether another does.
_GLANCE = 0.3


def lock_run(path: Path, patience: float = _GLANCE, shared: bool = False) -> int:
    """Keep a run folder for this process until the handle is closed, or the process ends.

    Args:
        path: the folder.
        patience: seconds to wait for another process that keeps the folder; by default as long as
            ``is_kept`` in another may take.
        shared: beside others that keep it so, but for anybody else.
    Returns:
        a handle for ``os.close``. Where the system has no locks, it keeps nothing.
    Raises:
        BusyError: another process works on the run, for longer than ``patience``.
        OutputError: there is no such folder.
    """
    try:
        # The folder itself, since a file in it may be replaced by another of the same name.
        handle = os.open(os.devnull if fcntl is None else path, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}") from None
    if fcntl is not None:
        try:
            _lock(handle, patience, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except BlockingIOError:
            os.close(handle)
            raise BusyError(
                f"another process is working on {path}: wait for its end, or stop it"
            ) from None
        except OSError:
            # Some network file systems have no locks.
            pass
        except BaseException:  # a signal
            os.close(handle)
            raise
    return handle


def _lock(handle: int, patience: float, kind: int) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK)


def is_kept(path: Path) -> bool:
    """Whether a process, this one or another, keeps a folder; false where there is none."""
    try:
        os.close(lock_run(path, 0, shared=True))
    except BusyError:
        return True
    except OutputError:
        pass
    return False


@contextlib.contextmanager
def kept(path: Path, patience: float = _GLANCE) -> Iterator[None]:
    """``lock_run`` for a block."""
    handle = lock_run(path, patience)
    try:
        yield
    finally:
        os.close(handle)
