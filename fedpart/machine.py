"""Facts about the machine and the code, for the records of a run."""

import functools
import hashlib
import os
import platform
import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("fedpart", "torch", "torchvision", "numpy", "flwr")


def versions() -> dict[str, str]:
    """Python and the packages that results depend on."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        # Run from a checkout that was not installed.
        return "not installed"


def hardware() -> dict[str, str | int]:
    """Machine, processor, system and cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "system": platform.system(),
        "cores": cores,
    }


def commit() -> str | None:
    """Git commit of the code, with ``+`` where it was changed since; None outside a checkout."""
    here = Path(__file__).parent

    def git(*args: str) -> str:
        command = ["git", "-C", str(here), *args]
        # In a session of its own, where a Ctrl-C that is meant for us does not reach it.
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, start_new_session=True
        )
        return done.stdout.strip()

    try:
        # An installed copy may lie inside somebody else's repository.
        if not git("ls-files", str(Path(__file__).name)):
            return None
        changed = git("status", "--porcelain", "--untracked-files=no", ":/")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


@functools.cache
def code_id() -> int:
    """A number below 2^60 that is another one where the code of the three packages is."""
    top = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for package in ("fedpart", "strategies", "clients"):
        for path in sorted((top / package).rglob("*.py")):
            # Which Flower's bundle leaves out.
            if path.name.startswith("test_") or path.stem.endswith("_test"):
                continue
            digest.update(f"{path.relative_to(top).as_posix()} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return int(digest.hexdigest()[:15], 16)


def peak_rss() -> int:
    """Peak memory in bytes of this process, or of its largest ended child if that is more.

    The system keeps one peak for a process and one over its children that have ended. Clients that
    run inline run in this process, so this is the whole tree; a child's peak counts pages shared
    with the parent at its start, so adding the two would count them twice.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return unit * max(resource.getrusage(w).ru_maxrss for w in who)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
