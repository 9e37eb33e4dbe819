"""The CNN for digits, concrete dropout, and the user's own modules."""

# L1 to L9 are the numbers of acceptance tests.

import math

import pytest
import tiny
import torch
from torch import nn
from torch.func import functional_call

from fedpart.errors import ConfigError
from fedpart.models import (
    ConcreteDropout,
    MnistCNN,
    OwnHyper,
    build_model,
    check_module,
    noise,
    swap_dropout,
)
from fedpart.program import build_program


def _rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_mnist_cnn_has_the_papers_number_of_parameters():
    """520 + 25,050 + 1,225,500 + 25,050 + 510 = 1,276,630, and ten logits an image."""
    network = MnistCNN()
    assert sum(p.numel() for p in network.parameters()) == 1_276_630
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_L8_mean_scale_of_concrete_dropout():
    """At rate 0.1 and temperature 0.1 activations are scaled by 0.9985 +- 0.002 on average."""
    dropout = ConcreteDropout(0.1)
    with noise(dropout, _rng()):
        scaled = dropout(torch.ones(1000, 1000))
    assert float(scaled.double().mean()) == pytest.approx(0.9985, abs=0.002)
    assert 0.09 < float((scaled < 0.5).double().mean()) < 0.11


@pytest.mark.parametrize("channelwise", [False, True])
def test_L8_gradient_check_of_concrete_dropout(channelwise):
    """Analytic equals numeric gradient in the logit and in the input, float64."""
    dropout = ConcreteDropout(0.1, channelwise)
    x = torch.randn(3, 4, 2, 2, dtype=torch.float64, generator=_rng(1)).requires_grad_()
    logit = torch.tensor(-0.4, dtype=torch.float64, requires_grad=True)

    def scaled(logit, x):
        with noise(dropout, _rng(2)):
            return functional_call(dropout, {"logit": logit}, (x,))

    assert torch.autograd.gradcheck(scaled, (logit, x))


def test_concrete_dropout_is_the_identity_in_evaluation():
    """The very same tensor comes out."""
    x = torch.randn(2, 3, generator=_rng())
    assert ConcreteDropout(0.5).eval()(x) is x


def test_channelwise_dropout_scales_whole_channels():
    """One factor for each image and channel, and not all the same."""
    dropout = ConcreteDropout(0.5, channelwise=True)
    with noise(dropout, _rng()):
        scaled = dropout(torch.ones(8, 16, 5, 5))
    assert torch.equal(scaled, scaled[..., :1, :1].expand_as(scaled))
    assert scaled.unique().numel() > 10


def test_dropout_draws_from_the_generator_it_is_lent():
    """Same generator, same mask; afterwards it is taken away again, even after an error."""
    dropout, x = ConcreteDropout(0.3), torch.ones(50)
    with noise(dropout, _rng(4)):
        first = dropout(x)
    with noise(dropout, _rng(4)):
        assert torch.equal(dropout(x), first)
    with pytest.raises(TypeError), noise(dropout, _rng(4)):
        dropout()
    assert dropout.generator is None


def test_swap_replaces_dropout_and_keeps_the_rest():
    """Rates become logits; rate 0 becomes the identity; rate 1 and alpha dropout stay."""
    alpha = nn.AlphaDropout(0.2)
    module = nn.Sequential(
        *(nn.Dropout(0.2), nn.Linear(2, 2), nn.Dropout2d(0.4), nn.Dropout(0.0)),
        *(nn.Sequential(nn.Dropout1d(0.5)), nn.Dropout(1.0), alpha),
    )
    assert swap_dropout(module, None) == ["0.logit", "2.logit", "4.0.logit"]
    assert [module[0].channelwise, module[2].channelwise, module[4][0].channelwise] == [
        False,
        True,
        True,
    ]
    for part, rate in ((module[0], 0.2), (module[2], 0.4), (module[4][0], 0.5)):
        assert float(part.logit.sigmoid()) == pytest.approx(rate)
    assert isinstance(module[3], nn.Identity)
    assert isinstance(module[5], nn.Dropout)
    assert module[6] is alpha


def test_swap_with_one_rate_for_all():
    """``--dropout`` overrides what the layers were built with; logits are no parameters."""
    network = MnistCNN()
    assert swap_dropout(network, 0.25) == [f"dropouts.{i}.logit" for i in range(4)]
    assert float(network.dropouts[2].logit) == pytest.approx(math.log(0.25 / 0.75))
    assert sum(p.numel() for p in network.parameters()) == 1_276_630
    assert not any("logit" in name for name in network.state_dict())


def test_swap_with_rate_zero_takes_dropout_out():
    """``--dropout 0``: nothing to learn and nothing to draw."""
    network = MnistCNN()
    assert swap_dropout(network, 0.0) == []
    assert all(isinstance(d, nn.Identity) for d in network.dropouts)


