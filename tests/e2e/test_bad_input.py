"""What a user can get wrong: the sentence, the exit code, and that nothing is written."""

import gzip
import json
import re
import shutil
import struct
import sys

import numpy as np
import pytest
import torch
from command_line import SIM, TINY

from fedpart.arguments import _run_parser
from fedpart.run_files import read_lines

SETTINGS = [
    (["--dataset", "mnits"], "dataset is 'mnits'", "did you mean 'mnist'?"),
    (["--datset", "mnist"], "unknown flag '--datset'", "did you mean '--dataset'?"),
    (["--rounds", "9" * 20], f"rounds is '{'9' * 20}'", "at most 1,000,000"),
    (["--clients", "9" * 14], f"clients is '{'9' * 14}'", "at most 10,000,000"),
    (["--batch-size", "9" * 20], f"batch-size is {'9' * 20}", "at most 1,000,000,000"),
    (["--server-lr", "1e38"], "server-lr is '1e38'", "at most 1e+30"),
    (["--hyper-lr", "1e38"], "hyper-lr is '1e38'", "at most 1e+30"),
    (["--seeds", "99999"], "seeds is '99999'", "at most 10,000"),
    (["--experiment", "x"], "unknown flag '--experiment'", "it is one of sim.py central"),
    (["--nosuch"], "unknown flag '--nosuch'", "see sim.py --help"),
    (["--alfa=1"], "unknown flag '--alfa'", "did you mean '--alpha'?"),
    (["comapre", "a", "b"], "unknown command 'comapre'", "did you mean 'compare'?"),
    (["--rounds"], "--rounds", "expected one argument"),
    (["--chunks", "0.7,0.2"], "chunks is 0.7,0.2", "sums to 0.9; shares must sum to 1"),
    (["--chunks", "1.2,-0.2"], "chunks is 1.2,-0.2", "every share must be above 0"),
    (["--chunks", ",".join(["0.00390625"] * 256)], "256 shares", "1 to 255"),
    (["--chunks", "0.98,0.02"], "none of 10 clients", "use more clients or a larger share"),
    (["--alpha", "0"], "alpha is '0'", "above 0"),
    (["--alpha", "nan"], "alpha is 'nan'", "finite"),
    (["--clients-per-round", "11"], "clients-per-round is 11", "at most the number of clients, 10"),
    (["--rounds", "0"], "rounds is '0'", "at least 1"),
    (["--rounds", "2.5"], "rounds is '2.5'", "whole number"),
    (["--dataset", "mnist", "--skew", "rotation"], "skew is 'rotation'", "use label or iid"),
    (["--model", "resnet"], "model is 'resnet'", "module:function"),
    (["--scheme", "node", "--model", "fixup-resnet8"], "add with something", "use --scheme random"),
    (["--scheme", "node", "--defaults", "init"], "defaults is 'init'", "use zero"),
    (["--model", "no_such_module:f"], "there is no module 'no_such_module' in", "PYTHONPATH"),
    (["--init", "missing.pt"], "missing.pt cannot be read", "No such file"),
    (["--config", "missing.toml"], "missing.toml", "No such file"),
    (["--resume", "x"], "--resume", "leave --clients out"),
    (["--out", ""], "out is empty", "leave it out"),
    (["--chunks", ""], "chunks is empty", "leave it out"),
    (["--config", ""], "--config is empty", "leave it out"),
    (["--name", "../x"], "name is '../x'", "without /"),
    (["--workers", "0"], "workers is '0'", "auto or a whole number of at least 1"),
    (["--workers", "many"], "workers is 'many'", "auto or a whole number of at least 1"),
    (["--workers", "1.5"], "workers is '1.5'", "auto or a whole number of at least 1"),
    (["--ray-address", "ray://head:10001"], "ray-address is 'ray://head:10001'", "host:port, or"),
    (["--ray-address", "head"], "ray-address is 'head'", "it must be host:port, or auto"),
    (["--backend", "ray", "--ray-address", "127.0.0.1:1"], "127.0.0.1:1", "nobody answers"),
    (["--device", "gpu"], "device is 'gpu'", "one of cpu, cuda\n"),
    (["--backend", "rey"], "backend is 'rey'", "did you mean 'ray'?"),
    (["--gpus-per-client", "-1"], "gpus-per-client is '-1'", "at least 0"),
    (["--gpus-per-client", "1.5"], "gpus-per-client is 1.5", "above 1 it must be a whole number"),
]


