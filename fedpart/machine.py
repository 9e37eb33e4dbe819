"""Facts about the machine and the code, for the records of a run."""

import contextlib
import functools
import hashlib
import math
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Where code runs from a copy of a checkout: its commit, and the user's words, a list in JSON.
COMMIT, COMMAND = "FEDPART_COMMIT", "FEDPART_COMMAND"
CPUINFO = Path("/proc/cpuinfo")
# As Linux names them, of x86 and of ARM.
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
PACKAGES = ("fedpart", "torch", "torchvision", "numpy", "flwr", "ray")


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
    """Machine, processor, its bfloat16 (yes, no, unknown), system, cores this process may use."""
    bfloat16 = computes_bfloat16()
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "bfloat16": "unknown" if bfloat16 is None else "yes" if bfloat16 else "no",
        "system": platform.system(),
        "cores": available_cores(),
    }


def available_cores() -> int:
    """Cores that this process may keep busy: its affinity, and its container's share of time."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(cores, math.floor(_quota(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")))))


def _quota(root: Path, membership: Path) -> float:
    """The least share of time, in cores, that a control group of Linux grants this process."""
    quotas = [float(10**9)]
    with contextlib.suppress(OSError):
        # Version 2 has one line, 0::/own/group; a limit may sit on the group or any above it.
        own = membership.read_text().rpartition("::")[2].strip().lstrip("/")
        for group in [root / own, *(root / own).parents][: len(Path(own).parts) + 1]:
            with contextlib.suppress(OSError, ValueError):
                quota, period = (group / "cpu.max").read_text().split()
                quotas.append(int(quota) / int(period))
    with contextlib.suppress(OSError, ValueError):
        quota, period = (
            (root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
        )
        if int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas)


def commit() -> str | None:
    """Git commit of the code, with ``+`` where it was changed since.

    Outside a checkout, what ``$FEDPART_COMMIT`` says, or None.
    """
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
            return os.environ.get(COMMIT)
        changed = git("status", "--porcelain", "--untracked-files=no", ":/")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get(COMMIT)


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
    """Memory in bytes of this process and all below it, pages they share counted once.

    Each process counts by the pages that it alone holds now; shared pages are those of the process
    that has most. It is at least the peak of this process, or of one that it has waited for.
    """
    own = shared = 0
    for pid in process_tree(os.getpid()):
        with contextlib.suppress(psutil.Error):
            memory = psutil.Process(pid).memory_full_info()
            own, shared = own + memory.uss, max(shared, memory.rss - memory.uss)
    return max(own + shared, _peak())


def _peak() -> int:
    if resource is None:  # Windows
        memory = psutil.Process().memory_info()
        return int(getattr(memory, "peak_wset", memory.rss))
    unit = 1 if sys.platform == "darwin" else 1024
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return unit * max(resource.getrusage(w).ru_maxrss for w in who)


def process_tree(root: int) -> list[int]:
    """A process and all its descendants that are alive."""
    try:
        return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def computes_bfloat16() -> bool | None:
    """Whether the processor has instructions for bfloat16; None where the system does not tell."""
    flags = _cpuinfo("flags") or _cpuinfo("Features")
    return None if flags is None else not BFLOAT16.isdisjoint(flags.split())


def slow_precision(precision: str, device: str) -> str:
    """One sentence where a processor only imitates what it is to compute in; else empty.

    ``results/benchmarks/cpu-avx2.json``: a round of FedAvg in bf16 took 6.6 times that in fp32.

    Args:
        precision: fp32, tf32 or bf16.
        device: cpu or cuda.
    """
    if precision != "bf16" or device != "cpu" or computes_bfloat16() is not False:
        return ""
    return (
        "this processor has no instructions for bfloat16, and imitates them: precision bf16 took "
        "6.6 times as long as fp32 on one with AVX2; a new run with --precision fp32 is faster"
    )


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(key: str) -> str | None:
    """What Linux says of the first core, by its key; None where it does not."""
    with contextlib.suppress(OSError):
        for line in CPUINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return None
