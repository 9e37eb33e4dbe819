"""One client and two whole rounds of a linear softmax model against ``reference_client.py``."""

import numpy as np
import pytest
import reference_client as reference
import tiny
import torch

from fedpart.algorithm import run
from fedpart.client import ClientTask, client_update
from fedpart.cohort import draw_cohort
from fedpart.server import assign_chunks, initial_state
from fedpart.streams import numpy_rng, torch_rng

LR = 0.5


@pytest.fixture(scope="module", params=["init", "zero"])
def program(request):
    return tiny.program(
        side=2,
        model="tiny:linear",
        augmentation="none",
        dropout=0.3,
        defaults=request.param,
        samples=2,
        batch_size=3,
        local_epochs=2,
        client_lr=LR,
        server_lr=0.1,
        hyper_lr=0.05,
        adam_eps=1e-3,
        rounds=2,
        clients=5,
        clients_per_round=4,
        seed=3,
    )


def _uniform(rng, n, samples):
    return torch.empty(n * samples, 4).uniform_(generator=rng).reshape(n, samples, 4).numpy()


def _reference(program, server_round, client_id, chunk, theta, logit, x, y):
    """The NumPy client, fed with the random numbers of the streams that fedpart names."""
    config, key = program.config, (server_round, client_id)
    batches, noise = {}, {}
    for j in range(chunk, 3):
        shuffle = numpy_rng(config.seed, "order", *key, j)
        rng = torch_rng(config.seed, "train", *key, j)
        orders = [shuffle.permutation(len(y)) for _ in range(config.local_epochs)]
        batches[j] = [o[i : i + 3] for o in orders for i in range(0, len(y), 3)]
        noise[j] = [_uniform(rng, len(batch), 2).astype(float) for batch in batches[j]]
    hyper_noise = _uniform(torch_rng(config.seed, "hyper", *key), len(y), 2).astype(float)
    return reference.client(
        *(theta, program.default.double().numpy(), program.layout.ids.tolist(), logit, chunk),
        *(x.reshape(len(y), 4) / 255, y, LR, batches, noise, hyper_noise),
    )


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_client_update_equals_numpy(program, chunk):
    """Deltas of every partition, the gradient of psi and the loss, by formulas written by hand."""
    x, y = tiny.images(7, seed=5, side=2)
    rng = torch.Generator().manual_seed(1)
    theta = torch.empty(15).uniform_(-1, 1, generator=rng)
    logit = torch.tensor([-0.6])
    reply = client_update(program, ClientTask(4, 2, chunk, theta, logit), x, y)
    deltas, gradient, loss = _reference(
        program, 4, 2, chunk, theta.double().numpy(), float(logit), x, y
    )
    assert sorted(reply.deltas) == sorted(deltas) == list(range(chunk, 3))
    for j, delta in deltas.items():
        assert (delta > 0).any() or (delta < 0).any()
        np.testing.assert_allclose(reply.deltas[j].numpy(), delta, atol=2e-6)
    assert reply.train_loss == pytest.approx(loss, abs=1e-5)
    if chunk == 0:
        assert gradient is None
        assert reply.hyper_gradient is None
    else:
        assert reply.hyper_examples == 7
        np.testing.assert_allclose(reply.hyper_gradient.numpy(), [gradient], atol=2e-6)


def test_two_rounds_of_the_algorithm_equal_numpy(program):
    """Cohort, clients, per-partition Adam and the step of psi, twice over."""
    data = tiny.data(clients=5, seed=7, side=2)
    start = initial_state(program)
    state = run(program, data, start, tiny.Silent())
    chunks = assign_chunks(program.config)

    def cohort(server_round):
        def replies(theta, logit):
            answers = []
            for i in draw_cohort(program.config, server_round).clients:
                x, y = data.client(i)
                deltas, gradient, _ = _reference(
                    program, server_round, i, int(chunks[i]), theta, logit, x, y
                )
                answers.append((deltas, gradient, len(y)))
            return answers

        return replies

    theta, logit = reference.algorithm(
        *(start.theta.double().numpy(), program.default.double().numpy()),
        *(program.layout.ids.tolist(), float(start.hyper), [cohort(1), cohort(2)]),
        *(0.1, 0.05, 1e-3),
    )
    assert not np.allclose(start.theta.numpy(), theta, atol=1e-2)
    assert abs(float(start.hyper) - logit) > 1e-3
    np.testing.assert_allclose(state.theta.numpy(), theta, atol=2e-5)
    np.testing.assert_allclose(state.hyper.numpy(), [logit], atol=2e-5)
