"""Settings of the process that clients and evaluations run in."""

import ctypes
import sys

import torch

from fedpart.errors import ConfigError

# glibc's names for mallopt, from malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def prepare_process() -> None:
    """One torch thread, and a malloc that keeps its pages.

    One thread, because the number of threads changes the order of sums and so the bits. Without
    the second, every activation of more than 128 KB is mapped and page-faulted anew.
    """
    torch.set_num_threads(1)
    # On a GPU: the same kernels each time.
    torch.backends.cudnn.deterministic = True
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, 1 << 30)
            mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def check_device(device: str) -> None:
    """Whether ``cpu`` or ``cuda`` is there.

    Raises:
        ConfigError: it is not.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device is 'cuda', but torch finds no GPU here; use cpu, or install a torch that is "
            "built for this machine's GPU"
        )
