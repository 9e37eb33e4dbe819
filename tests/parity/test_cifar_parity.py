"""The narrow ResNet-9 on colour images: the plain loop, Flower in this process and Ray agree.

Two rounds on noise; the README says how to run twenty on real images.
"""

import numpy as np
import pytest
from test_inline import Recorder, assert_same_rounds

from clients.grid import inline_grid
from fedpart import algorithm
from fedpart.accounting import fedavg_bytes
from fedpart.config import make_config
from fedpart.data import FederatedData
from fedpart.data.cifar import MEAN, STD
from fedpart.program import Program, program_for
from fedpart.server import assign_chunks, initial_state
from strategies.app import run

CLIENTS = 5


@pytest.fixture(scope="module")
def data() -> FederatedData:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, 20)
    owned = tuple(np.split(np.arange(20), [2, 6, 9, 15]))
    return FederatedData(
        *("noise", 10, 3, images, labels, None, owned, images[:2], labels[:2], None, None),
        *("noise", MEAN, STD),
    )


@pytest.fixture(scope="module", params=["partitioned", "fedavg", "augerino"])
def program(request, data) -> Program:
    settings = {
        "dataset": "rotcifar10",
        "model": "resnet9-narrow",
        "method": request.param,
        "chunks": "0.6,0.4",
        "augmentation": "generators",
        "samples": 2,
        "clients": CLIENTS,
        "clients-per-round": 3,
        "train-size": 20,
        "batch-size": 4,
        "hyper-batch-size": 2,
        "client-lr": 10**-0.5,
        "server-lr": 1e-2,
        "adam-eps": 1e-7,
        "rounds": 2,
    }
    return program_for(make_config(settings), data)


@pytest.fixture(scope="module")
def reference(program, data) -> list[tuple]:
    recorder = Recorder()
    algorithm.run(program, data, initial_state(program), recorder)
    return recorder.rounds


def test_same_bits_and_records_in_this_process(program, data, reference):
    recorder = Recorder()
    run(program, initial_state(program), recorder, inline_grid(program, data))
    assert_same_rounds(recorder.rounds, reference)
    assert not any(failures for _, _, failures, _ in reference)


def test_the_gradient_of_psi_comes_from_one_mini_batch(program, reference):
    """``hyper-batch-size`` images, or none where the client has no say in psi."""
    counts = {r.hyper_examples for _, replies, _, _ in reference for r in replies}
    expected = {"partitioned": {0, 2}, "fedavg": {0}, "augerino": {2}}
    assert counts == expected[program.config.method]


def test_uploads_are_the_shares_of_the_sampled_chunks_exactly(program, reference):
    chunks, sizes = assign_chunks(program.config), program.layout.sizes
    for _, replies, _, _ in reference:
        sent = [4 * sum(d.numel() for d in r.deltas.values()) for r in replies]
        assert sent == [4 * sum(sizes[chunks[r.client_id] :]) for r in replies]
        if program.config.num_partitions == 1:
            assert sent == [fedavg_bytes(program)] * 3


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("program", ["partitioned"], indirect=True)
def test_same_bits_and_records_on_ray(program, data, reference):
    pytest.importorskip("ray")
    from clients.ray_grid import ray_grid

    recorder = Recorder()
    with ray_grid(program, data, 2) as grid:
        run(program, initial_state(program), recorder, grid)
    assert_same_rounds(recorder.rounds, reference)
