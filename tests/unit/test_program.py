"""What client and server derive from the settings, and the model's likelihood."""

import math
from dataclasses import replace

import pytest
import tiny
import torch

from fedpart.curves import check_columns
from fedpart.data import to_float
from fedpart.errors import ConfigError
from fedpart.likelihood import full_state, log_likelihood
from fedpart.models import OwnHyper
from fedpart.program import build_program


def _rng(seed=0):
    return torch.Generator().manual_seed(seed)


def _parameters(program):
    return program.layout.merge(program.layout.leaves(program.initial))


def _batch(n=5):
    x, y = tiny.images(n)
    return to_float(x), torch.from_numpy(y)


def test_layers_that_share_a_weight_have_it_under_both_names():
    """What a user loads into a network of their own must not depend on which name comes last."""
    program = tiny.program(model="tiny:Tied")
    whole = full_state(program, program.initial + 1, program.hyper.initial())["model"]
    own = tiny.Tied(tiny.CLASSES, 1)
    own.load_state_dict(whole)
    trained = program.layout.merge(program.layout.leaves(program.initial + 1))
    assert torch.equal(own.first.weight, trained["first.weight"])
    assert torch.equal(own.second.weight, trained["first.weight"])


def test_a_program_follows_from_the_settings_alone():
    """Weights, partitions and defaults are equal wherever it is built; torch.rand is untouched."""
    torch.manual_seed(1)
    one = tiny.program()
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(2)
    other, third = tiny.program(), tiny.program(seed=1)
    assert torch.equal(one.initial, other.initial)
    assert torch.equal(one.layout.ids, other.layout.ids)
    assert torch.equal(one.default, other.default)
    assert not torch.equal(one.initial, third.initial)
    assert not torch.equal(one.layout.ids, third.layout.ids)


def test_defaults_are_initial_values_or_zero():
    """As the setting says."""
    program = tiny.program()
    assert torch.equal(program.default, program.initial)
    assert not tiny.program(defaults="zero").default.any()


def test_psi_of_the_mnist_cnn():
    """Six affine widths and four dropout rates, by readable names."""
    program = build_program(tiny.config(model="mnist-cnn"), 10, 1)
    assert program.layout.num_parameters == 1_276_630
    assert program.hyper.size == 10
    readable = program.hyper.readable(program.hyper.initial())
    assert readable["rotation_degrees"] == pytest.approx(18)
    assert [readable[f"dropout_{i}"] for i in (1, 2, 3, 4)] == pytest.approx([0.1] * 4)
    raw = program.hyper.raw(program.hyper.initial())
    assert {name: len(values) for name, values in raw.items()} == {
        "augmentation": 6,
        "dropout_logits": 4,
    }


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("round", "named 'round', as a column"),
        ("seeds", "named 'seeds', as a column"),
        ("upload_MB_chunk_0", "named 'upload_MB_chunk_0', as a column"),
        ("shear", "two hyperparameters are named 'shear'"),
    ],
)
def test_a_hyperparameter_of_a_layer_needs_a_name_of_its_own(name, sentence):
    """Or it would be lost under that of another, in records and in curves.csv."""

    def check(name, count):
        own = (OwnHyper(name, torch.zeros(count), torch.exp),)
        hyper = replace(tiny.program().hyper, own=own)
        check_columns(hyper.names())

    check("other", 2)
    with pytest.raises(ConfigError, match=sentence):
        check(name, 1)


def test_fedavg_learns_no_psi_and_keeps_its_dropout():
    """H = 0, one partition, and the relaxed mask fixed at the rate of the settings."""
    program = tiny.program(method="fedavg", dropout=0.2)
    assert program.hyper.size == 0
    assert program.layout.num_partitions == 1
    assert program.hyper.initial().shape == (0,)
    assert program.hyper.raw(torch.zeros(0)) == program.hyper.readable(torch.zeros(0)) == {}
    assert float(program.network[2].logit.sigmoid()) == pytest.approx(0.2)
    x, y = _batch()
    one, two = (
        log_likelihood(program, _parameters(program), torch.zeros(0), x, y, _rng(s))[0]
        for s in (0, 1)
    )
    assert not torch.equal(one, two)


def test_full_state_is_the_plain_networks_state_dict():
    """With GroupNorm: copies are merged, and the untouched architecture loads it."""
    program = tiny.program(model="tiny:norm_cnn")
    theta = torch.randn(program.layout.num_parameters, generator=_rng())
    saved = full_state(program, theta, program.hyper.initial())
    network = tiny.norm_cnn(3, 1)
    network.load_state_dict(saved["model"])
    copies = program.layout.leaves(theta)
    torch.testing.assert_close(network[1].weight.detach(), copies["1.weight"].prod(0))
    torch.testing.assert_close(network[1].bias.detach(), copies["1.bias"].sum(0))
    assert torch.equal(saved["hyper"], program.hyper.initial())