@pytest.mark.parametrize(
    ("words", "value", "limit"), SETTINGS, ids=[" ".join(s[0])[:30] for s in SETTINGS]
)
def test_a_setting_that_cannot_be_used(sim, home, words, value, limit):
    code, _, err = sim(*([] if words[0] == "comapre" else TINY), *words)
    assert code == 2
    assert value in err
    assert limit in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert list(home.iterdir()) == []


def test_a_psi_that_runs_away_ends_the_run_and_a_resume_is_not_advised(sim, home):
    code, _, err = sim(*TINY, "--hyper-lr", "1000", "--model", "mlp", "--out", "runs/away")
    assert code == 2
    assert "rotation in natural units is" in err
    assert "after round 1 with hyper-lr 1000: start anew with a smaller one" in err
    assert "go on with" not in err
    assert json.loads((home / "runs/away/run.json").read_text())["exit_code"] == 2


def test_settings_of_no_use_are_a_warning_in_every_command(sim, home):
    """One line, wherever the run itself gets to."""
    words = ("--workers", "4", "--backend", "inline")
    line = "warning: settings of no use: workers 4 (only with backend auto or ray)\n"
    code, out, err = sim(*TINY, "--workers", "4", "--dry-run", "--json")
    assert (code, err) == (0, line)
    json.loads(out)
    code, _, err = sim(*TINY, "--workers", "4", "--json", "--out", "run")
    assert (code, err) == (0, line)
    code, _, err = sim("--resume", "run", "--workers", "4", "--json")
    assert (code, err.startswith(line)) == (4, True)
    code, _, err = sim("split", "--clients", "10", "--train-size", "100", *words)
    assert (code, "workers 4 (nothing is trained)" in err) == (0, True)
    code, out, _ = sim("deploy", "--local", "2", *words, "--train-size", "900000")
    assert (code, "of no use: backend inline" in out) == (3, True)


def test_a_precision_that_the_processor_only_imitates_is_a_warning(sim, home, monkeypatch):
    """In every command that would compute in it."""
    (home / "cpuinfo").write_text("flags : fpu avx2\n")
    monkeypatch.setattr("fedpart.machine.CPUINFO", home / "cpuinfo")
    bf16 = ("--precision", "bf16")
    toy = ("central", "--experiment", "mask-learning", "--train-size", "100", "--iterations", "1")
    for i, words in enumerate(((*TINY, "--dry-run"), TINY, toy)):
        code, _, err = sim(*words, "--json", "--out", f"long-{i}")
        assert (code, err) == (0, "")
        code, _, err = sim(*words, "--json", "--out", f"short-{i}", *bf16)
        assert code == 0
        assert err.startswith("warning: this processor has no instructions for bfloat16")
        assert err.endswith("a new run with --precision fp32 is faster\n")
        assert err.count("\n") == 1


def test_an_unknown_key_in_a_settings_file(sim, home):
    (home / "x.toml").write_text("cleints = 10\n")
    code, _, err = sim("--config", "x.toml")
    assert code == 2
    assert "unknown setting 'cleints'; did you mean 'clients'?" in err
    (home / "x.toml").write_text("clients = = 10\n")
    code, _, err = sim("--config", "x.toml")
    assert code == 2
    assert "not valid TOML" in err
    for text, sentence in (
        ("dry-run = true", "unknown setting 'dry-run'"),
        ("rounds = true", "rounds is true; it must be a number or a text"),
        ("chunks = [true]", "chunks has true; it must be a number or a text"),
        ("experiment = 'data-size'", "experiment is a setting of sim.py central"),
    ):
        (home / "x.toml").write_text(text)
        code, _, err = sim("--config", "x.toml")
        assert (code, err.startswith(f"error: {sentence}")) == (2, True)
    (home / "x.toml").write_text("clients = 10")
    code, _, err = sim("central", "--config", "x.toml")
    assert (code, err.startswith("error: clients is a setting of a run over clients")) == (2, True)
    code, _, err = sim("central", "--clients", "10")
    assert (code, "it is one of a run over clients: leave central out" in err) == (2, True)
    for text in ("method = [true]", "method = ['none']", "method = {a = 1}"):
        (home / "x.toml").write_text(text)
        code, _, err = sim("central", "--config", "x.toml", "--experiment", "input-selection")
        assert (code, err.startswith("error: method ")) == (2, True)
    assert [p.name for p in home.iterdir()] == ["x.toml"]


