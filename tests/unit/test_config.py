from pathlib import Path

import pytest

from fedpart.config import Config, keys, load_toml, make_config
from fedpart.errors import ConfigError
from fedpart.paper import BLOCKS, DIGITS, OBJECTS

CONFIGS = Path(__file__).parents[2] / "configs"


def test_settings_survive_toml_and_back(tmp_path):
    path = 'C:\\da"ta\n'
    config = Config(chunks=(0.9, 0.1), data_dir=path, name="Ünï", hyper_batch_size=7, workers=3)
    (tmp_path / "c.toml").write_text(config.to_toml(), encoding="utf-8")
    assert make_config(load_toml(tmp_path / "c.toml")) == config


TEXT = 'rounds = 7\r\nname = "Ünï"\r\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_settings_are_read_with_or_without_a_mark_and_with_any_ends_of_lines(
    tmp_path, encoding, end
):
    """As Notepad, PowerShell and all others write them."""
    path = tmp_path / "c.toml"
    path.write_bytes(TEXT.replace("\r\n", end).encode(encoding))
    assert load_toml(path) == {"rounds": 7, "name": "Ünï"}


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [
        ("utf-16", "UTF-16 text"),
        ("utf-16-le", "UTF-16 text"),
        ("utf-16-be", "UTF-16 text"),
        ("latin-1", "not UTF-8 text"),
    ],
)
def test_settings_in_another_encoding_are_named(tmp_path, encoding, kind):
    path = tmp_path / "c.toml"
    path.write_bytes(TEXT.encode(encoding))
    with pytest.raises(ConfigError) as caught:
        load_toml(path)
    assert str(caught.value) == f"{path} is {kind}; save it as UTF-8"


def test_every_key_is_written(tmp_path):
    lines = Config().to_toml().splitlines()
    assert [line.removeprefix("# ").split()[0] for line in lines] == keys()


def test_flags_come_as_text():
    config = make_config({"chunks": "0.5, 0.5", "clients": "20", "alpha": "1e-2", "json": "true"})
    assert (config.chunks, config.clients, config.alpha) == ((0.5, 0.5), 20, 0.01)
    assert config.json_summary


@pytest.mark.parametrize(("text", "size"), [("1.25k", 1250), ("5K", 5000), ("77", 77), (9, 9)])
def test_train_size_in_thousands(text, size):
    assert make_config({"train-size": text}).train_size == size


@pytest.mark.parametrize("text", ["k", "1.2345k", "xk", "5m"])
def test_train_size_that_is_no_number(text):
    with pytest.raises(ConfigError, match=r"train-size is .*whole number"):
        make_config({"train-size": text})


def test_fedavg_has_one_chunk_and_learns_nothing():
    config = Config(method="fedavg", chunks=(0.7, 0.3))
    assert (config.chunks, config.augmentation, config.samples) == ((1.0,), "none", 1)
    assert config.num_partitions == 1
    assert config.dropout == 0.1


@pytest.mark.parametrize(
    ("dataset", "skew"),
    [
        *(("mnist", "label"), ("rotmnist", "rotation")),
        *(("cifar10", "label"), ("rotcifar10", "rotation"), ("rotten:apples", "label")),
    ],
)
def test_skew_follows_the_data_set(dataset, skew):
    assert Config(dataset=dataset).skew == skew
    assert Config(dataset=dataset, skew="iid").skew == "iid"


def test_config_hash_follows_what_results_depend_on():
    base = Config().config_hash
    places = {"out": "x", "name": "y", "backend": "algorithm", "checkpoint_every": 3}
    ray = {"workers": 3, "gpus_per_client": 0.5, "ray_address": "head:6379"}
    assert Config(**places, **ray, data_dir="z", json_summary=True).config_hash == base
    # When a run gives up changes none of the rounds before; a resume may be more patient.
    assert Config(max_empty_rounds=9, round_timeout=5).config_hash == base
    for change in ({"seed": 1}, {"rounds": 5}, {"chunks": (0.9, 0.1)}, {"eval_every": 5}):
        assert Config(**change).config_hash != base


