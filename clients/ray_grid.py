"""A grid whose clients run in Ray's workers."""

import contextlib
from collections.abc import Iterator
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from clients.backend import gpus_for, local_gpus, local_workers, share_of, workers_that_fit
from clients.grid import LocalGrid
from clients.identity import own_id
from clients.ray_executor import Cost, RayExecutor
from clients.ray_session import RaySession
from fedpart.data import FederatedData
from fedpart.errors import ConfigError
from fedpart.program import Program

# Room in the object store beside images and messages: split, state, what is freed late.
_SPARE_BYTES = 64 * 2**20


def expected_work(program: Program, data: FederatedData) -> Cost:
    """Images that go through the network, over all passes: what a client takes in time."""

    def cost(message: Message, context: Context) -> float:
        instruction = message.content.get("config")
        if not isinstance(instruction, ConfigRecord):
            return 0.0
        chunk = cast(int, instruction.get("chunk", 0))
        return float(program.passes(chunk) * len(data.client_indices[own_id(context)]))

    return cost


@contextlib.contextmanager
def ray_grid(
    program: Program,
    data: FederatedData,
    workers: int | None = None,
    session: RaySession | None = None,
) -> Iterator[LocalGrid]:
    """All clients in Ray's workers, which end with the context.

    Args:
        program: shared by all; ``config.ray_address`` and ``config.gpus_per_client`` are heeded.
        data: each client's images.
        workers: how many; where None, what the settings come to here or on the cluster.
        session: a Ray that is there already, and stays.

    Raises:
        ConfigError: no such cluster, more workers than it holds, or workers that cannot start.
        OutputError: see ``RaySession``.
    """
    config = program.config
    with contextlib.ExitStack() as stack:
        if session is None and config.ray_address is None:
            workers = local_workers(config) if workers is None else workers
            gpus = gpus_for(workers, share_of(config, workers, local_gpus(config)))
            store = _store_bytes(program, data, workers)
            session = stack.enter_context(RaySession(workers, gpus, store))
        elif session is None:
            session = stack.enter_context(RaySession(address=config.ray_address))
        cpus, gpus = (int(session.resources.get(name, 0)) for name in ("CPU", "GPU"))
        if workers is None:
            workers = workers_that_fit(config, cpus, gpus)
        if workers > cpus:
            raise ConfigError(f"workers is {workers}, but Ray has {cpus} CPUs, one for each")
        share, cost = share_of(config, workers, gpus), expected_work(program, data)
        at_once = config.clients_at_once
        executor = RayExecutor(session, workers, share, cost, at_once)
        stack.callback(executor.close)
        executor.start(program, data)
        yield LocalGrid(executor, config)


def _store_bytes(program: Program, data: FederatedData, workers: int) -> int:
    images = sum(v.nbytes for v in vars(data).values() if isinstance(v, np.ndarray))
    # Weights out, and a reply from each worker, each twice over.
    return images + 2 * 4 * program.layout.num_parameters * (workers + 1) + _SPARE_BYTES
