"""What ``flwr run .`` finds: run config, bundle, settings, and which nodes are there."""

import io
import json
import shutil
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import tiny
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import fuse_dicts, get_fab_config, parse_config_args

from clients.app import materials
from clients.entry import app as client_app
from clients.grid import InlineExecutor, LocalGrid
from fedpart import machine
from fedpart.arguments import parse_run
from fedpart.config import Config, keys
from fedpart.errors import ConfigError, DataError
from fedpart.machine import code_id
from strategies.app import app as server_app
from strategies.app import settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FLOWER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
RUN_CONFIG = FLOWER["config"]


# Not the field's own default: it follows from another setting.
NOTES = {"skew": "follows the data set"}


def expected_table() -> str:
    """The lines of ``[tool.flwr.app.config]``: each key, not given, and the default beside it."""
    lines = [
        'config = ""  # a file of configs/',
        'resume = ""  # true: go on with the run in out, whose settings are given again',
    ]
    defaults = Config().model_dump(mode="json", by_alias=True)
    for key in keys():
        value = defaults[key]
        if isinstance(value, list):
            value = ",".join(map(str, value))
        note = NOTES.get(key) or ("not set" if value is None else json.dumps(value))
        lines.append(f'{key} = ""  # {note}')
    return "\n".join(lines)


def test_the_run_config_declares_every_setting_and_says_its_default():
    text = (ROOT / "pyproject.toml").read_text()
    table = text.partition("[tool.flwr.app.config]\n")[2].partition("\n\n")[0]
    if table != expected_table():
        # Not an assertion, whose report would cut the table that is to be copied.
        pytest.fail(
            "fedpart.config has changed; [tool.flwr.app.config] of pyproject.toml must hold\n\n"
            f"{expected_table()}\n",
            pytrace=False,
        )


def test_the_run_config_as_it_is_gives_the_defaults(monkeypatch):
    monkeypatch.delenv("FEDPART_DATA", raising=False)
    assert settings(RUN_CONFIG) == Config()
    # Defaults that follow from other settings do so here too.
    assert settings(RUN_CONFIG | {"dataset": "mnist"}) == Config(dataset="mnist")
    assert settings(RUN_CONFIG | {"method": "fedavg"}) == Config(method="fedavg")


def flower_fuses(*words: str) -> dict[str, object]:
    """The run config that apps get from ``flwr run --run-config WORD ...``."""
    return fuse_dicts(RUN_CONFIG, parse_config_args(list(words)))


def test_values_come_as_flwr_run_passes_them():
    config = settings(flower_fuses("chunks='0.9,0.1' train-size=\"5k\" alpha=1", "json=true"))
    assert (config.chunks, config.train_size, config.alpha) == ((0.9, 0.1), 5000, 1.0)
    assert config.json_summary


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_a_settings_file_by_name_is_as_with_sim(path, monkeypatch):
    monkeypatch.delenv("FEDPART_DATA", raising=False)
    given = flower_fuses(f'config="configs/{path.name}"')
    assert settings(given) == parse_run(["--config", str(path)]).config()


def test_a_key_wins_over_the_file_even_with_the_default_value():
    name = "configs/quick-rotmnist-1.25k-partitioned.toml"
    assert settings(RUN_CONFIG | {"config": name}).rounds == 600
    assert Config().rounds == 100
    given = settings(flower_fuses(f'config="{name}" rounds=100 alpha=0.5'))
    assert (given.rounds, given.alpha, given.eval_every) == (100, 0.5, 10)


@pytest.mark.parametrize("name", ["configs/mnist-5k-fedavgg.toml", "configs", "../x.toml", "/x"])
def test_a_settings_file_outside_the_bundle_is_refused(name):
    with pytest.raises(ConfigError, match=f"config is '{name}'; it must be a file of the bundle"):
        settings(RUN_CONFIG | {"config": name})


def test_the_nearest_settings_file_is_named():
    with pytest.raises(ConfigError, match="did you mean 'configs/mnist-5k-fedavg"):
        settings(RUN_CONFIG | {"config": "configs/mnist-5k-fedavgg.toml"})


def test_several_seeds_are_refused_under_flower():
    with pytest.raises(ConfigError, match="seeds is 4; under Flower a run has one"):
        settings(RUN_CONFIG | {"seeds": 4})


def test_the_data_folder_is_recorded_as_an_absolute_path(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPART_DATA", str(tmp_path))
    assert settings(RUN_CONFIG).data_dir == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert settings(RUN_CONFIG | {"data-dir": "mine"}).data_dir == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"clients": 6}, ConfigError, "clients-per-round is 10; it must be at most the number of"),
        ({"roundss": 6}, ConfigError, "unknown setting 'roundss'; did you mean 'rounds'"),
        ({"config": "mine.toml"}, ConfigError, "config is 'mine.toml'; it must be a file of the"),
        ({"data-dir": "/nowhere"}, DataError, "data-dir /nowhere is not a folder"),
        ({}, ConfigError, "clients is 100, but nodes were started for 10: give"),
    ],
)
def test_what_cannot_be_run_ends_in_one_sentence_and_writes_nothing(
    given, error, sentence, tmp_path, monkeypatch
):
    for name in ("digits", "work"):
        (tmp_path / name).mkdir()
    tiny.write_noise(tmp_path / "digits", 1500, 10)
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "work")
    run_config = RUN_CONFIG | {"data-dir": str(tmp_path / "digits")} | given
    context = Context(1, 1, {}, RecordDict(), run_config)
    # A grid of ten nodes.
    grid = LocalGrid(InlineExecutor(client_app), tiny.config())
    with pytest.raises(error) as caught:
        server_app(grid, context)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert list(Path().iterdir()) == []


