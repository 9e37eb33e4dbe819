"""What is asked of an augmentation of the user's own each time that it tells psi."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from fedpart.errors import ConfigError
from fedpart.own_augmentation import OwnAugmentation, check_told


@pytest.mark.parametrize(
    "told", [np.float32(0.5), np.float64(0.5), np.float16(0.5), Fraction(1, 2)], ids=repr
)
def test_readable_of_ones_own_may_give_any_real_number(told):
    assert check_told("a:b", {"width": told, "count": np.int64(3)}) == {"width": 0.5, "count": 3.0}


@pytest.mark.parametrize(
    "told",
    [None, {}.keys(), {"": 1}, {"a\nb": 1}, {1: 1}, {"a": True}, {"a": "1"}, {"a": 10**400}],
    ids=repr,
)
def test_readable_of_ones_own_gives_names_and_numbers(told):
    with pytest.raises(ConfigError, match="not a dict of names and finite numbers"):
        check_told("a:b", told)


def test_what_is_told_of_psi_does_not_change_it():
    class Family:
        def readable(self, raw):
            return {"a": float(raw.add_(1))}

    raw = torch.tensor([1.0])
    assert OwnAugmentation(Family(), "a:b", ("a",), 1, ("a",)).readable(raw) == {"a": 2.0}
    assert raw == 1
