"""Where clients compute: moving is free on the CPU; what needs a GPU is marked ``cuda``."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from clients.backend import choose_backend
from clients.grid import inline_grid
from fedpart.client import ClientTask, client_update
from fedpart.data.cifar import MEAN, STD
from fedpart.device import moved, on_device
from fedpart.errors import ConfigError
from fedpart.evaluation import evaluate
from fedpart.program import build_program
from fedpart.server import initial_state
from strategies.app import run

GPU = pytest.mark.cuda


def on_gpu(**changes):
    return tiny.program(device="cuda", **changes)


def test_on_the_cpu_nothing_is_copied(small_program):
    """The program and the weights are the very same objects."""
    assert on_device(small_program) is small_program
    assert moved(small_program.initial, "cpu") is small_program.initial


def test_a_gpu_that_is_not_there_is_an_error_of_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ConfigError, match=r"device is 'cuda', but torch finds no GPU here; use cpu"
    ):
        tiny.program(device="cuda")


def test_workers_on_a_gpu_need_a_share_of_it():
    """Ray hides GPUs from workers that ask for none; ``auto`` then stays in this process."""
    with pytest.raises(ConfigError, match="gpus-per-client is 0, which hides the GPUs"):
        choose_backend(tiny.config(device="cuda", backend="ray"))
    assert choose_backend(tiny.config(device="cuda")).name == "inline"


@GPU
@pytest.mark.parametrize("method", ["partitioned", "fedavg", "augerino"])
def test_a_client_gives_nearly_the_cpus_deltas(method):
    """Without noise of the device's own: no dropout, one copy, no augmentation or a fixed one."""
    still = {"dropout": 0.0, "samples": 1, "augmentation": "none"}
    if method == "augerino":
        still = {"dropout": 0.0, "samples": 1, "width_start": 1e-6}
    gpu, cpu = on_gpu(method=method, **still), tiny.program(method=method, **still)
    x, y = tiny.images(6)
    found = []
    for program in (gpu, cpu):
        state = initial_state(program)
        task = ClientTask(1, 0, program.layout.num_partitions - 1, state.theta, state.hyper)
        found.append(client_update(program, task, x, y))
    for j, delta in found[1].deltas.items():
        assert found[0].deltas[j].device.type == "cpu"
        torch.testing.assert_close(found[0].deltas[j], delta, rtol=1e-3, atol=1e-5)
    assert (found[0].hyper_gradient is None) == (found[1].hyper_gradient is None)


@GPU
def test_two_runs_and_an_evaluation_on_the_gpu_agree(small_data):
    """Same kernels and streams of the device: the same weights twice; psi takes part."""
    program = on_gpu()
    states = [
        run(program, initial_state(program), tiny.Silent(), inline_grid(program, small_data))
        for _ in range(2)
    ]
    torch.testing.assert_close(states[0].theta, states[1].theta, rtol=1e-4, atol=1e-6)
    assert states[0].hyper_steps > 0
    x, y = small_data.val_images, small_data.val_labels
    result = evaluate(program, states[0].theta, states[0].hyper, x, y, 1)
    assert result.num_images == len(y)
    assert np.isfinite(result.loss)


@GPU
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resnet9_trains_on_the_gpu(precision):
    on_gpu()
    config = tiny.config(
        device="cuda", model="resnet9", precision=precision, augmentation="generators"
    )
    program = replace(build_program(config, 10, 3, (32, 32)), mean=MEAN, std=STD)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 4)
    state = initial_state(program)
    reply = client_update(program, ClientTask(1, 0, 1, state.theta, state.hyper), x, y)
    assert all(delta.any() and delta.isfinite().all() for delta in reply.deltas.values())
    assert reply.hyper_gradient.isfinite().all()


@GPU
@pytest.mark.ray
@pytest.mark.slow
def test_four_workers_share_the_gpu(small_data):
    pytest.importorskip("ray")
    from clients.ray_grid import ray_grid

    program = on_gpu(gpus_per_client=0.25)
    with ray_grid(program, small_data, 2) as grid:
        state = run(program, initial_state(program), tiny.Silent(), grid)
    assert state.server_round == 3
    assert state.theta.isfinite().all()
