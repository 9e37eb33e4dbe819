"""End what a Ray session has left: a script that waits for its parent, and what it does then.

``python ray_reaper.py FOLDER`` ends with its parent, however that dies: kernels close pipes. It
imports nothing but the standard library, since it starts before every run.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path


def end_session(folder: Path, spared: Collection[int]) -> None:
    """Kill every process that works in ``folder``, but those that are spared; remove the folder.

    Each of Ray's processes has the folder in its command line until it takes another name, and
    then its log in there open. Neither environments, which they overwrite, nor the process tree,
    once a parent has died, tell them.
    """
    inside = os.fsencode(f"{folder}{os.sep}")
    for _ in range(20):
        users = {int(p.name) for p in Path("/proc").glob("[0-9]*") if _works_in(p, inside)}
        users -= set(spared)
        if not users:
            break
        for pid in users:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def _works_in(process: Path, inside: bytes) -> bool:
    # Processes end meanwhile, and others belong to somebody else.
    with contextlib.suppress(OSError):
        if inside in (process / "cmdline").read_bytes():
            return True
        for number in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                if os.fsencode(os.readlink(process / "fd" / number)).startswith(inside):
                    return True
    return False


if __name__ == "__main__":
    parent = os.getppid()
    sys.stdin.buffer.read()
    end_session(Path(sys.argv[1]), {parent})
