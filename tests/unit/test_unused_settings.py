"""Settings that were typed without effect are named with the reason, and no others are."""

import shlex

import pytest

from fedpart.arguments import parse_run
from fedpart.central.arguments import parse_central
from fedpart.central.config import PRESETS, make_central_config, preset
from fedpart.config import make_config
from fedpart.unused_settings import ON_NODES, first_warnings, unused_settings


def unused(words, ignored=()):
    """What is said of a command line."""
    first, *rest = shlex.split(words) or [""]
    if first == "central":
        request = parse_central(["--experiment", *rest])
    else:
        request = parse_run(shlex.split(words))
    said = unused_settings(request.config(), request.typed, dict(ignored))
    return said.removeprefix("settings of no use: ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--backend inline --workers 4", "workers 4 (only with backend auto or ray)"),
        (
            "--dataset mnist --skew iid --alpha 2 --augerino unsafe",
            "alpha 2 (not with skew iid), augerino unsafe (only with method augerino)",
        ),
        (
            "--method fedavg --hyper-lr 1",
            "hyper-lr 1 (only with 2 or more chunks, or method augerino)",
        ),
        ("--chunks 1 --scheme node", "scheme node (only with 2 or more chunks)"),
        ("--samples 1 --average probs", "average probs (only with samples above 1)"),
        ("--clients-at-once 5", "clients-at-once 5 (faster only with device cuda)"),
        (
            "--clients 10 --clients-per-round 10 --over-select 2",
            "over-select 2 (only with fewer clients-per-round than clients)",
        ),
        (
            "--clients-per-round 1 --max-update-norm 5",
            "max-update-norm 5 (only with 2 or more clients a round)",
        ),
        (
            "central mask-learning --dataset mnist",
            "dataset mnist (only with experiments on images)",
        ),
        (
            "central quick-data-size --methods none,partitioned --augerino-lr 1",
            "augerino-lr 1 (only with method augerino)",
        ),
        ("central quick-data-size --trials 3", "trials 3 (only with methods random-search)"),
        # What the method sets, whatever is given, be it the default.
        ("--method augerino --chunks 0.5,0.5", "chunks 0.5,0.5 (only with method partitioned)"),
        (
            "--method fedavg --augmentation symmetric",
            "augmentation symmetric (not with method fedavg)",
        ),
        ("central quick-data-size --method none --samples 4", "samples 4 (not with method none)"),
    ],
)
def test_a_setting_without_effect_is_named_with_the_reason(words, named):
    assert unused(words) == named


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--workers auto --gpus-per-client 0 --augerino-weight 1e-2 --backend inline",
        "--workers 4 --gpus-per-client 0.25 --clients-at-once 15 --device cuda --backend ray",
        "--method augerino --hyper-lr 0.1 --augerino unsafe --width-start 0.2 --dropout 0.3",
        "--over-select 1.5 --min-replies 5 --client-failure-rate 0.1 --max-update-norm 5",
        "central quick-data-size --methods augerino,none --augerino-lr 1 --samples 4",
        "central quick-validation --finetune 3 --finetune-lr 0.1 --splits 1:1",
        "central quick-random-search --trials 3 --width-start 0.2",
        "central mask-learning --optimiser sgd --momentum 0.5 --schedule cosine --anneal 0.5",
    ],
)
def test_a_setting_with_an_effect_and_one_typed_as_its_default_are_not_named(words):
    assert unused(words) == ""


def test_a_settings_file_serves_several_methods(tmp_path):
    (tmp_path / "x.toml").write_text("workers = 4\nchunks = [0.5, 0.5]\nhyper-lr = 1.0\n")
    assert unused(f"--config {tmp_path}/x.toml --backend inline --method fedavg") == ""


@pytest.mark.parametrize("name", sorted(p.stem for p in PRESETS.glob("*.toml")))
def test_presets_hold_no_setting_without_effect(name):
    """A preset is not typed; but what would be said of it shows a condition that is wrong."""
    values = preset(name)
    assert unused_settings(make_central_config(values), values) == ""


def test_a_command_may_ignore_settings_whatever_the_others_are():
    reason = "the clients are Flower's nodes"
    said = unused("--backend inline --workers 2 --rounds 5", ON_NODES)
    assert said == f"backend inline ({reason}), workers 2 ({reason})"


def test_help_shows_the_condition(capsys):
    with pytest.raises(SystemExit):
        parse_run(["--help"])
    assert "(default 0.1; not with skew iid)" in " ".join(capsys.readouterr().out.split())


def test_a_run_is_told_of_unused_settings_and_of_a_slow_precision(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpart.machine.CPUINFO", tmp_path / "cpuinfo")
    typed = {"workers": "4", "backend": "inline", "precision": "bf16"}
    config = make_config(typed)
    assert [text[:8] for text in first_warnings(config, typed)] == ["settings"]
    (tmp_path / "cpuinfo").write_text("flags : avx2\n")
    assert [text[:8] for text in first_warnings(config, typed)] == ["settings", "this pro"]
    assert first_warnings(make_config({}), {}) == []
