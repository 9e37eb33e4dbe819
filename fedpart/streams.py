"""Random streams: each derived from (seed, purpose, key), none global.

Two streams with different arguments are independent, as long as the keys of one purpose have one
length (a trailing zero adds nothing to a key); the same arguments give the same numbers in
any process and in any order of use, which is what makes every back end agree bit for bit.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def _sequence(seed: int, purpose: str, key: tuple[int, ...]) -> np.random.SeedSequence:
    # crc32, not hash(): Python salts the latter anew in every process.
    return np.random.SeedSequence((seed, zlib.crc32(purpose.encode()), *key))


def numpy_rng(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """NumPy generator for ``(seed, purpose, *key)``, all integers non-negative."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, key)))


def torch_seed(seed: int, purpose: str, *key: int) -> int:
    """63-bit seed for ``(seed, purpose, *key)``, for code that wants a plain integer."""
    return int(_sequence(seed, purpose, key).generate_state(1, np.uint64)[0] >> 1)


def torch_rng(seed: int, purpose: str, *key: int, device: str = "cpu") -> torch.Generator:
    """Torch generator for ``(seed, purpose, *key)``; a GPU draws other numbers than the CPU."""
    return torch.Generator(device).manual_seed(torch_seed(seed, purpose, *key))


@contextmanager
def global_seed(seed: int, device: str = "cpu") -> Iterator[None]:
    """Seed torch's global generator for code that draws from it, and put its state back after.

    A GPU's own is seeded too where it computes, and stays so.
    """
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would look for accelerators too, at a millisecond a call.
        torch.default_generator.manual_seed(seed)
        if device == "cuda":
            torch.cuda.manual_seed(seed)
        yield
