"""Partitioned training in one place: what a step touches, and what it never sees."""

# L1, L4 are the numbers of acceptance tests.

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import TensorDataset

from fedpart.augment import Symmetric
from fedpart.central import ConcreteMask, Training, l_ml, make_settings, score_tensors
from fedpart.central.chunks import draw_weights_batch
from fedpart.central.objective import out_of_sample
from fedpart.central.optimisers import learning_rate
from fedpart.errors import ConfigError, OutputError
from fedpart.streams import numpy_rng

SHARES = (0.5, 0.25, 0.25)


def examples(n=80, seed=0):
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (n,), generator=rng)
    inputs = torch.randn(n, 4, generator=rng)
    inputs[:, :2] += labels[:, None]
    return inputs, labels


def network(mask=True):
    torch.manual_seed(3)
    layers = [nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 2)]
    return nn.Sequential(*([ConcreteMask(4, 0.5)] if mask else []), *layers)


def training(data=None, model=None, **values):
    given = {"chunks": SHARES, "iterations": 12, "batch_size": 16, "lr": 0.01, "hyper_lr": 0.05}
    model = network() if model is None else model
    return Training(model, TensorDataset(*(data or examples())), make_settings(**(given | values)))


def partitions(run):
    return [run.program.layout.take(run.state.theta, j) for j in range(3)]


@pytest.mark.parametrize("last", [0, 1])
def test_L1_later_chunks_never_reach_earlier_partitions(last):
    """Other inputs and labels in the chunks > last, psi held fixed: not a bit of w_0..w_last."""
    data = examples()
    first = training(data, weight_decay=0.01)
    at = np.array([i for c in range(last + 1, 3) for i in first.chunks.positions(c)])
    changed = first.chunks._order[at]
    inputs, labels = data[0].clone(), data[1].clone()
    inputs[changed], labels[changed] = 5 - 2 * inputs[changed], 1 - labels[changed]
    other = training((inputs, labels), weight_decay=0.01)
    for run in (first, other):
        # Psi is the one way by which all data reach all weights.
        run.update_hyper = lambda state, *_, **__: state
        run.run()
    for j, (a, b) in enumerate(zip(partitions(first), partitions(other), strict=True)):
        assert torch.equal(a, b) == (j <= last)
        assert not torch.equal(a, first.program.layout.take(first.program.initial, j))


def test_L4_equals_stock_optimisers_on_separate_tensors():
    """Fifty iterations of the whole schedule against PyTorch's Adam on each partition's tensor.

    The reference builds each subnetwork by hand and lets autograd find the gradient of one tensor;
    the decay of partition j is 0.02 N / |D_0..j|.
    """
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    run = training(
        model=model, iterations=50, weight_decay=0.02, schedule="cosine", defaults="zero"
    )
    layout, settings = run.program.layout, run.settings
    parts = [nn.Parameter(layout.take(run.program.initial, j).clone()) for j in range(3)]
    decays = [0.02 * 80 / n for n in (40, 60, 80)]
    stock = [
        torch.optim.Adam([part], weight_decay=decay)
        for part, decay in zip(parts, decays, strict=True)
    ]
    for iteration in range(50):
        j, batch = draw_weights_batch(
            numpy_rng(0, "central", iteration, 0), run.chunks, SHARES, settings.batch_size
        )
        x, y = run.chunks.take(batch)
        flat = torch.zeros(layout.num_parameters)
        for i in range(j + 1):
            values = parts[i] if i == j else parts[i].detach()
            flat = flat.index_put((layout.index(i),), values)
        loss = F.cross_entropy(functional_call(model, layout.merge(layout.leaves(flat)), x), y)
        stock[j].zero_grad()
        loss.backward()
        stock[j].param_groups[0]["lr"] = learning_rate(settings, iteration)
        stock[j].step()
        run.step()
    assert sum(run.state.steps) == 50
    for ours, theirs in zip(partitions(run), parts, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-6)


def test_an_update_of_weights_moves_one_partition_and_nothing_else():
    run = training()
    before = run.state
    x, y = examples(16)
    after = run.update_weights(before, 1, x, y, rng=torch.Generator())
    moved = (after.theta != before.theta).nonzero().flatten()
    assert set(run.program.layout.ids[moved].tolist()) == {1}
    assert after.steps == (0, 1, 0)
    for j in (0, 2):
        assert all(torch.equal(m, torch.zeros_like(m)) for m in after.moments[j])
    assert torch.equal(after.hyper, before.hyper)


def test_an_update_of_psi_moves_no_weight_and_needs_no_later_partition():
    """Psi scored on chunk 1 goes through subnetwork 1: partitions 1 and 2 may be anything."""
    run = training()
    before = run.state
    x, y = examples(16)
    after = run.update_hyper(before, 1, x, y, rng=torch.Generator().manual_seed(1))
    assert torch.equal(after.theta, before.theta)
    assert (after.hyper != before.hyper).all()
    theta = torch.where(run.program.layout.ids < 1, before.theta, torch.tensor(7.0))
    other = run.update_hyper(
        replace(before, theta=theta), 1, x, y, rng=torch.Generator().manual_seed(1)
    )
    assert torch.equal(after.hyper, other.hyper)


