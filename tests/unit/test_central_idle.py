"""Settings of ``sim.py central`` that are of no use are named, and no others are."""

import shlex

import pytest

from fedpart.central.arguments import parse_central
from fedpart.central.config import PRESETS, make_central_config, preset
from fedpart.central.idle import idle_in_central


def idle(words):
    """What is said of a command line."""
    request = parse_central(["--experiment", *shlex.split(words)])
    return idle_in_central(request.config(), request.typed)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("mask-learning --dataset mnist", "dataset mnist (mask-learning has no images)"),
        ("input-selection --mask-start 0.3", "mask-start 0.3 (experiment is input-selection)"),
        ("quick-data-size --inputs 3", "inputs 3 (experiment is quick-data-size)"),
        (
            "quick-data-size --methods none,partitioned --augerino-lr 1",
            "augerino-lr 1 (methods are none, partitioned)",
        ),
        ("quick-data-size --method none --chunks 0.5,0.5", "chunks 0.5,0.5 (method is none)"),
        ("quick-data-size --method none --samples 4", "samples 4 (method is none)"),
        ("quick-data-size --sizes 60,80 --train-size 60", "train-size 60 (sizes is given)"),
        ("quick-random-search --trial 3", "trial 3 (trials says how many are drawn)"),
        ("quick-validation --method partitioned --finetune-lr 1", "finetune-lr 1 (method is p"),
        ("mask-learning --optimiser adam --momentum 0.5", "momentum 0.5 (optimiser is adam)"),
        ("mask-learning --schedule constant --anneal 0.5", "anneal 0.5 (schedule is constant)"),
        ("mask-learning --weight-decay 0 --decay-rule root", "decay-rule root (weight-decay is 0)"),
        ("mask-learning --samples 1 --average probs", "average probs (samples is 1)"),
    ],
)
def test_what_is_of_no_use_is_named_with_the_reason(words, named):
    assert idle(words).startswith(f"of no use: {named.replace('is quick-', 'is ')}")


@pytest.mark.parametrize(
    "words",
    [
        "mask-learning --mask-start 0.2 --seed 3 --hyper-lr 0.1",
        "input-selection --inputs 3,4 --method partitioned",
        "quick-data-size --dataset mnist --train-size 60 --method none --samples 1",
        "quick-data-size --methods augerino,none --augerino-lr 1 --samples 4",
        "quick-validation --finetune 3 --finetune-lr 0.1 --splits 1:1",
        "quick-random-search --trials 3 --width-start 0.2",
        "mask-learning --optimiser sgd --momentum 0.5 --adam-eps 1e-6",
        "mask-learning --schedule cosine --anneal 0.5 --weight-decay 0.1 --decay-rule root",
    ],
)
def test_what_is_of_use_is_not(words):
    assert idle(words) == ""


@pytest.mark.parametrize("name", sorted(p.stem for p in PRESETS.glob("*.toml")))
def test_no_preset_holds_what_its_own_runs_have_no_use_for(name):
    """A preset is not typed; but what it would say of itself shows a reason that is wrong."""
    values = preset(name)
    plural = {"sizes", "datasets", "models", "methods", "splits", "lengths"}
    alone = {key: value for key, value in values.items() if key not in plural}
    said = idle_in_central(make_central_config(values), alone)
    assert said == ""
