"""Which back end a run gets, and with how many workers; decided before anything slow happens."""

import importlib.util
import math
import socket
import sys
from dataclasses import dataclass
from typing import Literal

from fedpart.config import Config
from fedpart.errors import ConfigError
from fedpart.machine import available_cores

_CONNECT_SECONDS = 5.0
_INSTALL = "pip install 'fedpart[sim]' brings it"


@dataclass(frozen=True)
class Backend:
    """Where clients run.

    Attributes:
        name: what ``auto`` came to.
        workers: worker processes; None where clients run in this process, or where a cluster's
            resources decide.
        text: the same for people, with the reason where ``auto`` decided.
    """

    name: Literal["ray", "inline", "algorithm"]
    workers: int | None
    text: str


def choose_backend(config: Config) -> Backend:
    """What ``backend`` and ``workers`` come to on this machine.

    ``auto`` is Ray where it has something to share out, or where a setting asks for workers.

    Raises:
        ConfigError: Ray is asked for and not installed, nobody answers at its address, more
            workers than the GPUs hold, workers on a GPU without a share of it, or a share without
            a GPU.
    """
    if config.backend in ("inline", "algorithm"):
        return Backend(config.backend, None, config.backend)
    reason = _against_ray(config)
    if config.backend == "auto" and reason:
        return Backend("inline", None, f"inline ({reason})")
    if config.device == "cuda" and config.gpus_per_client == 0:
        raise ConfigError(
            "device is 'cuda', but gpus-per-client is 0, which hides the GPUs from ray's workers; "
            "give it a share, such as 0.25, or use backend inline"
        )
    if config.device != "cuda" and config.gpus_per_client != 0:
        raise ConfigError(
            f"gpus-per-client is {config.gpus_per_client!r}, but device is 'cpu'; use device cuda, "
            "or leave it out"
        )
    if missing := _missing():
        asked = _asks_for_workers(config) or "backend is 'ray'"
        raise ConfigError(f"{asked}, but {missing}")
    if config.ray_address is not None:
        _check_answers(config.ray_address)
        workers = None if config.workers == "auto" else min(config.workers, config.jobs)
        count = "as many workers as it holds" if workers is None else _count(workers)
        return Backend("ray", workers, f"ray at {config.ray_address}, {count}")
    workers = local_workers(config)
    text = f"ray, {_count(workers)}"
    if config.gpus_per_client == "auto":
        text += f", {share_of(config, workers, local_gpus(config)):.2g} of a GPU each"
    return Backend("ray", workers, text)


def local_workers(config: Config) -> int:
    """``workers`` on this machine.

    Raises:
        ConfigError: see ``workers_that_fit``.
    """
    return workers_that_fit(config, available_cores(), local_gpus(config))


def local_gpus(config: Config) -> int:
    """GPUs of this machine; 0 where workers take none."""
    if config.gpus_per_client == 0:
        return 0
    import torch

    return torch.cuda.device_count()


def workers_that_fit(config: Config, cpus: int, gpus: int) -> int:
    """``workers`` where there are so many CPUs and GPUs; no more than a round has jobs.

    Raises:
        ConfigError: more workers than the GPUs hold.
    """
    hold, share = cpus, config.gpus_per_client
    if share != 0 and not gpus:
        raise ConfigError(
            f"gpus-per-client is {share}, but this machine has no GPU that torch can use; leave it "
            "and device 'cuda' out"
        )
    if share != "auto" and share > 0:
        hold = int(gpus * _workers_per_gpu(share))
        wanted = 1 if config.workers == "auto" else config.workers
        if hold < wanted:
            there = f"{gpus} GPU{'' if gpus == 1 else 's'}"
            raise ConfigError(
                f"gpus-per-client is {share:g}: {there} can hold {hold} such "
                f"workers, not {wanted}; use fewer, or a smaller share"
            )
    wanted_here = hold if config.workers == "auto" else config.workers
    return max(1, min(wanted_here, config.jobs))


def share_of(config: Config, workers: int, gpus: int) -> float:
    """``gpus-per-client`` as a number; ``auto``: an even share for each worker.

    No worker has parts of two GPUs, so that 5 workers on 2 GPUs have a third of one each.
    """
    if config.gpus_per_client == "auto":
        return 1 / math.ceil(workers / max(1, gpus))
    return config.gpus_per_client


def gpus_for(workers: int, share: float) -> int:
    """GPUs that so many workers need, each a ``share`` of one (or several, where above 1)."""
    return math.ceil(workers / _workers_per_gpu(share)) if share > 0 else 0


def _workers_per_gpu(share: float) -> float:
    # No worker has parts of two GPUs. The small number: 1 / 0.1 need not come out as 10.
    return math.floor(1 / share + 1e-9) if share <= 1 else 1 / share


def _against_ray(config: Config) -> str:
    """Why ``auto`` is not Ray here; empty where it is."""
    if _asks_for_workers(config):
        return ""
    if config.device == "cuda":
        return "gpus-per-client is 0, so the GPU is this process's"
    if config.workers == 1:
        return "workers is 1"
    if config.jobs == 1:
        return "one client a round" if config.cohort_size == 1 else "all clients at once"
    if available_cores() == 1:
        return "one core"
    return _missing()


def _asks_for_workers(config: Config) -> str:
    if config.ray_address is not None:
        return f"ray-address is {config.ray_address!r}"
    if config.gpus_per_client != 0:
        return f"gpus-per-client is {config.gpus_per_client}"
    if config.workers not in ("auto", 1):
        return f"workers is {config.workers}"
    return ""


def _missing() -> str:
    """Why there is no Ray here; empty where there is."""
    if sys.platform == "win32":
        return "ray's workers need Linux or macOS; inline runs anywhere"
    return "" if _installed() else f"ray is not installed; {_INSTALL}"


def _installed() -> bool:
    return importlib.util.find_spec("ray") is not None


def _check_answers(address: str) -> None:
    """Try the address first: Ray itself would try for half a minute."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            pass
    except OSError as error:
        raise ConfigError(f"ray-address is {address!r}, where nobody answers: {error}") from None


def _count(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"