def test_running_statistics_are_refused():
    """BatchNorm, and InstanceNorm where it tracks; the layer is named."""
    with pytest.raises(ConfigError, match=r"layer 1 \(BatchNorm2d\) keeps running statistics"):
        build_model("tiny:batch_norm", 3, 1)
    with pytest.raises(ConfigError, match="use GroupNorm or LayerNorm"):
        check_module(nn.InstanceNorm2d(3, track_running_stats=True))
    check_module(nn.Sequential(nn.InstanceNorm2d(3), nn.GroupNorm(1, 3)))


def test_a_users_model_is_found():
    """``module:function`` is called with the data's classes and channels."""
    model = build_model("tiny:small_cnn", 7, 3)
    assert model(torch.zeros(2, 3, 12, 12)).shape == (2, 7)


def test_a_users_model_in_the_working_directory_is_found(tmp_path, monkeypatch):
    """What stands beside the user is importable without installing it."""
    text = "from torch import nn\n\n\ndef net(num_classes, in_channels):\n    return nn.Flatten()\n"
    (tmp_path / "my_own_net.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert isinstance(build_model("my_own_net:net", 3, 1), nn.Flatten)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet", "model is 'resnet'; it must be one of mnist-cnn, .* did you mean 'resnet9'"),
        ("no_such_module_here:net", "there is no module 'no_such_module_here' in"),
        ("os.path.deeper:net", "there is no module 'os.path.deeper'"),
        ("tiny:no_such_function", "AttributeError: module 'tiny' has no attribute '[a-z_]+'$"),
        ("tiny:exits", r"SystemExit: enough \(tiny.py, line \d+, in exits\)"),
        ("tiny:raises", "RuntimeError: no weights on this planet"),
        ("tiny:no_module", "returned str, not a torch.nn.Module"),
    ],
)
def test_a_users_model_that_cannot_be_built_is_an_error_of_one_sentence(spec, message):
    """The model and what went wrong are named."""
    with pytest.raises(ConfigError, match=message) as caught:
        build_model(spec, 3, 1)
    assert spec in str(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tiny:wrong_shape", r"gives \(2, 4\), not a tensor of shape \(2, 3\)"),
        ("tiny:leaves", "with model 'tiny:leaves': SystemExit: enough"),
        ("tiny:probabilities", "gives probabilities, of which a softmax would be taken once more"),
        ("tiny:Remembers", "changes its buffer calls in a forward pass"),
        ("tiny:double", "parameter 0.weight is torch.float64; weights are kept in float32"),
        ("tiny:frozen_twice", "parameter 2.weight is frozen"),
        ("mnist-cnn", "takes images of 28 by 28 pixels, not 12 by 12: use model resnet9, "),
        ("tiny:fails_forward", r"trial on inputs of shape \(1, 12, 12\) with .*: RuntimeError"),
    ],
)
def test_a_users_model_that_does_not_fit_the_data_is_refused_before_the_run(model, message):
    """It is tried on two images; where the paper's is for others, that is said."""
    with pytest.raises(ConfigError, match=message):
        build_program(tiny.config(model=model), 3, 1, (12, 12))


def test_a_model_that_fails_on_one_image_is_refused_where_no_copies_are_made():
    with pytest.raises(ConfigError, match=r"trial on a single input of shape .*: IndexError"):
        build_program(tiny.config(model="tiny:squeezes", method="fedavg"), 3, 1, (12, 12))
    # Two copies of an image are a batch.
    build_program(tiny.config(model="tiny:squeezes"), 3, 1, (12, 12))


def test_log_probabilities_are_logits():
    program = build_program(tiny.config(model="tiny:log_probabilities"), 3, 1, (12, 12))
    assert program.layout.num_parameters == 4 * 9 + 4 + 3 * 144 + 3


def test_a_dropout_with_two_names_becomes_one_learned_layer():
    """Both names lead to the same concrete dropout, and its logit is listed once."""
    module = torch.nn.Module()
    module.first = module.second = torch.nn.Dropout(0.2)
    assert swap_dropout(module, None) == ["first.logit"]
    assert module.first is module.second
    assert isinstance(module.second, ConcreteDropout)


def test_a_model_without_shapes_is_refused(tmp_path, monkeypatch):
    """A lazy layer has nothing to partition yet; the sentence says what to do."""
    source = "from torch import nn\ndef lazy(num_classes, in_channels):\n"
    (tmp_path / "lazy_model.py").write_text(source + "    return nn.LazyLinear(num_classes)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="has no shape yet"):
        build_model("lazy_model:lazy", 10, 1)


def test_a_layers_function_gives_a_finite_number_for_each_value():
    """A tensor or, of one value, a Python number; and it cannot change the value."""
    plain = OwnHyper("0.a", torch.zeros(()), lambda value: float(value.add_(1)))
    value = torch.tensor(1.0)
    assert plain.readable(value) == {"0.a": 2.0}
    assert value == 1
    says = r"'0\.a': its function turns 1 values into .*; there must be a finite number for each"
    for read in (lambda value: [value, value], lambda value: math.inf):
        with pytest.raises(ConfigError, match=says):
            OwnHyper("0.a", torch.zeros(()), read).readable(value)
