"""Laplace beside L_ML: what happens without the package, and the number it gives with it."""

import importlib.util
import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedpart.central import Training, make_settings
from fedpart.central.config import make_central_config
from fedpart.central.laplace import log_marginal_likelihood
from fedpart.errors import ConfigError

installed = importlib.util.find_spec("laplace") is not None


def test_without_the_package_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("fedpart.central.config.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs laplace-torch; pip install 'fedpart\[laplace\]'"):
        make_central_config({"experiment": "input-selection", "method": "laplace"})


def test_a_mask_cannot_be_learned_by_it():
    with pytest.raises(ConfigError, match="method laplace learns no mask"):
        make_central_config({"experiment": "mask-learning", "method": "laplace"})


@pytest.mark.skipif(not installed, reason="laplace-torch, an optional extra, is not installed")
def test_evidence_is_likelihood_less_occams_factor_at_the_best_prior():
    """A network of one layer, two classes: the diagonal of the Gauss-Newton matrix by hand.

    log Z = log p(D | w) - (delta |w|^2 + sum log(h_i + delta) - P log delta) / 2, at the delta that
    makes it highest; h_i = sum_n x_ni^2 p_n (1 - p_n) for each of the two outputs.
    """
    torch.manual_seed(0)
    inputs, labels = torch.randn(40, 3), torch.randint(0, 2, (40,))
    model = nn.Linear(3, 2)
    run = Training(model, TensorDataset(inputs, labels), make_settings(chunks=(1.0,)))
    found = 40 * log_marginal_likelihood(run, inputs, labels)
    p = model(inputs).detach().softmax(-1)
    weight = (p[:, 0] * p[:, 1]).unsqueeze(1)
    ones = torch.cat([inputs, torch.ones(40, 1)], 1)
    h = (weight * ones**2).sum(0).repeat(2)
    w = torch.cat([q.detach().flatten() for q in model.parameters()])
    likelihood = p[torch.arange(40), labels].log().sum()
    best = max(
        float(likelihood - (delta * w @ w + (h + delta).log().sum() - len(w) * math.log(delta)) / 2)
        for delta in torch.logspace(-4, 4, 2000).tolist()
    )
    assert found == pytest.approx(best, abs=0.3)
