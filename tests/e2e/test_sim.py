"""The command line as users type it, on real digits, small."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch
from command_line import SIM, TINY
from compare_commits import records

from fedpart.config import load_toml, make_config
from fedpart.curves import read_curve
from fedpart.errors import BusyError
from fedpart.folder_lock import lock_run
from fedpart.records import SCHEMAS
from fedpart.run_files import read_lines


def check_schemas(folder):
    for name in ("rounds", "evaluations"):
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        for line in read_lines(folder / f"{name}.jsonl"):
            jsonschema.validate(line, schema)
    for name in ("run", "summary"):
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        jsonschema.validate(json.loads((folder / f"{name}.json").read_text()), schema)


def test_a_run_shows_itself_and_leaves_a_whole_run_folder(sim, home):
    code, out, err = sim(*TINY, "--out", "run")
    assert (code, err) == (0, "")
    assert out.startswith("partitioned on rotmnist: 100 images over 10 clients, 4 a round")
    for words in ("data: ", "round 1/2, accuracy", "rotation ±", "of FedAvg's", "curves.png"):
        assert words in out
    run = home / "run"
    assert {p.name for p in run.iterdir()} == {
        *("config.toml", "run.json", "rounds.jsonl", "evaluations.jsonl", "summary.json"),
        *("model.pt", "checkpoint.pt", "curves.png", "curves.csv"),
    }
    check_schemas(run)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["final_accuracy_n"] == 2
    assert summary["test_accuracy"] is not None
    assert json.loads((run / "run.json").read_text())["exit"] == "ok"
    model = torch.load(run / "model.pt", weights_only=True)
    assert sum(t.numel() for t in model["model"].values()) == 1_276_630
    # Settings are all there, resolved, and make the same run.
    assert make_config(load_toml(run / "config.toml")).config_hash == summary["config_hash"]


def test_bytes_follow_each_clients_chunk(sim, home):
    assert sim(*TINY, "--out", "run")[0] == 0
    sizes = (893_641, 255_326, 127_663)
    totals = dict.fromkeys(("upload", "download"), 0)
    for line in read_lines(home / "run" / "rounds.jsonl"):
        for client in line["clients"]:
            assert client["upload_model_bytes"] == 4 * sum(sizes[client["chunk"] :])
            assert client["download_model_bytes"] == 4 * sum(sizes)
            assert 0 < client["upload_wire_bytes"] - client["upload_model_bytes"] < 4096
            totals["upload"] += client["upload_model_bytes"]
            totals["download"] += client["download_model_bytes"]
        assert line["cumulative_upload_model_bytes"] == totals["upload"]
        assert line["cumulative_download_model_bytes"] == totals["download"]
        fraction = line["upload_model_bytes"] / (4 * sum(sizes) * len(line["clients"]))
        assert line["upload_fraction"] == pytest.approx(fraction)
    summary = json.loads((home / "run" / "summary.json").read_text())
    assert summary["upload_fraction"] == pytest.approx(totals["upload"] / totals["download"])


def test_the_last_evaluations_use_every_validation_image(sim, home):
    words = (*TINY, "--rounds", "12", "--method", "fedavg", "--out", "run")
    assert sim(*words)[0] == 0
    evaluations = read_lines(home / "run" / "evaluations.jsonl")
    assert [e["num_images"] for e in evaluations] == [20, 20] + [60] * 10
    summary = json.loads((home / "run" / "summary.json").read_text())
    mean = sum(e["val_accuracy"] for e in evaluations[2:]) / 10
    assert summary["final_accuracy"] == pytest.approx(mean)
    assert summary["final_accuracy_n"] == 10
    assert summary["upload_fraction"] == 1
    assert summary["hyper_readable"] == {}


def test_both_back_ends_and_a_second_run_agree_on_every_bit(sim, home):
    for name, backend in (("a", "inline"), ("b", "algorithm"), ("c", "inline")):
        assert sim(*TINY, "--rounds", "3", "--backend", backend, "--out", name)[0] == 0
    first = torch.load(home / "a" / "model.pt", weights_only=True)
    for other in ("b", "c"):
        assert records(home / other) == records(home / "a")
        model = torch.load(home / other / "model.pt", weights_only=True)
        assert all(torch.equal(model["model"][n], t) for n, t in first["model"].items())
        assert torch.equal(model["hyper"], first["hyper"])


@pytest.mark.parametrize(
    ("first", "second"), [("inline", "inline"), ("inline", "algorithm"), ("algorithm", "inline")]
)
def test_an_interrupted_run_is_taken_up_bit_for_bit(sim, home, monkeypatch, first, second):
    """Also on another back end than it began on."""
    words = (*TINY, "--rounds", "4", "--checkpoint-every", "3")
    assert sim(*words, "--out", "whole")[0] == 0
    with monkeypatch.context() as patch:
        evaluate_until(patch, 3)
        code, _, err = sim(*words, "--backend", first, "--out", "cut")
    assert code == 130
    # The round is on record, and will be evaluated when the run is taken up.
    assert "stopped after round 3" in err
    assert "--resume cut" in err
    info = json.loads((home / "cut" / "run.json").read_text())
    assert (info["exit"], info["exit_code"]) == ("interrupted", 130)
    assert not (home / "cut" / "summary.json").exists()
    # A crash may leave half a line.
    with (home / "cut" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "cli')
    toml = home / "cut" / "config.toml"
    settings = toml.read_text().replace(f'backend = "{first}"', f'backend = "{second}"')
    toml.write_text(settings)
    code, out, err = sim("--resume", "cut")
    assert (code, err) == (0, "")
    assert "resuming after round 3" in out
    assert records(home / "cut") == records(home / "whole")
    whole, cut = (
        torch.load(home / name / "model.pt", weights_only=True) for name in ("whole", "cut")
    )
    assert all(torch.equal(cut["model"][n], t) for n, t in whole["model"].items())
    assert json.loads((home / "cut" / "run.json").read_text())["resumed_from"] == [3]
    check_schemas(home / "cut")


def test_a_resume_refuses_other_settings_by_name(sim, home):
    """Both values of every key, nothing changed; a key that no number depends on may change."""
    assert sim(*TINY, "--rounds", "1", "--out", "run")[0] == 0
    toml = home / "run" / "config.toml"
    before = {p.name: p.read_bytes() for p in (home / "run").iterdir()}
    text = toml.read_text()
    changed = text.replace("client-lr = 0.05", "client-lr = 0.1").replace(
        "rounds = 1", "rounds = 7"
    )
    toml.write_text(changed.replace("checkpoint-every = 10", "checkpoint-every = 3"))
    code, _, err = sim("--resume", "run")
    assert code == 4
    (line,) = err.splitlines()
    assert line == (
        "error: run began with other settings: rounds was 1 and is 7 now, client-lr was 0.05 and "
        "is 0.1 now: put the old values back into its config.toml, or start a new run"
    )
    toml.write_text(text)
    assert {p.name: p.read_bytes() for p in (home / "run").iterdir()} == before


def test_a_resume_refuses_other_data_by_name(sim, home, tmp_path, digits, monkeypatch):
    """Other training digits, and other test digits, which training does not depend on."""
    assert sim(*TINY, "--rounds", "1", "--out", "run")[0] == 0
    before = {p.name: p.read_bytes() for p in (home / "run").iterdir()}
    other = tmp_path / "other"
    shutil.copytree(digits, other)
    monkeypatch.setenv("FEDPART_DATA", str(other))
    toml = home / "run" / "config.toml"
    toml.write_text(toml.read_text().replace(f'"{digits}"', f'"{other}"'))
    labels = other / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\7")
    code, _, err = sim("--resume", "run")
    assert code == 4
    (line,) = err.splitlines()
    assert line.startswith("error: run began with other data: the hash of test images was ")
    assert f"30 test digits from IDX files in {digits}' and is '160 training" in line
    labels = other / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\7")
    code, _, err = sim("--resume", "run")
    assert code == 4
    assert "other data: the hash of images and split was " in err
    after = {p.name: p.read_bytes() for p in (home / "run").iterdir()}
    assert {**after, "config.toml": b""} == {**before, "config.toml": b""}


def test_toml_and_flags_are_the_same_settings_and_flags_win(sim, home):
    (home / "x.toml").write_text('method = "fedavg"\nclients = 10\ntrain-size = "0.1k"\n')
    words = ("--config", "x.toml", "--clients-per-round", "5", "--alpha", "1", "--dry-run")
    code, out, _ = sim(*words, "--json")
    assert code == 0
    plan = json.loads(out)
    assert plan["images"] == 100
    assert plan["clients_per_chunk"] == [10]
    assert plan["upload_share"] == 1
    assert plan["no_hyper_update"] is None


def test_a_dry_run_foretells_bytes_and_writes_nothing(sim, home):
    code, out, err = sim("--clients", "100", "--train-size", "120", "--dry-run")
    assert (code, err) == (0, "")
    assert list(home.iterdir()) == []
    for words in ("70, 20, 10", "893,641, 255,326, 127,663", "78.4 % of FedAvg's"):
        assert words in out
    assert "no hyperparameter update  6.0 % of rounds" in out
    assert "upload per round          40.0 MB (" in out


def test_the_default_folder_gets_a_number_when_it_is_taken(sim, home):
    words = (*TINY, "--rounds", "1", "--method", "fedavg")
    assert sim(*words)[0] == sim(*words)[0] == 0
    names = sorted(p.name for p in (home / "runs").iterdir())
    assert names == ["rotmnist-fedavg-100-seed0", "rotmnist-fedavg-100-seed0-2"]
    assert sim(*words, "--name", "mine")[0] == 0
    code, _, err = sim(*words, "--name", "mine")
    assert code == 4
    assert "not empty" in err


def test_several_seeds_make_a_folder_each_and_compare_takes_the_parent(sim, home):
    words = (*TINY, "--rounds", "1", "--method", "fedavg", "--seed", "3")
    code, out, _ = sim(*words, "--seeds", "2", "--out", "many")
    assert code == 0
    assert "standard error" in out
    assert sorted(p.name for p in (home / "many").iterdir()) == ["config.toml", "seed-3", "seed-4"]
    seeds = [json.loads((home / f"many/seed-{s}/summary.json").read_text()) for s in (3, 4)]
    assert [s["seed"] for s in seeds] == [3, 4]
    assert seeds[0]["data_hash"] == seeds[1]["data_hash"]
    assert read_lines(home / "many/seed-3/rounds.jsonl") != read_lines(
        home / "many/seed-4/rounds.jsonl"
    )
    code, out, _ = sim("compare", "many", "--out", "c.svg", "--target", "0.99")
    assert code == 0
    assert "many (2 seeds)" in out
    assert "not reached" in out
    assert (home / "c.svg").exists()
    assert (home / "c.csv").exists()


def test_a_table_of_what_has_been_run(sim, home):
    for method in ("fedavg", "partitioned"):
        assert sim(*TINY, "--method", method, "--seeds", "2", "--out", f"runs/{method}")[0] == 0
    (home / "runs" / "fedavg" / "seed-1" / "summary.json").unlink()
    code, out, err = sim("table", "runs")
    assert code == 0
    assert err == "skipped runs/fedavg/seed-1: not finished, 2 rounds of 2 done\n"
    lines = [line for line in out.splitlines() if line.startswith("| FedAvg")]
    assert "(1)" in lines[0]
    assert "(2)" in lines[4]
    assert "80.5 ± 0.0 (4)" in lines[1]
    assert "clients 10 (paper 100)" in out
    code, out, _ = sim("table", "runs", "--latex")
    assert code == 0
    assert "\\begin{tabular}" in out
    code, out, _ = sim("table", "runs", "--out", "t.tex")
    assert (code, out) == (0, "t.tex\n")
    assert "\\begin{tabular}" in (home / "t.tex").read_text()


SEEDS = (*TINY, "--rounds", "3", "--checkpoint-every", "2", "--seeds", "3")


def evaluate_until(monkeypatch, calls_left):
    """Ctrl-C in one of the next evaluations, of which each run has three."""
    from fedpart.evaluator import Evaluator

    evaluate, calls = Evaluator._evaluate, []

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) == calls_left:
            raise KeyboardInterrupt
        return evaluate(self, *args)

    monkeypatch.setattr(Evaluator, "_evaluate", interrupted)


def equal_models(a, b):
    one, two = (torch.load(folder / "model.pt", weights_only=True) for folder in (a, b))
    return all(torch.equal(one["model"][n], t) for n, t in two["model"].items())


def test_several_seeds_are_resumed_as_a_whole_bit_for_bit(sim, home, monkeypatch):
    assert sim(*SEEDS, "--out", "whole")[0] == 0
    with monkeypatch.context() as patch:
        evaluate_until(patch, 5)
        code, _, err = sim(*SEEDS, "--out", "cut")
    assert code == 130
    assert "stopped after round 2" in err
    assert "go on with: python sim.py --resume cut\n" in err
    assert sorted(p.name for p in (home / "cut").iterdir()) == ["config.toml", "seed-0", "seed-1"]
    before = (home / "cut" / "seed-0" / "run.json").read_bytes()
    code, out, err = sim("--resume", "cut")
    assert (code, err) == (0, "")
    assert out.startswith("seed 0 is finished, final accuracy ")
    assert out.count("resuming after round 2") == 1
    assert "  0, 1, 2\n" in out
    assert (home / "cut" / "seed-0" / "run.json").read_bytes() == before
    for seed in (0, 1, 2):
        names = [home / parent / f"seed-{seed}" for parent in ("cut", "whole")]
        assert records(names[0]) == records(names[1])
        assert equal_models(*names)
        check_schemas(names[0])
    assert not (home / "cut" / "summary.json").exists()


def test_a_process_killed_between_seeds_or_at_the_start_of_one_goes_on(sim, home, monkeypatch):
    with monkeypatch.context() as patch:
        evaluate_until(patch, 4)
        assert sim(*SEEDS, "--out", "cut")[0] == 130
    one = home / "cut" / "seed-1"
    for name in ("checkpoint.pt", "run.json"):
        (one / name).unlink()
    for name in ("rounds.jsonl", "evaluations.jsonl"):
        (one / name).write_text("")
    code, out, _ = sim("--resume", "cut")
    assert code == 0
    assert "resuming" not in out
    assert {p.name for p in (home / "cut").iterdir()} >= {"seed-0", "seed-1", "seed-2"}
    code, _, err = sim("--resume", "cut")
    assert code == 4
    assert "cut is finished, all 3 seeds of it" in err


def test_resuming_several_seeds_as_json_tells_all_of_them(sim, home):
    words = (*TINY, "--rounds", "1", "--method", "fedavg", "--json", "--seeds", "2")
    code, out, _ = sim(*words, "--out", "many")
    assert code == 0
    (home / "many" / "seed-1" / "summary.json").unlink()
    code, again, _ = sim("--resume", "many")
    assert code == 0
    one, two = ([json.loads(line) for line in text.splitlines()] for text in (out, again))
    assert [s["seed"] for s in two] == [0, 1]
    assert [s["final_accuracy"] for s in two] == [s["final_accuracy"] for s in one]


def test_of_two_starts_of_several_seeds_one_is_refused(sim, home, monkeypatch):
    """The other began while this one looked at its data; it was one of a single run, say."""
    words = (*TINY, "--rounds", "1", "--method", "fedavg", "--seeds", "2", "--out", "many")
    module = sys.modules["sim"]
    prepare = module._prepare

    def overtaken(*args):
        (home / "many").mkdir()
        (home / "many" / "config.toml").write_text("another's\n")
        return prepare(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_prepare", overtaken)
        code, _, err = sim(*words)
    assert (code, err.count("\n")) == (4, 1)
    assert "many is not empty" in err
    assert [p.read_text() for p in (home / "many").iterdir()] == ["another's\n"]


def test_the_folder_of_several_seeds_is_one_processs(sim, home, monkeypatch):
    """From the start, or a resume, to the end of the last seed."""
    words = (*TINY, "--rounds", "1", "--method", "fedavg", "--seeds", "2", "--out", "many")
    module, busy = sys.modules["sim"], []
    prepare = module._prepare

    def look(*args):
        if (home / "many").exists():
            with pytest.raises(BusyError, match="another process is working on many"):
                lock_run(Path("many"))
            busy.append(args)
        return prepare(*args)

    monkeypatch.setattr(module, "_prepare", look)
    assert sim(*words)[0] == 0
    assert len(busy) == 1
    (home / "many" / "seed-1" / "summary.json").unlink()
    other = lock_run(home / "many")
    code, _, err = sim("--resume", "many")
    assert (code, err.count("\n")) == (4, 1)
    assert "another process is working on many: wait for its end, or stop it" in err
    os.close(other)
    assert sim("--resume", "many")[0] == 0
    assert len(busy) == 2
    os.close(lock_run(home / "many"))


def test_the_same_command_again_is_no_resume(sim, home):
    words = (*TINY, "--rounds", "1", "--method", "fedavg", "--seeds", "2", "--out", "many")
    assert sim(*words)[0] == 0
    code, _, err = sim(*words)
    assert code == 4
    assert "many is not empty: name another folder, or go on with it by --resume" in err


def test_json_prints_the_summary_and_nothing_else(sim, home):
    code, out, err = sim(*TINY, "--rounds", "1", "--json", "--out", "run")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((home / "run" / "summary.json").read_text())


def test_a_run_starts_from_another_runs_model(sim, home):
    assert sim(*TINY, "--rounds", "1", "--out", "a")[0] == 0
    words = (*TINY, "--rounds", "1", "--client-lr", "1e-30", "--server-lr", "1e-30")
    assert sim(*words, "--hyper-lr", "1e-30", "--init", "a/model.pt", "--out", "b")[0] == 0
    a, b = (torch.load(home / name / "model.pt", weights_only=True) for name in "ab")
    assert all(torch.equal(b["model"][n], t) for n, t in a["model"].items())
    assert torch.equal(a["hyper"], b["hyper"])


def test_tensorboard_events_are_written_where_asked_for(sim, home):
    pytest.importorskip("tensorboard")
    assert sim(*TINY, "--rounds", "1", "--logger", "tensorboard", "--out", "run")[0] == 0
    assert list((home / "run").glob("events.out.tfevents.*"))


def test_split_draws_and_counts(sim, home):
    code, out, _ = sim("split", "--clients", "10", "--train-size", "100", "--out", "s.png")
    assert code == 0
    assert (home / "s.png").stat().st_size > 1000
    assert "images per client" in out


def test_curves_show_unfinished_runs(sim, home):
    assert sim(*TINY, "--rounds", "2", "--out", "run")[0] == 0
    (home / "run" / "summary.json").unlink()
    assert read_curve(home / "run").rounds == [1, 2]


def run_process(*words, **kwargs):
    command = [sys.executable, "-W", "error::UserWarning", str(SIM), *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )


@pytest.mark.process
def test_help_is_quick_and_loads_nothing_heavy():
    code = "import sys, sim\ntry:\n sim.main(['--help'])\nexcept SystemExit:\n pass\n"
    code += "print(sorted({'torch', 'flwr', 'matplotlib', 'ray', 'rich'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SIM.parent, capture_output=True, text=True
    )
    assert done.stdout.rstrip().endswith("[]"), done.stderr
    assert "--clients-per-round" in done.stdout


@pytest.mark.process
def test_a_run_in_one_process_does_not_load_ray(home):
    words = [*TINY, "--rounds", "1", "--method", "fedavg", "--out", "run"]
    code = f"import sys, sim\nassert sim.main({words!r}) == 0\nprint('ray' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SIM.parent)},
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    assert "back end: inline" in done.stdout


@pytest.mark.process
def test_a_process_that_is_killed_outright_between_seeds_can_go_on(sim, home):
    words = (*TINY, "--rounds", "1", "--method", "fedavg", "--seeds", "2", "--out", "many")
    process = run_process(*words)
    assert process.stdout is not None
    while not process.stdout.readline().rstrip().endswith("seed 1"):
        assert process.poll() is None, process.stderr.read()
    process.kill()
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    code, out, _ = sim("--resume", "many")
    assert code == 0
    assert out.startswith("seed 0 is finished")
    assert (home / "many" / "seed-1" / "summary.json").exists()


@pytest.mark.process
def test_a_process_writes_no_noise(home):
    process = run_process(*TINY, "--rounds", "1", "--method", "fedavg", "--out", "run")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == ""
    assert len(out.splitlines()) < 20
