import dataclasses
import math

import numpy as np
import pytest
import tiny
import torch

from fedpart.client import ClientTask, client_update
from fedpart.cohort import draw_cohort
from fedpart.config import make_config
from fedpart.data import load_federated, to_float
from fedpart.data.rotate import angle_bins, draw_angles, rotate
from fedpart.errors import DataError
from fedpart.evaluation import evaluate
from fedpart.server import assign_chunks


def write_digits(folder, n, tests=0):
    rng = np.random.default_rng(1)
    for part, count in (("train", n), ("t10k", tests)):
        if count:
            # Each image tells its number, so that images can be followed through a split.
            images = np.zeros((count, 28, 28), np.uint8)
            images[:, 13, 14], images[:, 14, 13] = np.arange(count) // 256, np.arange(count) % 256
            labels = rng.integers(0, 10, count, dtype=np.uint8)
            tiny.write_idx(folder, part, images, labels)
    return folder


def numbers(images):
    return (images[:, 0, 13, 14].astype(int) * 256 + images[:, 0, 14, 13]).tolist()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("small"), 1000, 50)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("whole"), 21_000)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path_factory.getbasetemp() / "shared-cache"))


def load(folder, **values):
    given = {"data_dir": str(folder), "train_size": 300, "clients": 20, "clients_per_round": 5}
    return load_federated(make_config(given | values))


def test_small_set_validates_on_what_clients_do_not_get(small):
    data = load(small, dataset="mnist")
    assert data.images.shape == (300, 1, 28, 28)
    assert sorted(numbers(data.images) + numbers(data.val_images)) == list(range(1000))
    assert len(data.test_labels) == 50
    assert data.angles is None
    larger = load(small, dataset="mnist", train_size=400)
    assert numbers(larger.images)[:300] == numbers(data.images)
    assert numbers(larger.val_images) == numbers(data.val_images)[:600]


def test_whole_set_keeps_a_fixed_validation_set(whole):
    one = load(whole, dataset="mnist")
    two = load(whole, dataset="mnist", train_size="5k", seed=3)
    assert one.val_labels.shape == (10_000,)
    assert np.array_equal(one.val_images, two.val_images)
    assert np.array_equal(one.images, two.images[:300])
    assert set(numbers(two.images)).isdisjoint(numbers(two.val_images))
    with pytest.raises(DataError, match="use at most 11,000"):
        load(whole, train_size="12k")


def test_train_size_leaves_validation(small):
    assert len(load(small, train_size=900).val_labels) == 100
    with pytest.raises(DataError, match=r"train-size is 901, .* use at most 900"):
        load(small, train_size=901)


def test_L10_run_seed_and_method_change_nothing(small):
    one = load(small, seed=0)
    two = load(small, seed=7, method="fedavg")
    assert one.data_hash == two.data_hash
    assert np.array_equal(one.angles, two.angles)
    assert np.array_equal(one.test_images, two.test_images)
    assert len(one.data_hash) == 64


@pytest.mark.parametrize("method", ["partitioned", "fedavg"])
@pytest.mark.parametrize("dataset", ["mnist", "rotmnist"])
def test_subset_split_and_angles_are_the_same_for_every_seed_and_method(small, dataset, method):
    first = load(small, dataset=dataset)
    for seed in (1, 2):
        data = load(small, dataset=dataset, method=method, seed=seed, rounds=3, samples=2)
        for part in ("images", "labels", "angles", "val_images", "val_labels", "test_images"):
            assert np.array_equal(getattr(data, part), getattr(first, part)), part
        pairs = zip(data.client_indices, first.client_indices, strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
    other = load(small, dataset=dataset, data_seed=1)
    assert not np.array_equal(other.labels, first.labels)
    assert not np.array_equal(other.client_indices[0], first.client_indices[0])


def test_all_else_follows_the_seed_of_the_run():
    """Weights, partitions, defaults, chunks, cohorts; order and noise of clients, evaluations."""
    one, again, two = (tiny.program(clients_per_round=5, seed=seed) for seed in (0, 0, 1))
    # The noise alone: another seed, but the weights and partitions of the first.
    noise = dataclasses.replace(one, config=two.config)

    def made(program):
        return {
            "weights": program.initial.tolist(),
            "defaults": program.default.tolist(),
            "partitions": program.layout.ids.tolist(),
            "chunks": assign_chunks(program.config).tolist(),
            "cohorts": [draw_cohort(program.config, r).clients for r in range(1, 5)],
        }

    def drawn(program):
        theta, psi = one.initial, one.hyper.initial()
        x, y = tiny.images(9)
        reply = client_update(program, ClientTask(1, 3, 1, theta, psi), x, y)
        scores = evaluate(program, theta, psi, images=x, labels=y, server_round=1)
        return {
            "training": [delta.tolist() for delta in reply.deltas.values()],
            "psi": reply.hyper_gradient.tolist(),
            "evaluation": scores.loss,
        }

    assert made(one) == made(again)
    assert drawn(one) == drawn(again)
    for found, base in ((made(two), made(one)), (drawn(noise), drawn(one))):
        assert [name for name in base if base[name] == found[name]] == []


@pytest.mark.parametrize(
    "change",
    [
        {"data_seed": 1},
        {"train_size": 301},
        {"alpha": 10.0},
        {"clients": 21},
        {"skew": "label"},
        {"dataset": "mnist", "skew": "label"},
    ],
)
def test_what_changes_the_hash(small, change):
    assert load(small).data_hash != load(small, **change).data_hash


def test_hash_covers_each_part(small):
    data = load(small)
    for part in ("images", "labels", "val_images", "val_labels"):
        array = getattr(data, part).copy()
        array[0] += 1
        assert dataclasses.replace(data, **{part: array}).data_hash != data.data_hash
    swapped = (data.client_indices[1], data.client_indices[0], *data.client_indices[2:])
    assert dataclasses.replace(data, client_indices=swapped).data_hash != data.data_hash
    elsewhere = dataclasses.replace(data, source="from elsewhere")
    assert elsewhere.data_hash == data.data_hash


def test_rotated_set_is_the_upright_one_turned(small):
    upright, turned = load(small, dataset="mnist", skew="iid"), load(small)
    assert np.array_equal(upright.labels, turned.labels)
    assert np.array_equal(rotate(upright.images, turned.angles), turned.images)
    assert turned.angles.dtype == np.float64
    assert not np.array_equal(upright.val_images, turned.val_images)
    assert not np.array_equal(upright.test_images, turned.test_images)
    # The angle stays with its image whatever the size of the subset.
    assert np.array_equal(load(small, train_size=400).images[:300], turned.images)


def test_clients_own_copies(small):
    data = load(small)
    images, labels = data.client(3)
    index = data.client_indices[3]
    assert np.array_equal(images, data.images[index])
    images[:] = 0
    labels[:] = 0
    assert data.images[index].any()
    for wrong in (-1, 20):
        with pytest.raises(IndexError, match="ids are 0 to 19"):
            data.client(wrong)


def test_more_clients_than_images_is_refused_before_reading(tmp_path):
    with pytest.raises(DataError, match="400 clients"):
        load(tmp_path / "nowhere", clients=400)
    with pytest.raises(DataError, match="at least 16 image"):
        load(tmp_path / "nowhere", min_examples=16)


def test_rotation_by_a_quarter_is_exact():
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 28, 28), dtype=np.uint8)
    quarter = rotate(images, np.full(3, math.pi / 2))
    assert np.array_equal(quarter, np.rot90(images, axes=(2, 3)))
    assert np.array_equal(rotate(images, np.zeros(3)), images)
    assert np.array_equal(rotate(images, np.full(3, -math.pi)), images[:, :, ::-1, ::-1])