def test_interrupted_and_resumed_is_as_without_a_break(tmp_path):
    """Save after five iterations, go on in a new object: every value, moment and counter."""
    whole, part = training(), training()
    whole.run()
    part.run(5)
    part.save(tmp_path / "half.pt")
    again = training()
    again.resume(tmp_path / "half.pt")
    again.run()
    assert again.state.iteration == whole.state.iteration == 12
    for name, ours in vars(whole.state).items():
        theirs = getattr(again.state, name)
        if name == "moments":
            assert all(
                torch.equal(a, b)
                for x, y in zip(ours, theirs, strict=True)
                for a, b in zip(x, y, strict=True)
            )
        elif isinstance(ours, torch.Tensor):
            assert torch.equal(ours, theirs)
        elif name != "hyper_moments":
            assert ours == theirs


def test_an_iteration_that_fails_half_way_leaves_no_trace():
    run = training()
    run.run(2)
    before = run.state
    run.update_hyper = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run.step()
    assert run.state is before


def test_other_settings_or_another_model_are_refused(tmp_path):
    run = training()
    run.save(tmp_path / "a.pt")
    with pytest.raises(ConfigError, match=r"lr was 0\.01 and is 0\.02 now"):
        training(lr=0.02).resume(tmp_path / "a.pt")
    with pytest.raises(ConfigError, match="theta has"):
        training(model=nn.Linear(4, 2)).resume(tmp_path / "a.pt")
    with pytest.raises(OutputError, match="cannot read checkpoint"):
        run.resume(tmp_path / "none.pt")


def test_the_users_model_and_torchs_generator_stay_as_they_are():
    model = network()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    run = training(model=model)
    state = torch.random.get_rng_state()
    run.run()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert isinstance(model[4], nn.Dropout)
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


def test_psi_is_what_layers_declare():
    """Four logits of the mask and one of the dropout, in the network's order, in plain numbers."""
    run = training()
    assert run.psi.size == 5
    assert list(run.hyper) == [*(f"0.logit_{i}" for i in range(1, 5)), "4.logit"]
    assert list(run.hyper.values()) == pytest.approx([0.5] * 4 + [0.2])
    _, tensors = run.psi.split(run.state.hyper)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        "0.logit": (4,),
        "4.logit": (),
    }


def test_widths_of_augmentation_come_first():
    images = torch.rand(40, 1, 6, 6), torch.randint(0, 2, (40,))
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(36, 2))
    settings = make_settings(chunks=SHARES, iterations=3, batch_size=8, samples=2)
    run = Training(model, TensorDataset(*images), settings, augmentation=Symmetric(0.1, "raw"))
    before = run.state.hyper
    run.run()
    assert (run.state.hyper != before).all()
    assert next(iter(run.hyper)) == "rotation_degrees"
    assert len(run.hyper) == 7


def test_one_chunk_is_plain_training_without_psi():
    run = training(chunks=(1.0,))
    assert not run.learns_hyper
    start = run.state.hyper
    run.run()
    assert torch.equal(run.state.hyper, start)
    assert run.state.steps == (12,)


def test_l_ml_is_the_mean_over_all_examples_but_those_of_chunk_0():
    """By hand: 30 examples of chunk 1 and 10 of chunk 2, by subnetworks 1 and 2."""
    torch.manual_seed(0)
    run = training(model=nn.Linear(4, 2), chunks=(0.5, 0.375, 0.125))
    run.run()
    expected = []
    for c in (1, 2):
        parameters = run.program.layout.merge(run.program.leaves(run.weights(c)))
        x, y = run.chunks.take(np.array(run.chunks.positions(c)))
        predicted = F.log_softmax(functional_call(run.program.network, parameters, x), -1)
        expected.append(float(predicted[torch.arange(len(y)), y].mean()))
    assert out_of_sample(run) == pytest.approx(expected, rel=1e-6)
    assert l_ml(run) == pytest.approx((30 * expected[0] + 10 * expected[1]) / 40, rel=1e-6)
    assert abs(expected[0] - expected[1]) > 1e-3


def test_scores_are_those_of_the_full_network():
    torch.manual_seed(0)
    run = training(model=nn.Linear(4, 2))
    run.run()
    x, y = examples(30, seed=9)
    model = nn.Linear(4, 2)
    model.load_state_dict(run.trained()["model"])
    logits = model(x).detach()
    score = score_tensors(run, 3, x, y)
    assert score.accuracy == pytest.approx(float((logits.argmax(1) == y).float().mean()))
    assert score.log_likelihood == pytest.approx(-float(F.cross_entropy(logits, y)), rel=1e-5)


def test_callbacks_see_every_iteration_and_may_end_it():
    seen = []

    def stop(run):
        seen.append(run.state.iteration)
        if run.state.iteration == 4:
            raise StopIteration

    run = training()
    run.run(callbacks=[stop])
    assert seen == [1, 2, 3, 4]
    run.run(2)
    assert run.state.iteration == 6


def test_running_statistics_are_refused():
    with pytest.raises(ConfigError, match="BatchNorm1d"):
        training(model=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
