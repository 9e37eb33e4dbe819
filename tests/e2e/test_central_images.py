"""The experiments on images as users type them, on few of them: folders, tables, pictures."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from PIL import Image

from fedpart.central import run_folder, sweep
from fedpart.central.config import PRESETS, make_central_config, preset, read_central_config
from fedpart.central.sweep import Sweep, folders, single_runs
from fedpart.errors import BusyError, OutputError
from fedpart.folder_lock import lock_run
from fedpart.run_files import claim_folder, ended_well, read_lines

TINY = (
    *("--train-size", "60", "--test-size", "20", "--batch-size", "4", "--samples", "2"),
    *("--iterations", "4", "--eval-every", "2", "--eval-size", "10", "--checkpoint-every", "2"),
    *("--seeds", "1"),
)
# What a sweep is cut to.
FEWER = {
    "sensitivity": ("--splits", "1:1,1:3"),
    "validation": ("--splits", "1:1", "--finetune", "2"),
    "random-search": ("--trials", "2"),
}
# A number that the paper prints, or that it prints none.
PAPER = {
    "quick-data-size": "Digits: the paper shows a figure here",
    "quick-cifar10": "79.1 ± 0.0",
    "quick-tinyimagenet": "43.9 ± 0.3",
    "quick-validation": "81.3 ± 0.09",
    "quick-random-search": "The paper shows a figure here",
    "quick-sensitivity": "The paper shows a figure here",
    "quick-feature-extractor": "59.6 ± 0.6",
}
LITERAL = (
    "methods is 'augerin'; it must be one of partitioned, networks, validation, augerino, none, "
    "retrain, random-search, laplace; did you mean 'augerino'?\n"
)
IMAGES = sorted(p.stem for p in PRESETS.glob("*.toml") if "dataset" in p.read_text())


def colours(folder, side, classes=2):
    """An image folder of plain colours."""
    for part, each in (("train", 40), ("test", 12)):
        for label in range(classes):
            place = folder / part / f"n{label}"
            place.mkdir(parents=True)
            for i in range(each):
                Image.new("RGB", (side, side), (100 * label, 5 * i, 90)).save(place / f"{i}.png")


@pytest.fixture(scope="session")
def objects(tmp_path_factory):
    """Data folders of noise in the place of CIFAR10 and TinyImagenet."""
    folder = tmp_path_factory.mktemp("objects")
    colours(folder / "cifar10", 32)
    colours(folder / "tinyimagenet", 64)
    # As a few hundred of the real ones are.
    Image.new("L", (64, 64), 30).save(folder / "tinyimagenet/train/n0/grey.png")
    return folder


def table_runs(folder):
    return len(json.loads((folder / "sweep.json").read_text())["runs"])


def digits_or(objects, name):
    if "mnist" in str(preset(name).get("dataset", preset(name).get("datasets"))):
        return ()
    # Where bfloat16 is imitated, ResNet-50 would take minutes.
    wide = preset(name)["model"] == "resnet50"
    return ("--data-dir", str(objects), *(("--precision", "fp32") if wide else ()))


@pytest.mark.parametrize("name", PAPER)
def test_each_experiment_is_one_command_one_picture_and_one_table(sim, home, objects, name):
    experiment = str(preset(name)["experiment"])
    words = (*TINY, *FEWER.get(experiment, ()), *digits_or(objects, name))
    code, out, err = sim("central", "--experiment", name, *words, "--out", "all")
    assert (code, err) == (0, "")
    assert (home / "all/sweep.png").stat().st_size > 10_000
    table = (home / "all/table.md").read_text(encoding="utf-8")
    assert table in out
    assert PAPER[name] in table
    assert f"skipped {table_runs(home / 'all')} central runs" in sim("table", "all")[2]
    assert sim("table", "all")[2].endswith("not federated ones: see all/table.md\n")
    config = read_central_config(home / "all")
    sweep = Sweep.model_validate_json((home / "all/sweep.json").read_bytes())
    assert len(sweep.runs) == len(folders(home / "all", config))
    for run in sweep.runs:
        assert run.experiment == experiment
        assert run.test_size <= 24
        tuned = experiment == "validation" and run.method == "validation"
        assert (run.test_accuracy_before_finetune is not None) == tuned
        assert run.iterations == 4 + (2 if tuned else 0)
        assert run.train_size == 60


def test_a_sweep_is_taken_up_and_a_plain_network_gets_the_psi_found(sim, home):
    """Partitioned, then retrained with its psi to the bit; the missing run alone is made anew."""
    words = ("central", "--experiment", "quick-random-search", *TINY, "--trials", "1")
    assert sim(*words, "--out", "all")[0] == 0
    found = read_lines(home / "all/partitioned/seed-0/evaluations.jsonl")
    again = read_lines(home / "all/retrain/seed-0/evaluations.jsonl")
    assert {str(e["hyper"]) for e in again} == {str(found[-1]["hyper"])}
    assert found[0]["hyper"] != found[-1]["hyper"]
    before = json.loads((home / "all/sweep.json").read_text())
    kept = home / "all/partitioned/seed-0/evaluations.jsonl"
    written = kept.stat().st_mtime_ns
    shutil.rmtree(home / "all/random-search/trial-0/seed-0")
    code, out, _ = sim("central", "--resume", "all")
    assert code == 0
    assert out.count("examples in") == 1
    assert kept.stat().st_mtime_ns == written
    after = json.loads((home / "all/sweep.json").read_text())
    assert [r["test_log_likelihood"] for r in after["runs"]] == [
        r["test_log_likelihood"] for r in before["runs"]
    ]
    assert after["runs"][-1]["validation_accuracy"] is not None
    assert after["runs"][0]["validation_accuracy"] is None


def test_a_sweep_that_is_widened_finds_what_is_finished(sim, home):
    """Whatever was one value and is several now, a run stays where it began and is not run anew."""
    words = ("central", "--experiment", "quick-data-size", *TINY, "--datasets", "mnist")
    methods = ("--methods", "partitioned,retrain")
    assert sim(*words, *methods, "--out", "all")[0] == 0
    before = json.loads((home / "all/sweep.json").read_text())["runs"]
    code, _, err = sim("central", "--resume", "all", "--sizes", "60,80")
    assert (code, err.count("\n")) == (2, 1)
    assert "leave --sizes out, or for more runs widen it in all/config.toml" in err
    config = read_central_config(home / "all")
    wider = {"sizes": (60, 80), "models": ("mnist-cnn",)}
    (home / "all/config.toml").write_text(config.model_copy(update=wider).to_toml())
    code, out, err = sim("central", "--resume", "all")
    assert (code, err) == (0, "")
    assert out.count("60 examples in") == 0
    assert out.count("80 examples in") == 2
    after = json.loads((home / "all/sweep.json").read_text())["runs"]
    assert [run for run in after if run["train_size"] == 60] == before
    assert sorted(p.name for p in (home / "all/mnist/mnist-cnn").iterdir()) == ["80"]
    # The folder of several is no run, and that of a run not of several.
    (home / "all/config.toml").write_text(
        (home / "all/mnist/retrain/seed-0/config.toml").read_text()
    )
    code, _, err = sim("central", "--resume", "all")
    assert (code, err.count("\n")) == (4, 1)
    assert "all is the folder of several runs, and its config.toml asks for one now" in err
    path = home / "all/mnist/retrain/seed-0"
    (path / "config.toml").write_text(config.to_toml())
    code, _, err = sim("central", "--resume", path)
    assert (code, err.count("\n")) == (4, 1)
    assert "is the folder of one run, and its config.toml asks for several now" in err


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_last_line(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("summary.json", cut, "is damaged (Invalid JSON"),
        ("evaluations.jsonl", cut_last_line, "is damaged (it lacks the evaluation after iteration"),
        ("config.toml", cut, "put it back from a copy"),
    ],
)
def test_a_damaged_run_of_a_sweep_is_named_and_holds_up_no_other(sim, home, name, damage, says):
    words = ("central", "--experiment", "quick-data-size", *TINY, "--datasets", "mnist")
    assert sim(*words, "--methods", "partitioned,retrain,none", "--out", "all")[0] == 0
    damage(home / "all/mnist/partitioned/seed-0" / name)
    # The rest is done, although a run before it cannot be read.
    shutil.rmtree(home / "all/mnist/none")
    code, out, err = sim("central", "--resume", "all")
    assert (code, err.count("\n")) == (4, 1), err
    assert out.count("examples in") == 1
    runs = json.loads((home / "all/sweep.json").read_text())["runs"]
    assert {run["method"] for run in runs} == {"none", "retrain"}
    place = "all/mnist/partitioned/seed-0"
    assert err.startswith("error: 1 of 3 runs left out: ")
    assert f"{place}/{name}" in err
    assert says in err
    assert f"to start anew, delete {place}; then python sim.py central --resume all" in err
    shutil.rmtree(home / place)
    code, _, err = sim("central", "--resume", "all")
    assert (code, err) == (0, "")
    assert len(json.loads((home / "all/sweep.json").read_text())["runs"]) == 3


def test_a_run_of_a_sweep_that_diverges_is_named_and_holds_up_no_other(sim, home):
    """Augerino's own rate is too high; a run that is damaged besides is named as before."""
    words = ("central", "--experiment", "quick-data-size", *TINY, "--datasets", "mnist")
    words = (*words, "--methods", "augerino,partitioned,none", "--augerino-lr", "1e30")
    code, out, err = sim(*words, "--out", "all")
    place = "all/mnist/augerino/seed-0"
    said = f"error: 1 of 3 runs left out: {place}: "
    assert (code, err.count("\n")) == (2, 1), err
    assert err.startswith(said)
    assert "and augerino-lr 1e+30: start anew with smaller ones" in err
    assert not (home / place / "summary.json").exists()
    assert out.endswith("all: sweep.json, sweep.png, table.md\n")
    assert "not done" not in err
    runs = json.loads((home / "all/sweep.json").read_text())["runs"]
    assert [run["method"] for run in runs] == ["partitioned", "none"]
    cut(home / "all/mnist/none/seed-0/summary.json")
    code, _, err = sim("central", "--resume", "all")
    assert code == 4
    assert err.startswith(f"error: 2 of 3 runs left out: {place}: ")
    assert "to start anew, delete all/mnist/none/seed-0; then python" in err


