"""What makes a resume another run is named, with both values."""

import hashlib
import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny

from fedpart import cohort
from fedpart.errors import OutputError
from fedpart.origin import code_warnings, origin_of
from fedpart.plugins import code_hashes

RUN = Path("runs/a")


@pytest.fixture
def began(small_data):
    return origin_of(tiny.config(), small_data)


def test_the_same_settings_and_data_pass(began, small_data):
    """Also from elsewhere, and with other keys that no number depends on."""
    config = tiny.config(backend="algorithm", checkpoint_every=1, out="b", max_empty_rounds=9)
    now = origin_of(config, replace(small_data, source="another place"))
    began.refuse_other(RUN, now)
    assert began.warnings(now) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client_lr": 0.5}, "client-lr was 0.05 and is 0.5 now"),
        ({"rounds": 9, "seed": 1}, "rounds was 3 and is 9 now, seed was 0 and is 1 now"),
        ({"chunks": "0.5,0.5"}, "chunks was 0.5,0.3,0.2 and is 0.5,0.5 now"),
        ({"hyper_batch_size": 4}, "hyper-batch-size was not set and is 4 now"),
    ],
)
def test_other_settings_are_refused(began, small_data, changes, words):
    """Every key that differs."""
    with pytest.raises(OutputError) as caught:
        began.refuse_other(RUN, origin_of(tiny.config(**changes), small_data))
    sentence = f"runs/a began with other settings: {words}: put the old values back into its "
    assert str(caught.value) == sentence + "config.toml, or start a new run"


def test_a_setting_that_an_earlier_version_did_not_know_was_its_default(began, small_data):
    """So that a resume under a later version is a warning, unless the setting is used."""
    earlier = {k: v for k, v in began.settings.items() if k != "average"}
    replace(began, settings=earlier).refuse_other(RUN, began)
    now = origin_of(tiny.config(average="probs"), small_data)
    with pytest.raises(OutputError, match="average was logits and is probs now"):
        replace(began, settings=earlier).refuse_other(RUN, now)


def test_a_setting_that_this_version_does_not_know_is_a_difference(began):
    """It did something."""
    other = replace(began, settings=began.settings | {"momentum": 0.9})
    with pytest.raises(OutputError, match=r"momentum was 0\.9 and is not set now"):
        other.refuse_other(RUN, began)


def test_other_data_are_refused(began, small_data):
    """By sizes and hashes, and by where they came from if that differs."""
    other = replace(tiny.data(clients=11), source="more numbers")
    with pytest.raises(OutputError) as caught:
        began.refuse_other(RUN, origin_of(tiny.config(), other))
    for words in (
        "runs/a began with other data: the number of training images was 75 and is 88 now",
        "the number of clients was 10 and is 11 now",
        f"split was {small_data.data_hash[:12]} and is {other.data_hash[:12]} now",
        "the source was 'random numbers' and is 'more numbers' now",
        "give it the same data, or start a new run",
    ):
        assert words in str(caught.value)


def test_other_test_images_are_refused(small_data):
    """No training depends on them, but the last line of the table does."""
    images, labels = tiny.images(4)
    one = replace(small_data, test_images=images, test_labels=labels)
    two = replace(one, test_labels=(labels + 1) % tiny.CLASSES)
    assert one.data_hash == two.data_hash == small_data.data_hash
    assert small_data.test_hash is None
    assert replace(one, test_images=np.ascontiguousarray(images)).test_hash == one.test_hash
    began = origin_of(tiny.config(), one)
    with pytest.raises(
        OutputError, match=r"other data: the hash of test images was [0-9a-f]{12} an"
    ):
        began.refuse_other(RUN, origin_of(tiny.config(), two))


def test_another_availability_in_the_same_file_is_refused(small_data, tmp_path):
    """The setting names the file; results follow what is in it."""
    path = tmp_path / "seen.csv"
    config = tiny.config(availability=str(path))
    path.write_text("1\n" * 10)
    began = origin_of(config, small_data)
    cohort.availability.cache_clear()
    path.write_text("1\n" * 9 + "0\n")
    with pytest.raises(OutputError, match="the hash of the availability file was"):
        began.refuse_other(RUN, origin_of(config, small_data))


def test_other_versions_are_a_warning_each_by_name(began):
    """With both, in one sentence."""
    now = replace(began, versions=began.versions | {"torch": "99", "flwr": "98"})
    began.refuse_other(RUN, now)
    (sentence,) = began.warnings(now)
    assert f"torch was {began.versions['torch']} and is 99 now" in sentence
    assert "and is 98 now: numbers may differ" in sentence


def test_a_client_in_another_chunk_is_refused(began):
    """It would be scored by weights that have seen its data; a resume keeps all where they were."""
    assert sorted(began.chunks) == [0] * 5 + [1] * 3 + [2] * 2
    first = began.chunks[0]
    moved = replace(began, chunks=[(first + 1) % 3, *began.chunks[1:]])
    with pytest.raises(OutputError, match=f"client 0 in chunk {first}, and this version"):
        began.refuse_other(RUN, moved)
    # An earlier version kept none.
    replace(began, chunks=[]).refuse_other(RUN, began)


def test_modules_of_ones_own_are_told_by_their_files_as_they_were_imported(tmp_path, monkeypatch):
    """Of data set, model and augmentation; one process may train many runs with one import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kept.py").write_text("a = 1\n")
    named = {"dataset": "kept:a", "model": "kept:b", "augmentation": "sys:c"}
    settings = tiny.config(**named, skew="iid").result_values()
    # Nothing is imported yet, and sys never has a file.
    assert code_hashes(settings) == {}
    importlib.import_module("kept")
    before = code_hashes(settings)
    assert before == dict.fromkeys(("dataset", "model"), hashlib.sha256(b"a = 1\n").hexdigest())
    (tmp_path / "kept.py").write_text("a = 2\n")
    assert code_hashes(settings) == before
    assert code_hashes(tiny.config(model="mnist-cnn").result_values()) == {}
    assert code_warnings(before, settings) == code_warnings({}, settings) == []
    dataset, model = code_warnings({"dataset": "0", "model": "1"}, settings)
    assert dataset.startswith("the file of dataset 'kept:a' has changed since the run began: numb")
    assert model.startswith("the file of model 'kept:b' has changed")
