import csv
import errno
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from made_runs import make_run, write_lines

from fedpart.compare import compare, labels
from fedpart.errors import ConfigError, OutputError
from fedpart.plots_curves import hyper_kinds
from fedpart.run_files import read_lines


def fedavg(folder, **settings):
    return make_run(folder, chunk_mb=(10,), hyper=False, method="fedavg", **settings)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_picture_and_numbers(tmp_path, suffix):
    runs = [make_run(tmp_path / "a"), fedavg(tmp_path / "b")]
    out = tmp_path / "deep" / f"curves{suffix}"
    found = compare(runs, out)
    assert out.stat().st_size > 1000
    with out.with_suffix(".csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["run"] for line in lines] == ["a", "a", "b", "b"]
    assert float(lines[1]["upload_MB"]) == 20
    assert float(lines[3]["total_MB"]) == 80
    assert float(lines[3]["moving_average"]) == pytest.approx(0.6)
    assert [line["rotation_degrees"] for line in lines] == ["18.000000", "36.000000", "", ""]
    chunks = [[line[f"upload_MB_chunk_{k}"] for k in (0, 1)] for line in lines]
    assert chunks[1::2] == [["16.000000", "4.000000"], ["40.000000", ""]]
    table = found.text().splitlines()
    assert len(table) == 3
    assert table[1].split() == ["a", "1", "4", "60.00", "20.0", "40.0", "50.0"]


def test_seeds_of_one_experiment_are_a_mean_and_its_error(tmp_path):
    # 0.5 and 0.7 at the end: mean 0.6, standard error sqrt(0.02 / 2) = 0.1.
    for seed, last in ((0, 0.6), (1, 1.0)):
        make_run(tmp_path / "many" / f"seed-{seed}", accuracies=(0.4, last), seed=seed)
    one = fedavg(tmp_path / "one")
    found = compare([tmp_path / "many", one], tmp_path / "x.png")
    assert [g.label for g in found.groups] == ["many (2 seeds)", "one"]
    assert found.notes == []
    assert "60.00 ± 10.00" in found.text()
    with (tmp_path / "x.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4
    assert (lines[1]["seeds"], lines[1]["standard_error"]) == ("2", "0.100000")


def test_seeds_named_one_by_one_are_found_to_belong_together(tmp_path):
    runs = [make_run(tmp_path / f"x-seed{seed}", seed=seed) for seed in (0, 1)]
    found = compare([*runs, fedavg(tmp_path / "y")], tmp_path / "x.png")
    assert [g.label for g in found.groups] == ["x (2 seeds)", "y"]


def test_a_seed_that_comes_again_is_an_experiment_of_its_own(tmp_path):
    for name in ("old", "new"):
        for seed in (0, 1):
            make_run(tmp_path / name / f"seed-{seed}", seed=seed)
    found = compare([tmp_path / "old", tmp_path / "new"], tmp_path / "x.png")
    assert [g.label for g in found.groups] == ["old (2 seeds)", "new (2 seeds)"]


def test_seeds_of_several_folders_join_and_experiments_keep_their_order(tmp_path):
    for seed, name in enumerate(("one", "two", "three")):
        make_run(tmp_path / name, seed=seed)
    make_run(tmp_path / "again", seed=0)
    other = fedavg(tmp_path / "other")
    runs = [tmp_path / name for name in ("one", "two")]
    found = compare([*runs, other, tmp_path / "again", tmp_path / "three"], tmp_path / "x.png")
    assert [len(g.curves) for g in found.groups] == [3, 1, 1]
    assert [g.label for g in found.groups][1:] == ["other", "again"]


@pytest.mark.parametrize("alone", [0, 1])
def test_seeds_of_one_folder_stay_together(tmp_path, alone):
    make_run(tmp_path / "base", seed=alone)
    for seed in (0, 1):
        make_run(tmp_path / "many" / f"seed-{seed}", seed=seed)
    found = compare([tmp_path / "base", tmp_path / "many"], tmp_path / "x.png")
    assert [g.label for g in found.groups] == ["base", "many (2 seeds)"]


def test_other_settings_are_other_experiments_even_in_one_folder(tmp_path):
    for seed, samples in ((0, 5), (1, 5), (2, 6), (3, 6)):
        make_run(tmp_path / "many" / f"seed-{seed}", seed=seed, samples=samples)
    found = compare([tmp_path / "many"], tmp_path / "x.png")
    assert [g.label for g in found.groups] == ["seed-0 (2 seeds)", "seed-2 (2 seeds)"]


def test_a_run_named_twice_is_one_run(tmp_path):
    run = make_run(tmp_path / "many" / "seed-0")
    found = compare([tmp_path / "many", run], tmp_path / "x.png")
    assert [len(g.curves) for g in found.groups] == [1]


def test_seeds_that_lag_behind_are_left_out_and_named(tmp_path):
    many = tmp_path / "many"
    make_run(many / "seed-0", accuracies=(0.4, 0.8))
    make_run(many / "seed-1", accuracies=(0.4, 0.8), seed=1, done=2)
    make_run(many / "seed-2", accuracies=(0.4, 0.8), seed=2, done=0)
    found = compare([many], tmp_path / "x.png")
    assert [(g.label, len(g.curves)) for g in found.groups] == [("many", 1)]
    assert "seed-2 has no evaluation yet" in found.notes[0]
    assert "seed-1 is at round 2 of 4" in found.notes[1]


def test_seeds_that_are_all_under_way_are_shown_as_far_as_all_have_come(tmp_path):
    many, three = tmp_path / "many", (0.4, 0.5, 0.6)
    make_run(many / "seed-0", accuracies=three, done=4)
    make_run(many / "seed-1", accuracies=three, seed=1, done=2)
    found = compare([many], tmp_path / "x.png")
    assert [c.rounds for c in found.groups[0].curves] == [[2], [2]]
    assert found.notes == ["many: shown to round 2, which all seeds have"]


def test_rounds_and_megabytes_to_a_target(tmp_path):
    # Moving averages of the two seeds: 0.4, 0.6, 0.7 and 0.6, 0.6, 0.6. The target 0.6 is reached
    # at rounds 4 and 2: mean 3, standard error 1; 20 and 10 MB up, 40 and 20 down.
    many = tmp_path / "many"
    make_run(many / "seed-0", accuracies=(0.4, 0.8, 0.9))
    make_run(many / "seed-1", accuracies=(0.6, 0.6, 0.6), seed=1)
    never = fedavg(tmp_path / "never", accuracies=(0.1, 0.5, 0.3))
    text = compare([many, never], tmp_path / "x.png", target=0.6).text()
    title, head, one, two = text.split("\n\n")[1].splitlines()
    assert title == "to 60 % (mean of up to 10 evaluations)"
    assert head.split("  ")[0] == "run"
    assert one.split("  ")[-1].strip() == "45.0 ± 15.0"
    for cell in ("2 of 2", "3 ± 1", "15.0 ± 5.0", "30.0 ± 10.0"):
        assert cell in one
    for cell in ("0 of 1", "not reached", "best 30.00 %"):
        assert cell in two


def test_a_target_that_only_some_seeds_reach_is_not_reached_by_all(tmp_path):
    many = tmp_path / "many"
    make_run(many / "seed-0", accuracies=(0.9, 0.9))
    make_run(many / "seed-1", accuracies=(0.1, 0.1), seed=1)
    last = compare([many], tmp_path / "x.png", target=0.5).text().splitlines()[-1]
    assert "1 of 2" in last
    assert "not by all" in last


def test_other_data_is_refused_and_the_difference_named(tmp_path):
    a = make_run(tmp_path / "a")
    b = make_run(tmp_path / "b", data_hash="b" * 64, train_size=5000)
    c = make_run(tmp_path / "c", data_hash="c" * 64)
    with pytest.raises(OutputError, match="train-size is 1250 in one and 5000 in the other"):
        compare([a, b], tmp_path / "x.png")
    with pytest.raises(OutputError, match="another data-dir"):
        compare([a, c], tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_another_validation_set_is_refused(tmp_path):
    a = make_run(tmp_path / "a", images=200, eval_size=200)
    b = make_run(tmp_path / "b", images=2000)
    with pytest.raises(OutputError, match="eval-size is 200 in one and 2000 in the other"):
        compare([a, b], tmp_path / "x.png")
    # Both had less than either asks for.
    c = make_run(tmp_path / "c", images=200)
    assert len(compare([a, c], tmp_path / "x.png").groups) == 2


def test_other_methods_seeds_and_rounds_are_what_compare_is_for(tmp_path):
    a = make_run(tmp_path / "a")
    b = fedavg(tmp_path / "b", seed=3, accuracies=(0.1, 0.2, 0.3))
    assert len(compare([a, b], tmp_path / "x.png").groups) == 2


def test_labels_are_as_short_as_can_be(tmp_path):
    assert labels([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert labels([tmp_path / "a" / "s", tmp_path / "b" / "s"]) == ["a/s", "b/s"]
    assert len(labels([tmp_path, tmp_path])) == 2


def test_hyperparameters_share_a_panel_by_their_first_word(tmp_path):
    many = tmp_path / "many"
    make_run(many / "a")
    groups = compare([many, fedavg(tmp_path / "b")], tmp_path / "x.png").groups
    assert hyper_kinds(groups) == {"rotation": ["rotation_degrees"], "dropout": ["dropout_1"]}


def test_runs_that_cannot_be_drawn(tmp_path):
    run = make_run(tmp_path / "a", done=1)
    with pytest.raises(OutputError, match="no evaluation yet"):
        compare([run], tmp_path / "x.png")
    make_run(tmp_path / "b", done=1, seed=1)
    with pytest.raises(OutputError, match="none of 2 runs has an evaluation yet"):
        compare([tmp_path], tmp_path / "x.png")
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        compare([run], tmp_path / "x.gif")
    with pytest.raises(OutputError, match="is no folder: name the folder of a run"):
        compare([tmp_path / "none"], tmp_path / "x.png")


def test_the_data_of_a_run_must_be_known(tmp_path):
    a, b = (make_run(tmp_path / name, done=2) for name in "ab")
    (b / "run.json").unlink()
    with pytest.raises(OutputError, match=r"no readable run\.json or summary\.json"):
        compare([a, b], tmp_path / "x.png")


def test_a_picture_that_cannot_be_written(tmp_path):
    run = make_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        compare([run], tmp_path / "file" / "x.png")
    (tmp_path / "y.csv").mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*y\.csv"):
        compare([run], tmp_path / "y.png")
    assert not (tmp_path / "y.png").exists()
    (tmp_path / "z.png").mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*z\.png"):
        compare([run], tmp_path / "z.png")
    assert not (tmp_path / "z.csv").exists()


def test_without_matplotlib_nothing_is_written(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        compare([run], tmp_path / "y.png")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_the_picture_goes_through_a_link(tmp_path):
    (tmp_path / "x.png").symlink_to("y.png")
    compare([make_run(tmp_path / "run")], tmp_path / "x.png")
    assert (tmp_path / "y.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "x.png").is_symlink()


def test_committed_results_suffice(tmp_path):
    """What is in results/ lacks rounds.jsonl and run.json; picture and table come all the same."""
    committed = Path(__file__).parents[2] / "results" / "quick-rotmnist-1.25k"
    folder = tmp_path / "copy"
    shutil.copytree(committed, folder)
    found = compare([folder / "partitioned", folder / "fedavg"], tmp_path / "x.png", 0.8)
    assert [g.label for g in found.groups] == ["partitioned (3 seeds)", "fedavg (3 seeds)"]
    text = found.text()
    assert "88.70 ± 0.51" in text
    assert "363 ± 19" in text
    assert "best 78.41 %" in text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rounds", {"upload_model_bytes": None}),
        ("rounds", {"clients": [{"chunk": -1, "upload_model_bytes": 1}]}),
        ("rounds", {"round": 3}),
        ("rounds", {"hyper_readable": {}}),
        ("evaluations", {"val_accuracy": "high"}),
        ("evaluations", {"round": 2}),
    ],
)
def test_a_line_that_is_json_but_no_record_is_named(tmp_path, name, change):
    """The second of four, whatever is wrong with it."""
    path = make_run(tmp_path / "a", accuracies=(0.1, 0.2, 0.3, 0.4)) / f"{name}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1] |= change
    write_lines(path, lines)
    with pytest.raises(OutputError, match=rf"{path} is damaged in line 2 \("):
        compare([tmp_path], tmp_path / "x.png")
    lines[1] = {}
    write_lines(path, lines)
    with pytest.raises(OutputError, match=rf"{path} is damaged in line 2 \("):
        compare([tmp_path], tmp_path / "x.png")


def half(content):
    return content[: len(content) // 2]


def a_line_less(content):
    return b"".join(content.splitlines(keepends=True)[:-1])


@pytest.mark.parametrize("name", ["rounds.jsonl", "evaluations.jsonl", "config.toml"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (half, "cut short|it ends "),
        (a_line_less, "it ends before round 8|it ends early"),
        (lambda content: content.split(b"\n")[0][:-2], "cut short|not valid TOML|ends early"),
        (lambda _: b"", "it is empty|it ends early"),
        (lambda _: b"\xff\n", "damaged in line 1|not UTF-8 text"),
        (lambda _: b'{"a": 1}\n', "round: Field required|not valid TOML"),
    ],
)
def test_a_finished_run_with_a_damaged_file_is_refused_by_its_name(tmp_path, name, change, says):
    """What a crash may cut of a run under way has been written whole when it is finished."""
    for seed in (0, 1):
        make_run(tmp_path / f"seed-{seed}", seed=seed, accuracies=[0.1] * 4)
    path = tmp_path / "seed-1" / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(OutputError, match=f"{re.escape(str(path))} .*({says})"):
        compare([tmp_path], tmp_path / "c.png")
    assert not (tmp_path / "c.png").exists()


def test_a_line_that_a_crash_cut_is_left_out_and_a_damaged_one_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\nxx\n{"a": 3}\n')
    with pytest.raises(OutputError, match="damaged in line 2"):
        read_lines(path)
    with pytest.raises(OutputError, match="cannot read"):
        read_lines(tmp_path / "none")


@pytest.mark.parametrize("broken", ["a.png", "a.csv"])
def test_what_is_there_stays_whole_where_the_disk_breaks(tmp_path, monkeypatch, broken):
    runs = [make_run(tmp_path / "one"), fedavg(tmp_path / "two")]
    compare(runs[:1], tmp_path / "a.png")
    before = (tmp_path / broken).read_bytes()
    replace = Path.replace

    def full(path, target):
        if Path(target).name == broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match=rf"cannot write .*{broken}: No space left"):
        compare(runs, tmp_path / "a.png")
    assert (tmp_path / broken).read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))
