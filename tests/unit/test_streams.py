"""Random streams are named, reproducible and independent of each other."""

import itertools

import numpy as np
import torch

from fedpart.streams import numpy_rng, torch_rng, torch_seed


def test_the_same_name_gives_the_same_numbers():
    """NumPy and torch, whatever was drawn in between."""
    first = numpy_rng(3, "order", 1, 2).random(5), torch.rand(5, generator=torch_rng(3, "x", 1))
    np.random.seed(0)
    torch.manual_seed(0)
    assert np.array_equal(numpy_rng(3, "order", 1, 2).random(5), first[0])
    assert torch.equal(torch.rand(5, generator=torch_rng(3, "x", 1)), first[1])


def test_seed_purpose_and_key_each_make_another_stream():
    """No two of these share their seed, and none its numbers."""
    names = [
        (seed, purpose, *key)
        for seed, purpose, key in itertools.product(
            (0, 1, 2**40), ("order", "train"), ((1, 2, 3), (1, 2, 4), (2, 1, 3), (0, 0, 0))
        )
    ]
    assert len({torch_seed(*name) for name in names}) == len(names)
    assert len({float(numpy_rng(*name).random()) for name in names}) == len(names)


def test_streams_are_the_same_in_every_process_and_version():
    """Pinned values: SeedSequence and PCG64 are stable by NumPy's promise, crc32 has no salt."""
    assert numpy_rng(0, "cohort", 1).integers(0, 1000, 4).tolist() == [813, 187, 702, 526]
    assert torch_seed(0, "client", 1, 2) == 4652802685988440728
