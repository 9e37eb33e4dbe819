"""A custom augmentation: one trial at the start, and what it gives to the records each time."""

import sys
import types
from math import nan

import pytest
import torch

from fedpart.augment import build_augmentation
from fedpart.errors import ConfigError


class Brightness:
    names, noise_size = ("brightness",), 1

    def __init__(self, start):
        self.start = start

    def initial(self):
        return torch.tensor([self.start])

    def apply(self, images, raw, noise):
        return images * (1 + raw[:1] * noise).view(-1, 1, 1, 1)

    def readable(self, raw):
        return {"brightness": raw.abs()}


@pytest.fixture
def build(monkeypatch):
    """``build(method=function, ...)``: the family with some methods replaced."""

    def make(**methods):
        module = types.ModuleType("a_users_augmentation")
        module.Family = type("Family", (Brightness,), methods)
        monkeypatch.setitem(sys.modules, "a_users_augmentation", module)
        return build_augmentation("a_users_augmentation:Family", 0.5, "raw", (1, 4, 4))

    return make


def test_what_is_told_of_psi_does_not_change_it(build):
    family = build(readable=lambda self, raw: {"brightness": raw.add_(1)})
    raw = torch.tensor([1.0])
    assert family.readable(raw) == {"brightness": 2.0}
    assert raw == 1


@pytest.mark.parametrize(
    ("method", "function", "says"),
    [
        ("initial", lambda self: torch.zeros(2), "initial must give one float32 for each of its"),
        ("initial", lambda self: torch.tensor([nan]), "values that are not finite"),
        ("apply", lambda self, x, raw, noise: x * raw.double(), "must keep the shape and the type"),
        ("apply", lambda self, x, raw, noise: x[:1] * raw, "must keep the shape and the type"),
        ("apply", lambda self, x, raw, noise: x * raw * nan, "values that are not finite"),
        ("apply", lambda self, x, raw, noise: x, "no gradient reaches its raw values"),
        ("readable", lambda self, raw: {"a": nan}, r"readable gives {'a': nan}; it must give fin"),
        ("readable", lambda self, raw: 1 / 0, r"ZeroDivisionError: .* \(test_own_augmentation.py"),
    ],
)
def test_a_family_that_cannot_be_used_is_refused_at_the_start(build, method, function, says):
    with pytest.raises(ConfigError, match=rf"augmentation 'a_users_augmentation:Family': .*{says}"):
        build(**{method: function})


def test_names_that_are_no_text_become_it(build):
    """Records and the columns of curves.csv hold text."""
    assert build(readable=lambda self, raw: {3: raw}).readable(torch.tensor([2.0])) == {"3": 2.0}


def test_names_that_change_are_refused(build):
    """They head the columns of curves.csv."""
    family = build(readable=lambda self, raw: {"dark" if raw < 0 else "bright": raw})
    assert family.readable(torch.tensor([2.0])) == {"bright": 2.0}
    says = r"readable gives {'dark': -2.0}; it must give finite numbers, each time by .* 'bright'"
    with pytest.raises(ConfigError, match=says):
        family.readable(torch.tensor([-2.0]))
