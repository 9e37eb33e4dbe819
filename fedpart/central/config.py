"""Every setting of ``sim.py central``: those of the library, the experiment, and where it goes."""

import math
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fedpart import checks
from fedpart.central.settings import IN_CHUNKS, Method, Settings
from fedpart.config import AUGMENTATIONS, load_toml
from fedpart.errors import ConfigError, DamagedError, OutputError
from fedpart.plugins import nearest
from fedpart.run_files import stored_settings
from fedpart.spelling import kebab, sentence
from fedpart.unused_settings import Condition, not_with, only_with

TOYS = ("input-selection", "mask-learning")
EXPERIMENTS = (
    *TOYS,
    *("data-size", "validation", "random-search", "sensitivity", "feature-extractor"),
)
DATASETS = tuple(
    rotated + name for name in ("mnist", "cifar10", "tinyimagenet") for rotated in ("", "rot")
)
# Of one run -> of several, which differ in it.
SEVERAL = {
    "dataset": "datasets",
    "train-size": "sizes",
    "model": "models",
    "method": "methods",
    "chunks": "splits",
    "iterations": "lengths",
}
# Conditions that several settings share.
_ON_IMAGES = Condition("only with experiments on images", lambda config: not config.toy)
_AUGMENTED = not_with("method", "none")
_RETRAIN = only_with("method", "retrain")
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


def _ratio(value: str) -> str:
    try:
        parts = [float(part) for part in value.split(":")]
    except ValueError:
        parts = []
    if not parts or not all(0 < part < math.inf for part in parts):
        raise ValueError(f"has {value!r}; write shares above 0 with colons, such as 8:1:1")
    return value


Names = Annotated[tuple[str, ...], checks.COMMAS]
Ratio = Annotated[str, AfterValidator(_ratio)]
Dataset = Annotated[str, checks.one_of(DATASETS, "function")]
Size = Annotated[int, checks.THOUSANDS, Field(ge=1, le=10_000_000)]


class CentralConfig(Settings):
    """Settings of one run, or of several that differ in what has a plural, and in the seed."""

    not_results: ClassVar[frozenset[str]] = frozenset(
        {"out", "name", "json_summary", "logger", "checkpoint_every", "seeds", "data_dir", "trials"}
        | set(SEVERAL.values())
    )

    experiment: Literal[
        "input-selection",
        "mask-learning",
        "data-size",
        "validation",
        "random-search",
        "sensitivity",
        "feature-extractor",
    ] = Field(
        "input-selection",
        description="fixed masks over inputs, told apart by L_ML; a learned one; or on images: "
        "methods by data size; against a validation set; psi found against psi drawn; shares of "
        "chunks and weights; the first stages of a network as psi",
    )
    inputs: Annotated[
        tuple[int, ...], BeforeValidator(_numbers), only_with("experiment", "input-selection")
    ] = Field(
        (15,),
        description="how many inputs stay, such as 15, 10,15,20 or 1-30; more than one makes a run "
        "of each",
    )
    mask_start: Annotated[float, only_with("experiment", "mask-learning")] = Field(
        0.1, gt=0, lt=1, description="probability that an input is open at first"
    )
    dataset: Annotated[Dataset, _ON_IMAGES] = Field(
        "rotmnist",
        description="mnist, cifar10, tinyimagenet, or with rot before it, each image rotated by a "
        "fixed angle; or module:function for your own",
    )
    data_dir: Annotated[str | None, _ON_IMAGES] = Field(
        None, description="folder with the files; else $FEDPART_DATA, else a download"
    )
    train_size: Size = Field(3000, description="training examples in all chunks")
    test_size: Size = Field(1000, description="test examples, at most")
    data_seed: int = Field(0, ge=0, description="seed of the examples, which all runs share")
    model: Annotated[str, _ON_IMAGES] = Field(
        "mnist-cnn", description="as for sim.py; dropout is taken out"
    )
    augmentation: Annotated[str, checks.one_of(AUGMENTATIONS, "Class"), _ON_IMAGES, _AUGMENTED] = (
        Field("symmetric", description="as for sim.py")
    )
    width_start: Annotated[float, _ON_IMAGES, _AUGMENTED] = Field(
        0.1, gt=0, le=1, description="widths at the start, in natural units"
    )
    psi: Annotated[tuple[float, ...] | None, checks.COMMAS, _RETRAIN] = Field(
        None, description="raw values that are held fixed"
    )
    psi_chunks: Annotated[checks.Shares | None, _RETRAIN] = Field(
        None, description="chunks of the run that found psi, for the tables"
    )
    trial: Annotated[int, only_with("method", "random-search")] = Field(
        0, ge=0, description="number of the draw"
    )
    datasets: Annotated[tuple[Dataset, ...], checks.COMMAS] = Field(
        (), description="a run of each, in the place of dataset"
    )
    sizes: Annotated[tuple[Size, ...], checks.COMMAS] = Field((), description="of train-size")
    lengths: Annotated[tuple[int, ...], checks.COMMAS] = Field(
        (), description="of iterations, one for each of sizes"
    )
    models: Names = Field((), description="of model")
    methods: Annotated[tuple[Method, ...], checks.COMMAS] = Field(
        (), description="of method; retrain takes the psi of the partitioned run before it"
    )
    splits: Annotated[tuple[Ratio, ...], checks.COMMAS, IN_CHUNKS] = Field(
        (), description="of chunks, as ratios such as 8:1:1; for sensitivity, of weights too"
    )
    trials: Annotated[int, only_with("methods", "random-search")] = Field(
        20, ge=1, le=10_000, description="draws, of the first seed"
    )

    eval_every: int = Field(100, ge=1, description="iterations between evaluations")
    patience: int = Field(
        0,
        ge=0,
        description="a run ends after so many evaluations without a higher L_ML (or what Laplace "
        "puts in its place), and the one with the highest counts; 0: it runs to its end, and the "
        "last one counts",
    )
    eval_size: int = Field(
        0,
        ge=0,
        description="examples of each part behind a point of the curves, 0: all; the last "
        "evaluation uses all of the test set",
    )
    seeds: int = Field(
        1, ge=1, le=10_000, description="how many runs: seed, seed+1, ... in OUT/seed-<s>"
    )
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
    def toy(self) -> bool:
        """Whether it is one of the toy problems, without images."""
        return self.experiment in TOYS

    @property
    def several(self) -> bool:
        """Whether this makes several runs."""
        plural = any(getattr(self, name) for name in SEVERAL.values())
        return plural or len(self.inputs) > 1 or self.seeds > 1

    def values_of(self, name: str) -> tuple[Any, ...]:
        """The same, where the plural of the setting may say what it is in each run."""
        plural = SEVERAL.get(kebab(name), name)
        return super().values_of(plural if getattr(self, plural) else name)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("method") == "none":
            return {**values, "augmentation": "none", "samples": 1}
        return values

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
    if "clients" in values:
        raise ConfigError(
            "clients is a setting of a run over clients, not of sim.py central: leave central out"
        )
    try:
        config = CentralConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(sentence(error, CentralConfig.model_fields)) from None
    _check_images(config)
    if config.experiment == "mask-learning" and len(config.inputs) > 1:
        raise ConfigError(
            "inputs belongs to input-selection; mask-learning learns them, so leave it out"
        )
    if config.method == "laplace":
        if config.experiment != "input-selection":
            raise ConfigError("method laplace learns no mask; use it with input-selection")
        _check_laplace()
    elif config.patience and len(config.chunks) == 1:
        raise ConfigError("patience needs L_ML, which one chunk does not have: use 2 or more")
    return config