def test_shares_of_other_methods_are_drawn_too(sim, home):
    words = ("central", "--experiment", "quick-sensitivity", *TINY, "--splits", "1:1")
    code, out, err = sim(*words, "--methods", "none", "--out", "all")
    assert code == 0, err
    assert "mnist, 1 chunks, no augmentation:" in out
    assert (home / "all/sweep.png").stat().st_size > 5_000


def test_what_takes_the_psi_of_a_run_that_diverged_is_named_too(sim, home):
    words = ("central", "--experiment", "quick-data-size", *TINY, "--datasets", "mnist")
    words = (*words, "--methods", "partitioned,retrain", "--hyper-lr", "1e30", "--out", "all")
    code, out, err = sim(*words)
    assert (code, out.count("examples in")) == (2, 1)
    assert err.startswith("error: 2 of 2 runs left out: all/mnist/partitioned/seed-0: ")
    assert err.endswith("; all/mnist/retrain/seed-0: all/mnist/partitioned/seed-0 has no psi\n")
    assert "not done" not in err
    assert not (home / "all/sweep.json").exists()


def test_a_checkpoint_that_is_damaged_is_named(sim, home):
    """Of a run that was interrupted; one that is finished does not need it."""
    words = ("central", "--experiment", "quick-data-size", *TINY, "--datasets", "mnist")
    assert sim(*words, "--methods", "partitioned,none", "--out", "all")[0] == 0
    cut(home / "all/mnist/none/seed-0/checkpoint.pt")
    assert sim("central", "--resume", "all")[0] == 0
    (home / "all/mnist/none/seed-0/summary.json").unlink()
    code, _, err = sim("central", "--resume", "all")
    assert (code, err.count("\n")) == (4, 1)
    assert "seed-0/checkpoint.pt is damaged or of another version" in err
    assert "to start anew, delete all/mnist/none/seed-0;" in err


