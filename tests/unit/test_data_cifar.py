import pickle
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from fedpart.config import make_config
from fedpart.data import cifar, download, load_federated, to_float
from fedpart.data.cifar import MEAN, STD, load_cifar10
from fedpart.errors import DataError
from fedpart.program import program_for


@pytest.fixture(autouse=True)
def sealed(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDPART_DATA", raising=False)
    monkeypatch.setattr(download, "reachable", lambda address: False)


def pixels(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), np.arange(n) % 10


def write_batches(place, each=4):
    place.mkdir(parents=True)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for seed, name in enumerate(names):
        images, labels = pixels(each, seed)
        batch = {"data": images.reshape(each, -1), "labels": labels.tolist()}
        # As Python 2 wrote them: no protocol above 3 knows bytes of its own, none below them.
        (place / name).write_bytes(pickle.dumps(batch, protocol=3))
    return place


def write_folder(place, each=3):
    for part, n in (("train", each), ("test", 1)):
        for label, name in enumerate(("cat", "dog")):
            (place / part / name).mkdir(parents=True)
            for i in range(n):
                image = pixels(1, 10 * label + i)[0][0].transpose(1, 2, 0)
                Image.fromarray(image).save(place / part / name / f"{i}.png")
    return place


@pytest.mark.parametrize("inside", ["", "cifar10", "cifar-10-batches-py"])
def test_torchvisions_batches_are_found_and_read(tmp_path, inside):
    place = write_batches(tmp_path / "data" / inside if inside else tmp_path / "data")
    found = load_cifar10(str(tmp_path / "data"))
    expected = np.concatenate([pixels(4, seed)[0] for seed in range(5)])
    assert np.array_equal(found.images, expected)
    assert found.labels.tolist() == [0, 1, 2, 3] * 5
    assert np.array_equal(found.test_images, pixels(4, 5)[0])
    assert str(place) in found.source


def test_damaged_batches_are_named(tmp_path):
    place = write_batches(tmp_path / "cifar10")
    (place / "data_batch_3").write_bytes(b"\x80\x03}")
    with pytest.raises(DataError, match="data_batch_3 is no batch of CIFAR10"):
        load_cifar10(str(tmp_path))
    (place / "data_batch_3").unlink()
    with pytest.raises(DataError, match="lacks data_batch_3, one of five batches"):
        load_cifar10(str(tmp_path))


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    place = write_batches(tmp_path / "cifar10")

    class Evil:
        def __reduce__(self):
            return eval, ("1",)

    (place / "data_batch_1").write_bytes(pickle.dumps({"data": Evil()}, protocol=3))
    with pytest.raises(DataError, match=r"it asks for builtins\.eval"):
        load_cifar10(str(tmp_path))


def test_image_folder_keeps_colours_and_the_order_of_classes(tmp_path):
    write_folder(tmp_path / "cifar10")
    found = load_cifar10(str(tmp_path))
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(found.images[4], pixels(1, 11)[0][0])
    assert found.test_labels.tolist() == [0, 1]


@pytest.mark.parametrize("top", [".", "cifar"])
def test_an_archive_stands_for_what_is_in_it(tmp_path, top):
    folder = write_folder(tmp_path / "made")
    data = tmp_path / "data"
    data.mkdir()
    with tarfile.open(data / "cifar10-some.tar.xz", "w:xz") as tar:
        tar.add(folder, arcname=top)
    found = load_cifar10(str(data))
    assert np.array_equal(found.images, load_cifar10(str(folder)).images)
    assert [p.name for p in data.iterdir()] == ["cifar10-some.tar.xz"]
    assert isinstance(load_cifar10(str(data)).images, np.memmap)


def test_faults_of_archives(tmp_path):
    (tmp_path / "cifar-10.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cifar-10\.tar\.gz cannot be unpacked"):
        load_cifar10(str(tmp_path))
    with tarfile.open(tmp_path / "cifar-10.tar.gz", "w:gz") as tar:
        tar.add(__file__, arcname="x.py")
    with pytest.raises(DataError, match="holds neither cifar-10-batches-py nor train"):
        load_cifar10(str(tmp_path))
    (tmp_path / "cifar10.tar").write_bytes(b"")
    with pytest.raises(DataError, match="holds several archives"):
        load_cifar10(str(tmp_path))


def empty_class(train):
    for file in (train / "dog").iterdir():
        file.unlink()


def corrupt(train):
    file = train / "dog" / "1.png"
    file.write_bytes(file.read_bytes()[:700])


def mixed_sizes(train):
    Image.new("RGB", (40, 32)).save(train / "cat" / "2.png")


def grey(train):
    Image.new("L", (32, 32)).save(train / "cat" / "0.png")


FAULTS = [
    (empty_class, r"dog holds no images; put some there or remove the folder"),
    (corrupt, r"dog/1\.png is no readable image"),
    (mixed_sizes, r"cat/2\.png is 40x32 pixels; images must be 32x32"),
    (grey, r"cat/0\.png is grey \(mode 'L'\) among colour images; convert it to RGB or remove it"),
]


@pytest.mark.parametrize(("damage", "sentence"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
def test_bad_image_folders_get_one_sentence(tmp_path, damage, sentence):
    damage(write_folder(tmp_path / "cifar10") / "train")
    with pytest.raises(DataError, match=sentence) as caught:
        load_cifar10(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_nothing_to_be_had(tmp_path):
    with pytest.raises(DataError, match="no CIFAR10: it cannot be downloaded here"):
        load_cifar10(None)
    with pytest.raises(DataError, match="holds no CIFAR10; put torchvision's folder"):
        load_cifar10(str(tmp_path))
    with pytest.raises(DataError, match="is not a folder"):
        load_cifar10(str(tmp_path / "none"))


def test_a_download_is_kept_and_read(tmp_path, monkeypatch):
    torchvision = pytest.importorskip("torchvision")
    monkeypatch.setattr(download, "reachable", lambda address: True)

    def fetch(root, download):
        write_batches(download and cifar.Path(root) / "cifar-10-batches-py")
        (cifar.Path(root) / "cifar-10-python.tar.gz").write_bytes(b"packed")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fetch)
    assert len(load_cifar10(None).labels) == 20
    assert not (tmp_path / "cache" / "cifar-10-python.tar.gz").exists()


def test_normalisation_is_per_channel_and_follows_the_data(tmp_path):
    """(x / 255 - mean) / std in float64, by hand; digits are left as they are."""
    images, _ = pixels(3)
    mean, std = (np.array(v).reshape(3, 1, 1) for v in (MEAN, STD))
    by_hand = (images.astype(np.float64) / 255 - mean) / std
    np.testing.assert_allclose(to_float(images, MEAN, STD).numpy(), by_hand, atol=1e-6)
    write_batches(tmp_path / "cifar10", each=10)
    settings = {"data-dir": str(tmp_path), "train-size": 20, "clients": 2, "clients-per-round": 1}
    config = make_config({**settings, "dataset": "rotcifar10", "model": "fixup-resnet8"})
    data = load_federated(config)
    program = program_for(config, data)
    assert torch.equal(program.to_float(data.images), to_float(data.images, MEAN, STD))
    assert (data.images.shape[1:], data.num_classes, data.in_channels) == ((3, 32, 32), 10, 3)
    assert data.angles is not None
    # Rotated before it is normalised: corners are black, not of the mean colour.
    turned = np.abs(np.sin(2 * data.angles)) > 0.9
    assert not data.images[turned][:, :, 0, 0].any()


@pytest.mark.parametrize(("total", "most"), [(10_000, 5_000), (9_999, 9_000)])
def test_five_thousand_images_stay_for_validation(monkeypatch, total, most):
    """Of fewer than 10,000 only a tenth must stay, as too many would be left unused."""
    found = cifar.Images(
        np.zeros((total, 3, 4, 4), np.uint8), np.arange(total) % 10, validation=cifar.VALIDATION
    )
    monkeypatch.setattr("fedpart.data.federated.load_cifar10", lambda data_dir: found)
    config = make_config({"dataset": "cifar10", "train-size": 100})
    assert len(load_federated(config).val_labels) == 5_000
    assert len(load_federated(config.model_copy(update={"train_size": most})).labels) == most
    with pytest.raises(DataError, match=f"use at most {most:,}"):
        load_federated(config.model_copy(update={"train_size": most + 1}))
