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
from pathlib import Path


def end_session(folder: Path, driver: int) -> None:
    """Kill every process that holds a file in ``folder`` open, but the driver; remove the folder.

    Each of Ray's processes writes its log there. Names and environments do not tell them: they
    overwrite both. Nor does the process tree, once a parent has died.
    """
    inside = f"{folder}{os.sep}"
    for _ in range(20):
        users = {int(p.name) for p in Path("/proc").glob("[0-9]*") if _holds(p, inside)}
        users.discard(driver)
        if not users:
            break
        for pid in users:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def _holds(process: Path, inside: str) -> bool:
    # Processes end meanwhile, and others belong to somebody else.
    with contextlib.suppress(OSError):
        for number in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "fd" / number).startswith(inside):
                    return True
    return False


if __name__ == "__main__":
    parent = os.getppid()
    sys.stdin.buffer.read()
    end_session(Path(sys.argv[1]), parent)