def test_names_of_runs():
    assert Config(train_size="5k", seed=3).run_name == "rotmnist-partitioned-5000-seed3"
    assert Config(name="mine").run_name == "mine"
    assert Config(dataset="my.module:digits").run_name == "my.module-digits-partitioned-1250-seed0"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"chunk": 1}, "unknown setting 'chunk'; did you mean 'chunks'?"),
        ({"qqqq": 1}, "unknown setting 'qqqq'; see sim.py --help"),
        (
            {"method": "fedavgg"},
            "method is 'fedavgg'; it must be one of partitioned, augerino, fedavg; did you mean "
            "'fedavg'?",
        ),
        (
            {"dataset": "rotcifar"},
            "dataset is 'rotcifar'; it must be one of mnist, rotmnist, cifar10, rotcifar10, or "
            "module:function for your own; did you mean 'rotcifar10'?",
        ),
        (
            {"augmentation": "module:"},
            "augmentation is 'module:'; it must be one of symmetric, asymmetric, generators, none, "
            "or module:Class for your own",
        ),
        ({"dropout": 1.0}, "dropout is 1.0; it must be below 1"),
        ({"samples": 0}, "samples is 0; it must be at least 1"),
        ({"max-empty-rounds": 0}, "max-empty-rounds is 0; it must be at least 1"),
        ({"over-select": 0.5}, "over-select is 0.5; it must be at least 1"),
        ({"client-failure-rate": 1}, "client-failure-rate is 1; it must be below 1"),
        ({"max-update-norm": 0.5}, "max-update-norm is 0.5; it must be at least 1"),
        (
            {"min-replies": 11},
            "min-replies is 11; it must be at most clients-per-round, 10",
        ),
        ({"width-start": 2}, "width-start is 2; it must be at most 1"),
        ({"alpha": float("inf")}, "alpha is inf; it must be a finite number"),
        ({"workers": -2}, "workers is -2; it must be auto or a whole number of at least 1"),
        (
            {"ray-address": "head:70000"},
            "ray-address is 'head:70000'; it must be host:port, or auto",
        ),
        (
            {"chunks": [0.5, 0.49999]},
            "chunks is 0.5,0.49999, which sums to 0.99999; shares must sum to 1",
        ),
    ],
)
def test_one_sentence_names_value_and_limit(values, sentence):
    with pytest.raises(ConfigError) as error:
        make_config(values)
    assert str(error.value) == sentence


def test_chunks_may_miss_one_by_rounding():
    assert make_config({"chunks": [0.333333, 0.333333, 0.333334]}).num_partitions == 3
    assert Config(chunks=(1 / 3,) * 3).num_partitions == 3


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Config().rounds = 3


def block_of(config):
    return next(block for block in BLOCKS if config.dataset in block.datasets)


def test_the_papers_table_is_there():
    names = {path.stem for path in CONFIGS.glob("*.toml")}
    for block in BLOCKS:
        for dataset, size in block.columns:
            for row in block.rows:
                assert f"{dataset}-{size / 1000:g}k-{row.method}" in names
    for dataset in DIGITS.datasets:
        assert {f"quick-{dataset}-1.25k-{row.method}" for row in DIGITS.rows} <= names


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda p: p.stem)
def test_each_config_loads_and_is_what_its_name_says(path):
    config = make_config(load_toml(path))
    block, quick = block_of(config), path.stem.startswith("quick-")
    dataset, size, method = path.stem.removeprefix("quick-").rsplit("-", 2)
    assert (config.dataset, config.method) == (dataset, method)
    assert config.train_size == float(size[:-1]) * 1000
    assert config.rounds == ((600 if block is DIGITS else 20) if quick else block.rounds)
    assert (config.skew, config.alpha) == block.split[dataset]
    assert config.clients_per_round == 10
    stated = block.settings | (block.learned if method == "partitioned" else {})
    if quick and block is OBJECTS:
        stated |= {"model": "resnet9-narrow", "eval_every": 20}
    assert {name: getattr(config, name) for name in stated} == stated


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda p: p.stem)
def test_each_config_says_what_to_expect_of_it(path):
    header = path.read_text().split("\n\n")[0]
    assert all(line.startswith("# ") for line in header.splitlines())
    for words in ("Time (estimates)", "on\n# 2 cores", "on a GPU (a guess, not measured)"):
        assert words in header
    if path.stem.startswith("quick-"):
        assert "No row of the paper." in header
        return
    config = make_config(load_toml(path))
    block = block_of(config)
    row = block.row(config.method)
    column = block.columns.index((config.dataset, config.train_size))
    mean, error = row.accuracy[column]
    assert f"Paper, federated results: {mean:.1f} +- {error:.1f} % validation accuracy" in header
    assert f"upload {row.upload} % of FedAvg's" in header
