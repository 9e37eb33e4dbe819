"""What is measured: the workloads, and the data they run on."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedpart.config import make_config
from fedpart.data import FederatedData, load_federated
from fedpart.data.cifar import MEAN, STD
from fedpart.program import Program, build_program, program_for

# W1: plain FedAvg. W3: one partition, each image as ten warped copies, the paper's step; both on
# 50 images for each client. The other two are the paper's method: its smallest set with the real
# split (the first command of the README), and the size of the next. R9: FedAvg with the narrow
# ResNet-9 on 12 colour images for each client.
SETTINGS: dict[str, dict[str, object]] = {
    "W1": {"method": "fedavg"},
    "W3": {"chunks": "1.0"},
    "partitioned-1.25k": {},
    "partitioned-5k": {},
    "fedavg-1.25k": {"method": "fedavg"},
    "R9": {"method": "fedavg"},
}
_CIFAR: dict[str, object] = {
    "dataset": "cifar10",
    "model": "resnet9-narrow",
    "train-size": 1200,
    "batch-size": 32,
    "hyper-batch-size": 32,
    "client-lr": 10**-0.5,
    "server-lr": 1e-2,
    "adam-eps": 1e-7,
}


def spread(seconds: Sequence[float]) -> dict[str, object]:
    """Median, quartiles and number of measurements, in seconds."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"median": middle, "quartiles": [low, high], "n": len(seconds)}


def synthetic(
    clients: int = 100,
    each: int = 50,
    held_out: int = 1000,
    shape: tuple[int, int, int] = (1, 28, 28),
) -> FederatedData:
    """Random values: ``each`` images for every client, and ``held_out`` for validation."""
    rng = np.random.default_rng(0)

    def images(n: int) -> np.ndarray:
        return rng.integers(0, 256, (n, *shape), dtype=np.uint8)

    train, held = images(clients * each), images(held_out)
    owned = tuple(np.arange(i * each, (i + 1) * each) for i in range(clients))
    labels, held_labels = rng.integers(0, 10, len(train)), rng.integers(0, 10, held_out)
    source = "random numbers"
    return FederatedData(
        *("noise", 10, shape[0], train, labels, None, owned, held, held_labels, None, None, source)
    )


def workload(name: str, rounds: int, **changes: object) -> tuple[Program, FederatedData]:
    """Program and data of a workload, 10 of 100 clients a round.

    Args:
        name: a key of ``SETTINGS``.
        rounds: in all; the only evaluation is after the last.
        changes: further settings.
    """
    shared = {"rounds": rounds, "eval-every": rounds, "eval-size": 1}
    if name.endswith("1.25k"):
        config = make_config({**shared, **SETTINGS[name], **changes})
        data = load_federated(config)
        return build_program(config, data.num_classes, data.in_channels), data
    if name.startswith("R9"):
        config = make_config({**shared, **_CIFAR, **SETTINGS[name], **changes})
        data = replace(synthetic(each=12, held_out=10, shape=(3, 32, 32)), mean=MEAN, std=STD)
        return program_for(config, data), data
    shared |= {"dataset": "mnist", "train-size": 5000}
    return build_program(make_config({**shared, **SETTINGS[name], **changes}), 10, 1), synthetic()
