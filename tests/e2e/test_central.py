"""``sim.py central`` as users type it: run folders, several runs, resume, what is refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from command_line import SIM
from compare_commits import records

from fedpart.central.config import make_central_config, preset, read_central_config
from fedpart.central.experiments import EXPERIMENTS
from fedpart.central.records import FILES, schema
from fedpart.central.sweep import Sweep
from fedpart.records import SCHEMAS
from fedpart.run_files import read_lines

SMALL = (
    *("--train-size", "200", "--test-size", "50", "--batch-size", "16", "--iterations", "40"),
    *("--eval-every", "10", "--seeds", "1"),
)
MASK = ("central", "--experiment", "mask-learning", *SMALL, "--hyper-lr", "0.05")


def test_a_run_leaves_a_whole_folder_that_obeys_its_schemas(sim, home):
    code, out, err = sim(*MASK, "--out", "run", "--logger", "tensorboard")
    assert (code, err) == (0, "")
    assert "inputs right" in out
    run = home / "run"
    events = [p.name for p in run.iterdir() if p.name.startswith("events.")]
    assert {p.name for p in run.iterdir()} - set(events) == {
        *("config.toml", "run.json", "evaluations.jsonl", "summary.json", "curves.png"),
        *("model.pt", "checkpoint.pt"),
    }
    assert len(events) == 1
    lines = read_lines(run / "evaluations.jsonl")
    assert [line["iteration"] for line in lines] == [10, 20, 30, 40]
    for line in lines:
        jsonschema.validate(line, json.loads(schema("central-evaluations")))
    summary = json.loads((run / "summary.json").read_text())
    jsonschema.validate(summary, json.loads(schema("central-summary")))
    assert summary["kind"] == "central"
    assert summary["l_ml"] == lines[-1]["l_ml"]
    assert len(summary["hyper_readable"]) == 30
    info = json.loads((run / "run.json").read_text())
    jsonschema.validate(info, json.loads((SCHEMAS / "run.schema.json").read_text()))
    assert info["exit"] == "ok"
    model = torch.load(run / "model.pt", weights_only=True)
    assert sum(t.numel() for t in model["model"].values()) == 74_242
    assert model["hyper"].shape == (30,)


@pytest.mark.parametrize("name", list(FILES))
def test_committed_schemas_are_those_of_the_models(name):
    """Write them anew by ``python -m fedpart.central.records``."""
    assert (SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8") == schema(name)


@pytest.mark.process
def test_stopped_and_resumed_is_as_without_a_break(sim, home):
    """Ctrl-C some way in; the resumed run ends with the same records, weights and psi."""
    sim(*MASK, "--out", "whole")
    started = subprocess.Popen(
        [sys.executable, "-u", str(SIM), *MASK, "--iterations", "4000", "--out", "cut"],
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SIM.parent)},
    )
    assert started.stdout is not None
    for line in started.stdout:
        if re.match(r" +10 ", line):
            started.send_signal(signal.SIGINT)
            break
    _, err = started.communicate(timeout=120)
    assert started.returncode == 130
    assert re.search(r"stopped after iteration \d+; go on with: .*central --resume cut\n$", err)
    assert json.loads((home / "cut/run.json").read_text())["exit"] == "interrupted"
    assert not (home / "cut/summary.json").exists()
    # The same run, but for its length: to the bit what one of 40 iterations is, up to there.
    done, whole = (records(home / name)["evaluations.jsonl"] for name in ("cut", "whole"))
    assert done[: len(whole)] == whole[: len(done)]


def test_a_killed_run_ends_as_if_nothing_had_happened(sim, home):
    """A copy of the folder as it was after 20 iterations, resumed, beside the whole run."""
    from fedpart.central.run_folder import CentralRun

    sim(*MASK, "--out", "whole", "--checkpoint-every", "20")

    class Killed(BaseException):
        pass

    def kill(record):
        if record.iteration == 30:
            raise Killed

    flags = dict(zip((flag[2:] for flag in MASK[1::2]), MASK[2::2], strict=True))
    values = preset("mask-learning") | flags
    config = make_central_config(values | {"checkpoint-every": 20, "out": str(home / "cut")})
    task = EXPERIMENTS[config.experiment].task(config)
    run = CentralRun(home / "cut", config, task, kill)
    run.create(["test"])
    with pytest.raises(Killed):
        run.run()
    os.close(run._lock)
    # Nothing was closed: evaluation 30 is on record, the checkpoint is of 20.
    assert len(read_lines(home / "cut/evaluations.jsonl")) == 3
    code, _, err = sim("central", "--resume", "cut")
    assert (code, err) == (0, "")
    assert (
        records(home / "cut")["evaluations.jsonl"] == records(home / "whole")["evaluations.jsonl"]
    )
    models = [torch.load(home / name / "model.pt", weights_only=True) for name in ("cut", "whole")]
    assert torch.equal(models[0]["hyper"], models[1]["hyper"])
    for name, value in models[0]["model"].items():
        assert torch.equal(value, models[1]["model"][name])
    assert json.loads((home / "cut/run.json").read_text())["resumed_from"] == [20]
    code, _, err = sim("central", "--resume", "cut")
    assert code == 4
    assert "is finished" in err


def test_results_without_weights_are_never_trained_anew(sim, home):
    """As they are committed: finished, and no checkpoint beside them."""
    words = ("central", "--experiment", "input-selection", "--inputs", "2,3", "--train-size", "200")
    assert (
        sim(*words, "--iterations", "4", "--eval-every", "2", "--seeds", "1", "--out", "all")[0]
        == 0
    )
    one, other = sorted(path.parent for path in Path("all").glob("*/**/summary.json"))
    for path in Path("all").glob("**/*.pt"):
        path.unlink()
    before = {path: path.read_bytes() for path in Path("all").glob("**/*.json*")}
    code, _, err = sim("central", "--resume", one)
    assert (code, f"{one} is finished" in err) == (4, True)
    assert sim("central", "--resume", "all")[0] == 0
    assert {path: path.read_bytes() for path in before} == before
    # Nor is one that has lost what it came to.
    (other / "summary.json").unlink()
    code, _, err = sim("central", "--resume", "all")
    assert (code, f"cannot read checkpoint {other}" in err, err.count("\n")) == (4, True, 1)
    assert (other / "evaluations.jsonl").read_bytes() == before[other / "evaluations.jsonl"]


def test_several_inputs_and_seeds_make_a_folder_of_runs(sim, home):
    words = ("central", "--experiment", "input-selection", *SMALL, "--chunks", "0.5,0.5")
    code, out, _ = sim(*words, "--inputs", "2,15", "--seeds", "2", "--out", "runs/all")
    assert code == 0
    assert out.count("L_ML highest at K = ") == 2
    top = home / "runs/all"
    sweep = json.loads((top / "sweep.json").read_text())
    assert [(r["seed"], r["inputs"]) for r in sweep["runs"]] == [(0, 2), (0, 15), (1, 2), (1, 15)]
    assert (top / "sweep.png").stat().st_size > 10_000
    code, _, err = sim("table", "runs/all")
    assert code == 4
    assert err == (
        "error: no finished federated run: skipped 4 central runs, not federated ones: see "
        "sweep.json and sweep.png in the folder of several\n"
    )
    # One run is taken away; only that one runs again.
    before = (top / "inputs-2/seed-1/evaluations.jsonl").stat().st_mtime_ns
    shutil.rmtree(top / "inputs-15/seed-1")
    code, out, _ = sim("central", "--resume", "runs/all")
    assert code == 0
    assert out.count("examples in") == 1
    assert (top / "inputs-2/seed-1/evaluations.jsonl").stat().st_mtime_ns == before
    again = json.loads((top / "sweep.json").read_text())
    assert [r["l_ml"] for r in again["runs"]] == [r["l_ml"] for r in sweep["runs"]]


@pytest.mark.parametrize("seeds", ["1", "2"])
def test_a_central_run_is_told_from_a_federated_one_that_is_taken_up(sim, home, seeds):
    """One run or the folder of several: by the federated programs' --resume."""
    assert sim(*MASK, "--iterations", "1", "--seeds", seeds, "--out", "all")[0] == 0
    said = "error: all is a central run: take it up with sim.py central --resume all\n"
    for command in ((), ("deploy",)):
        assert sim(*command, "--resume", "all")[::2] == (4, said)


