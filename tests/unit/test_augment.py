"""Affine augmentation: matrices, warp and gradients."""

# L1 to L9 are the numbers of acceptance tests.

import math

import pytest
import tiny
import torch

from fedpart.augment import (
    Asymmetric,
    Generators,
    Symmetric,
    build_augmentation,
)
from fedpart.program import log_likelihood
from fedpart.warp import _pixels, compose, warp

FAMILIES = [Symmetric(0.05), Symmetric(0.05, "softplus"), Asymmetric(0.05), Generators(0.05)]
NAMES = ["symmetric", "softplus", "asymmetric", "generators"]


def _rng(seed=0):
    return torch.Generator().manual_seed(seed)


def _uniform(*shape, seed=0):
    return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=_rng(seed))


@pytest.mark.parametrize("family", [Symmetric(0.05), Asymmetric(0.0), Generators(0.05)])
def test_L7_widths_of_zero_are_the_identity(family):
    """Whatever the noise, the matrix is exactly [1 0 0; 0 1 0] and the image stays."""
    raw = torch.zeros(6) if not isinstance(family, Asymmetric) else family.initial()
    noise = _uniform(5, family.noise_size).float()
    matrices = family.matrices(raw, noise)
    assert torch.equal(matrices, torch.eye(3)[:2].expand(5, 2, 3))
    images = torch.rand(5, 2, 9, 9, generator=_rng())
    torch.testing.assert_close(warp(images, matrices), images, atol=1e-5, rtol=0)


def test_L7_matrix_equals_the_product_of_its_factors():
    """A = R ShY ShX diag(sx, sy) for random angles, shears and scales; the shift is -A p."""
    angle, hx, hy, sx, sy, px, py = _uniform(7, 20)
    got = compose(angle, (hx, hy), (sx, sy), torch.stack([px, py], -1))
    one, zero = torch.ones(20).double(), torch.zeros(20).double()

    def matrix(a, b, c, d):
        return torch.stack([torch.stack([a, b], -1), torch.stack([c, d], -1)], -2)

    rotation = matrix(angle.cos(), -angle.sin(), angle.sin(), angle.cos())
    a = rotation @ matrix(one, zero, hy, one) @ matrix(one, hx, zero, one)
    a = a @ matrix(sx, zero, zero, sy)
    torch.testing.assert_close(got[..., :2], a)
    torch.testing.assert_close(got[..., 2:], -a @ torch.stack([px, py], -1).unsqueeze(-1))


@pytest.mark.parametrize("family", [Symmetric(0.05), Generators(0.05)])
def test_L7_rotation_by_pi_twice_is_the_identity(family):
    """One half-turn maps pixels to pixels; two bring every one back."""
    raw = torch.tensor([1.0, 0, 0, 0, 0, 0]).double()
    matrix = family.matrices(raw, torch.ones(1, 6).double())
    image = _uniform(1, 1, 7, 8)
    once = warp(image, matrix)
    torch.testing.assert_close(once, image.flip(2, 3), atol=1e-9, rtol=0)
    torch.testing.assert_close(warp(once, matrix), image, atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_L7_finite_differences_of_the_loss_in_eta(family):
    """Through warp, network, dropout and mean logits: analytic equals numeric, float64."""
    names = {"asymmetric": "asymmetric", "generators": "generators"}
    name = NAMES[FAMILIES.index(family)]
    program = tiny.program(
        augmentation=names.get(name, "symmetric"),
        width_transform="softplus" if name == "softplus" else "raw",
        samples=2,
    )
    assert type(program.hyper.augmentation) is type(family)
    x, y = _uniform(3, 1, 12, 12, seed=1), torch.tensor([0, 2, 1])
    merged = program.layout.merge(program.layout.leaves(program.initial.double()))
    start = program.hyper.initial().double() + 0.1 * _uniform(program.hyper.size, seed=2)

    def loss(hyper):
        likelihood, _ = log_likelihood(program, merged, hyper, x, y, _rng(3))
        return -likelihood.mean()

    assert torch.autograd.gradcheck(loss, (start.requires_grad_(),), eps=1e-7, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss(start), start)
    assert (gradient != 0).all()


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_initial_widths_are_the_start(family):
    """One raw value a name, and widths as the settings say: 9 degrees at 0.05 half-turns."""
    raw = family.initial()
    assert raw.shape == (len(family.names),)
    assert raw.dtype == torch.float32
    assert family.readable(raw)["rotation_degrees"] == pytest.approx(9, rel=1e-5)


def test_asymmetric_ends_are_reached():
    """Noise -1 gives the lower ends, 1 the upper ends."""
    family = Asymmetric(0.1)
    raw = family.initial().double()
    low, high = family.matrices(raw, torch.tensor([[-1.0] * 7, [1.0] * 7]).double())
    expected = [
        compose(
            *(torch.tensor([s * 0.1 * math.pi]), (torch.tensor([s * 0.1]),) * 2),
            *((torch.tensor([1 + s * 0.1]),) * 2, torch.full((1, 2), s * 0.1)),
        )[0]
        for s in (-1, 1)
    ]
    torch.testing.assert_close(low.float(), expected[0])
    torch.testing.assert_close(high.float(), expected[1])


def test_readable_takes_the_sign_off_raw_widths():
    """A symmetric width and its negative mean the same."""
    family, raw = Symmetric(0.05), torch.tensor([0.5, -0.1, 0.2, -0.3, 0.4, -0.6])
    assert family.readable(raw) == family.readable(-raw)
    assert family.readable(raw)["rotation_degrees"] == pytest.approx(90)
    assert family.readable(raw)["scale_x_factor"] == pytest.approx(math.exp(0.3))


def test_outside_of_the_image_is_zero():
    """A shift by the whole image leaves nothing."""
    matrix = torch.tensor([[[1.0, 0, 2], [0, 1, 0]]])
    assert warp(torch.ones(1, 1, 5, 5), matrix).abs().max() == 0


def test_build_augmentation_knows_the_families():
    """Names of the settings, and None for none."""
    assert build_augmentation("symmetric", 0.1, "softplus") == Symmetric(0.1, "softplus")
    assert build_augmentation("generators", 0.1, "raw") == Generators(0.1)
    assert build_augmentation("asymmetric", 0.1, "raw") == Asymmetric(0.1)
    assert build_augmentation("none", 0.1, "raw") is None


@pytest.mark.parametrize(("height", "width"), [(28, 28), (5, 9), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_grid_is_torchs_own_to_the_bit(height, width, dtype):
    """Values and gradients of ``F.affine_grid``, also where an evaluation came first."""
    rng = torch.Generator().manual_seed(0)
    matrices = torch.randn(7, 2, 3, generator=rng, dtype=dtype).requires_grad_()
    images = torch.rand(7, 1, height, width, generator=rng, dtype=dtype)
    _pixels.cache_clear()
    with torch.inference_mode():
        first = warp(images, matrices)
    ours = warp(images, matrices)
    grid = torch.nn.functional.affine_grid(matrices, list(images.shape), align_corners=False)
    theirs = torch.nn.functional.grid_sample(images, grid, align_corners=False)
    assert torch.equal(first, ours)
    assert torch.equal(ours, theirs)
    gradients = [torch.autograd.grad(out.square().sum(), matrices)[0] for out in (ours, theirs)]
    assert torch.equal(*gradients)
