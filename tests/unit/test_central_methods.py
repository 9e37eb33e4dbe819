"""Methods beside partitions: what each trains on, and what it holds fixed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import TensorDataset

from fedpart.augment import Symmetric, augerino_reward
from fedpart.central import Training, make_settings
from fedpart.central.chunks import draw_updates
from fedpart.central.images import draw_psi, extractor_as_psi
from fedpart.central.objective import out_of_sample
from fedpart.errors import ConfigError
from fedpart.gradients import psi_gradient
from fedpart.models import WideResNet
from fedpart.streams import numpy_rng, torch_rng


def images(n=60):
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (n,), generator=rng)
    inputs = torch.rand(n, 1, 6, 6, generator=rng)
    inputs[:, :, :, :3] += labels[:, None, None, None]
    return inputs, labels


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 2))


def training(method, data=None, augmentation=True, hyper=None, **values):
    given = {"chunks": (0.5, 0.5), "iterations": 12, "batch_size": 16, "lr": 0.01}
    settings = make_settings(method=method, **(given | {"hyper_lr": 0.05} | values))
    family = Symmetric(0.1) if augmentation else None
    return Training(network(), TensorDataset(*(data or images())), settings, family, hyper)


def changed(run, chunk):
    """The same images, but for those of one chunk, which have other pixels and labels."""
    inputs, labels = (part.clone() for part in images())
    at = run.chunks._order[np.array(run.chunks.positions(chunk))]
    inputs[at], labels[at] = 2 - inputs[at], 1 - labels[at]
    return inputs, labels


def without_psi_steps(run):
    """Psi is the one way by which other data reach the weights."""
    run.update_hyper = lambda state, *_, **__: state
    return run


def stock(model, run, updates, partition=0):
    """PyTorch's own Adam on a plain module, on the batches of one partition.

    Args:
        model: trained in place.
        run: gives settings and data.
        updates: iterations; those of fine-tuning begin with a fresh optimiser.
        partition: whose batches.
    """
    settings, optimiser = run.settings, torch.optim.Adam(model.parameters(), lr=run.settings.lr)
    for iteration in updates:
        if settings.finetune and iteration == settings.iterations:
            optimiser = torch.optim.Adam(model.parameters(), lr=settings.finetune_lr)
        rng = numpy_rng(settings.seed, "central", iteration, 0)
        batch = dict(draw_updates(rng, run.chunks, settings, iteration))[partition]
        x, y = run.chunks.take(batch)
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def assert_equal_models(state, model):
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=1e-6)


def test_none_is_stock_training_on_all_data():
    """Fifty iterations of Adam; batches come from the whole set."""
    run = training("none", augmentation=False, iterations=50)
    run.run()
    assert run.settings.chunks == (1.0,)
    assert run.chunks.seen_by(1) == 60
    assert_equal_models(run.trained()["model"], stock(network(), run, range(50)))


def test_a_validation_set_is_never_trained_on():
    """Other pixels and labels there: not a bit of the weights; psi held fixed, then fine-tuned."""
    run = without_psi_steps(training("validation", finetune=2))
    other = without_psi_steps(training("validation", changed(run, 1), finetune=2))
    for one in (run, other):
        one.run(12)
    assert torch.equal(run.state.theta, other.state.theta)
    assert not torch.equal(run.state.theta, run.program.initial)
    for one in (run, other):
        one.run()
    assert run.state.iteration == 14
    assert not torch.equal(run.state.theta, other.state.theta)


def test_a_validation_set_alone_moves_psi_through_the_whole_network():
    run = training("validation")
    training_changed = training("validation", changed(run, 0))
    validation_changed = training("validation", changed(run, 1))
    for one in (run, training_changed, validation_changed):
        # One network for all three, so that psi differs by the data that score it alone.
        one.update_weights = lambda state, *_, **__: state
        one.run()
    assert torch.equal(run.state.hyper, training_changed.state.hyper)
    assert not torch.equal(run.state.hyper, validation_changed.state.hyper)
    x, y = images()
    before = replace(run.state, theta=run.state.theta + 0.1)
    moved = [
        run.update_hyper(state, 1, x, y, rng=torch.Generator().manual_seed(1)).hyper
        for state in (run.state, before)
    ]
    assert not torch.equal(*moved)


def test_validation_trains_all_weights_as_stock_training_does_and_fine_tunes_on_all():
    """Without augmentation: Adam on half of the data, then a fresh one with its own rate on all."""
    run = training("validation", augmentation=False, iterations=30, finetune=10, finetune_lr=1e-3)
    run.run()
    assert run.state.iteration == 40
    assert run.state.steps == (10,)
    assert_equal_models(run.trained()["model"], stock(network(), run, range(40)))


def test_fine_tuning_holds_psi_fixed_and_resumes_as_without_a_break(tmp_path):
    whole, part = training("validation", finetune=4), training("validation", finetune=4)
    whole.run()
    part.run(13)
    learned = part.state.hyper
    part.save(tmp_path / "a.pt")
    again = training("validation", finetune=4)
    again.resume(tmp_path / "a.pt")
    again.run()
    assert torch.equal(again.state.theta, whole.state.theta)
    assert torch.equal(again.state.hyper, learned)
    assert again.state.hyper_steps == 12


def test_l_ml_of_a_validation_set_is_its_likelihood_by_the_whole_network():
    run = training("validation", augmentation=False)
    run.run()
    x, y = run.chunks.take(np.array(run.chunks.positions(1)))
    predicted = F.log_softmax(functional_call(network(), run.trained()["model"], x), -1)
    expected = float(predicted[torch.arange(len(y)), y].mean())
    assert out_of_sample(run) == pytest.approx([expected], rel=1e-5)


def test_retraining_holds_psi_fixed_and_uses_it():
    """A plain network on all data, augmented by another training's psi to the bit."""
    found = training("partitioned")
    found.run()
    run = training("retrain", hyper=found.state.hyper)
    run.run()
    assert torch.equal(run.state.hyper, found.state.hyper)
    assert run.state.hyper_steps == 0
    assert run.state.steps == (12,)
    other = training("retrain", hyper=found.state.hyper + 0.2)
    other.run()
    assert not torch.equal(run.state.theta, other.state.theta)
    with pytest.raises(ConfigError, match="psi has 3 values, but model and augmentation have 6"):
        training("retrain", hyper=torch.zeros(3))


