import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedpart.data.cache import cache_folder, cached


@pytest.fixture
def root(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"images": np.arange(5000, dtype=np.int64), "labels": np.arange(3)}


def test_built_once_then_mapped(root):
    build = Builder()
    for _ in range(3):
        arrays = cached("entry", build)
        assert np.array_equal(arrays["images"], np.arange(5000))
        assert isinstance(arrays["images"], np.memmap)
        assert not arrays["images"].flags.writeable
    assert build.calls == 1
    assert sorted(p.name for p in root.iterdir()) == ["entry", "entry.lock"]


@pytest.mark.parametrize("fault", ["cut", "altered", "gone", "manifest", "manifest of a list"])
def test_damaged_entry_is_rebuilt(root, fault):
    build = Builder()
    cached("entry", build)
    file, manifest = root / "entry" / "images.npy", root / "entry" / "sha256.json"
    if fault == "cut":
        file.write_bytes(file.read_bytes()[:2000])
    elif fault == "altered":
        file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    elif fault == "gone":
        file.unlink()
    else:
        manifest.write_text("[1]" if fault == "manifest of a list" else '{"images"')
    assert np.array_equal(cached("entry", build)["images"], np.arange(5000))
    assert build.calls == 2
    cached("entry", build)
    assert build.calls == 2


def test_open_maps_outlive_a_rebuild(root):
    build = Builder()
    kept = cached("entry", build)["images"]
    (root / "entry" / "labels.npy").unlink()
    cached("entry", build)
    assert np.array_equal(kept, np.arange(5000))


def test_folder_that_cannot_be_written(monkeypatch, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "file" / "cache"))
    assert np.array_equal(cached("entry", Builder())["labels"], np.arange(3))
    assert capfd.readouterr() == ("", "")


def test_full_disk(root, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert np.array_equal(cached("entry", Builder())["labels"], np.arange(3))
    assert [p.name for p in root.iterdir()] == ["entry.lock"]


def test_nothing_is_written_into_the_data_folder(monkeypatch, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("FEDPART_CACHE", str(data / "cache"))
    cached("entry", Builder(), outside=data)
    assert list(data.iterdir()) == []


def test_errors_of_the_builder_pass_and_leave_nothing(root):
    def fail():
        raise ValueError("bad file")

    with pytest.raises(ValueError, match="bad file"):
        cached("entry", fail)
    assert [p.name for p in root.iterdir()] == ["entry.lock"]


def test_place_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("FEDPART_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "fedpart"


def test_those_who_wait_for_the_lock_find_it_built(root):
    calls = []

    def build():
        calls.append(1)
        time.sleep(0.1)
        return {"images": np.arange(1000)}

    # The lock belongs to an open file, so that threads exclude each other as processes do.
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: cached("entry", build)["images"].sum(), range(6)))
    assert found == [499_500] * 6
    assert len(calls) == 1