def refuse(text):
    raise ValueError(f"{text} is no JSON")


LONG = ("--optimiser", "sgd", "--lr", "1e30")


@pytest.mark.parametrize("inputs", ["5", "5,10"])
def test_a_run_that_diverges_ends_in_a_sentence_and_writes_no_result(sim, home, inputs):
    """Alone, or all runs of a sweep: exit code 2, no summary, nothing that cannot be read."""
    words = ("central", "--experiment", "input-selection", *SMALL, *LONG, "--inputs", inputs)
    code, _, err = sim(*words, "--out", "all")
    loss = r"the loss is (nan|inf) at iteration \d+ with lr 1e\+30: start anew with a smaller one"
    if inputs == "5":
        assert re.fullmatch(f"error: {loss}\n", err)
    else:
        runs = "; ".join(f"all/inputs-{n}/seed-0: {loss}" for n in (5, 10))
        assert re.fullmatch(f"error: 2 of 2 runs left out: {runs}\n", err)
    assert code == 2
    files = [p for p in (home / "all").rglob("*") if p.is_file()]
    assert {p.name for p in files} == {
        *("config.toml", "run.json", "evaluations.jsonl", "checkpoint.pt"),
    }
    for path in (p for p in files if p.name == "run.json"):
        info = json.loads(path.read_text())
        assert re.fullmatch(loss, info["exit"])
        assert info["exit_code"] == 2
    for path in (p for p in files if p.suffix == ".jsonl"):
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=refuse)
    # Taken up, it does the same from where it was.
    assert sim("central", "--resume", "all")[::2] == (code, err)


