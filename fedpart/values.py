"""What the settings of all programs have in common: spelling, TOML and a hash."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from fedpart.spelling import kebab

# Of whatever is counted; far more is beyond memory, and then beyond 64 bits.
_MOST = 1_000_000_000


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

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: object, info: ValidationInfo) -> object:
        # It would count as 0 or 1.
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, bool) and info.field_name != "json_summary":
                has = "is" if one is value else "has"
                raise ValueError(f"{has} {str(one).lower()}; it must be a number or a text")
        return value

    @field_validator("*")
    @classmethod
    def _whole(cls, value: object, info: ValidationInfo) -> object:
        # A seed is no count: any will do.
        seed = info.field_name in ("seed", "data_seed")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and number > _MOST and not seed:
                raise ValueError(f"is {number}; it must be at most {_MOST:,}")
        return value

    @field_validator("*")
    @classmethod
    def _text(cls, value: object) -> object:
        # A path may hold any bytes; a settings file may not.
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"is {value!a}, which is no UTF-8 text; rename it") from None
        return value

    def values_of(self, name: str) -> tuple[Any, ...]:
        """What a setting is in the runs that these settings make; of a list, each of its values."""
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,)

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
        ValueError: a key that is given twice, or an empty value.
    """
    given: dict[str, Any] = {}
    for name, value in values.items():
        key = "json" if name == "json_summary" else kebab(str(name))
        if key in given:
            raise ValueError(f"{key} is set twice, as {given[key]} and {value}; keep one")
        if value == "":
            raise ValueError(f"{key} is empty; give it a value or leave it out")
        given[key] = value
    return given