MODELS = """
import torch
from torch import nn

def batchnorm(num_classes, in_channels):
    return nn.Sequential(nn.Conv2d(in_channels, 4, 5), nn.BatchNorm2d(4), nn.Flatten(),
                         nn.Linear(4 * 24 * 24, num_classes))

def small(num_classes, in_channels):
    return nn.Sequential(nn.AvgPool2d(14), nn.Flatten(), nn.Linear(4, num_classes, bias=False))

def one(num_classes, in_channels):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))
        def forward(self, x):
            return self.w.sum() * x.flatten(1)[:, :num_classes]
    return One()

class Raises(nn.Linear):
    def forward(self, x):
        # Not on the two images that a model is tried on.
        if self.training and len(x) > 2:
            raise RuntimeError("the client's own fault")
        return super().forward(x)

def raises(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), Raises(784, num_classes))


class Sometimes(nn.Linear):
    def forward(self, x):
        if self.training and len(x) > 2 and len(x) % 4 == 2:
            raise RuntimeError("a client's own fault")
        return super().forward(x)


def sometimes(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), Sometimes(784, num_classes))


class NotFiniteInTraining(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (float("nan") if self.training else 1.0)


def nan_in_training(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), NotFiniteInTraining(784, num_classes))


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)).detach()


def detached(num_classes, in_channels):
    return Detached(784, num_classes)
"""


