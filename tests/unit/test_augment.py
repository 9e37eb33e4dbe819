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
from fedpart.likelihood import log_likelihood
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


@pytest.mark.parametrize("size", [(12, 12), (8, 18)], ids=["square", "oblong"])
@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_L7_finite_differences_of_the_loss_in_eta(family, size):
    """Through warp, network, dropout and mean logits: analytic equals numeric, float64."""
    names = {"asymmetric": "asymmetric", "generators": "generators"}
    name = NAMES[FAMILIES.index(family)]
    program = tiny.program(
        augmentation=names.get(name, "symmetric"),
        width_transform="softplus" if name == "softplus" else "raw",
        samples=2,
    )
    assert type(program.hyper.augmentation) is type(family)
    x, y = _uniform(3, 1, *size, seed=1), torch.tensor([0, 2, 1])
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


def _grey(height, width):
    """Grey values from 0 to 255, drawn pixel by pixel, so that a small displacement shows."""
    return (255 * torch.rand(1, 1, height, width, generator=_rng(4), dtype=torch.float64)).round()


def _torchvision(image, rotation=0.0, shift=(0.0, 0.0), scale=1.0, shear=(0.0, 0.0)):
    """torchvision's bilinear warp, told in the units of ``compose``: half-turns, slopes, halves.

    It inverts T R S ShY(-hy) ShX(-hx), so that target to source is ShX ShY S^-1 R^-1 T^-1.
    """
    v2 = pytest.importorskip("torchvision.transforms.v2")
    height, width = image.shape[-2:]
    return v2.functional.affine(
        image,
        angle=-180 * rotation,
        translate=[shift[0] * width / 2, shift[1] * height / 2],
        scale=1 / scale,
        shear=[math.degrees(math.atan(slope)) for slope in shear],
        interpolation=v2.InterpolationMode.BILINEAR,
    )


# Rotation, shift x, shift y, log-scale x, log-scale y, shear; and torchvision's for the same.
SYMMETRIC = {
    "45 degrees": ([0.25, 0, 0, 0, 0, 0], {"rotation": 0.25}),
    "-100 degrees": ([-100 / 180, 0, 0, 0, 0, 0], {"rotation": -100 / 180}),
    "shear": ([0, 0, 0, 0, 0, 0.7], {"shear": (0.7, 0)}),
    "shift": ([0, 0.3, -0.45, 0, 0, 0], {"shift": (0.3, -0.45)}),
    "scale": ([0, 0, 0, -0.4, -0.4, 0], {"scale": math.exp(-0.4)}),
    "rotation, shift and scale": (
        [0.15, 0.2, -0.35, 0.3, 0.3, 0],
        {"rotation": 0.15, "shift": (0.2, -0.35), "scale": math.exp(0.3)},
    ),
    "shear, shift and scale": (
        [0, 0.2, -0.35, 0.3, 0.3, -0.5],
        {"shear": (-0.5, 0), "shift": (0.2, -0.35), "scale": math.exp(0.3)},
    ),
}
# The same order. A generator shifts the source, not the target, and does not commute with others.
GENERATORS = {
    "45 degrees": SYMMETRIC["45 degrees"],
    "shift": ([0, 0.3, -0.45, 0, 0, 0], {"shift": (-0.3, 0.45)}),
    "scale": SYMMETRIC["scale"],
    "rotation and scale": (
        [0.15, 0, 0, 0.3, 0.3, 0],
        {"rotation": 0.15, "scale": math.exp(0.3)},
    ),
}
# Rotation, scale x, scale y, shear x, shear y, shift x, shift y.
ASYMMETRIC = {
    "rotation and shift": (
        [0.25, 1, 1, 0, 0, 0.2, -0.35],
        {"rotation": 0.25, "shift": (0.2, -0.35)},
    ),
    "shear x": ([0, 1, 1, 0.7, 0, 0, 0], {"shear": (0.7, 0)}),
    "shear y and scale": ([0, 1.2, 1.2, 0, 0.7, 0, 0], {"shear": (0, 0.7), "scale": 1.2}),
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("height", "width"), [(16, 48), (48, 16), (28, 28)])
@pytest.mark.parametrize(
    ("family", "values", "theirs"),
    [
        pytest.param(family, *case, id=f"{type(family).__name__}: {name}")
        for family, cases in (
            (Symmetric(0.05), SYMMETRIC),
            (Generators(0.05), GENERATORS),
            (Asymmetric(0.05), ASYMMETRIC),
        )
        for name, case in cases.items()
    ],
)
def test_images_of_any_sides_are_warped_as_by_torchvision(
    family, values, theirs, height, width, sign
):
    """To one grey level: angles and shears of pixels, shifts in half sides, scales as factors."""
    image, values = _grey(height, width), torch.tensor(values).double()
    noise = torch.full((1, family.noise_size), float(sign)).double()
    raw = sign * values
    if isinstance(family, Asymmetric):
        # The noise is at one end of each interval; the other does not matter.
        raw = torch.cat([values + 0.1, values][::sign])
    expected = _torchvision(image, **theirs)
    assert (expected > 0).double().mean() > 0.2
    torch.testing.assert_close(family.apply(image, raw, noise), expected, atol=1, rtol=0)


def _old_compose(angle, shear, scale, shift):
    """What ``compose`` was when it knew no aspect: right for square images."""
    (hx, hy), (sx, sy) = shear, scale
    c, s = angle.cos(), angle.sin()
    a = torch.stack(
        [
            torch.stack([sx * c - hy * sx * s, hx * sy * c - sy * s - s * sy * hx * hy], -1),
            torch.stack([sx * s + hy * sx * c, c * sy * hx * hy + hx * sy * s + sy * c], -1),
        ],
        -2,
    )
    return torch.cat([a, -a @ shift.unsqueeze(-1)], -1)


def _old_matrices(family, raw, noise):
    if isinstance(family, Asymmetric):
        low, high = raw.view(2, 7)
        rotation, sx, sy, hx, hy, tx, ty = (low + (high - low) * (noise + 1) / 2).unbind(-1)
        return _old_compose(math.pi * rotation, (hx, hy), (sx, sy), torch.stack([tx, ty], -1))
    rotation, tx, ty, sx, sy, shear = (family.widths(raw) * noise).unbind(-1)
    if isinstance(family, Symmetric):
        shift = torch.stack([tx, ty], -1)
        return _old_compose(
            math.pi * rotation, (shear, torch.zeros_like(shear)), (sx.exp(), sy.exp()), shift
        )
    zero = torch.zeros_like(rotation)
    rotation = math.pi * rotation
    rows = [sx, shear - rotation, tx, shear + rotation, sy, ty, zero, zero, zero]
    return torch.matrix_exp(torch.stack(rows, -1).view(-1, 3, 3))[:, :2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_square_images_keep_their_bits(family, dtype):
    """Matrices, images and gradients are those of the formulas without an aspect."""
    images = _uniform(50, 1, 9, 9, seed=5).to(dtype)
    noise = _uniform(50, family.noise_size, seed=6).to(dtype)
    raw = (family.initial().double() + 0.3 * _uniform(len(family.names), seed=7)).to(dtype)
    raw.requires_grad_()
    old = _old_matrices(family, raw, noise)
    assert torch.equal(family.matrices(raw, noise), old)
    warped, before = family.apply(images, raw, noise), warp(images, old)
    assert torch.equal(warped, before)
    gradients = [torch.autograd.grad(out.square().sum(), raw)[0] for out in (warped, before)]
    assert torch.equal(*gradients)
