"""Run ``sim.py`` where what Windows lacks has been taken away, as far as Linux can show it.

``python without_unix.py SIM COMMANDS``: the second is a JSON list of command lines, run one after
the other in this process; their exit codes are the last line of standard error.
"""

import errno
import fcntl
import importlib
import json
import os
import runpy
import shutil
import signal
import sys

# What has its own ways on Windows comes first.
OTHERS = (
    *("asyncio", "tarfile", "urllib.request", "numpy", "psutil", "torch", "pydantic"),
    *(
        "torchvision",
        "rich.progress",
        "flwr.app",
        "flwr.clientapp",
        "flwr.serverapp",
        "flwr.supercore.run",
    ),
    *("matplotlib.figure", "matplotlib.backends.backend_agg"),
)
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
OF_OS = (
    *("chown", "chroot", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid"),
    *("getloadavg", "getpgid", "getuid", "killpg", "mkfifo", "nice", "openpty", "posix_spawn"),
    *("pread", "register_at_fork", "sched_getaffinity", "setpgid", "setsid", "statvfs", "sync"),
    *("uname", "wait", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_SYNC", "WNOHANG", "WUNTRACED"),
)
SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}
OF_SIGNAL = ("alarm", "pause", "pthread_kill", "pthread_sigmask", "setitimer", "sigwait")


def take_away() -> None:
    for name in OTHERS:
        importlib.import_module(name)
    shutil._use_fd_functions = False
    # A module that is None here cannot be imported.
    sys.modules.update(dict.fromkeys(MODULES))
    for name in OF_OS:
        delattr(os, name)
    numbers = {name for name in vars(signal) if name.startswith("SIG")} - SIGNALS
    for name in (*numbers, *OF_SIGNAL):
        delattr(signal, name)
    open_, sync, replace, flags = os.open, os.fsync, os.replace, fcntl.fcntl

    def opened(path, *args, **kwargs):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_(path, *args, **kwargs)

    def synced(handle):
        if flags(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        sync(handle)

    def replaced(source, target):
        handles = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
        in_use = {os.readlink(handle) for handle in handles if os.path.lexists(handle)}
        if in_use & {os.path.realpath(source), os.path.realpath(target)}:
            raise PermissionError(errno.EACCES, "Permission denied", target)
        replace(source, target)

    os.open, os.fsync, os.replace = opened, synced, replaced
    sys.platform = "win32"


def main() -> None:
    sim, commands = sys.argv[1:]
    take_away()
    codes, streams = [], []
    for words in json.loads(commands):
        # A stream that is thrown away would be closed.
        streams += [sys.stdout, sys.stderr]
        sys.argv = [sim, *words]
        try:
            runpy.run_path(sim, run_name="__main__")
        except SystemExit as end:
            codes.append(end.code)
    sys.stderr.write(f"{json.dumps(codes)}\n")


if __name__ == "__main__":
    main()
