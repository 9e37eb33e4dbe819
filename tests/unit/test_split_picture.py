import sys

import numpy as np
import pytest

from fedpart.config import make_config
from fedpart.data import FederatedData
from fedpart.data.rotate import draw_angles
from fedpart.data.split import skew_groups, split_clients
from fedpart.errors import ConfigError, OutputError
from fedpart.plots_split import count_groups, draw_split, split_json, split_table, summarise


def make(**values):
    config = make_config({"clients": 30, "train_size": 600, **values})
    rng = np.random.default_rng(0)
    labels, angles = rng.integers(0, 10, 600), draw_angles(rng, 600)
    groups = skew_groups(config.skew, labels, angles)
    images = np.zeros((600, 1, 28, 28), np.uint8)
    data = FederatedData(
        name=config.dataset,
        num_classes=10,
        in_channels=1,
        images=images,
        labels=labels,
        angles=angles if config.dataset == "rotmnist" else None,
        client_indices=split_clients(groups, 30, config.alpha, rng),
        val_images=images[:9],
        val_labels=labels[:9],
        test_images=None,
        test_labels=None,
        source="600 made-up digits",
    )
    return data, config


def test_summary_by_hand():
    counts = np.array([[95, 5], [64, 0], [0, 65], [1, 1]])
    summary = summarise(counts)
    assert (summary.clients, summary.images) == (4, 231)
    assert (summary.smallest, summary.median, summary.largest) == (2, 64.5, 100)
    assert summary.one_sided == 0.75
    assert summary.single_group == 0.5
    assert summary.over_batch == 2
    # Exactly 90 % is not more than 90 %.
    assert summarise(np.array([[90, 10]])).one_sided == 0.0


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"dataset": "mnist"},
        {"skew": "iid", "sizes": "equal"},
        {"skew": "label", "concentration": "class"},
        {"batch_size": 5},
    ],
)
def test_table_and_picture(tmp_path, values):
    pytest.importorskip("matplotlib")
    data, config = make(**values)
    assert count_groups(data, config).sum() == 600
    table = split_table(data, config)
    assert "600 over 30 clients" in table
    assert f"more than {config.batch_size} images" in table
    assert ("angle bin" in table) == (config.skew == "rotation")
    draw_split(data, config, tmp_path / "new" / "split.png")
    assert (tmp_path / "new" / "split.png").read_bytes()[:4] == b"\x89PNG"


def test_numbers_for_programs():
    found = split_json(*make())
    assert np.sum(found["counts"]) == 600
    assert found["groups"][0] == "-180° to -144°"
    assert found["groups"][9] == "144° to 180°"


def test_picture_that_cannot_be_written(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    data, config = make()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "split.png", tmp_path / "split.nonsense"):
        with pytest.raises(OutputError, match="cannot write "):
            draw_split(data, config, path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        draw_split(data, config, tmp_path / "split.png")
