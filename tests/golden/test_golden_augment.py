"""Affine matrices, the warp and concrete dropout against ``reference_augment.py`` and by hand."""

import numpy as np
import pytest
import reference_augment as reference
import torch
from torch.func import functional_call

from fedpart.augment import Asymmetric, Generators, Symmetric
from fedpart.models import ConcreteDropout
from fedpart.warp import warp

SYMMETRIC = [[0.7668964, -0.5229902, -0.0520997], [0.3907532, 0.7799732, -0.1678169]]
ASYMMETRIC = [[0.456791, -0.8105141, 0.2131579], [0.7452905, 0.5290856, 0.0330284]]
GENERATORS = [[0.7704925, -0.5116479, 0.1071037], [0.3039561, 0.8397231, 0.1517629]]
WARPED = [
    [-0.4833223, 0.9277917, 0.9513192, 0.3085896],
    [0.4594351, -0.2386388, -0.1585348, 0.3188609],
    [0.6521297, 0.2512164, 0.5812275, 0.9188351],
]
RAW7 = reference.LOW + reference.HIGH


@pytest.mark.parametrize(
    ("family", "raw", "noise", "golden", "again"),
    [
        (
            *(Symmetric(0.05), reference.WIDTHS, reference.NOISE, SYMMETRIC),
            reference.symmetric(reference.WIDTHS, reference.NOISE),
        ),
        (
            *(Asymmetric(0.05), RAW7, reference.NOISE7, ASYMMETRIC),
            reference.asymmetric(reference.LOW, reference.HIGH, reference.NOISE7),
        ),
        (
            *(Generators(0.05), reference.WIDTHS, reference.NOISE, GENERATORS),
            reference.generators(reference.WIDTHS, reference.NOISE),
        ),
    ],
    ids=["symmetric", "asymmetric", "generators"],
)
def test_matrix_of_one_draw(family, raw, noise, golden, again):
    """For example symmetric: angle 0.3 * 0.5 * pi, log-factors 0.25 * -0.6 and -0.1 * 0.7."""
    raw, noise = torch.tensor(raw).double(), torch.tensor([noise]).double()
    got = family.matrices(raw, noise)[0].numpy()
    np.testing.assert_allclose(got, golden, atol=1e-6)
    np.testing.assert_allclose(got, again, atol=1e-7)


@pytest.mark.parametrize(("height", "width"), [(3, 4), (48, 16), (28, 28)])
def test_angles_and_shears_are_of_pixels_in_an_image_of_any_sides(height, width):
    """The maps of pixels, factor by factor, with shifts in pixels, are brought to half sides."""
    half = np.array([width, height]) / 2
    widths, low, high = (
        np.array(values) for values in (reference.WIDTHS, reference.LOW, reference.HIGH)
    )
    pixels, low_pixels, high_pixels = widths.copy(), low.copy(), high.copy()
    pixels[1:3] *= half
    low_pixels[5:] *= half
    high_pixels[5:] *= half
    noise, noise7 = reference.NOISE, reference.NOISE7
    for family, raw, drawn, expected in (
        (Symmetric(0.05), widths, noise, reference.symmetric(pixels, noise)),
        (Generators(0.05), widths, noise, reference.generators(pixels, noise)),
        (
            *(Asymmetric(0.05), np.concatenate([low, high]), noise7),
            reference.asymmetric(low_pixels, high_pixels, noise7),
        ),
    ):
        raw, drawn = torch.tensor(raw), torch.tensor([drawn]).double()
        got = family.matrices(raw, drawn, width / height)[0].numpy()
        np.testing.assert_allclose(got, reference.of_pixels(expected, height, width), atol=1e-7)
        image = np.random.default_rng(0).normal(size=(height, width))
        warped = family.apply(torch.tensor(image)[None, None], raw, drawn)[0, 0].numpy()
        by_hand = reference.warp(image, reference.of_pixels(expected, height, width))
        np.testing.assert_allclose(warped, by_hand, atol=1e-5)


def test_softplus_widths_are_log_one_plus_exp_of_the_raw_values():
    """Every raw value w becomes log(1 + e^w) before it is a width."""
    raw = torch.tensor(reference.WIDTHS).double()
    noise = torch.tensor([reference.NOISE]).double()
    got = Symmetric(0.05, "softplus").matrices(raw, noise)[0].numpy()
    widths = np.log1p(np.exp(raw.numpy()))
    np.testing.assert_allclose(got, reference.symmetric(widths, noise[0].numpy()), atol=1e-7)


def test_warp_of_one_image_of_both_signs():
    """Bilinear weights of the four source pixels, zero outside, corners not aligned."""
    image = torch.tensor(reference.IMAGE)[None, None]
    matrix = reference.symmetric(reference.WIDTHS, reference.NOISE)
    got = warp(image, torch.tensor(matrix)[None])[0, 0].numpy()
    np.testing.assert_allclose(got, WARPED, atol=1e-6)
    np.testing.assert_allclose(got, reference.warp(reference.IMAGE, matrix), atol=1e-9)


def test_warp_by_one_pixel_moves_the_image_by_one_pixel():
    """A shift of 2 / w in the source column takes every pixel from its right neighbour."""
    image = torch.tensor(reference.IMAGE)[None, None]
    right = torch.tensor([[[1.0, 0, 2 / 4], [0, 1, 0]]]).double()
    moved = np.hstack([reference.IMAGE[:, 1:], np.zeros((3, 1))])
    np.testing.assert_allclose(warp(image, right)[0, 0].numpy(), moved, atol=1e-12)


def test_concrete_dropout_by_hand():
    """With e^l = 1/9 (rate 0.1) and odds u / (1 - u), z = 1 / (1 + (odds / 9)^-10).

    u = 0.9: odds 9, z = 1/2, factor 1/2 * 10/9 = 5/9.
    u = 0.5: odds 1, z = 1 / (1 + 9^10), next to nothing, factor 10/9.
    u = 10/11: odds 10, z = 1 / (1 + 0.9^10) = 1 / 1.3486784, factor 0.2585334 * 10/9 = 0.2872593.
    """
    u = torch.tensor([[0.9, 0.5, 10 / 11]], dtype=torch.float64)
    x = torch.tensor([[-1.8, 0.9, 2.0]], dtype=torch.float64)
    golden = [-1.8 * 5 / 9, 0.9 * 10 / 9, 2.0 * 0.2872593]
    dropout = ConcreteDropout(0.1)
    logit = torch.tensor(1 / 9, dtype=torch.float64).log()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "uniform_", lambda self, *ends, generator=None: self.copy_(u))
        got = functional_call(dropout, {"logit": logit}, (x,))
    np.testing.assert_allclose(got[0].numpy(), golden, atol=1e-6)