def test_networks_share_nothing_and_each_is_stock_training_on_its_chunks():
    """Three networks, 30 iterations: each as PyTorch trains it on the chunks up to its own."""
    run = training("networks", augmentation=False, chunks=(0.5, 0.25, 0.25), iterations=30)
    run.run()
    assert run.state.steps == (30, 30, 30)
    sizes = [len(run.chunks.positions(c)) for c in range(3)]
    assert sizes == [30, 15, 15]
    for j in range(3):
        found = run.program.layout.merge(run.program.layout.leaves(run.weights(j + 1)))
        assert_equal_models(found, stock(network(), run, range(30), partition=j))
    # What is kept is the last, which has seen all.
    assert_equal_models(run.trained()["model"], stock(network(), run, range(30), partition=2))


@pytest.mark.parametrize("last", [0, 1])
def test_psi_is_scored_by_the_network_before_a_chunk(last):
    """Chunk c by the one trained on the chunks < c; later ones may be anything."""
    run = training("networks", chunks=(0.5, 0.25, 0.25))
    run.run(3)
    x, y = images(16)
    theta = torch.where(run.program.layout.ids <= last, run.state.theta, 7.0)
    moved = [
        run.update_hyper(state, last + 1, x, y, rng=torch.Generator().manual_seed(1)).hyper
        for state in (run.state, replace(run.state, theta=theta))
    ]
    assert torch.equal(*moved)
    assert not torch.equal(moved[0], run.state.hyper)


def test_networks_have_no_weight_decay():
    with pytest.raises(ConfigError, match="method networks has none"):
        make_settings(method="networks", weight_decay=0.1)


def test_augerino_trains_psi_on_training_data_less_its_reward():
    """One Adam step by hand, from the gradient through the whole network and that of the reward."""
    run = training("augerino", augerino_weight=0.3)
    assert run.settings.num_partitions == 1
    x, y = images(16)
    hyper = run.state.hyper
    after = run.update_hyper(run.state, 0, x, y, rng=torch_rng(0, "test", 1)).hyper
    leaves = run.program.leaves(run.state.theta)
    gradient, _ = psi_gradient(run.program, leaves, hyper, x, y, torch_rng(0, "test", 1))
    widths = hyper.clone().requires_grad_()
    natural = widths * torch.tensor([np.pi, 1, 1, 1, 1, 1], dtype=torch.float32)
    (reward,) = torch.autograd.grad(augerino_reward(natural, safe=True), widths)
    # Adam's first step is the rate times the sign.
    expected = hyper - 0.05 * (gradient - 0.3 * reward).sign()
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5)


