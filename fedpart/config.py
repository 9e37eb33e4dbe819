"""Every setting of a run: one frozen model whose fields are TOML keys and flags alike."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from fedpart import checks
from fedpart.errors import ConfigError
from fedpart.files import read_text
from fedpart.spelling import sentence, spelled
from fedpart.unused_settings import Condition, above, not_with, only_with
from fedpart.values import Resolved, by_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROTATED = ("rotmnist", "rotcifar10")
DATASETS = ("mnist", "rotmnist", "cifar10", "rotcifar10")
AUGMENTATIONS = ("symmetric", "asymmetric", "generators", "none")
# Conditions that several settings share.
_SKEWED = not_with("skew", "iid")
_AUGERINO = only_with("method", "augerino")
_PARTITIONED = Condition("only with 2 or more chunks", lambda config: config.num_partitions > 1)
_LEARNED = Condition(
    "only with 2 or more chunks, or method augerino",
    lambda config: config.num_partitions > 1 or config.method == "augerino",
)
_ON_RAY = only_with("backend", "auto", "ray")
# Where a run is written and how it is watched: two runs that differ only here give equal numbers.
NOT_RESULTS = frozenset(
    {"out", "name", "json_summary", "logger", "checkpoint_every", "data_dir", "round_timeout"}
    | {"max_empty_rounds", "seeds", "backend", "workers", "gpus_per_client", "ray_address"}
)


class Config(Resolved):
    """Settings of one run, checked and resolved.

    Field names are the TOML keys and the flags with ``_`` for ``-``. ``method = "fedavg"`` sets
    ``chunks``, ``augmentation`` and ``samples``, ``"augerino"`` sets ``chunks``; ``skew`` follows
    the data set where not given.
    """

    not_results: ClassVar[frozenset[str]] = NOT_RESULTS

    dataset: Annotated[str, checks.one_of(DATASETS, "function")] = Field(
        "rotmnist",
        description="mnist or cifar10, or rotmnist or rotcifar10, where each image is rotated by a "
        "fixed angle in U[-180, 180]; or module:function for your own",
    )
    data_dir: str | None = Field(
        None, description="folder with the original files; else $FEDPART_DATA, else a download"
    )
    data_seed: int = Field(
        0, ge=0, description="seed of subset, rotation and split, which all runs share"
    )
    train_size: Annotated[int, checks.THOUSANDS] = Field(
        1250, ge=1, description="training images over all clients, such as 1250, 5k or 50k"
    )
    clients: int = Field(100, ge=1, le=10_000_000, description="number of clients")
    skew: Literal["label", "rotation", "iid"] = Field(
        "rotation",
        description="what differs between clients; rotation for rotated sets, else label",
    )
    alpha: Annotated[float, _SKEWED] = Field(
        0.1, gt=0, description="Dirichlet concentration of the skew: smaller is more unlike"
    )
    concentration: Annotated[Literal["prior", "class"], _SKEWED] = Field(
        "prior", description="alpha times the prior over classes, or alpha for each class"
    )
    sizes: Literal["multinomial", "equal"] = Field(
        "multinomial", description="images per client: what the skew gives, or all the same"
    )
    min_examples: int = Field(1, ge=1, description="images each client has at least")

    method: Literal["partitioned", "augerino", "fedavg"] = Field(
        "partitioned",
        description="partitioned network with learned psi; FedAvg with the regularised widths of "
        "Augerino, which sets chunks 1; or plain FedAvg, which also sets augmentation none and "
        "samples 1, whatever is given",
    )
    model: str = Field(
        "mnist-cnn",
        description="mnist-cnn, resnet9, resnet9-narrow, fixup-resnet8, fixup-resnet14, "
        "wide-resnet20, resnet50, mlp, or module:function for your own",
    )
    init: str | None = Field(None, description="model.pt of an earlier run to start from")
    chunks: Annotated[checks.Shares, only_with("method", "partitioned")] = Field(
        (0.7, 0.2, 0.1), description="share of clients, and of weights, in each chunk; sums to 1"
    )
    scheme: Annotated[Literal["random", "node"], _PARTITIONED] = Field(
        "random", description="what has a partition: each weight, or whole units (sets defaults)"
    )
    defaults: Annotated[Literal["init", "zero"], _PARTITIONED] = Field(
        "init", description="weights of partitions a subnetwork does not have; zero for nodes"
    )
    augmentation: Annotated[
        str, checks.one_of(AUGMENTATIONS, "Class"), not_with("method", "fedavg")
    ] = Field(
        "symmetric",
        description="what is learned about images: affine maps (symmetric, asymmetric or "
        "generators), none, or module:Class for your own",
    )
    width_start: Annotated[float, not_with("augmentation", "none")] = Field(
        0.1, gt=0, le=1, description="widths at the start, in natural units"
    )
    width_transform: Annotated[
        Literal["raw", "softplus"], only_with("augmentation", "symmetric", "generators")
    ] = Field("raw", description="how a width follows from its raw value")
    average: Annotated[Literal["logits", "probs"], above("samples", 1)] = Field(
        "logits", description="what is averaged over augmented copies of an image"
    )
    samples: Annotated[int, not_with("method", "fedavg")] = Field(
        10, ge=1, le=1000, description="augmented copies of each image (S)"
    )
    dropout: float = Field(
        0.1, ge=0, lt=1, description="drop rate: where it starts, fixed but for method partitioned"
    )
    augerino_weight: Annotated[float, _AUGERINO] = Field(
        0.01,
        ge=0,
        le=checks.MOST,
        description="weight of Augerino's reward for wide augmentation (lambda)",
    )
    augerino: Annotated[Literal["safe", "unsafe"], _AUGERINO] = Field(
        "safe", description="whether that reward ends once a width reaches 10, or never"
    )

    clients_per_round: int = Field(10, ge=1, description="clients drawn each round")
    over_select: Annotated[
        float,
        Condition(
            "only with fewer clients-per-round than clients",
            lambda config: config.clients_per_round < config.clients,
        ),
    ] = Field(1.0, ge=1, description="ask so many times the clients that a round needs")
    client_failure_rate: float = Field(
        0.0, ge=0, lt=1, description="chance that a client drops out of a round, by the seed"
    )
    availability: str | None = Field(
        None, description="file of 0 and 1, comma-separated: a line a client, a column a round"
    )
    min_replies: int = Field(1, ge=1, description="with fewer replies a round changes nothing")
    max_update_norm: Annotated[
        float | None,
        Condition("only with 2 or more clients a round", lambda config: config.cohort_size > 1),
    ] = Field(None, ge=1, description="refuse what is so many times as long as the cohort's median")
    rounds: int = Field(100, ge=1, le=1_000_000, description="rounds in all")
    local_epochs: int = Field(1, ge=1, description="passes of a client over its images")
    batch_size: int = Field(64, ge=1, description="images per step of a client")
    hyper_batch_size: Annotated[int | None, _LEARNED] = Field(
        None, ge=0, description="images per gradient of psi; 0 or absent: all a client has"
    )
    client_lr: float = Field(0.05, gt=0, le=checks.MOST, description="SGD step of clients")
    server_lr: float = Field(
        1e-3, gt=0, le=checks.MOST, description="Adam step of the server on weights"
    )
    hyper_lr: Annotated[float, _LEARNED] = Field(
        3e-3, gt=0, le=checks.MOST, description="Adam step of the server on psi"
    )
    adam_eps: float = Field(1e-8, gt=0, le=checks.MOST, description="epsilon of both Adams")
    seed: int = Field(0, ge=0, description="seed of weights, chunks, cohorts and noise")
    seeds: int = Field(
        1, ge=1, le=10_000, description="how many runs: seed, seed+1, ... in OUT/seed-<s>"
    )

    eval_every: int = Field(20, ge=1, description="rounds between evaluations")
    eval_size: int = Field(
        2000, ge=1, description="validation images for curves; the last ten evaluations use all"
    )
    backend: Literal["auto", "ray", "inline", "algorithm"] = Field(
        "auto",
        description="Flower apps in Ray's workers or in this process, or the plain loop without "
        "Flower; auto: ray where there is more than one core",
    )
    workers: Annotated[int | Literal["auto"], checks.AUTO_OR_NUMBER, _ON_RAY] = Field(
        "auto",
        description="processes; auto: one a core (or what the GPUs hold), at most one a client of "
        "the round",
    )
    gpus_per_client: Annotated[float | Literal["auto"], checks.AUTO_OR_SHARE, _ON_RAY] = Field(
        0.0, description="share of a GPU that a worker takes; 0: none; auto: an even share"
    )
    ray_address: Annotated[str | None, checks.HOST_AND_PORT, _ON_RAY] = Field(
        None, description="host:port of a Ray cluster that this machine is part of, or auto"
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32", description="what the network computes in (tf32: GPU); values and sums stay fp32"
    )
    clients_at_once: Annotated[
        int, Condition("faster only with device cuda", lambda config: config.device == "cuda")
    ] = Field(
        1, ge=1, description="clients batched into one, for a GPU that small clients leave idle"
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="where clients and evaluations compute"
    )
    round_timeout: Annotated[float, not_with("backend", "algorithm")] = Field(
        3600.0, gt=0, description="deadline of a round in seconds"
    )
    max_empty_rounds: int = Field(
        3, ge=1, description="the run ends after so many rounds in a row in which no reply counted"
    )
    out: str | None = Field(None, description="the run folder, new or empty; default runs/<name>")
    name: str | None = Field(
        None, description="name of the run; default <dataset>-<method>-<train-size>-seed<seed>"
    )
    checkpoint_every: int = Field(10, ge=1, description="rounds between checkpoints")
    logger: Literal["none", "tensorboard"] = Field(
        "none", description="also write TensorBoard events into the run folder"
    )
    json_summary: bool = Field(
        False, alias="json", description="print nothing but the summary, as JSON"
    )

    @property
    def num_partitions(self) -> int:
        """C, the number of chunks, partitions and subnetworks."""
        return len(self.chunks)

    @property
    def cohort_size(self) -> int:
        """How many clients are asked in a round where enough are available."""
        # 10 times 1.1 is a little more than 11.
        wanted = math.ceil(self.clients_per_round * self.over_select - 1e-9)
        return min(wanted, self.clients)

    @property
    def jobs(self) -> int:
        """Into how many pieces a round's clients can be handed out, at most."""
        return math.ceil(self.cohort_size / self.clients_at_once)

    @property
    def run_name(self) -> str:
        """``name``, or ``<dataset>-<method>-<train-size>-seed<seed>``."""
        if self.name is not None:
            return self.name
        # A colon, as in a data set of one's own, is no part of a folder's name everywhere.
        dataset = self.dataset.replace(":", "-")
        return f"{dataset}-{self.method}-{self.train_size}-seed{self.seed}"

    @property
    def rotated(self) -> bool:
        """Whether each image is rotated by a fixed angle."""
        return self.dataset in ROTATED

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = by_key(values)
        if given.get("method") == "fedavg":
            given |= {"chunks": (1.0,), "augmentation": "none", "samples": 1}
        elif given.get("method") == "augerino":
            given |= {"chunks": (1.0,)}
        if given.get("scheme") == "node" and given.get("defaults") is None:
            given["defaults"] = "zero"
        if given.get("skew") is None:
            rotated = given.get("dataset", "rotmnist") in ROTATED
            given["skew"] = "rotation" if rotated else "label"
        return given

    @model_validator(mode="after")
    def _fit(self) -> "Config":
        if self.clients_per_round > self.clients:
            raise ValueError(
                f"clients-per-round is {self.clients_per_round}; "
                f"it must be at most the number of clients, {self.clients}"
            )
        if self.min_replies > self.clients_per_round:
            raise ValueError(
                f"min-replies is {self.min_replies}; "
                f"it must be at most clients-per-round, {self.clients_per_round}"
            )
        if self.name is not None and (Path(self.name).name != self.name or self.name == ".."):
            raise ValueError(f"name is {self.name!r}; it must be one word without / for a folder")
        if self.method == "augerino" and self.augmentation not in ("symmetric", "generators"):
            raise ValueError(
                f"augmentation is {self.augmentation!r}, but method augerino learns one width for "
                "each transformation; use symmetric or generators"
            )
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("precision is 'tf32', which is a GPU's; use device cuda, or fp32")
        if self.scheme == "node" and self.defaults != "zero":
            raise ValueError(
                f"defaults is {self.defaults!r}, but units that a subnetwork does not have are "
                "zero under scheme node; use zero"
            )
        if self.skew == "rotation" and not self.rotated:
            raise ValueError(
                f"skew is 'rotation', but {self.dataset} is not rotated; use label or iid"
            )
        return self


def keys() -> list[str]:
    """Every TOML key, in the order of the fields."""
    return spelled(Config.model_fields)


def make_config(values: Mapping[str, object]) -> Config:
    """Check settings.

    Args:
        values: TOML keys (or field names) and values; flags may come as text.
    Raises:
        ConfigError: an unknown key, or a value outside its limits; one sentence.
    """
    if "experiment" in values:
        raise ConfigError(
            "experiment is a setting of sim.py central, not of a run over clients: put central "
            "after sim.py"
        )
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(sentence(error, Config.model_fields)) from None


def load_toml(path: str | Path) -> dict[str, object]:
    """Keys and values of a settings file, not yet checked.

    Raises:
        ConfigError: the file cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(read_text(path, "settings"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
