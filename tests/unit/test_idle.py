"""Settings that are of no use beside the others are named, and no others are."""

import shlex

import pytest

from fedpart.arguments import parse_run
from fedpart.config import Config, make_config
from fedpart.idle import OF_SPLIT, first_warnings, idle_in_split, idle_settings


def idle(words, **how):
    """What is said of a command line."""
    request = parse_run(shlex.split(words))
    return idle_settings(request.config(), request.typed, **how)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--workers 4 --backend inline", "workers 4 (backend is inline)"),
        (
            "--gpus-per-client 0.5 --ray-address a:1 --backend algorithm",
            "gpus-per-client 0.5 (backend is algorithm), ray-address a:1 (backend is algorithm)",
        ),
        ("--round-timeout 9 --backend algorithm", "round-timeout 9 (backend is algorithm)"),
        ("--method fedavg --chunks 0.5,0.5", "chunks 0.5,0.5 (method is fedavg)"),
        ("--method fedavg --samples 5", "samples 5 (method is fedavg)"),
        ("--method fedavg --augmentation symmetric", "augmentation symmetric (method is fedavg)"),
        ("--method fedavg --hyper-lr 1", "hyper-lr 1 (method is fedavg)"),
        ("--method fedavg --scheme node", "scheme node (there is one chunk)"),
        ("--method augerino --chunks 0.5,0.5", "chunks 0.5,0.5 (method is augerino)"),
        ("--augerino unsafe", "augerino unsafe (method is partitioned)"),
        ("--chunks 1 --hyper-batch-size 8", "hyper-batch-size 8 (there is one chunk)"),
        ("--augmentation none --width-start 0.2", "width-start 0.2 (augmentation is none)"),
        (
            "--augmentation asymmetric --width-transform softplus",
            "width-transform softplus (augmentation is asymmetric)",
        ),
        (
            "--clients-at-once 5",
            "clients-at-once 5 (device is cpu, where one by one is faster)",
        ),
        ("--clients-at-once 20 --device cuda", "clients-at-once 20 (a round asks 10)"),
        ("--clients-at-once 20", "clients-at-once 20 (a round asks 10)"),
        ("--samples 1 --average probs", "average probs (samples is 1)"),
        ("--dataset mnist --skew iid --alpha 2", "alpha 2 (skew is iid)"),
        (
            "--clients 10 --clients-per-round 10 --over-select 2",
            "over-select 2 (every client is asked in every round)",
        ),
        ("--clients-per-round 1 --max-update-norm 5", "max-update-norm 5 (one client a round)"),
    ],
)
def test_what_is_of_no_use_is_named_with_the_reason(words, named):
    assert idle(words) == f"of no use: {named}"


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--workers 4",
        "--workers 1 --backend inline",
        "--workers auto --gpus-per-client 0 --backend inline",
        "--workers 4 --gpus-per-client 0.25 --device cuda --backend ray",
        "--method fedavg --samples 1 --chunks 1 --augmentation none --dropout 0.3 --alpha 1",
        "--clients-at-once 10 --device cuda",
        "--clients-at-once 15 --over-select 1.5 --device cuda",
        "--clients-at-once 1",
        "--method augerino --hyper-lr 0.1 --augerino unsafe --width-start 0.2",
        "--over-select 1.5 --min-replies 5 --client-failure-rate 0.1 --max-update-norm 5",
        "--dataset mnist --skew iid --sizes equal",
    ],
)
def test_what_is_of_use_is_not(words):
    assert idle(words) == ""


def test_a_settings_file_serves_several_methods(tmp_path):
    (tmp_path / "x.toml").write_text("workers = 4\nchunks = [0.5, 0.5]\nhyper-lr = 1.0\n")
    assert idle(f"--config {tmp_path}/x.toml --backend inline --method fedavg") == ""


def test_nodes_have_no_back_end():
    named = "backend inline (the clients are Flower's nodes), workers 2 (the clients are Flower's"
    assert idle("--backend inline --workers 2", nodes=True) == f"of no use: {named} nodes)"


def test_a_split_trains_nothing():
    """Every flag of a run is taken, so that a run's command can be typed with ``split`` before."""
    request = parse_run(["--rounds", "5", "--alpha", "1", "--batch-size", "8"])
    said = idle_in_split(request.config(), request.typed)
    assert said == "of no use: rounds 5 (nothing is trained)"
    assert set(Config.model_fields) > OF_SPLIT


def test_a_run_is_told_of_idle_settings_and_of_a_slow_precision(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpart.machine.CPUINFO", tmp_path / "cpuinfo")
    typed = {"workers": "4", "backend": "inline", "precision": "bf16"}
    config = make_config(typed)
    assert [text[:9] for text in first_warnings(config, typed)] == ["of no use"]
    (tmp_path / "cpuinfo").write_text("flags : avx2\n")
    assert [text[:9] for text in first_warnings(config, typed)] == ["of no use", "this proc"]
    assert len(first_warnings(make_config({"precision": "bf16"}), {})) == 1
    assert first_warnings(make_config({}), {}) == []
