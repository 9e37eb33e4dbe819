"""Decoded arrays on disk: one memory-mapped copy that all processes of a machine share."""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_MANIFEST = "sha256.json"


def cache_folder() -> Path | None:
    """``$FEDPART_CACHE``, else ``~/.cache/fedpart``; None where there is no home."""
    given = os.environ.get("FEDPART_CACHE")
    try:
        return Path(given).expanduser() if given else Path.home() / ".cache" / "fedpart"
    except RuntimeError:
        return None


def content_key(files: list[Path], *words: str) -> str:
    """Hex key over the bytes of a few files, so that it follows content and not place."""
    digest = hashlib.sha256("\0".join(words).encode())
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:20]


def listing_key(files: list[Path], *words: str) -> str:
    """Hex key over paths, sizes and times of many files, without reading them."""
    digest = hashlib.sha256("\0".join(words).encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:20]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` where the system has one.

    The lock only saves work done twice: every write is a rename, right without it. The kernel
    frees it when a process dies, which a lock file of our own would not.

    Raises:
        OSError: the lock file cannot be created.
    """
    with path.open("ab") as handle:
        if fcntl is not None:
            # Some network file systems have no locks.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def cached(
    name: str, build: Callable[[], dict[str, np.ndarray]], outside: Path | None = None
) -> Mapping[str, np.ndarray]:
    """Arrays from the cache, built and written there first if absent or damaged.

    Args:
        name: of the entry; it must change with the content.
        build: makes the arrays; its errors pass through.
        outside: a folder into which nothing may be written.
    Returns:
        The arrays, memory-mapped and read-only; in memory where the cache cannot be written.
    """
    root = cache_folder()
    if root is None or (outside is not None and _inside(root, outside)):
        return build()
    entry = root / name
    if (arrays := _load(entry)) is not None:
        return arrays
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = contextlib.ExitStack()
        lock.enter_context(locked(root / f"{name}.lock"))
    except OSError:
        return build()
    with lock:
        # Another process may have built it while this one waited.
        if (arrays := _load(entry)) is not None:
            return arrays
        built = build()
        try:
            _store(entry, built)
        except OSError:
            return built
    return _load(entry) or built


def _inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _load(entry: Path) -> dict[str, np.ndarray] | None:
    # None for anything but an entry that is whole: absent, cut, altered, not ours.
    try:
        hashes = json.loads((entry / _MANIFEST).read_text())
        arrays = {}
        for name, expected in hashes.items():
            file = entry / f"{name}.npy"
            if _sha256(file) != expected:
                return None
            arrays[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        return arrays
    except (OSError, ValueError, AttributeError, EOFError):
        return None


def _store(entry: Path, arrays: Mapping[str, np.ndarray]) -> None:
    # Not mkdtemp, whose folder other users of a shared cache could not read.
    scratch = entry.parent / f".{entry.name}-{uuid.uuid4().hex}"
    scratch.mkdir()
    try:
        for name, array in arrays.items():
            np.save(scratch / f"{name}.npy", array, allow_pickle=False)
        hashes = {name: _sha256(scratch / f"{name}.npy") for name in arrays}
        (scratch / _MANIFEST).write_text(json.dumps(hashes))
        # What is there is damaged. Processes that map it keep their pages after the removal.
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        scratch.rename(entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
