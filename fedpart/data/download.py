"""Downloads by torchvision, quick and quiet where there is no network."""

import contextlib
import importlib
import io
import shutil
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedpart.data.cache import cache_folder, locked

_PROBE_SECONDS = 3.0
_DOWNLOAD_SECONDS = 30.0


@dataclass(frozen=True)
class Download:
    """A data set that torchvision fetches.

    Attributes:
        name: class in ``torchvision.datasets``.
        folder: what it makes below its root.
        inside: where the files are in that folder.
        probe: an address that answers where the download would work.
    """

    name: str
    folder: str
    inside: str
    probe: str


def downloaded(what: Download, complete: Callable[[Path], bool]) -> Path | None:
    """Folder of an earlier or new download in the cache folder; None where there can be none.

    Args:
        what: the data set.
        complete: whether a folder holds all files.
    """
    root = cache_folder()
    if root is None:
        return None
    place = root / what.folder / what.inside
    if complete(place):
        return place
    if not reachable(what.probe):
        return None
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f"{what.folder}.lock"):
            return place if complete(place) or _download(what, root) else None
    except OSError:
        return None


def reachable(address: str) -> bool:
    """Whether an address answers within three seconds."""
    # torchvision tries each mirror without a time limit. A thread, because looking up a name
    # obeys no socket timeout.
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        with (
            contextlib.suppress(Exception),
            urllib.request.urlopen(request, timeout=_PROBE_SECONDS) as answer,
        ):
            if answer.status == 200:
                answered.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS + 1)
    return answered.is_set()


def _download(what: Download, root: Path) -> bool:
    datasets = importlib.import_module("torchvision.datasets")
    before = socket.getdefaulttimeout()
    silence = io.StringIO()
    socket.setdefaulttimeout(_DOWNLOAD_SECONDS)
    try:
        # Elsewhere first: torchvision takes a half-written file for a whole one.
        with (
            tempfile.TemporaryDirectory(prefix=".download-", dir=root) as scratch,
            contextlib.redirect_stdout(silence),
            contextlib.redirect_stderr(silence),
        ):
            getattr(datasets, what.name)(scratch, download=True)
            # What is there lacks files, or nothing would have been fetched.
            shutil.rmtree(root / what.folder, ignore_errors=True)
            (Path(scratch) / what.folder).rename(root / what.folder)
    # Whatever the network does, what is used instead is said to the user.
    except Exception:
        return False
    finally:
        socket.setdefaulttimeout(before)
    return True
