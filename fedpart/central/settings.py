"""What a training in one place goes by: one frozen model, whose fields are TOML keys and flags."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from fedpart import checks
from fedpart.errors import ConfigError
from fedpart.spelling import sentence
from fedpart.values import Resolved, by_key


class Settings(Resolved):
    """Settings of one partitioned training, checked and resolved."""

    chunks: Annotated[tuple[float, ...], checks.COMMAS, checks.SHARES] = Field(
        (0.8, 0.1, 0.1), description="share of data, and of weights, in each chunk; sums to 1"
    )
    defaults: Literal["init", "zero"] = Field(
        "init", description="weights of partitions a subnetwork does not have"
    )
    iterations: int = Field(
        10_000, ge=1, description="updates in all, each of one partition and of psi"
    )
    batch_size: int = Field(256, ge=1, description="examples per update, drawn with replacement")
    optimiser: Literal["sgd", "adam", "adamw"] = Field(
        "adam", description="what updates weights; moments and steps are kept for each partition"
    )
    lr: float = Field(1e-3, gt=0, description="its learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="of sgd")
    adam_eps: float = Field(1e-8, gt=0, description="epsilon of adam and adamw, psi's included")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="how the learning rate goes with the count of all iterations"
    )
    lr_end: float = Field(0.01, ge=0, le=1, description="share of lr at the end of schedule cosine")
    anneal: float = Field(
        1.0, gt=0, le=1, description="share of the iterations that cosine takes; then it stays"
    )
    weight_decay: float = Field(0.0, ge=0, description="of the last partition")
    decay_rule: Literal["reciprocal", "root", "equal"] = Field(
        "reciprocal",
        description="how much more earlier partitions decay: N / examples of the chunks they are "
        "trained on, its square root, or not at all",
    )
    hyper_lr: float = Field(1e-3, gt=0, description="Adam step on psi")
    samples: int = Field(1, ge=1, le=1000, description="noisy copies of each example (S)")
    average: Literal["logits", "probs"] = Field(
        "logits", description="what is averaged over the copies of an example"
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="what the network computes in; values and sums stay fp32"
    )
    seed: int = Field(0, ge=0, description="seed of weights, chunks, batches and noise")

    @property
    def num_partitions(self) -> int:
        """C, the number of chunks, partitions and subnetworks."""
        return len(self.chunks)

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, values: Any) -> Any:
        return by_key(values) if isinstance(values, Mapping) else values


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
