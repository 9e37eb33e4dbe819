"""What ``--help`` says of the settings."""

import re

import pytest

from fedpart.arguments import parse_run
from fedpart.central.arguments import parse_central
from fedpart.central.config import EXPERIMENTS, PRESETS
from fedpart.errors import ConfigError


@pytest.fixture
def shown(capsys, monkeypatch):
    """The help of a command, in one line a flag."""
    monkeypatch.setenv("COLUMNS", "10000")

    def of(parse):
        with pytest.raises(SystemExit):
            parse(["--help"])
        return capsys.readouterr().out

    return of


def test_help_lists_every_experiment_that_is_taken(shown):
    """All presets, as the error for a wrong name does, and none that is not there."""
    names = sorted(path.stem for path in PRESETS.glob("*.toml"))
    assert set(EXPERIMENTS) < set(names)
    (line,) = re.findall(r"^ +--experiment NAME .*", shown(parse_central), flags=re.M)
    assert line.endswith(f": {', '.join(names)}")
    for name in names:
        assert parse_central(["--experiment", name]).values["experiment"] in EXPERIMENTS
    with pytest.raises(ConfigError, match=f"it must be one of {', '.join(names)}$"):
        parse_central(["--experiment", "zzzz"])


@pytest.mark.parametrize("parse", [parse_run, parse_central])
def test_help_shows_no_default_that_is_empty(shown, parse):
    defaults = re.findall(r"\(default(.*?)\)", shown(parse))
    assert len(defaults) > 20
    assert all(default.strip() for default in defaults)