@pytest.mark.parametrize("average", ["logits", "probs"])
def test_average_over_copies(average):
    """Softmax of the mean logits, or log of the mean softmax, of the copies one by one."""
    program = tiny.program(average=average, samples=3, dropout=0.0, width_start=0.3)
    x, y = _batch()
    hyper = program.hyper.initial()
    likelihood, predicted = log_likelihood(
        program, _parameters(program), hyper, x, y, _rng(), False
    )
    single = tiny.program(samples=1, dropout=0.0, width_start=0.3)
    copies = x.repeat_interleave(3, 0)
    _, logs = log_likelihood(
        single, _parameters(single), hyper, copies, y.repeat_interleave(3), _rng(), False
    )
    logs = logs.view(5, 3, 3)
    expected = {"logits": logs.mean(1).log_softmax(-1), "probs": logs.exp().mean(1).log()}[average]
    assert (logs.std(1) > 1e-4).any()
    torch.testing.assert_close(predicted, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(likelihood, expected[torch.arange(5), y], atol=1e-5, rtol=1e-4)
    assert predicted.exp().sum(1).tolist() == pytest.approx([1] * 5)


def test_probs_average_does_not_overflow_for_confident_networks():
    """Logits of thousands still give finite log-likelihoods."""
    program = tiny.program(average="probs", augmentation="none", dropout=0.0)
    parameters = {n: p * 1e4 for n, p in _parameters(program).items()}
    likelihood, _ = log_likelihood(program, parameters, torch.zeros(0), *_batch(), _rng())
    assert torch.isfinite(likelihood).all()
    assert likelihood.min() < -math.log(3)


def test_gradient_check_of_the_likelihood_in_the_weights():
    """Through merge, network and mean of copies: analytic equals numeric, float64."""
    program = tiny.program(side=2, model="tiny:linear", samples=2)
    x = torch.rand(3, 1, 2, 2, dtype=torch.float64, generator=_rng())
    y, hyper = torch.tensor([2, 0, 1]), program.hyper.initial().double()

    def loss(flat):
        parameters = program.layout.merge(program.layout.leaves(flat))
        return log_likelihood(program, parameters, hyper, x, y, _rng(1))[0]

    assert torch.autograd.gradcheck(loss, (program.initial.double().requires_grad_(),))


def test_training_noise_differs_for_copies_and_evaluation_has_none():
    """Dropout masks are drawn anew for every copy; in evaluation the likelihood is exact."""
    program = tiny.program(augmentation="none", dropout=0.5, samples=2)
    x, y = _batch()
    hyper = program.hyper.initial()
    train = [log_likelihood(program, _parameters(program), hyper, x, y, _rng(s))[0] for s in (0, 1)]
    test = [
        log_likelihood(program, _parameters(program), hyper, x, y, _rng(s), training=False)[0]
        for s in (0, 1)
    ]
    assert not torch.equal(*train)
    assert torch.equal(*test)


@pytest.mark.parametrize(
    ("samples", "images", "sizes"),
    [
        (2, 128, [128]),
        (2, 129, [65, 64]),
        (10, 26, [13, 13]),
        (10, 64, [22, 22, 20]),
        (1000, 2, [1, 1]),
    ],
)
def test_micro_batches_are_equal_parts_of_at_most_256_copies(samples, images, sizes):
    """As few as that allows, at least one image each, and their size follows from the batch."""
    x, y = torch.zeros(images, 1), torch.arange(images)
    parts = list(tiny.program(samples=samples).micro_batches(x, y))
    assert [len(a) for a, _ in parts] == sizes
    assert torch.equal(torch.cat([b for _, b in parts]), y)


@pytest.mark.parametrize(("dropout", "told"), [(0.1, 0), (0.25, 1), (0.0, 1)])
def test_a_rate_that_takes_the_place_of_the_models_own_is_a_warning(dropout, told):
    """The layer is written with 0.1."""
    warnings = tiny.program(dropout=dropout).warnings
    assert len(warnings) == told
    assert all(f"dropout {dropout:g} takes the place of the rates" in text for text in warnings)
    assert all("have (0.1)" in text for text in warnings)
    # Those of the package are written for it; and one without dropout has no rate.
    assert not tiny.program(model="mnist-cnn", side=28, dropout=dropout).warnings
    assert not tiny.program(model="tiny:norm_cnn", dropout=dropout).warnings
