from pathlib import Path

import pytest

from fedpart.arguments import parse_run, parse_split, resumed_config
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


def test_help_of_split_lists_what_it_heeds(capsys):
    """And nothing of what a run would need besides."""
    with pytest.raises(SystemExit) as ended:
        parse_split(["--dataset", "mnist", "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith("usage: sim.py split ")
    assert {"--alpha", "--data-dir", "--out", "--config"} <= set(said.split())
    assert "--rounds" not in said


def test_paths_are_absolute_from_the_start(tmp_path, monkeypatch):
    """A run may be resumed, and a ServerApp works, in another folder."""
    monkeypatch.chdir(tmp_path)
    paths = ("--init", "a/model.pt", "--data-dir", "b", "--availability", "c.csv")
    config = parse_run(paths).config()
    there = [config.init, config.data_dir, config.availability]
    assert there == [str(tmp_path / p) for p in paths[1::2]]