@pytest.fixture
def models(home, tmp_path, monkeypatch):
    """The module ``bad_models``, importable."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "bad_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("bad_models", None)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("batchnorm", ["running statistics"]),
        ("one", ["partition 1 of 3 would hold no parameter", "use fewer or larger chunks"]),
        ("missing", ["has no attribute 'missing'"]),
        ("nan_in_training", ["not finite at its start"]),
        ("detached", ["no gradient reaches its parameters"]),
    ],
)
def test_a_model_that_cannot_be_used(sim, home, models, model, words):
    code, _, err = sim(*TINY, "--model", f"bad_models:{model}")
    assert code == 2
    assert all(w in err for w in words), err
    assert list(home.iterdir()) == []


def test_a_small_model_of_ones_own_trains(sim, home, models):
    assert sim(*TINY, "--model", "bad_models:small", "--out", "run")[0] == 0


@pytest.mark.parametrize("backend", ["inline", "algorithm"])
def test_a_model_that_raises_in_every_client_ends_the_run_with_advice(sim, home, models, backend):
    settings = ("--model", "bad_models:raises", "--backend", backend, "--out", "run")
    words = (*TINY, *settings, "--rounds", "9", "--max-empty-rounds", "2", "--samples", "3")
    code, out, err = sim(*words)
    assert code == 5, err
    error, advice = err.splitlines()
    assert error.startswith("error: no reply counted in 2 rounds in a row; in round 2, client ")
    for word in ("RuntimeError: the client's own fault (bad_models.py", "max-empty-rounds"):
        assert word in error
    assert advice == "stopped after round 2; go on with: python sim.py --resume run"
    # Three of the four failures of each round, in the first place to look at.
    assert out.count("the client's own fault") == 2 * 3
    assert "round 2: 1 more failed, see rounds.jsonl" in out
    assert "round 2: empty, no reply counted" in out
    assert "the client's own fault" in (home / "run" / "run.json").read_text()
    rounds = read_lines(home / "run" / "rounds.jsonl")
    assert [len(r["failures"]) for r in rounds] == [4, 4]
    # It has had its chances: one more empty round is enough, and it is recorded once.
    code, _, err = sim("--resume", "run")
    assert code == 5
    assert "in 3 rounds in a row" in err
    assert [r["round"] for r in read_lines(home / "run" / "rounds.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize("backend", ["inline", "algorithm"])
def test_a_client_that_raises_is_shown_and_the_run_goes_on(sim, home, models, backend):
    settings = ("--model", "bad_models:sometimes", "--backend", backend, "--out", "run")
    code, out, err = sim(*TINY, *settings, "--rounds", "4", "--seed", "1")
    assert (code, err) == (0, "")
    assert "RuntimeError: a client's own fault (bad_models.py" in out
    summary = json.loads((home / "run" / "summary.json").read_text())
    rounds = read_lines(home / "run" / "rounds.jsonl")
    failed = [f["client_id"] for r in rounds for f in r["failures"]]
    assert 0 < len(failed) == summary["failures"] < 16
    assert f"failed replies  {len(failed)}" in out
    assert summary["empty_rounds"] == sum(len(r["failures"]) == 4 for r in rounds)
    for record in rounds:
        statuses = {c["client_id"]: c["status"] for c in record["clients"]}
        assert sorted(i for i, s in statuses.items() if s == "failed") == [
            f["client_id"] for f in record["failures"]
        ]


def test_more_clients_than_images(sim, home):
    code, _, err = sim("--clients", "101", "--train-size", "100")
    assert code == 3
    assert "101" in err
    assert "100" in err
    assert list(home.iterdir()) == []


def test_more_training_images_than_there_are(sim, home):
    code, _, err = sim("--train-size", "5k")
    assert code == 3
    assert "5,000" in err
    assert list(home.iterdir()) == []


def test_no_data_where_it_should_be(sim, home):
    code, _, err = sim(*TINY, "--data-dir", "nowhere")
    assert code == 3
    assert "nowhere" in err
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("fault", ["missing", "cut", "nan"])
def test_data_that_is_damaged(sim, home, digits, tmp_path, fault):
    damaged = tmp_path / "damaged"
    shutil.copytree(digits, damaged)
    images = damaged / "train-images-idx3-ubyte.gz"
    if fault == "missing":
        images.unlink()
    elif fault == "cut":
        images.write_bytes(images.read_bytes()[:-1000])
    else:
        # IDX files may hold floats.
        values = np.zeros((160, 28, 28), ">f4")
        values[7, 3, 3] = np.nan
        header = struct.pack(">IIII", 0xD03, 160, 28, 28)
        images.write_bytes(gzip.compress(header + values.tobytes()))
    code, _, err = sim(*TINY, "--data-dir", str(damaged))
    assert code == 3
    assert {"missing": "train-images", "cut": "cut", "nan": "NaN"}[fault] in err
    assert "damaged" in err
    assert len(err.splitlines()) == 1
    assert list(home.iterdir()) == []


def test_an_output_folder_that_is_not_empty(sim, home):
    (home / "full").mkdir()
    (home / "full" / "mine.txt").write_text("keep")
    code, _, err = sim(*TINY, "--out", "full")
    assert code == 4
    assert "full is not empty" in err
    assert [p.name for p in (home / "full").iterdir()] == ["mine.txt"]


def test_an_output_folder_that_cannot_be_made(sim, home):
    (home / "file").write_text("in the way")
    for out in ("file", "file/run"):
        code, _, err = sim(*TINY, "--out", out)
        assert code == 4
        assert f"cannot write to {out}" in err
    assert [p.name for p in home.iterdir()] == ["file"]


def test_a_folder_that_is_no_run(sim, home):
    for words, reason in (
        (["--resume", "nowhere"], "holds no config.toml"),
        (["compare", "nowhere", "--out", "x.png"], "is no folder"),
        (["table", "nowhere"], "is no folder"),
    ):
        code, _, err = sim(*words)
        assert code == 4
        assert f"nowhere {reason}" in err
        assert len(err.splitlines()) == 1
    assert list(home.iterdir()) == []


def test_a_picture_of_a_kind_there_is_not(sim, home):
    code, _, err = sim("compare", "a", "--out", "x.docx")
    assert code == 2
    assert ".png or .svg" in err


@pytest.mark.parametrize(
    ("words", "value", "limit"),
    [
        (["compare", "a", "--target", "80"], "--target is '80'", "below 1"),
        (["compare", "a", "--target", "most"], "--target is 'most'", "fraction"),
        (["compare", "a", "--targets", "0.8"], "unknown flag '--targets'", "'--target'?"),
        (["compare"], "required: DIR", "see sim.py compare --help"),
        (["table"], "required: DIR", "see sim.py table --help"),
        (["table", "a", "--latx"], "unknown flag '--latx'", "did you mean '--latex'?"),
    ],
)
def test_a_flag_of_compare_or_table_that_cannot_be_used(sim, home, words, value, limit):
    code, _, err = sim(*words)
    assert code == 2
    assert value in err
    assert limit in err
    assert len(err.splitlines()) == 1


def test_a_table_that_cannot_be_written(sim, home):
    assert sim(*TINY, "--rounds", "1", "--method", "fedavg", "--out", "run")[0] == 0
    (home / "file").touch()
    code, _, err = sim("table", "run", "--out", "file/t.md")
    assert code == 4
    assert "cannot write file/t.md" in err


def test_seeds_with_other_settings_than_their_parent_are_not_resumed(sim, home):
    words = (*TINY, "--rounds", "1", "--method", "fedavg", "--seeds", "2", "--out", "many")
    assert sim(*words)[0] == 0
    (home / "many" / "seed-1" / "summary.json").unlink()
    toml = home / "many" / "config.toml"
    toml.write_text(toml.read_text().replace("client-lr = 0.05", "client-lr = 0.5"))
    code, _, err = sim("--resume", "many")
    assert code == 4
    assert "many/seed-0 began with client-lr 0.05, but many/config.toml says 0.5" in err


def test_one_run_is_not_resumed_as_several_nor_several_as_one(sim, home):
    words = (*TINY, "--rounds", "1", "--method", "fedavg")
    assert sim(*words, "--out", "one")[0] == 0
    assert sim(*words, "--seeds", "2", "--out", "many")[0] == 0
    for name, there, now in (("one", 1, 2), ("many", 2, 1)):
        toml = home / name / "config.toml"
        toml.write_text(toml.read_text().replace(f"seeds = {there}", f"seeds = {now}"))
        files = sorted(home.rglob("*"))
        code, _, err = sim("--resume", name)
        words = ("one run", "several") if now > 1 else ("several runs", "one")
        assert code == 4
        sentence = f"{name} is the folder of {words[0]}, and its config.toml asks for {words[1]}"
        assert sentence in err
        assert sorted(home.rglob("*")) == files


def test_what_somebody_keeps_within_a_run_is_no_obstacle_to_a_resume(sim, home):
    words = (*TINY, "--rounds", "1", "--method", "fedavg")
    assert sim(*words, "--out", "one")[0] == 0
    assert sim(*words, "--seeds", "2", "--out", "one/others")[0] == 0
    code, _, err = sim("--resume", "one")
    assert code == 4
    assert "is finished" in err


def test_more_clients_than_images_are_refused_before_anything_of_their_number_is_made(sim, home):
    code, _, err = sim(*TINY, "--clients", "10000000", "--dry-run")
    assert code == 3
    assert "10000000 clients with at least 1 image(s) each need 10,000,000 images" in err


def test_a_damaged_checkpoint(sim, home):
    assert sim(*TINY, "--rounds", "1", "--method", "fedavg", "--out", "run")[0] == 0
    checkpoint = home / "run" / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-10])
    code, _, err = sim("--resume", "run")
    assert code == 4
    assert "damaged" in err


def test_a_model_file_that_does_not_fit(sim, home, models):
    words = (*TINY, "--rounds", "1", "--out", "small", "--model", "bad_models:small")
    assert sim(*words)[0] == 0
    before = sorted(p.name for p in home.rglob("*"))
    code, _, err = sim(*TINY, "--init", "small/model.pt")
    assert code == 2
    assert "small/model.pt is of another model" in err
    words = (*TINY, "--model", "bad_models:small", "--init", "small/model.pt")
    code, _, err = sim(*words, "--augmentation", "asymmetric")
    assert code == 2
    assert "6 hyperparameters, and these settings have 14" in err
    code, _, err = sim(*words[:-1], "small/curves.png")
    assert code == 2
    assert "is no model.pt" in err
    for odd in ({"model": {"a": "b"}, "hyper": torch.zeros(6)}, {"model": {}, "hyper": [1.0]}):
        torch.save(odd, home / "small" / "curves.png")
        code, _, err = sim(*words[:-1], "small/curves.png")
        assert code == 2
        assert "it lacks model or hyper" in err
    content = bytearray((home / "small" / "model.pt").read_bytes())
    content[content.index(b"data/0") + 500] ^= 1
    (home / "small" / "model.pt").write_bytes(content)
    code, _, err = sim(*words)
    assert code == 2
    assert "model.pt is damaged (at " in err
    assert sorted(p.name for p in home.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = true", "rounds is true"),
        ("clients_per_round = 5\nclients-per-round = 6", "clients-per-round is set twice"),
    ],
)
def test_a_settings_file_that_says_something_odd(sim, home, text, words):
    (home / "x.toml").write_text(text + "\n")
    code, _, err = sim("--config", "x.toml", "--dry-run")
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", [(), ("central",)])
def test_a_settings_file_as_editors_on_windows_write_it(sim, home, command):
    """With a mark at the beginning it is read; in UTF-16 it is told what it is."""
    text = 'experiment = "mask-learning"\r\n' if command else "rounds = 3\r\n"
    text += "modle = 3\r\n"
    (home / "x.toml").write_bytes(text.encode("utf-8-sig"))
    code, _, err = sim(*command, "--config", "x.toml")
    assert (code, "'modle'" in err) == (2, True), err
    (home / "x.toml").write_bytes(text.encode("utf-16"))
    sentence = "error: x.toml is UTF-16 text; save it as UTF-8\n"
    assert sim(*command, "--config", "x.toml") == (2, "", sentence)


@pytest.mark.parametrize("command", ["compare", "table"])
def test_a_file_to_write_has_a_name(sim, home, command):
    code, _, err = sim(command, "run", "--out", "")
    assert (code, err) == (2, "error: --out is '.'; it must be the name of a file\n")


@pytest.mark.parametrize("out", ["folder", "split.xyz"])
def test_a_split_picture_needs_a_pictures_name(sim, home, out):
    code, _, err = sim("split", *TINY, "--out", out)
    assert code == 2
    assert "must end in .png or .svg" in err
    assert list(home.iterdir()) == []


def test_a_dry_run_refuses_what_the_run_would_refuse(sim, home):
    (home / "run").mkdir()
    (home / "run" / "mine").write_text("kept")
    code, _, err = sim(*TINY, "--out", "run", "--dry-run")
    assert code == 4
    assert "not empty" in err


def test_a_finished_run_is_not_resumed(sim, home, models):
    assert sim(*TINY, "--model", "bad_models:small", "--out", "run")[0] == 0
    before = (home / "run" / "run.json").read_bytes()
    code, _, err = sim("--resume", "run")
    assert code == 4
    assert "run is finished" in err
    assert (home / "run" / "run.json").read_bytes() == before
    # As results are kept: without the weights, or with little more than what they came to.
    for names in (("checkpoint.pt", "model.pt"), ("run.json", "rounds.jsonl")):
        for name in names:
            (home / "run" / name).unlink()
        assert sim("--resume", "run")[::2] == (code, err)
    (home / "run" / "summary.json").write_text('{"kind"')
    code, _, err = sim("--resume", "run")
    assert (code, err.count("\n")) == (4, 1)
    assert err.startswith("error: run/summary.json is damaged (Invalid JSON")


def test_settings_of_a_run_that_cannot_be_read(sim, home):
    (home / "run").mkdir()
    (home / "run" / "config.toml").write_text("= garbage")
    code, _, err = sim("--resume", "run")
    assert code == 4
    assert "not valid TOML" in err


@pytest.mark.parametrize("words", [(), ("central", "--experiment", "mask-learning")])
def test_a_name_that_is_no_text_is_refused(sim, home, words):
    """It could not be written into config.toml."""
    code, _, err = sim(*words, "--out", "bad\udcff")
    assert (code, err.count("\n")) == (2, 1)
    assert r"out is 'bad\udcff', which is no UTF-8 text; rename it" in err
    assert not list(home.iterdir())


def test_help_names_the_exit_codes_that_the_readme_explains():
    table = re.findall(r"^\| ([\d, ]+) \| ", (SIM.parent / "README.md").read_text(), flags=re.M)
    listed = _run_parser().format_help().partition("exit codes:")[2].partition(";")[0]
    codes = [code for row in table for code in row.split(", ")]
    assert codes[0] == "0"
    assert re.findall(r"\d+", listed) == codes