@pytest.mark.parametrize(("height", "width"), [(16, 48), (48, 16), (28, 28)])
@pytest.mark.parametrize("degrees", [45, -100, 90])
def test_rotation_is_torchvisions_also_where_images_are_not_square(height, width, degrees):
    v2 = pytest.importorskip("torchvision.transforms.v2")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 3, height, width), dtype=np.uint8)
    expected = v2.functional.rotate(
        torch.from_numpy(images), degrees, interpolation=v2.InterpolationMode.BILINEAR
    ).numpy()
    turned = rotate(images, np.full(2, math.radians(degrees)))
    assert np.abs(turned.astype(int) - expected).max() <= 1


def test_rotated_square_images_keep_their_bits():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 1, 28, 28), dtype=np.uint8)
    angle = torch.from_numpy(draw_angles(rng, 200))
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    affine = torch.stack([cos, -sin, zero, sin, cos, zero], 1).view(-1, 2, 3)
    grid = torch.nn.functional.affine_grid(affine, list(images.shape), align_corners=False)
    plain = torch.nn.functional.grid_sample(
        torch.from_numpy(images.astype(np.float64)), grid, align_corners=False
    )
    expected = plain.round().clamp(0, 255).to(torch.uint8).numpy()
    assert np.array_equal(rotate(images, angle.numpy()), expected)


def test_rotation_interpolates_and_pads_with_zeros():
    white = np.full((1, 1, 28, 28), 255, np.uint8)
    turned = rotate(white, np.array([math.pi / 4]))[0, 0]
    assert turned[14, 14] == 255
    assert turned[0, 0] == turned[27, 27] == 0
    assert ((turned > 0) & (turned < 255)).any()


def test_chunks_of_rotation_do_not_show():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1003, 1, 28, 28), dtype=np.uint8)
    angles = draw_angles(rng, 1003)
    assert np.array_equal(rotate(images, angles)[995:], rotate(images[995:], angles[995:]))


def test_angle_bins():
    edge = np.nextafter(math.pi, 0)
    angles = np.array([-math.pi, -math.pi + 0.63, -1e-9, 1e-9, edge, math.pi])
    assert angle_bins(angles).tolist() == [0, 1, 4, 5, 9, 9]
    drawn = draw_angles(np.random.default_rng(0), 20_000)
    assert -math.pi <= drawn.min() < -3.14
    assert 3.14 < drawn.max() < math.pi
    assert np.abs(np.bincount(angle_bins(drawn)) - 2000).max() < 200


def test_to_float():
    images = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    images.setflags(write=False)
    # A transposed view: strides of the result must not depend on those of the input.
    result = to_float(images.transpose(0, 1, 3, 2)[:, :, ::-1])
    assert result.dtype == torch.float32
    assert result.stride() == (256, 256, 16, 1)
    assert torch.equal(to_float(images).flatten(), torch.arange(256) / 255)
    with pytest.raises(TypeError, match="float32"):
        to_float(images.astype(np.float32))
