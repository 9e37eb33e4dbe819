"""What the settings of all programs have in common: spelling, a hash, and two kinds of values."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from fedpart.spelling import kebab

MAX_CHUNKS = 255


class Resolved(BaseModel):
    """Settings, checked and resolved; names are the TOML keys and flags with ``_`` for ``-``."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        alias_generator=kebab,
        allow_inf_nan=False,
    )
    # Two runs that differ only in these give equal numbers.
    not_results: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def result_fields(cls) -> list[str]:
        """Fields that results depend on, in order."""
        return [name for name in cls.model_fields if name not in cls.not_results]

    def result_values(self) -> dict[str, Any]:
        """Field name -> JSON value, of the fields that results depend on."""
        return self.model_dump(mode="json", include=set(self.result_fields()))

    @property
    def config_hash(self) -> str:
        """sha256 over ``result_values``, hex."""
        text = json.dumps(self.result_values(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_toml(self) -> str:
        """Every value resolved, one a line, as ``load_toml`` reads it; unset ones as comments."""
        lines = []
        for key, value in self.model_dump(mode="json", by_alias=True).items():
            # A JSON string, number, boolean or flat list is spelled the same in TOML.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"# {key} is not set" if value is None else f"{key} = {text}")
        return "\n".join(lines) + "\n"


def by_key(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values by TOML key, however the keys are spelled.

    Raises:
        ValueError: a key that is given twice, an empty value, or a truth value where none can be.
    """
    given: dict[str, Any] = {}
    for name, value in values.items():
        key = "json" if name == "json_summary" else kebab(str(name))
        if key in given:
            raise ValueError(f"{key} is set twice, as {given[key]} and {value}; keep one")
        if value == "":
            raise ValueError(f"{key} is empty; give it a value or leave it out")
        if isinstance(value, bool) and key != "json":
            raise ValueError(f"{key} is {str(value).lower()}; it must be a number or a text")
        given[key] = value
    return given


def _commas(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _tile(value: tuple[float, ...]) -> tuple[float, ...]:
    text = ",".join(f"{share:g}" for share in value)
    if not 1 <= len(value) <= MAX_CHUNKS:
        raise ValueError(f"has {len(value)} shares; 1 to {MAX_CHUNKS} are possible")
    if min(value) <= 0:
        raise ValueError(f"is {text}; every share must be above 0")
    if abs(sum(value) - 1) > 1e-6:
        raise ValueError(f"is {text}, which sums to {sum(value):.6g}; shares must sum to 1")
    return value


def _thousands(value: object) -> object:
    if isinstance(value, str) and value.strip().lower().endswith("k"):
        try:
            number = float(value.strip()[:-1]) * 1000
        except ValueError:
            return value
        return int(number) if number.is_integer() else value
    return value


Shares = Annotated[tuple[float, ...], BeforeValidator(_commas), AfterValidator(_tile)]
Thousands = Annotated[int, BeforeValidator(_thousands)]