def test_augerinos_reward_widens_what_it_is_paid_for():
    run = training("augerino", augerino_weight=100.0)
    run.run()
    assert (run.state.hyper > 0.1).all()


def test_shares_of_weights_may_differ_from_those_of_data():
    run = training("partitioned", weights=(0.25, 0.75))
    assert run.program.layout.sizes[1] / run.program.layout.num_parameters == pytest.approx(
        0.75, abs=0.01
    )
    assert run.chunks.bounds == [0, 30, 60]
    drawn = [
        draw_updates(numpy_rng(i, "test"), run.chunks, run.settings, 0)[0][0] for i in range(2000)
    ]
    # Partitions are drawn by the data.
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.04)
    with pytest.raises(ConfigError, match="weights has 3 shares and chunks 2"):
        make_settings(chunks=(0.5, 0.5), weights=(0.5, 0.25, 0.25))


def test_psi_at_random_is_seeded_and_of_the_papers_ranges():
    """Rotation up to U(0, 180 degrees), the others U(0, 1/2); a draw is the same among any."""
    drawn = torch.stack([draw_psi(0, trial) for trial in range(2000)])
    assert torch.equal(draw_psi(0, 7), drawn[7])
    assert not torch.equal(draw_psi(1, 7), drawn[7])
    assert drawn.min() >= 0
    assert drawn.max(0).values.tolist() == pytest.approx([1, *[0.5] * 5], abs=0.01)
    assert drawn.mean(0).tolist() == pytest.approx([0.5, *[0.25] * 5], abs=0.02)


def test_a_feature_extractor_is_psi_and_no_partition_owns_it():
    """First convolution and two stages of three; the rest is trained; it computes as before."""
    torch.manual_seed(0)
    model = WideResNet(8, 1, 3)
    x, y = torch.rand(12, 3, 8, 8), torch.arange(12) % 3
    before, names = model(x).detach(), {n for n, _ in model.named_parameters()}
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    extractor_as_psi(model, "wide-resnet8")
    torch.testing.assert_close(model(x).detach(), before)
    left = {name for name, _ in model.named_parameters()}
    assert {n for n in names if n.startswith(("stages.2", "norm", "out"))} == left
    settings = make_settings(chunks=(0.5, 0.5), iterations=4, batch_size=4)
    run = Training(model, TensorDataset(x, y), settings)
    assert run.psi.size == sum(plain[name].numel() for name in names - left)
    run.run()
    assert set(run.trained()["model"]) == set(plain)
    moved = {n for n, v in run.trained()["model"].items() if not torch.equal(v, plain[n])}
    assert names - left <= moved | {"stages.0.0.norm1.bias"}
    # People read one number for each tensor; large ones stand in model.pt alone.
    assert run.hyper["conv1.weight"] == pytest.approx(float(plain["conv1.weight"].std()), rel=0.2)
    assert "conv1.weight" not in run.psi.raw(run.state.hyper)
    with pytest.raises(ConfigError, match="use wide-resnet20"):
        extractor_as_psi(network(), "mlp")


@pytest.mark.cuda
@pytest.mark.parametrize("method", ["partitioned", "networks", "validation", "augerino"])
def test_methods_train_on_a_gpu_and_what_is_kept_is_the_processors(method, tmp_path):
    run = training(method, device="cuda", samples=2)
    run.run()
    assert run.state.theta.is_cuda
    assert run.hyper
    assert not any(value.is_cuda for value in run.trained()["model"].values())
    assert all(np.isfinite(out_of_sample(run)))
    run.save(tmp_path / "a.pt")
    again = training(method, device="cuda", samples=2)
    again.resume(tmp_path / "a.pt")
    assert torch.equal(again.state.theta, run.state.theta)


def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device is 'cuda', but torch finds no GPU"):
        training("none", device="cuda")
