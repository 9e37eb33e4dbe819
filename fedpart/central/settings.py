"""What a training in one place goes by: one frozen model, whose fields are TOML keys and flags."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from fedpart import checks
from fedpart.errors import ConfigError
from fedpart.spelling import sentence
from fedpart.unused_settings import above, not_with, only_with
from fedpart.values import Resolved, by_key

Method = Literal[
    "partitioned",
    "networks",
    "validation",
    "augerino",
    "none",
    "retrain",
    "random-search",
    "laplace",
]
# Methods that train one network on all data.
WHOLE = frozenset({"none", "augerino", "retrain", "random-search", "laplace"})
# Conditions that several settings share.
IN_CHUNKS = only_with("method", "partitioned", "networks", "validation")
_AUGERINO = only_with("method", "augerino")
_COSINE = only_with("schedule", "cosine")


class Settings(Resolved):
    """Settings of one partitioned training, checked and resolved.

    Methods that train one network on all data set ``chunks`` to 1; ``finetune`` is 0 but for
    ``validation``.
    """

    method: Method = Field(
        "partitioned",
        description="partitioned: psi by subnetworks; networks: by as many networks that share no "
        "weight, all updated in each iteration; validation: one network trained on the first "
        "chunk, psi on the others; and on all data, which sets chunks 1, augerino: with a reward "
        "for wide augmentation; none: without psi; retrain, random-search: psi held fixed, learned "
        "or drawn; laplace: of input-selection, the marginal likelihood of diagonal Laplace",
    )
    chunks: Annotated[checks.Shares, IN_CHUNKS] = Field(
        (0.8, 0.1, 0.1), description="share of data, and of weights, in each chunk; sums to 1"
    )
    weights: Annotated[checks.Shares | None, IN_CHUNKS] = Field(
        None, description="share of weights in each partition, where it is not that of the data"
    )
    defaults: Annotated[Literal["init", "zero"], IN_CHUNKS] = Field(
        "init", description="weights of partitions a subnetwork does not have"
    )
    iterations: int = Field(
        10_000, ge=1, description="updates in all, each of one partition and of psi"
    )
    batch_size: int = Field(256, ge=1, description="examples per update, drawn with replacement")
    optimiser: Literal["sgd", "adam", "adamw"] = Field(
        "adam", description="what updates weights; moments and steps are kept for each partition"
    )
    lr: float = Field(1e-3, gt=0, le=checks.MOST, description="its learning rate")
    momentum: Annotated[float, only_with("optimiser", "sgd")] = Field(
        0.9, ge=0, lt=1, description="share of the last step that the next one keeps"
    )
    adam_eps: float = Field(
        1e-8, gt=0, le=checks.MOST, description="epsilon of adam and adamw, psi's included"
    )
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="how the learning rate goes with the count of all iterations"
    )
    lr_end: Annotated[float, _COSINE] = Field(
        0.01, ge=0, le=1, description="share of lr at the end"
    )
    anneal: Annotated[float, _COSINE] = Field(
        1.0, gt=0, le=1, description="share of the iterations that it takes; then lr stays"
    )
    weight_decay: float = Field(0.0, ge=0, le=checks.MOST, description="of the last partition")
    decay_rule: Annotated[
        Literal["reciprocal", "root", "equal"], IN_CHUNKS, above("weight_decay", 0)
    ] = Field(
        "reciprocal",
        description="how much more earlier partitions decay: N / examples of the chunks they are "
        "trained on, its square root, or not at all",
    )
    hyper_lr: Annotated[float, IN_CHUNKS] = Field(
        1e-3, gt=0, le=checks.MOST, description="Adam step on psi"
    )
    augerino_lr: Annotated[float, _AUGERINO] = Field(
        0.05, gt=0, le=checks.MOST, description="Adam step on psi"
    )
    augerino_weight: Annotated[float, _AUGERINO] = Field(
        0.01,
        ge=0,
        le=checks.MOST,
        description="weight of Augerino's reward for wide augmentation (lambda)",
    )
    finetune: Annotated[int, only_with("method", "validation")] = Field(
        0,
        ge=0,
        description="so many updates more at the end, on all data, psi held fixed, moments begun "
        "anew",
    )
    finetune_lr: Annotated[float, above("finetune", 0)] = Field(
        0.01, gt=0, le=checks.MOST, description="their learning rate"
    )
    samples: Annotated[int, not_with("method", "none")] = Field(
        1, ge=1, le=1000, description="noisy copies of each example (S)"
    )
    average: Annotated[Literal["logits", "probs"], above("samples", 1)] = Field(
        "logits", description="what is averaged over the copies of an example"
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="what the network computes in; values and sums stay fp32"
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="where it computes")
    seed: int = Field(0, ge=0, description="seed of weights, chunks, batches and noise")

    @property
    def num_partitions(self) -> int:
        """C, the number of partitions and subnetworks: that of chunks, or 1 for one network."""
        return 1 if self.method in WHOLE or self.method == "validation" else len(self.chunks)

    @property
    def weight_shares(self) -> tuple[float, ...]:
        """Share of weights in each partition, [C]."""
        return (1.0,) if self.num_partitions == 1 else self.weights or self.chunks

    @property
    def updates(self) -> int:
        """Iterations in all, those of fine-tuning included."""
        return self.iterations + self.finetune

    def scored_by(self, chunk: int) -> int:
        """Subnetwork that scores ``chunk`` for psi: ``chunk``, which has not seen it.

        A validation set, and Augerino's training data, are scored by the one network there is.
        """
        return chunk if self.num_partitions > 1 else 1

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = by_key(values)
        method = given.get("method", "partitioned")
        if isinstance(method, str) and method in WHOLE:
            given |= {"chunks": (1.0,)}
        # Of several methods, each run resolves its own.
        if method != "validation" and "validation" not in str(given.get("methods")):
            given |= {"finetune": 0}
        return given

    @model_validator(mode="after")
    def _fit(self) -> "Settings":
        if self.num_partitions > 1 and len(self.weight_shares) != len(self.chunks):
            raise ValueError(
                f"weights has {len(self.weight_shares)} shares and chunks {len(self.chunks)}; "
                "there must be one for each chunk"
            )
        if self.method == "validation" and len(self.chunks) < 2:
            raise ValueError(
                "chunks is 1; method validation needs 2 or more: the first is trained on, psi on "
                "the others"
            )
        if self.method == "networks" and self.weight_decay:
            raise ValueError(
                f"weight-decay is {self.weight_decay:g}; method networks has none: use 0"
            )
        return self


def make_settings(**values: Any) -> Settings:
    """Check settings.

    Args:
        values: fields of ``Settings``.
    Raises:
        ConfigError: an unknown key, or a value outside its limits; one sentence.
    """
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigError(sentence(error, Settings.model_fields)) from None
