"""How many workers a GPU holds: clients are run once in a process of their own, and measured."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache

from fedpart.config import Config, make_config
from fedpart.errors import ConfigError
from fedpart.machine import available_cores

# Kernels and handles of a process that computes on a GPU, on the safe side.
_CONTEXT_BYTES = 2**30
# Of what is free; fragments and larger clients of later rounds need the rest.
_USABLE = 0.9


@dataclass(frozen=True)
class Use:
    """What was measured.

    Attributes:
        worker_bytes: memory that a worker takes, with the largest clients.
        free_bytes: memory of the first GPU that nobody else takes.
        gpus: how many there are.
    """

    worker_bytes: int
    free_bytes: int
    gpus: int


def share_of(config: Config) -> float:
    """``gpus-per-client`` as a number.

    ``auto`` is one by the number of workers that a GPU holds; no more of them than there are cores
    or jobs.

    Raises:
        ConfigError: another device, a cluster's GPUs, or clients that do not fit.
    """
    if config.device != "cuda" and config.gpus_per_client != 0:
        raise ConfigError(
            f"gpus-per-client is {config.gpus_per_client!r}, but device is 'cpu'; use device cuda, "
            "or leave it out"
        )
    if config.gpus_per_client != "auto":
        return config.gpus_per_client
    if config.ray_address is not None:
        raise ConfigError(
            "gpus-per-client is 'auto', which measures this machine's GPU, not those at "
            f"{config.ray_address}; give a number"
        )
    use = _measured(config)
    fit = int(_USABLE * use.free_bytes / use.worker_bytes)
    if fit < 1:
        raise ConfigError(
            f"gpus-per-client is 'auto', but a worker takes {_gb(use.worker_bytes)} GB and the GPU "
            f"has {_gb(use.free_bytes)} GB left: use smaller batches, fewer samples or fewer "
            "clients at once"
        )
    needed = math.ceil(min(available_cores(), config.jobs) / use.gpus)
    return 1 / min(fit, needed)


def shown(config: Config) -> str:
    """Why ``auto`` came to what it did, for people; empty where it was not asked."""
    if config.gpus_per_client != "auto":
        return ""
    share, use = share_of(config), _measured(config)
    return (
        f", {round(1 / share)} on a GPU: each takes {_gb(use.worker_bytes)} of "
        f"{_gb(use.free_bytes)} GB"
    )


@lru_cache(maxsize=4)
def _measured(config: Config) -> Use:
    # In a process of its own, which takes its memory with it.
    done = subprocess.run(
        [sys.executable, "-m", "clients.gpu_share"],
        input=json.dumps(
            {"path": sys.path, "settings": config.model_dump(mode="json", by_alias=True)}
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise ConfigError(
            f"gpus-per-client is 'auto', but no client could be run to see what it takes: {why}; "
            "give a number"
        )
    return Use(**json.loads(done.stdout.splitlines()[-1]))


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f}"


def _measure(config: Config) -> Use:
    """Run the largest clients, so many as compute together."""
    import torch

    from fedpart.client import ClientTask
    from fedpart.data import load_federated
    from fedpart.program import program_for
    from fedpart.runtime import prepare_process
    from fedpart.server import assign_chunks, initial_state
    from fedpart.side_by_side import cohort_update

    prepare_process()
    data = load_federated(config)
    program, chunks = program_for(config, data), assign_chunks(config)
    state, free = initial_state(program), torch.cuda.mem_get_info()[0]
    largest = sorted(range(config.clients), key=lambda i: -len(data.client_indices[i]))
    tasks = [
        ClientTask(1, i, int(chunks[i]), state.theta, state.hyper)
        for i in largest[: config.clients_at_once]
    ]
    cohort_update(program, tasks, data)
    taken = torch.cuda.max_memory_reserved() + _CONTEXT_BYTES
    return Use(taken, free, torch.cuda.device_count())


if __name__ == "__main__":
    given = json.load(sys.stdin)
    # A model of the user's own may lie anywhere.
    sys.path.extend(place for place in given["path"] if place not in sys.path)
    sys.stdout.write(json.dumps(vars(_measure(make_config(given["settings"])))) + "\n")