def test_what_only_an_evaluation_shows_ends_a_run_too(sim, home, monkeypatch):
    """Weights that the last step has lost: what was evaluated before stays, and can be read."""
    from fedpart.central.training import Training

    step = Training.step

    def spoil(training):
        step(training)
        if training.state.iteration == 30:
            theta = torch.full_like(training.state.theta, float("inf"))
            training.state = replace(training.state, theta=theta)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", spoil)
        code, _, err = sim(*MASK, "--out", "run")
    assert code == 2
    assert re.match("error: a weight is inf at iteration 30 with lr 0.001 and hyper-lr 0.05", err)
    assert err.count("\n") == 1
    assert [line["iteration"] for line in read_lines(home / "run/evaluations.jsonl")] == [10, 20]
    assert not (home / "run/summary.json").exists()
    # The cause was the test's, so that a resume gets over it.
    assert sim("central", "--resume", "run")[0] == 0


def test_patience_ends_a_run_and_its_best_evaluation_counts(sim, home):
    words = ("central", "--experiment", "input-selection", *SMALL, "--inputs", "20")
    code, _, _ = sim(*words, "--iterations", "2000", "--patience", "2", "--out", "run")
    assert code == 0
    summary = json.loads((home / "run/summary.json").read_text())
    values = [line["l_ml"] for line in read_lines(home / "run/evaluations.jsonl")]
    assert summary["iterations"] < 2000
    assert summary["l_ml"] == max(values) == values[-3]
    assert summary["iteration"] == summary["iterations"] - 20


def test_runs_of_one_place_are_named_and_left_out_of_tables_and_curves(sim, home):
    sim(*MASK, "--out", "run")
    code, _, err = sim("table", "run")
    assert code == 4
    assert "run: a central run, not a federated one" in err
    code, _, err = sim("compare", "run", "--out", "c.png")
    assert code == 4
    assert "run is a central run, which sent nothing to compare" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--experiment", "mask-lerning"), 2, "did you mean 'mask-learning'?"),
        (("--experiment", "mask-learning", "--seed", "x"), 2, "seed is 'x'"),
        (("--experiment", "mask-learning", "--chunk", "1"), 2, "did you mean '--chunks'?"),
        (("--experiment", "mask-learning", "--inputs", "1-3"), 2, "leave it out"),
        (("--experiment", "input-selection", "--inputs", "0-3"), 2, "each must be 1 to 30"),
        (("--experiment", "input-selection", "--inputs", "a"), 2, "inputs is 'a'"),
        (("--experiment", "input-selection", "--chunks", "1"), 2, "patience needs L_ML"),
        (("--experiment", "mask-learning", "--train-size", "3"), 3, "would be empty"),
        (("--seed", "1"), 2, "give --experiment NAME"),
        (("--resume", "none"), 4, "holds no config.toml"),
        (("--resume", "none", "--lr", "1"), 2, "leave --lr out"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(sim, home, words, code, says):
    place = () if "--resume" in words else ("--out", "run")
    found, _, err = sim("central", *words, *place)
    assert found == code
    assert says in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("folder", sorted((SIM.parent / "results/central").glob("*/")))
def test_committed_results_are_what_the_program_writes(folder):
    sweep = Sweep.model_validate_json((folder / "sweep.json").read_bytes())
    assert read_central_config(folder).experiment == sweep.experiment
    assert all(run.kind == "central" for run in sweep.runs)


@pytest.mark.process
def test_the_library_example_of_the_readme_runs(tmp_path):
    """As printed: from a user's model and data set to what it has learned."""
    readme = (SIM.parent / "README.md").read_text()
    (code,) = (
        block
        for block in re.findall(r"^```python\n(.*?)^```", readme, flags=re.M | re.S)
        if "fedpart.central" in block
    )
    path = Path(tmp_path / "example.py")
    path.write_text(code)
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env=os.environ | {"PYTHONPATH": str(SIM.parent)},
    )
    assert done.returncode == 0, done.stderr
    assert "0.logit_1" in done.stdout
