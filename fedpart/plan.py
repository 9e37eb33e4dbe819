"""What a run will do, worked out before it starts."""

from dataclasses import asdict, dataclass
from math import comb

import numpy as np

from fedpart.accounting import fedavg_bytes
from fedpart.cohort import availability
from fedpart.config import Config
from fedpart.data import FederatedData
from fedpart.data.split import check_split
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
        clients_asked: per round, mean over the run's rounds.
        clients_answering: expected per round.
        upload_model_bytes: expected per round.
        download_model_bytes: expected per round.
        upload_wire_bytes: expected per round.
        download_wire_bytes: expected per round.
        upload_share: expected, of FedAvg's; 0 where nobody answers.
        empty_rounds: expected share of rounds with fewer replies than ``min_replies``.
        no_hyper_update: expected share of rounds in which psi gets no gradient; None where it is
            not learned.
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
    clients_asked: float
    clients_answering: float
    upload_model_bytes: float
    download_model_bytes: float
    upload_wire_bytes: float
    download_wire_bytes: float
    upload_share: float
    empty_rounds: float
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
            (
                "clients per round",
                f"{self.clients_asked:.3g} asked, {self.clients_answering:.3g} expected to answer",
            ),
            ("upload per round", f"{up:.1f} MB expected ({wire_up:.1f} MB on the wire)"),
            ("download per round", f"{down:.1f} MB ({wire_down:.1f} MB on the wire)"),
            ("upload share", f"{100 * self.upload_share:.1f} % of FedAvg's"),
            ("empty rounds", f"{100 * self.empty_rounds:.1f} % expected"),
            ("no hyperparameter update", without),
            (f"upload of {self.rounds:,} rounds", f"{up * self.rounds:,.0f} MB expected"),
        ]


def _listed(values: list[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def check_chunks(config: Config) -> None:
    """Whether every chunk has a client, and every client a line in the file of who is available.

    Raises:
        ConfigError: one has none, or nobody is ever available.
        DataError: there are more clients than images.
    """
    check_split(config.train_size, config.clients, config.alpha, config.min_examples)
    if config.availability is not None:
        there, _ = _available(config)
        if not there.any():
            raise ConfigError(
                f"availability {config.availability} has no 1 in the {config.rounds:,} rounds of "
                "this run, so that nobody could ever be asked; write a 1 where a client is there"
            )
    counts = np.bincount(assign_chunks(config), minlength=config.num_partitions)
    if counts.min() == 0:
        chunk = int(counts.argmin())
        raise ConfigError(
            f"chunks gives chunk {chunk} a share of {config.chunks[chunk]:g}, which is none of "
            f"{config.clients} clients; use more clients or a larger share"
        )


def _without_update(config: Config, available: int, in_chunk_zero: int) -> tuple[float, float]:
    """Chances of a round that it is empty, and that no reply of another chunk than 0 counts."""
    asked, lost = min(config.cohort_size, available), config.client_failure_rate
    empty = without = 0.0
    for there in range(asked + 1):
        chance = comb(asked, there) * (1 - lost) ** there * lost ** (asked - there)
        if there < config.min_replies:
            empty += chance
            without += chance
        else:
            used = min(there, config.clients_per_round)
            without += chance * comb(in_chunk_zero, used) / comb(available, used)
    return empty, without


def _available(config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Who is there, [clients, kinds of rounds] bool, and the share of rounds of each kind."""
    if config.availability is None:
        return np.ones((config.clients, 1), bool), np.ones(1)
    table = availability(config.availability, config.clients)
    counts = np.bincount(np.arange(config.rounds) % table.shape[1], minlength=table.shape[1])
    return table[:, counts > 0], counts[counts > 0] / config.rounds


def make_plan(config: Config, program: Program, data: FederatedData) -> Plan:
    """Work out sizes and expectations.

    Source: expected upload sum_k u_k sum_{j >= k} r_j with the clients' actual chunks; rounds
        without psi by the hypergeometric law of a cohort drawn without replacement, over the
        binomial law of those that do not drop out; and over the rounds of the run, each with the
        clients that are available in it.
    """
    chunks = assign_chunks(config)
    counts = np.bincount(chunks, minlength=config.num_partitions)
    per_client = np.array([len(index) for index in data.client_indices])
    there, weight = _available(config)
    total = there.sum(0)
    # [C, kinds of rounds]
    by_chunk = np.stack([there[chunks == k].sum(0) for k in range(config.num_partitions)])
    per_round = by_chunk * np.minimum(config.cohort_size, total) / np.maximum(1, total)
    asked = per_round @ weight
    answering = asked * (1 - config.client_failure_rate)
    chances = [
        _without_update(config, int(n), int(zero))
        for n, zero in zip(total, by_chunk[0], strict=True)
    ]
    empty, without = weight @ np.array(chances)
    model = np.array([model_bytes(program, k) for k in range(config.num_partitions)])
    wire = np.array([wire_bytes(program, k) for k in range(config.num_partitions)])
    (up, wire_up), (down, wire_down) = (
        (number @ model[:, way], number @ wire[:, way])
        for way, number in enumerate((answering, asked))
    )
    if program.scoring(0) is not None:
        without = empty
    return Plan(
        data_source=data.description,
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
        clients_asked=float(asked.sum()),
        clients_answering=float(answering.sum()),
        upload_model_bytes=float(up),
        download_model_bytes=float(down),
        upload_wire_bytes=float(wire_up),
        download_wire_bytes=float(wire_down),
        upload_share=float(up / max(1e-9, answering.sum() * fedavg_bytes(program))),
        empty_rounds=float(empty),
        no_hyper_update=float(without) if program.hyper.size else None,
        rounds=config.rounds,
    )
