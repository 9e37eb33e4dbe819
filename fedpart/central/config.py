"""Every setting of ``sim.py central``: those of the library, the experiment, and where it goes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from fedpart import checks
from fedpart.central.laplace import check_laplace
from fedpart.central.settings import Settings
from fedpart.config import load_toml
from fedpart.errors import ConfigError, OutputError
from fedpart.spelling import nearest, sentence

EXPERIMENTS = ("input-selection", "mask-learning")
PRESETS = Path(__file__).resolve().parents[2] / "configs" / "central"


def _numbers(value: object) -> object:
    """``"1-3,7"`` -> 1, 2, 3, 7."""
    if not isinstance(value, str):
        return [value] if isinstance(value, int) else value
    numbers: list[object] = []
    for part in value.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", part)
        if found is None:
            numbers.append(part.strip())
        else:
            numbers += range(int(found[1]), int(found[2]) + 1)
    return numbers


class CentralConfig(Settings):
    """Settings of one run, or of several that differ in ``inputs`` and ``seed``."""

    not_results: ClassVar[frozenset[str]] = frozenset(
        {"out", "name", "json_summary", "logger", "checkpoint_every", "seeds"}
    )

    experiment: Literal["input-selection", "mask-learning"] = Field(
        "input-selection",
        description="fixed masks over the inputs, to be told apart by L_ML; or a learned one",
    )
    method: Literal["partitioned", "laplace"] = Field(
        "partitioned",
        description="L_ML of a partitioned network; or, for input-selection, the marginal "
        "likelihood of post-hoc diagonal Laplace, which sets chunks 1",
    )
    inputs: Annotated[tuple[int, ...], BeforeValidator(_numbers)] = Field(
        (15,),
        description="of input-selection: how many inputs stay, such as 15, 10,15,20 or 1-30; "
        "more than one makes a run of each",
    )
    mask_start: float = Field(
        0.1, gt=0, lt=1, description="of mask-learning: probability that an input is open at first"
    )
    train_size: Annotated[int, checks.THOUSANDS] = Field(
        3000, ge=1, description="training examples in all chunks"
    )
    test_size: Annotated[int, checks.THOUSANDS] = Field(1000, ge=1, description="test examples")
    data_seed: int = Field(0, ge=0, description="seed of the examples, which all runs share")

    eval_every: int = Field(100, ge=1, description="iterations between evaluations")
    patience: int = Field(
        0,
        ge=0,
        description="a run ends after so many evaluations without a higher L_ML (or what Laplace "
        "puts in its place), and the one with "
        "the highest counts; 0: it runs to its end, and the last one counts",
    )
    seeds: int = Field(1, ge=1, description="how many runs: seed, seed+1, ... in OUT/seed-<s>")
    out: str | None = Field(None, description="the run folder, new or empty; default runs/<name>")
    name: str | None = Field(None, description="name of the run; default <experiment>-seed<seed>")
    checkpoint_every: int = Field(1000, ge=1, description="iterations between checkpoints")
    logger: Literal["none", "tensorboard"] = Field(
        "none", description="also write TensorBoard events into the run folder"
    )
    json_summary: bool = Field(
        False, alias="json", description="print nothing but the summary, as JSON"
    )

    @property
    def run_name(self) -> str:
        """``name``, or ``<experiment>-seed<seed>``."""
        return self.name or f"{self.experiment}-seed{self.seed}"

    @property
    def several(self) -> bool:
        """Whether this makes several runs."""
        return len(self.inputs) > 1 or self.seeds > 1

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, values: Any) -> Any:
        laplace = isinstance(values, Mapping) and values.get("method") == "laplace"
        return {**values, "chunks": (1.0,)} if laplace else values

    @field_validator("inputs")
    @classmethod
    def _in_range(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value:
            raise ValueError("is empty; give it at least one number")
        for number in value:
            if not 1 <= number <= 30:
                raise ValueError(f"has {number}; each must be 1 to 30")
        return tuple(dict.fromkeys(value))

    @field_validator("name")
    @classmethod
    def _one_word(cls, value: str | None) -> str | None:
        if value is not None and (Path(value).name != value or value == ".."):
            raise ValueError(f"is {value!r}; it must be one word without / for a folder")
        return value


def make_central_config(values: Mapping[str, object]) -> CentralConfig:
    """Check settings.

    Args:
        values: TOML keys (or field names) and values; flags may come as text.
    Raises:
        ConfigError: an unknown key, or a value outside its limits; one sentence.
    """
    try:
        config = CentralConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(sentence(error, CentralConfig.model_fields)) from None
    if config.experiment == "mask-learning" and len(config.inputs) > 1:
        raise ConfigError(
            "inputs belongs to input-selection; mask-learning learns them, so leave it out"
        )
    if config.method == "laplace":
        if config.experiment != "input-selection":
            raise ConfigError("method laplace learns no mask; use it with input-selection")
        check_laplace()
    elif config.patience and config.num_partitions == 1:
        raise ConfigError("patience needs L_ML, which one chunk does not have: use 2 or more")
    return config


def preset(experiment: str) -> dict[str, object]:
    """Keys and values of ``configs/central/<experiment>.toml``.

    Raises:
        ConfigError: no such experiment.
    """
    path = PRESETS / f"{experiment}.toml"
    if not path.is_file():
        known = sorted(p.stem for p in PRESETS.glob("*.toml")) or list(EXPERIMENTS)
        listed = ", ".join(known)
        raise ConfigError(
            f"experiment is {experiment!r}; it must be one of {listed}{nearest(experiment, known)}"
        )
    return load_toml(path)


def read_central_config(path: Path) -> CentralConfig:
    """Settings of an earlier run, or of the parent of several.

    Raises:
        OutputError: no run folder of ``sim.py central``.
    """
    file = path / "config.toml"
    if not file.is_file():
        raise OutputError(f"{path} holds no config.toml, so no run began there")
    values = load_toml(file)
    if "experiment" not in values:
        raise OutputError(f"{path} is a federated run: take it up with sim.py --resume {path}")
    try:
        return make_central_config(values)
    except ConfigError as error:
        raise OutputError(f"{path} cannot be read: {error}") from None
