"""What a run will do, worked out before it starts."""

from dataclasses import asdict, dataclass

import numpy as np

from fedpart.accounting import fedavg_bytes
from fedpart.cohort import availability, counted, draw_cohort
from fedpart.config import Config
from fedpart.data import FederatedData
from fedpart.data.split import check_split
from fedpart.errors import ConfigError
from fedpart.program import Program
from fedpart.server import assign_chunks
from fedpart.wire import model_bytes, wire_bytes


@dataclass(frozen=True)
class Plan:
    """Sizes of a run, and what its cohorts come to; chunks and partitions are 0-based.

    Bytes, clients and shares of rounds are means over the cohorts of the first ``rounds_drawn``
    rounds; they are those of the run, where no client fails but by ``client_failure_rate``.

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
        clients_asked: per round.
        clients_answering: per round.
        upload_model_bytes: per round.
        download_model_bytes: per round.
        upload_wire_bytes: per round.
        download_wire_bytes: per round.
        upload_share: of FedAvg's upload; 0 where nobody answers.
        empty_rounds: share of rounds with fewer replies than ``min_replies``.
        no_hyper_update: share of rounds in which psi gets no gradient; None where it is not
            learned.
        rounds: how many the run has.
        rounds_drawn: how many of them the means are taken over.
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
    rounds_drawn: int

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
        part = ""
        if self.rounds_drawn < self.rounds:
            part = f" (by the first {self.rounds_drawn:,} rounds)"
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
                f"{self.clients_asked:,.1f} asked, {self.clients_answering:,.1f} answer{part}",
            ),
            ("upload per round", f"{up:.1f} MB ({wire_up:.1f} MB on the wire)"),
            ("download per round", f"{down:.1f} MB ({wire_down:.1f} MB on the wire)"),
            ("upload share", f"{100 * self.upload_share:.1f} % of FedAvg's"),
            ("empty rounds", f"{100 * self.empty_rounds:.1f} %"),
            ("no hyperparameter update", without),
            (f"upload of {self.rounds:,} rounds", f"{up * self.rounds:,.0f} MB{part}"),
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
        table = availability(config.availability, config.clients)
        if not table[:, : config.rounds].any():
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


def rounds_drawn(config: Config) -> int:
    """For how many rounds a plan draws cohorts: for all, or as many as take about half a second."""
    # In clients: a round by itself takes as long as ten, a list of 10,000 to draw from as one.
    cost = 10 + config.clients // 10_000 + config.cohort_size
    return min(config.rounds, max(1, 20_000 // cost))


def make_plan(config: Config, program: Program, data: FederatedData) -> Plan:
    """Work out sizes, and draw the cohorts of the run's first rounds.

    They and their drop-outs follow from the seed, so that the run has the very same.
    """
    chunks = assign_chunks(config)
    counts = np.bincount(chunks, minlength=config.num_partitions)
    per_client = np.array([len(index) for index in data.client_indices])
    learns = np.array([program.scoring(k) is not None for k in range(config.num_partitions)])
    drawn = rounds_drawn(config)
    # Client ids, over all these rounds.
    asked: list[int] = []
    answering: list[int] = []
    empty = without = 0
    for server_round in range(1, drawn + 1):
        cohort = draw_cohort(config, server_round)
        there = [i for i in cohort.order if i not in cohort.dropped]
        used = counted(config, there)
        asked += cohort.order
        answering += there
        empty += not used
        without += not learns[chunks[used]].any()
    # [C, 2]: upload and download.
    model = np.array([model_bytes(program, k) for k in range(config.num_partitions)])
    wire = np.array([wire_bytes(program, k) for k in range(config.num_partitions)])
    up = int(model[chunks[answering], 0].sum())
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
        clients_asked=len(asked) / drawn,
        clients_answering=len(answering) / drawn,
        upload_model_bytes=up / drawn,
        download_model_bytes=int(model[chunks[asked], 1].sum()) / drawn,
        upload_wire_bytes=int(wire[chunks[answering], 0].sum()) / drawn,
        download_wire_bytes=int(wire[chunks[asked], 1].sum()) / drawn,
        upload_share=up / max(1, len(answering) * fedavg_bytes(program)),
        empty_rounds=empty / drawn,
        no_hyper_update=without / drawn if program.hyper.size else None,
        rounds=config.rounds,
        rounds_drawn=drawn,
    )