def _check_laplace() -> None:
    if find_spec("laplace") is None:
        raise ConfigError(
            "method is 'laplace', which needs laplace-torch; pip install 'fedpart[laplace]' brings "
            "it"
        )


def _check_images(config: CentralConfig) -> None:
    if config.toy:
        if config.method not in ("partitioned", "laplace"):
            raise ConfigError(f"method {config.method} is for images; {config.experiment} has none")
        for plural in SEVERAL.values():
            if getattr(config, plural):
                raise ConfigError(f"{plural} is for images; {config.experiment} has none")
    elif config.method == "laplace" or "laplace" in config.methods:
        raise ConfigError("method laplace is for input-selection, not for images")
    for plural in ("datasets", "sizes", "models", "methods", "splits"):
        values = getattr(config, plural)
        # Of feature-extractor, two methods may have the same split.
        if len(set(values)) < len(values) and (config.experiment, plural) != (
            "feature-extractor",
            "splits",
        ):
            twice = next(v for v in values if values.count(v) > 1)
            raise ConfigError(f"{plural} has {twice} twice; give each once")
    if config.lengths and len(config.lengths) != len(config.sizes):
        raise ConfigError(
            f"lengths has {len(config.lengths)} numbers and sizes {len(config.sizes)}: give one "
            "for each, or iterations for all"
        )
    extractor = config.experiment == "feature-extractor"
    if extractor and len(config.splits) != len(config.methods):
        raise ConfigError(
            f"splits has {len(config.splits)} ratios and methods {len(config.methods)}: of "
            "feature-extractor give one for each of the methods"
        )
    wide = config.augmentation in ("symmetric", "generators")
    fixed = {"augerino", "random-search"} & {config.method, *config.methods}
    if fixed and not wide:
        raise ConfigError(
            f"augmentation is {config.augmentation!r}, but method {min(fixed)} needs one width for "
            "each transformation; use symmetric or generators"
        )
    if config.method == "retrain" and config.psi is None:
        raise ConfigError(
            "psi is not given; method retrain holds it fixed: give its raw values, as in hyper of "
            "evaluations.jsonl, or let methods be partitioned,retrain"
        )


def presets() -> list[str]:
    """What ``--experiment`` may be: the files of ``configs/central``."""
    return sorted(p.stem for p in PRESETS.glob("*.toml")) or list(EXPERIMENTS)


def preset(experiment: str) -> dict[str, object]:
    """Keys and values of ``configs/central/<experiment>.toml``.

    Raises:
        ConfigError: no such experiment.
    """
    path = PRESETS / f"{experiment}.toml"
    if not path.is_file():
        known = presets()
        listed = ", ".join(known)
        raise ConfigError(
            f"experiment is {experiment!r}; it must be one of {listed}{nearest(experiment, known)}"
        )
    return load_toml(path)


def read_central_config(path: Path) -> CentralConfig:
    """Settings of an earlier run, or of the parent of several.

    Raises:
        OutputError: no run folder of ``sim.py central``, or settings that cannot be read.
    """
    file = path / "config.toml"
    if not file.is_file():
        raise OutputError(f"{path} holds no config.toml, so no run began there")
    values = stored_settings(file)
    try:
        if "experiment" in values:
            return make_central_config(values)
    except ConfigError as error:
        raise DamagedError(f"{file} cannot be used: {error}") from None
    raise OutputError(f"{path} is a federated run: take it up with sim.py --resume {path}")