def test_a_nodes_own_data_folder_comes_first(monkeypatch):
    seen = []

    def load(config):
        seen.append(config.data_dir)
        return tiny.data(side=28)

    monkeypatch.setattr("clients.app.load_federated", load)
    monkeypatch.setattr("clients.app._built", {})
    for node_config in ({}, {"data-dir": "/data/site0"}):
        context = Context(1, 2, {"partition-id": 0, **node_config}, RecordDict(), {})
        context.run_config = RUN_CONFIG | {"data-dir": "/data/all"}
        materials(context)
    assert seen == ["/data/all", "/data/site0"]


def question(**node_config: object) -> MetricRecord:
    message = Message(RecordDict(), dst_node_id=2, message_type="query")
    return client_app(message, Context(1, 2, node_config, RecordDict(), {})).content["metrics"]


def test_a_node_says_of_how_many_it_is_where_it_was_told():
    told = question(**{"partition-id": 3, "num-partitions": 7})
    assert told == {"client-id": 3, "num-clients": 7, "code": code_id()}
    assert question(**{"partition-id": 3}) == {"client-id": 3, "code": code_id()}


def test_the_code_id_follows_every_module(tmp_path, monkeypatch):
    for package in ("fedpart", "strategies", "clients"):
        shutil.copytree(ROOT / package, tmp_path / package)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "fedpart" / "machine.py"))
    compute = code_id.__wrapped__
    assert compute() == code_id()
    seen = {compute()}
    for name in ("fedpart/data/split.py", "strategies/app.py", "clients/app.py"):
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        seen.add(compute())
    (tmp_path / "clients" / "__init__.py").rename(tmp_path / "clients" / "other.py")
    seen.add(compute())
    # Which bundles lack.
    (tmp_path / "clients" / "test_grid.py").touch()
    assert compute() in seen
    assert len(seen) == 5
    assert all(0 <= number < 2**60 for number in seen)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> bytes:
    """Built by Flower from this checkout, in which somebody works."""
    skip = shutil.ignore_patterns(".git", ".hypothesis", "*_cache", "__pycache__", "runs", "*venv*")
    checkout = shutil.copytree(ROOT, tmp_path_factory.mktemp("a") / "fedpart", ignore=skip)
    (checkout / "mymodel.py").write_text("# a model of one's own\n")
    for name in ("runs/one/rounds.jsonl", "out/rounds.jsonl", "data/labels.json"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text("{}\n" * 1_000_000)
    with warnings.catch_warnings():
        # Flower's own, of a newer pathspec.
        warnings.simplefilter("ignore", DeprecationWarning)
        return build_fab_from_disk(checkout)


def members(bundle: bytes) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return set(archive.namelist())


def test_the_bundle_is_small_and_holds_the_program_only(bundle):
    assert len(bundle) < 1e6
    names = members(bundle)
    folders = ("fedpart", "strategies", "clients")
    modules = {p.relative_to(ROOT).as_posix() for f in folders for p in (ROOT / f).rglob("*.py")}
    configs = {f"configs/{p.name}" for p in (ROOT / "configs").glob("*.toml")}
    schemas = {f"fedpart/schemas/{p.name}" for p in (ROOT / "fedpart/schemas").glob("*.json")}
    top = {"sim.py", "mymodel.py", "pyproject.toml", "README.md", "LICENSE"}
    assert names == modules | configs | schemas | top | {".info/CONTENT"}


@pytest.mark.process
def test_settings_files_are_read_from_the_bundle(bundle, tmp_path, monkeypatch):
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        archive.extractall(tmp_path)
    (path,) = tmp_path.glob("configs/mnist-5k-fedavg.toml")
    # Another than in the checkout, so that it is seen which one is read.
    path.write_text("rounds = 7\n")
    code = (
        "from fedpart.run_config import given_settings\n"
        "print(given_settings({'config': 'configs/mnist-5k-fedavg.toml', 'seed': 3, 'out': ''}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{'rounds': 7, 'seed': 3}"


def test_the_bundle_says_what_flower_is_to_run(bundle):
    app = get_fab_config(bundle)["tool"]["flwr"]["app"]
    assert app["config"] == RUN_CONFIG
    for reference in app["components"].values():
        module, _, name = reference.partition(":")
        assert getattr(sys.modules[module], name) in (server_app, client_app)