def test_a_run_that_another_process_has_begun_is_passed_over(sim, home):
    """Two processes share a sweep: what waits for the other's run waits too, and is told."""
    words = ("central", "--experiment", "quick-random-search", *TINY, "--trials", "1")
    assert sim(*words, "--methods", "partitioned", "--out", "all")[0] == 0
    config = make_central_config(
        read_central_config(home / "all").model_dump(by_alias=True)
        | {"methods": ("partitioned", "retrain", "random-search")}
    )
    (home / "all/config.toml").write_text(config.to_toml())
    run = home / "all/partitioned/seed-0"
    for name in ("summary.json", "run.json"):
        shutil.move(run / name, home / name)
    lock = lock_run(run)
    code, _, err = sim("central", "--resume", "all")
    assert code == 0
    assert "not done: 2 of 3 runs, another process's or waiting for one" in err
    for name in ("summary.json", "run.json"):
        shutil.move(home / name, run / name)
    os.close(lock)
    code, _, err = sim("central", "--resume", "all")
    assert (code, err) == (0, "")
    assert len(json.loads((home / "all/sweep.json").read_text())["runs"]) == 3


def test_a_validation_set_run_is_judged_before_and_after_fine_tuning(sim, home):
    words = ("central", "--experiment", "quick-validation", *TINY, "--method", "validation")
    code, out, _ = sim(*words, "--chunks", "0.5,0.5", "--finetune", "3", "--out", "run")
    assert code == 0
    assert "rotation degrees" in out
    lines = read_lines(home / "run/evaluations.jsonl")
    assert [line["iteration"] for line in lines] == [2, 4, 6, 7]
    # Fine-tuning holds psi fixed, and L_ML is the validation set's likelihood.
    assert lines[0]["hyper"] != lines[1]["hyper"] == lines[2]["hyper"] == lines[3]["hyper"]
    assert all(len(line["l_ml_by_chunk"]) == 1 for line in lines)
    summary = json.loads((home / "run/summary.json").read_text())
    assert summary["test_accuracy_before_finetune"] == lines[1]["test_accuracy"]
    assert summary["test_accuracy"] == lines[3]["test_accuracy"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--experiment", "quick-data-sice"), 2, "did you mean 'quick-data-size'?"),
        (("--experiment", "quick-tinyimagenet"), 3, "holds no TinyImagenet; put image folders"),
        (("--experiment", "quick-data-size", "--sizes", "1,a"), 2, "sizes is 'a'"),
        (("--experiment", "quick-data-size", "--methods", "augerin"), 2, LITERAL),
        (("--experiment", "quick-data-size", "--method", "retrain"), 2, "psi is not given"),
        (("--experiment", "quick-data-size", "--methods", "retrain"), 2, "put partitioned before"),
        (("--experiment", "quick-data-size", "--train-size", "161"), 3, "use at most 160"),
        (("--experiment", "quick-data-size", "--weights", "0.5,0.5"), 2, "one for each chunk"),
        (("--experiment", "quick-data-size", "--model", "resnet50x"), 2, "model is 'resnet50x'"),
        (("--experiment", "quick-validation", "--splits", "5"), 2, "validation needs 2 or more"),
        (("--experiment", "quick-validation", "--splits", "5:x"), 2, "such as 8:1:1"),
        (("--experiment", "quick-validation", "--splits", "inf:1"), 2, "has 'inf:1'; write"),
        (("--experiment", "quick-validation", "--splits", "9:1", "--train-size", "4"), 3, "empty"),
        (("--experiment", "quick-validation", "--chunks", "0.5,0.6"), 2, "must sum to 1"),
        (("--experiment", "cifar10", "--lengths", "3"), 2, "give one for each"),
        (("--experiment", "quick-random-search", "--augmentation", "none"), 2, "one width for"),
        (("--experiment", "quick-random-search", "--psi", "1,2", "--method", "retrain"), 2, "psi"),
        (("--experiment", "quick-feature-extractor", "--model", "mnist-cnn"), 3, "CIFAR10"),
        (("--experiment", "quick-feature-extractor", "--splits", "9:1"), 2, "one for each of"),
        (("--experiment", "mask-learning", "--methods", "none"), 2, "methods is for images"),
        (("--experiment", "mask-learning", "--method", "none"), 2, "method none is for images"),
        (("--experiment", "quick-data-size", "--method", "laplace"), 2, "is for input-selection"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(sim, home, words, code, says):
    place = ("--out", "run", "--train-size", "60", "--seeds", "1")
    found, _, err = sim("central", *place, *words)
    assert not (home / "run").exists()
    assert found == code, err
    assert says in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", sorted(p.stem for p in PRESETS.glob("*.toml")))
def test_each_preset_says_what_it_claims_and_what_it_takes(name, tmp_path):
    config = make_central_config(preset(name))
    runs = list(single_runs(tmp_path / "all", config, {}))
    assert len({folder for folder, _ in runs}) == len({one.config_hash for _, one in runs})
    text = (PRESETS / f"{name}.toml").read_text(encoding="utf-8")
    for word in ("# Claim:", "# Time:", "# Hardware:"):
        assert word in text
    if name in IMAGES:
        assert "# Size: for two cores" in text or "# Size: the paper's" in text


def test_methods_in_any_order_and_none_twice(sim, home):
    """What takes psi from another run waits for it; a run counts once."""
    words = ("central", "--experiment", "quick-data-size", *TINY, "--datasets", "mnist")
    words = (*words, "--sizes", "60")
    code, _, err = sim(*words, "--methods", "retrain,partitioned", "--out", "all")
    assert code == 0
    assert "not done" not in err
    assert len(json.loads((home / "all/sweep.json").read_text())["runs"]) == 2
    code, _, err = sim(*words, "--methods", "none,partitioned,none", "--out", "twice")
    assert (code, err) == (2, "error: methods has none twice; give each once\n")
    code, _, err = sim(*words, "--sizes", "60,2", "--methods", "partitioned", "--out", "small")
    assert code == 3
    assert "would be empty with 2 examples" in err
    assert not (home / "small").exists()


def test_a_run_that_another_process_was_quicker_with_is_passed_over(sim, home, monkeypatch):
    """Finished, or begun, between the look and the start: this process goes on with the rest."""
    words = ("central", "--experiment", "quick-data-size", *TINY, "--datasets", "mnist")
    words = (*words, "--sizes", "60", "--methods", "none")
    assert sim(*words, "--out", "all")[0] == 0
    looks: list[object] = []

    def late(folder):
        looks.append(folder)
        return len(looks) > 1 and ended_well(folder)

    with monkeypatch.context() as patch:
        patch.setattr("fedpart.central.command.ended_well", late)
        code, out, err = sim("central", "--resume", "all")
    assert (code, err) == (0, "")
    assert "examples in" not in out
    assert len(looks) == 2

    def taken(folder):
        folder.mkdir(parents=True)
        (folder / "config.toml").touch()
        return claim_folder(folder)

    with monkeypatch.context() as patch:
        patch.setattr("fedpart.central.run_folder.claim_folder", taken)
        code, out, err = sim(*words, "--out", "new", "--json")
    assert (code, out) == (0, "")
    unused, not_done = err.splitlines()
    assert "samples 2 (not with method none), train-size 60 (sizes is given)" in unused
    assert not_done.startswith("not done: 1 of 1 runs")
    assert [f.read_bytes() for f in Path("new").glob("*/**/config.toml")] == [b""]


@pytest.mark.parametrize("saves", [0, 1])
def test_a_full_disk_is_not_taken_for_another_process(sim, home, monkeypatch, saves):
    """A sweep ends by it, with or without a checkpoint, and goes on when there is room again."""
    words = ("central", "--experiment", "quick-data-size", *TINY, "--datasets", "mnist")
    words = (*words, "--sizes", "60", "--methods", "none", "--out", "all")

    room, save = [None] * saves, run_folder.write_checkpoint

    def full(path, content):
        if not room:
            raise OutputError(f"cannot write {path}: No space left on device")
        room.pop()
        save(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_checkpoint", full)
        code, out, err = sim(*words)
    assert code == 4
    assert "checkpoint.pt: No space left on device" in err
    assert "stopped after iteration 0; go on with: python sim.py central --resume all" in err
    assert "not done" not in err
    (info,) = (json.loads(path.read_text()) for path in Path("all").rglob("run.json"))
    assert info["exit_code"] == 4
    assert info["exit"].endswith("No space left on device")
    code, out, _ = sim("central", "--resume", "all", "--json")
    assert code == 0
    (summary,) = (json.loads(path.read_text()) for path in Path("all").rglob("summary.json"))
    assert [json.loads(line) for line in out.splitlines()] == [summary]


def test_of_several_processes_one_at_a_time_writes_what_a_sweep_comes_to(sim, home, monkeypatch):
    """Another waits, not for ever, and then has seen all runs that are finished."""
    words = ("central", "--experiment", "quick-data-size", *TINY, "--datasets", "mnist")
    words = (*words, "--sizes", "60", "--methods", "none", "--out", "all")
    assert sim(*words)[0] == 0
    write, seen = sweep.write_sweep, []

    def look(parent, config, faults):
        with pytest.raises(BusyError):
            lock_run(parent)
        done, lines = write(parent, config, faults)
        seen.append(len(done))
        return done, lines

    monkeypatch.setattr(sweep, "write_sweep", look)
    handle = lock_run(home / "all")
    release = threading.Timer(0.2, os.close, [handle])
    release.start()
    assert sim("central", "--resume", "all")[0] == 0
    release.join()
    assert seen == [1]
    monkeypatch.setattr("fedpart.central.command._PATIENCE", 0.1)
    handle = lock_run(home / "all")
    code, _, err = sim("central", "--resume", "all")
    os.close(handle)
    assert (code, err.count("\n")) == (4, 1)
    assert "another process is working on all: wait for its end, or stop it" in err
