import csv
import json

import pytest

from fedpart.compare import compare, compare_table, draw_run, labels, moving_average, read_curve
from fedpart.config import Config
from fedpart.errors import ConfigError, OutputError
from fedpart.run_files import read_lines

MB = 1_000_000


def make_run(folder, data_hash="a" * 64, share=0.5, rounds=4, **settings):
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(Config(**settings).to_toml())
    (folder / "run.json").write_text(json.dumps({"data_hash": data_hash}))
    with (folder / "rounds.jsonl").open("w") as file:
        for i in range(1, rounds + 1):
            line = {
                "upload_model_bytes": int(10 * share * MB),
                "upload_fraction": share,
                "cumulative_upload_model_bytes": int(10 * share * MB) * i,
                "cumulative_download_model_bytes": 10 * MB * i,
                "hyper_readable": {"rotation_degrees": 9.0 * i, "dropout_1": 0.1},
            }
            file.write(json.dumps(line) + "\n")
    with (folder / "evaluations.jsonl").open("w") as file:
        for i in range(2, rounds + 1, 2):
            file.write(json.dumps({"round": i, "val_accuracy": 0.2 * i}) + "\n")
    return folder


def test_moving_average_uses_what_is_there():
    assert moving_average([1, 2, 3, 4], window=3) == [1, 1.5, 2, 3]


def test_a_curve_is_read_as_recorded(tmp_path):
    curve = read_curve(make_run(tmp_path / "a"))
    assert curve.rounds == [2, 4]
    assert curve.accuracy == [0.4, 0.8]
    assert curve.smooth == pytest.approx([0.4, 0.6])
    assert curve.megabytes == {"upload": [10, 20], "download": [20, 40], "total": [30, 60]}
    assert curve.upload_fraction == pytest.approx(0.5)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_picture_and_numbers(tmp_path, suffix):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", share=1.0)]
    out = tmp_path / "deep" / f"curves{suffix}"
    curves = compare(runs, out)
    assert out.stat().st_size > 1000
    with out.with_suffix(".csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["run"] for line in lines] == ["a", "a", "b", "b"]
    assert float(lines[1]["upload_MB"]) == 20
    assert float(lines[3]["total_MB"]) == 80
    assert float(lines[3]["moving_average"]) == pytest.approx(0.6)
    table = compare_table(curves).splitlines()
    assert len(table) == 3
    assert "60.00" in table[1]


def test_other_data_is_refused_and_the_difference_named(tmp_path):
    a = make_run(tmp_path / "a")
    b = make_run(tmp_path / "b", data_hash="b" * 64, train_size=5000)
    c = make_run(tmp_path / "c", data_hash="c" * 64)
    with pytest.raises(OutputError, match="train-size is 1250 in one and 5000 in the other"):
        compare([a, b], tmp_path / "x.png")
    with pytest.raises(OutputError, match="another data-dir"):
        compare([a, c], tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_other_methods_and_seeds_are_what_compare_is_for(tmp_path):
    a = make_run(tmp_path / "a")
    b = make_run(tmp_path / "b", method="fedavg", seed=3, rounds=6)
    assert len(compare([a, b], tmp_path / "x.png")) == 2


def test_a_parent_stands_for_its_seeds(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / "many" / f"seed-{seed}", seed=seed)
    curves = compare([tmp_path / "many"], tmp_path / "x.png")
    assert [c.label for c in curves] == ["seed-0", "seed-1"]


def test_labels_are_as_short_as_can_be(tmp_path):
    assert labels([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert labels([tmp_path / "a" / "s", tmp_path / "b" / "s"]) == ["a/s", "b/s"]
    assert len(labels([tmp_path, tmp_path])) == 2


def test_runs_that_cannot_be_drawn(tmp_path):
    run = make_run(tmp_path / "a", rounds=1)
    with pytest.raises(OutputError, match="no evaluation yet"):
        compare([run], tmp_path / "x.png")
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        compare([run], tmp_path / "x.gif")
    (run / "run.json").unlink()
    with pytest.raises(OutputError, match=r"no readable run\.json"):
        compare([run], tmp_path / "x.png")
    with pytest.raises(OutputError, match=r"no config\.toml"):
        compare([tmp_path], tmp_path / "x.png")


def test_a_picture_that_cannot_be_written(tmp_path):
    run = make_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        compare([run], tmp_path / "file" / "x.png")


def test_one_runs_own_picture(tmp_path):
    run = make_run(tmp_path / "a")
    draw_run(run)
    assert (run / "curves.png").stat().st_size > 1000


def test_a_line_that_a_crash_cut_is_left_out_and_a_damaged_one_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\nxx\n{"a": 3}\n')
    with pytest.raises(OutputError, match="damaged in line 2"):
        read_lines(path)
    with pytest.raises(OutputError, match="cannot read"):
        read_lines(tmp_path / "none")
