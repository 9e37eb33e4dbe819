"""``precision = "bf16"``: what is rounded, what is not, and how far results move."""

import pytest
import tiny
import torch

from fedpart.algorithm import run
from fedpart.client import ClientTask, client_update
from fedpart.evaluation import evaluate
from fedpart.server import initial_state


def test_only_matrices_and_kernels_are_rounded():
    """Vectors and affine copies, which are multiplied with each other, stay float32."""
    program = tiny.program(model="tiny:norm_cnn", precision="bf16")
    types = {name: leaf.dtype for name, leaf in program.leaves(program.initial).items()}
    half = {name for name, dtype in types.items() if dtype == torch.bfloat16}
    assert half == {"0.weight", "4.weight"}
    assert set(types.values()) == {torch.bfloat16, torch.float32}


@pytest.mark.parametrize("model", ["tiny:small_cnn", "tiny:norm_cnn", "tiny:twins", "mnist-cnn"])
def test_deltas_and_the_gradient_of_psi_are_near_those_of_float32(model):
    """bfloat16 keeps eight bits."""
    side = 28 if model == "mnist-cnn" else tiny.SIDE
    replies = []
    for precision in ("fp32", "bf16"):
        program = tiny.program(model=model, precision=precision, side=side)
        state = initial_state(program)
        task = ClientTask(1, 0, 1, state.theta, state.hyper)
        replies.append(client_update(program, task, *tiny.images(20, side=side)))
    full, half = replies
    assert all(delta.dtype == torch.float32 for delta in half.deltas.values())
    pairs = [(full.deltas[j], half.deltas[j], 0.1) for j in full.deltas]
    # Small differences of large sums over pixels: rounding weighs more here.
    pairs.append((full.hyper_gradient, half.hyper_gradient, 0.25))
    for a, b, far in pairs:
        assert not torch.equal(a, b)
        assert (a - b).norm() < far * a.norm()
    assert half.train_loss == pytest.approx(full.train_loss, rel=0.02)
    assert half.log_likelihood == pytest.approx(full.log_likelihood, rel=0.02)


def test_the_server_keeps_float32_and_runs_are_repeatable():
    """Weights, moments and psi; the same seed gives the same bits."""
    program = tiny.program(precision="bf16", rounds=3)
    a, b = (run(program, tiny.data(), initial_state(program), tiny.Silent()) for _ in range(2))
    for name in ("theta", "m", "v", "hyper"):
        first, second = getattr(a, name), getattr(b, name)
        assert first.dtype == torch.float32
        assert torch.equal(first, second)


def test_evaluation_is_near_that_of_float32():
    """Mean loss within two per cent."""
    x, y = tiny.images(200)
    losses = []
    for precision in ("fp32", "bf16"):
        program = tiny.program(precision=precision)
        state = initial_state(program)
        losses.append(evaluate(program, state.theta, state.hyper, x, y, 1).loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]
