"""Images of the central experiments: those of a federation, a test set, TinyImagenet."""

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

from fedpart.central.images import load_split
from fedpart.config import make_config
from fedpart.data import Images, load_federated
from fedpart.data.tiny import load_tinyimagenet
from fedpart.errors import DataError


@pytest.fixture
def noise(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    tiny.write_noise(folder, 100, 30)
    load_split.cache_clear()
    return str(folder)


@pytest.mark.parametrize("dataset", ["mnist", "rotmnist"])
def test_images_are_those_of_a_federation_with_the_same_data_seed(noise, dataset):
    ours = load_split(dataset, noise, 3, 60)
    values = {"dataset": dataset, "data_dir": noise, "data_seed": 3, "train_size": 60}
    theirs = load_federated(make_config(values | {"clients": 2, "clients_per_round": 1}))
    assert np.array_equal(ours.train[0], theirs.images)
    assert np.array_equal(ours.train[1], theirs.labels)
    # In another order, each with its label.
    place = {image.tobytes(): label for image, label in zip(*ours.test, strict=True)}
    assert len(place) == len(theirs.test_labels)
    pairs = zip(theirs.test_images, theirs.test_labels, strict=True)
    assert all(place[image.tobytes()] == label for image, label in pairs)
    assert ours.validation is not None
    assert np.array_equal(ours.validation[0], theirs.val_images)


def test_all_images_may_be_trained_on_and_a_smaller_set_is_part_of_it(noise):
    whole, part = load_split("rotmnist", noise, 0, 100), load_split("rotmnist", noise, 0, 40)
    assert whole.validation is None
    assert np.array_equal(whole.train[0][:40], part.train[0])
    inputs, labels = part.tensors(part.test, 7)
    assert inputs.shape == (7, 1, 28, 28)
    assert 0 <= inputs.min() <= inputs.max() <= 1
    assert labels.dtype == torch.int64
    with pytest.raises(DataError, match="train-size is 101, but rotmnist has 100"):
        load_split("rotmnist", noise, 0, 101)


def by_class(data_dir):
    images, labels = tiny.images(40)
    labels = np.sort(labels)
    tests = {"test_images": images, "test_labels": labels}
    return Images(images, labels, num_classes=tiny.CLASSES, **tests)


def test_a_part_of_the_test_set_has_every_class():
    """Folders come class by class; what is cut off them must not be one class."""
    load_split.cache_clear()
    split = load_split("test_central_split:by_class", None, 0, 10)
    assert set(split.tensors(split.test, 15)[1].tolist()) == set(range(tiny.CLASSES))


def without_test_images(data_dir):
    images, labels = tiny.images(20)
    # The first pixel tells one from the other.
    images[:, 0, 0, 0] = np.arange(20)
    return Images(images, labels, num_classes=tiny.CLASSES)


def test_without_a_test_set_images_that_are_left_are_halved():
    """One half chooses psi, the other judges it, and nobody trains on either."""
    load_split.cache_clear()
    split = load_split("test_central_split:without_test_images", None, 0, 10)
    assert split.validation is not None
    parts = [
        set(part[0][:, 0, 0, 0].tolist()) for part in (split.train, split.validation, split.test)
    ]
    assert [len(part) for part in parts] == [10, 5, 5]
    assert set.union(*parts) == set(range(20))
    assert "tested on 5 others" in split.source
    with pytest.raises(DataError, match="one at least must stay for the test"):
        load_split("test_central_split:without_test_images", None, 0, 20)


def write(folder, mode, side=64):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side), 60 if mode == "L" else (10, 20, 30)).save(folder / f"{mode}.png")


def test_tinyimagenet_is_an_image_folder_whose_grey_images_become_colour(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))
    top = tmp_path / "data"
    for mode in ("L", "RGB"):
        write(top / "tinyimagenet/train/n01", mode)
    write(top / "tinyimagenet/test/n02", "RGB")
    found = load_tinyimagenet(str(top))
    assert found.images[:, :, 5, 5].tolist() == [[60, 60, 60], [10, 20, 30]]
    assert found.labels.tolist() == [0, 0]
    # Classes of both parts count together.
    assert found.test_labels is not None
    assert found.test_labels.tolist() == [1]
    assert found.num_classes == 200


def test_tinyimagenet_that_is_not_there_or_of_another_size_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDPART_DATA", raising=False)
    with pytest.raises(DataError, match="data-dir is not given, and holds no TinyImagenet"):
        load_tinyimagenet(None)
    write(tmp_path / "train/n01", "RGB", side=32)
    with pytest.raises(DataError, match="32x32 pixels"):
        load_tinyimagenet(str(tmp_path))
