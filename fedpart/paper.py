"""The paper's federated results, as printed: what ``sim.py table`` shows beside a run's own.

Source: Mlodozeniec et al. 2023, section 5, the table of federated results ("Validation accuracy
averaged over the last 10 evaluations, each 10 rounds apart; standard-error is computed across 4
random seeds"); settings from Appendix J.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

SEEDS = 4
EVALUATIONS = 10


@dataclass(frozen=True)
class Row:
    """One printed line.

    Attributes:
        name: the method as the paper calls it.
        accuracy: validation accuracy and its standard error [%], one pair a column.
        upload: expected upload, of FedAvg's [%].
    """

    name: str
    accuracy: tuple[tuple[float, float], ...]
    upload: int

    @property
    def method(self) -> str:
        """The setting ``method`` that the row is about: the last word of its name."""
        return self.name.split()[-1].lower()


@dataclass(frozen=True)
class Block:
    """One half of the printed table.

    Attributes:
        datasets: setting ``dataset`` -> its name in print, in the order of the columns.
        sizes: training images, the columns of each data set.
        split: setting ``dataset`` -> skew and alpha.
        rounds: how long every run was.
        validation_images: what accuracy is measured on.
        rows: in the order of print.
        settings: what every run has in common, by the names of ``Config``'s fields.
        learned: also of the runs that learn psi through partitions.
    """

    datasets: Mapping[str, str]
    sizes: tuple[int, ...]
    split: Mapping[str, tuple[str, float]]
    rounds: int
    validation_images: int
    rows: tuple[Row, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    learned: Mapping[str, object] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[tuple[str, int], ...]:
        """Data set and training images of each column."""
        return tuple((dataset, size) for dataset in self.datasets for size in self.sizes)

    def row(self, method: str) -> Row | None:
        """The line of a method; None where the paper has none."""
        return next((row for row in self.rows if row.method == method), None)


# fmt: off
_DIGITS = (
    Row("FedAvg",
        ((95.4, 0.1), (97.4, 0.1), (99.0, 0.1), (80.5, 0.0), (90.4, 0.5), (96.8, 0.1)), 100),
    Row("FedAvg + Augerino",
        ((94.2, 0.5), (96.4, 0.1), (99.1, 0.0), (79.5, 0.3), (89.0, 2.0), (95.3, 0.2)), 100),
    Row("FedAvg + Partitioned",
        ((97.0, 0.1), (98.3, 0.0), (99.2, 0.1), (85.7, 0.9), (93.5, 0.6), (97.8, 0.1)), 77),
)
_OBJECTS = (
    Row("FedAvg",
        ((50.2, 0.4), (64.5, 0.3), (79.2, 0.7), (35.6, 0.3), (45.2, 0.1), (53.9, 1.1)), 100),
    Row("FedAvg + Augerino",
        ((49.9, 0.8), (65.0, 0.2), (79.9, 0.4), (36.1, 0.2), (45.0, 0.2), (56.4, 0.7)), 100),
    Row("FedAvg + Partitioned",
        ((50.8, 1.0), (64.8, 0.4), (81.5, 0.5), (37.1, 0.2), (45.3, 0.3), (60.6, 0.2)), 91),
)
# fmt: on

# All clients answer, in float32.
_PLAIN: dict[str, object] = {
    "client_failure_rate": 0.0,
    "over_select": 1.0,
    "availability": None,
    "min_replies": 1,
    "max_update_norm": None,
    "precision": "fp32",
}

DIGITS = Block(
    datasets={"mnist": "MNIST", "rotmnist": "RotMNIST"},
    sizes=(1250, 5000, 50_000),
    split={"mnist": ("label", 0.1), "rotmnist": ("rotation", 0.1)},
    rounds=2000,
    validation_images=10_000,
    rows=_DIGITS,
    settings={
        "clients": 100,
        "model": "mnist-cnn",
        "dropout": 0.1,
        "local_epochs": 1,
        "batch_size": 64,
        "client_lr": 0.05,
        "server_lr": 1e-3,
        "adam_eps": 1e-8,
        "eval_every": 10,
        **_PLAIN,
    },
    learned={"chunks": (0.7, 0.2, 0.1), "scheme": "random", "samples": 10, "hyper_lr": 3e-3},
)

OBJECTS = Block(
    datasets={"cifar10": "CIFAR10", "rotcifar10": "RotCIFAR10"},
    sizes=(1250, 5000, 45_000),
    split={"cifar10": ("label", 1.0), "rotcifar10": ("rotation", 0.1)},
    rounds=5000,
    validation_images=5000,
    rows=_OBJECTS,
    settings={
        "clients": 100,
        "model": "resnet9",
        "dropout": 0.1,
        "local_epochs": 1,
        "batch_size": 32,
        "client_lr": 10**-0.5,
        "server_lr": 1e-2,
        "adam_eps": 1e-7,
        "eval_every": 10,
        **_PLAIN,
    },
    learned={
        "chunks": (0.9, 0.1),
        "scheme": "random",
        "samples": 10,
        "augmentation": "generators",
        "hyper_batch_size": 32,
        "hyper_lr": 1e-3,
    },
)

BLOCKS = (DIGITS, OBJECTS)
