"""A device's own images: each kind of data gives the client the same arrays."""

import numpy as np
import pytest
import tiny
from PIL import Image

from fedpart.config import make_config
from fedpart.data import cifar, load_own
from fedpart.errors import DataError

CONFIG = make_config({"dataset": "mnist"})


@pytest.fixture
def digits():
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (6, 28, 28), dtype=np.uint8), np.array([0, 0, 4, 4, 7, 7])


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))


def as_npz(folder, images, labels):
    np.savez(folder / "site.npz", images=images, labels=labels)
    return folder / "site.npz"


def as_idx(folder, images, labels):
    tiny.write_idx(folder, "train", images, labels.astype(np.uint8))
    return folder


def as_images(folder, images, labels):
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / "train" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i}.png")
    return folder


@pytest.mark.parametrize("write", [as_npz, as_idx, as_images])
def test_all_of_it_is_the_clients(tmp_path, digits, write):
    images, labels = digits
    path = write(tmp_path, images, labels)
    data = load_own(CONFIG, str(path), 3)
    x, y = data.client(3)
    np.testing.assert_array_equal(x, images[:, None])
    np.testing.assert_array_equal(y, labels)
    assert y.dtype == np.int64
    # Nothing is anybody else's, and nothing is set apart.
    assert [len(data.client(i)[1]) for i in range(3)] == [0, 0, 0]
    assert (len(data.val_labels), data.test_images) == (0, None)
    with pytest.raises(IndexError):
        data.client(4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels": None}, "lacks an array"),
        ({"images": np.zeros((6, 27, 28), np.uint8)}, r"must be \[n, 28, 28\]"),
        ({"labels": np.zeros(5, int)}, "one whole number for each of the 6"),
        ({"labels": np.full(6, 10)}, "labels 10 to 10; they must be 0 to 9"),
        ({"labels": np.zeros(6)}, "labels of .* are float64"),
        ({"images": np.zeros((0, 28, 28), np.uint8), "labels": np.zeros(0, int)}, "no images"),
    ],
)
def test_what_does_not_fit_is_explained(tmp_path, digits, change, sentence):
    arrays = {"images": digits[0], "labels": digits[1]} | change
    path = tmp_path / "site.npz"
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(DataError, match=sentence):
        load_own(CONFIG, str(path), 0)


def test_class_folders_by_name_are_refused_where_some_classes_are_missing(tmp_path, digits):
    """Counted in alphabetical order, "two" would be label 1 here and 9 beside all ten."""
    names = np.array(["six", "two"] * 3)
    as_images(tmp_path / "mnist", digits[0], names)
    for path in (tmp_path, tmp_path / "mnist"):
        with pytest.raises(DataError, match=r"mnist has 2 of the 10 classes by name, .* its label"):
            load_own(CONFIG, str(path), 0)
    every = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    as_images(tmp_path / "all", np.resize(digits[0], (10, 28, 28)), every)
    assert sorted(load_own(CONFIG, str(tmp_path / "all"), 0).labels) == list(range(10))


def test_a_file_that_is_no_npz_and_one_that_is_missing_are_named(tmp_path):
    path = tmp_path / "site.npz"
    path.write_bytes(b"PK\x03\x04 no archive")
    for place in (path, tmp_path / "none.npz"):
        with pytest.raises(DataError, match=f"{place.name} cannot be read as .npz"):
            load_own(CONFIG, str(place), 0)


def test_colours_are_normalised_as_in_the_simulation(tmp_path):
    """Three channels of 32 x 32; grey ones are refused, and so is .npz for one's own data set."""
    config = make_config({"dataset": "rotcifar10", "model": "resnet9"})
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    path = as_npz(tmp_path, images, np.arange(4))
    found = load_own(config, str(path), 1)
    assert np.array_equal(found.images, images)
    assert (found.in_channels, found.mean, found.std) == (3, cifar.MEAN, cifar.STD)
    with pytest.raises(DataError, match=r"must be \[n, 28, 28\]"):
        load_own(CONFIG, str(path), 0)
    own = make_config({"dataset": "my:data", "skew": "iid"})
    with pytest.raises(DataError, match="name a folder, which the function of my:data gets"):
        load_own(own, str(path), 0)
