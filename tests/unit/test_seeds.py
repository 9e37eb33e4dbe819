import json

import pytest
from made_runs import make_run

from fedpart.config import Config, load_toml
from fedpart.errors import OutputError
from fedpart.records import Summary
from fedpart.run_files import check_free, find_runs
from fedpart.seeds import check_unfinished, claimed, mean_and_error, over_seeds, seed_runs

SUMMARY = {
    "config_hash": "c" * 64,
    "test_accuracy": 0.7,
    **dict.fromkeys(
        (f"{w}_{k}_bytes" for w in ("upload", "download") for k in ("model", "wire")), 5
    ),
    "failures": 0,
    "hyper_readable": {},
    "seconds": 1.0,
    "seconds_per_round": 0.1,
    "peak_rss_bytes": 5,
}


@pytest.fixture
def parent(tmp_path):
    config = Config(seed=3, seeds=3, rounds=4, eval_every=2, out=str(tmp_path / "many"))
    with claimed(tmp_path / "many", config):
        pass
    return tmp_path / "many"


def settings(parent):
    return Config(**load_toml(parent / "config.toml"))


def finished(folder, **values):
    run = make_run(folder, **values)
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | SUMMARY))
    (run / "run.json").write_text('{"exit": "ok"}')
    return run


def states(parent):
    return [(r.folder.name, r.state) for r in seed_runs(parent, settings(parent))]


def test_a_parent_knows_its_settings_and_is_no_run(parent):
    assert (settings(parent).seed, settings(parent).seeds) == (3, 3)
    assert [p.name for p in parent.iterdir()] == ["config.toml"]
    with pytest.raises(OutputError, match="holds no run"):
        find_runs(parent)
    with pytest.raises(OutputError, match="is not empty"), claimed(parent, settings(parent)):
        pass


def test_nothing_has_begun(parent):
    assert states(parent) == [("seed-3", "new"), ("seed-4", "new"), ("seed-5", "new")]
    first = next(iter(seed_runs(parent, settings(parent))))
    assert (first.config.seed, first.config.seeds) == (3, 1)
    assert first.folder == parent / "seed-3"


def test_each_seed_is_found_as_far_as_it_has_come(parent):
    finished(parent / "seed-3", seed=3)
    make_run(parent / "seed-4", seed=4, done=2)
    assert states(parent) == [("seed-3", "finished"), ("seed-4", "begun"), ("seed-5", "new")]
    check_unfinished(parent, settings(parent))
    for seed in (4, 5):
        (parent / f"seed-{seed}").mkdir(exist_ok=True)
        (parent / f"seed-{seed}" / "run.json").write_text('{"exit": "ok"}')
        (parent / f"seed-{seed}" / "summary.json").touch()
    with pytest.raises(OutputError, match=r"many is finished, all 3 seeds of it"):
        check_unfinished(parent, settings(parent))


def test_a_folder_is_looked_into_only_when_its_turn_has_come(parent):
    runs = seed_runs(parent, settings(parent))
    assert next(runs).state == "new"
    finished(parent / "seed-4", seed=4)
    found = next(runs)
    assert found.state == "finished"
    assert isinstance(found.summary, Summary)


def test_a_run_that_was_killed_while_it_wrote_its_last_files_has_only_begun(parent):
    """run.json, which says how it ended, comes after summary.json and the pictures."""
    run = finished(parent / "seed-3", seed=3)
    for text in ('{"exit": null}', '{"exit": "interrupted"}', "{", "[]"):
        (run / "run.json").write_text(text)
        assert states(parent)[0] == ("seed-3", "begun")
    check_unfinished(parent, settings(parent))


def test_a_run_that_was_killed_at_its_start_is_new_or_begun(parent):
    """New until its settings are there, which is what a resume needs."""
    folder = parent / "seed-3"
    folder.mkdir()
    (folder / "config.toml.tmp").touch()
    assert states(parent)[0] == ("seed-3", "new")
    check_free(folder)
    (folder / "config.toml").write_text(settings(parent).to_toml())
    assert states(parent)[0] == ("seed-3", "begun")


def test_other_settings_than_the_parents_are_refused(parent):
    finished(parent / "seed-3", seed=3, client_lr=0.1)
    with pytest.raises(OutputError, match=r"seed-3 began with client-lr 0.1, but .* says 0.05"):
        states(parent)


def test_another_seed_than_the_folders_name_is_refused(parent):
    finished(parent / "seed-3", seed=9)
    with pytest.raises(OutputError, match="holds seed 9"):
        states(parent)


def test_a_damaged_summary_is_named(parent):
    (finished(parent / "seed-3", seed=3) / "summary.json").write_text("{")
    with pytest.raises(OutputError, match=r"summary\.json is damaged"):
        states(parent)


def test_mean_and_standard_error_by_hand():
    # Mean 3; deviations -2, 0, 2; sample variance 8 / 2 = 4; standard error 2 / sqrt(3).
    assert mean_and_error([1, 3, 5]) == pytest.approx((3, 1.1547005))
    assert mean_and_error([2]) == (2, None)


def test_the_table_at_the_end(parent):
    runs = [finished(parent / f"seed-{s}", seed=s, accuracies=(0.1 * s,) * 2) for s in (3, 5)]
    summaries = [Summary(**json.loads((r / "summary.json").read_text())) for r in runs]
    # 30 and 50 %: mean 40, standard error sqrt(200 / 2) = 10.
    assert over_seeds(summaries) == [
        ("seeds", "3, 5"),
        ("final accuracy", "40.00 ± 10.00 % (standard error)"),
        ("test accuracy", "70.00 ± 0.00 % (standard error)"),
        ("upload fraction", "50.00 ± 0.00 % (standard error)"),
    ]
    assert over_seeds(summaries[:1]) == [("seeds", "3")]
