"""End a group of processes when the one that started them has died, however it died.

``python reaper.py`` is the first process of its group and waits for its standard input to end:
kernels close pipes. It imports nothing but the standard library, since it starts before all else.
"""

import os
import signal
import sys
import time

# Seconds that processes have to end by themselves.
PATIENCE = 8.0


def main() -> None:
    """Wait, ask everybody in the group to end, and end them all."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGTERM)
    time.sleep(PATIENCE)
    # This process too.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
