"""What a run will do, worked out before it starts."""

from dataclasses import asdict, dataclass
from math import comb

import numpy as np

from fedpart.accounting import fedavg_bytes
from fedpart.cohort import availability
from fedpart.config import Config
from fedpart.data import FederatedData
from fedpart.errors import ConfigError
from fedpart.program import Program
from fedpart.server import assign_chunks
from fedpart.wire import model_bytes, wire_bytes


@dataclass(frozen=True)
class Plan:
    """Sizes and expectations of a run; chunks and partitions are 0-based.

    Attributes:
        data_source: where the images come from.
        images: training images.
        val_images: validation images.
        test_images: test images.
        images_per_client: smallest, median and largest client.
        clients_per_chunk: [C].
        images_per_chunk: [C].
        partition_sizes: weight values in each partition, [C].
        hyperparameters: scalars of psi.
        upload_model_bytes: expected per round.
        download_model_bytes: per round.
        upload_wire_bytes: expected per round.
        download_wire_bytes: per round.
        upload_share: expected, of FedAvg's.
        no_hyper_update: expected share of rounds in which no client measures psi's gradient; None
            where psi is not learned.
        rounds: how many.
    """

    data_source: str
    images: int
    val_images: int
    test_images: int
    images_per_client: tuple[int, float, int]
    clients_per_chunk: list[int]
    images_per_chunk: list[int]
    partition_sizes: list[int]
    hyperparameters: int
    upload_model_bytes: float
    download_model_bytes: float
    upload_wire_bytes: float
    download_wire_bytes: float
    upload_share: float
    no_hyper_update: float | None
    rounds: int

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """Name and value, in words."""
        low, median, high = self.images_per_client
        up, down = self.upload_model_bytes / 1e6, self.download_model_bytes / 1e6
        wire_up, wire_down = self.upload_wire_bytes / 1e6, self.download_wire_bytes / 1e6
        without = "psi is not learned"
        if self.no_hyper_update is not None:
            without = f"{100 * self.no_hyper_update:.1f} % of rounds"
        return [
            ("data", self.data_source),
            ("training images", f"{self.images:,}"),
            ("validation, test images", f"{self.val_images:,}, {self.test_images:,}"),
            ("images per client", f"{low} to {high}, median {median:g}"),
            ("clients per chunk", _listed(self.clients_per_chunk)),
            ("images per chunk", _listed(self.images_per_chunk)),
            ("weights per partition", _listed(self.partition_sizes)),
            ("hyperparameters", str(self.hyperparameters)),
            ("upload per round", f"{up:.1f} MB expected ({wire_up:.1f} MB on the wire)"),
            ("download per round", f"{down:.1f} MB ({wire_down:.1f} MB on the wire)"),
            ("upload share", f"{100 * self.upload_share:.1f} % of FedAvg's"),
            ("no hyperparameter update", without),
            (f"upload of {self.rounds:,} rounds", f"{up * self.rounds:,.0f} MB expected"),
        ]


def _listed(values: list[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def check_chunks(config: Config) -> None:
    """Whether every chunk has a client, and every client a line in the file of who is available.

    Raises:
        ConfigError: one has none.
    """
    if config.availability is not None:
        availability(config.availability, config.clients)
    counts = np.bincount(assign_chunks(config), minlength=config.num_partitions)
    if counts.min() == 0:
        chunk = int(counts.argmin())
        raise ConfigError(
            f"chunks gives chunk {chunk} a share of {config.chunks[chunk]:g}, which is none of "
            f"{config.clients} clients; use more clients or a larger share"
        )


def _no_hyper_update(program: Program, in_chunk_zero: int) -> float | None:
    """Share of rounds whose replies all lack a gradient of psi; None where there is no psi."""
    if not program.hyper.size:
        return None
    if program.scoring(0) is not None:
        return 0.0
    config = program.config
    asked, lost, without = config.cohort_size, config.client_failure_rate, 0.0
    for there in range(asked + 1):
        chance = comb(asked, there) * (1 - lost) ** there * lost ** (asked - there)
        used = min(there, config.clients_per_round)
        without += chance * comb(in_chunk_zero, used) / comb(config.clients, used)
    return without


def make_plan(config: Config, program: Program, data: FederatedData) -> Plan:
    """Work out sizes and expectations.

    Source: expected upload sum_k u_k sum_{j >= k} r_j with the clients' actual chunks; rounds
        without psi by the hypergeometric law of a cohort drawn without replacement, over the
        binomial law of those that do not drop out. Clients are taken to be available.
    """
    chunks = assign_chunks(config)
    counts = np.bincount(chunks, minlength=config.num_partitions)
    per_client = np.array([len(index) for index in data.client_indices])
    shares = counts / config.clients
    model = np.array([model_bytes(program, k) for k in range(config.num_partitions)])
    wire = np.array([wire_bytes(program, k) for k in range(config.num_partitions)])
    asked = config.cohort_size
    answering = asked * (1 - config.client_failure_rate)
    (up, wire_up), (down, wire_down) = (
        number * np.array([shares @ model[:, way], shares @ wire[:, way]])
        for way, number in enumerate((answering, asked))
    )
    return Plan(
        data_source=data.source,
        images=len(data.labels),
        val_images=len(data.val_labels),
        test_images=0 if data.test_labels is None else len(data.test_labels),
        images_per_client=(
            int(per_client.min()),
            float(np.median(per_client)),
            int(per_client.max()),
        ),
        clients_per_chunk=counts.tolist(),
        images_per_chunk=np.bincount(chunks, weights=per_client, minlength=config.num_partitions)
        .astype(int)
        .tolist(),
        partition_sizes=list(program.layout.sizes),
        hyperparameters=program.hyper.size,
        upload_model_bytes=float(up),
        download_model_bytes=float(down),
        upload_wire_bytes=float(wire_up),
        download_wire_bytes=float(wire_down),
        upload_share=float(up / (answering * fedavg_bytes(program))),
        no_hyper_update=_no_hyper_update(program, int(counts[0])),
        rounds=config.rounds,
    )
