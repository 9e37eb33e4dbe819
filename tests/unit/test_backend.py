import socket
from types import SimpleNamespace

import pytest

from clients import backend
from clients.backend import choose_backend, gpus_for, share_of, workers_that_fit
from fedpart.config import make_config
from fedpart.errors import ConfigError
from fedpart.unused_settings import unused_settings


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many cores, with Ray or without."""

    def make(cores: int, installed: bool = True) -> None:
        monkeypatch.setattr(backend, "available_cores", lambda: cores)
        monkeypatch.setattr(backend, "_installed", lambda: installed)
        monkeypatch.setattr(backend, "_check_answers", lambda address: None)

    return make


def choose(**values: object):
    return choose_backend(make_config(values))


def test_auto_is_ray_where_there_is_more_than_one_core(machine):
    machine(4)
    chosen = choose()
    assert (chosen.name, chosen.workers, chosen.text) == ("ray", 4, "ray, 4 workers")


@pytest.mark.parametrize(
    ("cores", "installed", "values", "reason"),
    [
        (1, True, {}, "one core"),
        (4, True, {"clients_per_round": 1}, "one client a round"),
        (4, True, {"workers": 1}, "workers is 1"),
        (4, False, {}, "ray is not installed; pip install 'fedpart[sim]' brings it"),
    ],
)
def test_auto_says_why_it_is_inline(machine, cores, installed, values, reason):
    machine(cores, installed)
    chosen = choose(**values)
    assert (chosen.name, chosen.workers, chosen.text) == ("inline", None, f"inline ({reason})")


def test_on_windows_auto_is_inline_and_ray_is_refused(machine, monkeypatch):
    machine(4)
    monkeypatch.setattr(backend, "sys", SimpleNamespace(platform="win32"))
    why = "ray's workers need Linux or macOS; inline runs anywhere"
    assert choose().text == f"inline ({why})"
    with pytest.raises(ConfigError, match=f"^workers is 3, but {why}$"):
        choose(workers=3)


@pytest.mark.parametrize("name", ["inline", "algorithm"])
def test_what_is_asked_for_is_chosen_and_workers_do_not_matter_to_it(machine, name):
    machine(8)
    chosen = choose(backend=name, workers=3)
    assert (chosen.name, chosen.workers, chosen.text) == (name, None, name)


@pytest.mark.parametrize(
    "values", [{"workers": 3}, {"ray_address": "head:6379"}, {"backend": "ray"}]
)
def test_who_asks_for_workers_gets_ray_even_on_one_core(machine, values):
    machine(1)
    assert choose(**values).name == "ray"


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ({"backend": "ray"}, "backend is 'ray'"),
        ({"workers": 3}, "workers is 3"),
        ({"ray_address": "head:6379"}, "ray-address is 'head:6379'"),
        ({"gpus_per_client": 0.5, "device": "cuda"}, "gpus-per-client is 0.5"),
    ],
)
def test_who_asks_for_ray_is_not_given_something_else(machine, values, asked):
    machine(4, installed=False)
    with pytest.raises(ConfigError) as error:
        choose(**values)
    assert str(error.value).startswith(f"{asked}, but ray is not installed; pip install")


def test_on_a_cluster_its_resources_decide(machine):
    machine(1)
    assert choose(ray_address="head:6379").workers is None
    assert choose(ray_address="head:6379", workers=5).workers == 5


def fit(cpus: int, gpus: int = 0, **values: object) -> int:
    return workers_that_fit(make_config({"device": "cuda"} | values), cpus, gpus)


def test_a_worker_a_core_but_no_more_than_clients_a_round():
    assert fit(4) == 4
    assert fit(64) == 10
    assert fit(64, workers=8) == 8
    assert fit(1, workers=8) == 8
    # More would have no client to work for.
    assert fit(64, workers=50) == 10
    assert fit(64, workers=50, over_select=1.5) == 15


@pytest.mark.parametrize(
    ("gpus", "share", "workers"),
    # A worker's share of a GPU is on one GPU: 0.4 leaves a fifth of each unused.
    [(1, 0.25, 4), (1, 0.1, 10), (2, 0.4, 4), (3, 1.0, 3), (4, 2.0, 2), (5, 2.0, 2), (8, 0.1, 10)],
)
def test_gpus_hold_a_whole_number_of_workers_each(gpus, share, workers):
    assert fit(2, gpus, gpus_per_client=share) == workers
    assert gpus_for(workers, share) <= gpus


@pytest.mark.parametrize(("workers", "share", "gpus"), [(5, 0.34, 3), (4, 0.25, 1), (3, 2.0, 6)])
def test_gpus_that_workers_need(workers, share, gpus):
    assert gpus_for(workers, share) == gpus
    assert gpus_for(workers, 0.0) == 0


def test_more_workers_than_gpus_hold_is_refused():
    with pytest.raises(ConfigError, match="2 GPUs can hold 4 such workers, not 5; use fewer"):
        fit(8, 2, gpus_per_client=0.5, workers=5)


def test_a_share_of_a_gpu_where_there_is_none_is_refused_with_what_to_do():
    """No smaller share would help; and nothing else is said of the setting beside the refusal."""
    no_gpu = r"gpus-per-client is 0\.5, but .* no GPU .*; leave it and device 'cuda' out"
    with pytest.raises(ConfigError, match=no_gpu):
        fit(8, 0, gpus_per_client=0.5)
    config = make_config({"gpus-per-client": 0.5})
    with pytest.raises(ConfigError, match=r"is 0\.5, but device is 'cpu'; use device"):
        choose_backend(config)
    assert unused_settings(config, {"gpus-per-client": "0.5"}) == ""


def test_an_address_where_nobody_answers_is_refused_at_once():
    with socket.socket() as bound:
        # Bound, and so nobody else's; but not listening.
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"ray-address is '{address}', where nobody answers"):
            choose(ray_address=address)


@pytest.mark.parametrize(
    ("workers", "gpus", "share"), [(10, 1, 1 / 10), (5, 2, 1 / 3), (8, 4, 1 / 2), (2, 8, 1)]
)
def test_auto_shares_gpus_evenly_among_workers(machine, monkeypatch, workers, gpus, share):
    """As many as there are cores; each on one GPU."""
    config = make_config({"gpus_per_client": "auto", "device": "cuda"})
    assert workers_that_fit(config, workers, gpus) == workers
    assert share_of(config, workers, gpus) == share
    # Ray is told of no more GPUs than these need, and the share stays.
    assert share_of(config, workers, gpus_for(workers, share)) == share
    machine(workers)
    monkeypatch.setattr(backend, "local_gpus", lambda config: gpus)
    said = f"ray, {workers} workers, {share:.2g} of a GPU each"
    assert choose_backend(config).text == said


def test_auto_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="gpus-per-client is auto, but this machine has no GPU"):
        fit(8, 0, gpus_per_client="auto")
