"""Arrays from a user's own function: whole numbers of any type, the order of axes, and units."""

import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import tiny

from fedpart.client import ClientTask, client_update
from fedpart.data import Images, load_federated, order_warnings, scale_warnings
from fedpart.data.images import own_images
from fedpart.errors import DataError
from fedpart.program import program_for
from fedpart.run_folder import known_warnings
from fedpart.server import initial_state

WHOLE = ("u1", "i1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", ">i2", ">u2", ">i4", ">u4", ">i8")
OTHERS = ("f4", "f8", "?", "S1", "U1", "O", "c8", "M8[s]")


@pytest.fixture
def own(monkeypatch):
    """``own(images, labels, ...)``: the setting that names a function which returns them."""

    def name(*arrays, **rest):
        module = types.ModuleType("a_users_data")
        module.load = lambda data_dir: Images(*arrays, **rest)
        monkeypatch.setitem(sys.modules, "a_users_data", module)
        return "a_users_data:load"

    return name


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_numbers_are_labels_whatever_their_type(own, kind):
    images, labels = tiny.images(60)
    dataset = own(images, labels.astype(kind), images[:9], labels[:9].astype(kind), num_classes=3)
    config = tiny.config(dataset=dataset, train_size=40, skew="label")
    data = load_federated(config)
    assert data.labels.dtype == data.val_labels.dtype == data.test_labels.dtype == np.int64
    program = program_for(config, data)
    state = initial_state(program)
    reply = client_update(program, ClientTask(1, 2, 0, state.theta, state.hyper), *data.client(2))
    assert np.isfinite(reply.train_loss)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_labels_are_refused_at_once(own, kind):
    images, labels = tiny.images(6)
    with pytest.raises(DataError, match="there must be one whole number for each"):
        own_images(own(images, (labels % 2).astype(kind), num_classes=3), None)


@pytest.mark.parametrize(
    ("shape", "warned"),
    [
        ((5, 28, 28, 1), True),
        ((5, 32, 32, 3), True),
        ((5, 20, 30, 4), True),
        ((5, 1, 28, 28), False),
        ((5, 3, 32, 32), False),
        ((5, 1, 8, 3), False),
        ((5, 3, 3, 3), False),
        ((5, 64, 8, 8), False),
        ((5, 28), False),
    ],
)
def test_a_last_side_that_looks_like_channels_is_a_warning(shape, warned):
    said = order_warnings(shape)
    assert len(said) == warned
    if warned:
        _, channels, height, width = shape
        assert f"{channels} channels of {height} by {width} pixels" in said[0]
        assert "[n, channels, height, width]" in said[0]


@pytest.mark.parametrize(("highest", "warned"), [(0, True), (1, True), (16, True), (255, False)])
def test_grey_values_that_look_like_another_scale_are_a_warning(highest, warned):
    """Floats in [0, 1] that were made uint8, or sixteen greys; a run tells it with the rest."""
    images = tiny.images(60)[0]
    dark = (images / 255 * highest).astype(np.uint8)
    said = scale_warnings(dark)
    assert len(said) == warned
    assert all(f"is above {highest}, where 255 is white" in text for text in said)
    assert known_warnings(tiny.program(), replace(tiny.data(), images=dark)) == said


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mean": (33.3,)}, r"has mean \(33.3,\); each must be 0 to 1, of images in \[0, 1\]"),
        ({"mean": (-0.1,)}, "each must be 0 to 1"),
        ({"mean": (float("nan"),)}, "each must be 0 to 1"),
        ({"std": (78.6,)}, r"has std \(78.6,\); each must be above 0 and at most 1"),
        ({"std": (0.0,)}, "each must be above 0"),
        ({"std": (float("nan"),)}, "each must be above 0"),
    ],
)
def test_mean_and_deviation_are_those_of_images_in_0_to_1(own, given, says):
    images, labels = tiny.images(6)
    with pytest.raises(DataError, match=says):
        own_images(own(images, labels, num_classes=3, **given), None)
    found = own_images(own(images, labels, num_classes=3, mean=(0.13,), std=(0.31,)), None)
    assert (found.mean, found.std) == ((0.13,), (0.31,))
