from pathlib import Path

import pytest

from fedpart.arguments import parse_run, resumed_config
from fedpart.config import Config
from fedpart.errors import ConfigError

RUN = Config(seed=5, method="fedavg", backend="ray", workers=4, data_dir="/data", out="elsewhere")


def resumed(*words: str) -> Config:
    return resumed_config(parse_run(["--resume", "run", *words]), RUN)


def test_a_resume_keeps_settings_and_goes_on_in_the_folder_named(monkeypatch):
    # Where a new run would look; this one knows its own.
    monkeypatch.setenv("FEDPART_DATA", "/other")
    assert resumed() == RUN.model_copy(update={"out": "run"})


def test_a_resume_may_change_how_it_runs():
    words = ("--backend", "inline", "--workers", "2", "--data-dir", "/moved", "--json")
    config = resumed(*words)
    assert (config.backend, config.workers, config.data_dir) == ("inline", 2, "/moved")
    assert config.json_summary
    assert config.config_hash == RUN.config_hash
    assert parse_run(["--resume", "run"]).resume == Path("run")


@pytest.mark.parametrize("flag", ["--rounds", "--seed", "--out", "--name", "--seeds", "--config"])
def test_a_resume_may_not_change_what_it_computes_or_where(flag):
    with pytest.raises(ConfigError, match=f"leave {flag} out"):
        resumed("--backend", "inline", flag, "1")


def test_a_bad_value_is_refused_on_a_resume_too():
    with pytest.raises(ConfigError, match="workers is 'x'"):
        resumed("--workers", "x")
