"""Checks of single settings: validators that say what is wrong with a value, and its limits."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from fedpart.plugins import check_name

MAX_CHUNKS = 255
# Of a rate; more of it is beyond float32 after Adam's correction.
MOST = 1e30


def one_of(known: Sequence[str], own: str) -> AfterValidator:
    """One of a few names, or ``module:<own>`` for what the user brings."""
    return AfterValidator(lambda value: check_name(value, known, own))


def _thousands(value: object) -> object:
    if isinstance(value, str) and value.strip().lower().endswith("k"):
        try:
            number = float(value.strip()[:-1]) * 1000
        except ValueError:
            return value
        return int(number) if number.is_integer() else value
    return value


def _auto_or_number(value: object) -> object:
    if value == "auto":
        return value
    try:
        number = int(value) if isinstance(value, int | str) else 0
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"is {value!r}; it must be auto or a whole number of at least 1")
    return number


def _auto_or_share(value: object) -> object:
    if value == "auto":
        return value
    try:
        share = float(value) if isinstance(value, float | int | str) else -1.0
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise ValueError(f"is {value!r}; it must be auto or a number of at least 0")
    if share > 1 and not share.is_integer():
        raise ValueError(f"is {share:g}; above 1 it must be a whole number")
    return share


def _host_and_port(value: str | None) -> str | None:
    host, _, port = (value or "auto").rpartition(":")
    if value not in (None, "auto") and (
        not host or "/" in host or not port.isdecimal() or int(port) > 65535
    ):
        raise ValueError(f"is {value!r}; it must be host:port, or auto")
    return value


def _commas(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _shares(value: tuple[float, ...]) -> tuple[float, ...]:
    text = ",".join(f"{share:g}" for share in value)
    if not 1 <= len(value) <= MAX_CHUNKS:
        raise ValueError(f"has {len(value)} shares; 1 to {MAX_CHUNKS} are possible")
    if min(value) <= 0:
        raise ValueError(f"is {text}; every share must be above 0")
    if abs(sum(value) - 1) > 1e-6:
        raise ValueError(f"is {text}, which sums to {sum(value):.6g}; shares must sum to 1")
    return value


# 1.25k -> 1250.
THOUSANDS = BeforeValidator(_thousands)
AUTO_OR_NUMBER = BeforeValidator(_auto_or_number)
AUTO_OR_SHARE = BeforeValidator(_auto_or_share)
HOST_AND_PORT = AfterValidator(_host_and_port)
# "0.7, 0.3" -> two shares.
COMMAS = BeforeValidator(_commas)
Shares = Annotated[tuple[float, ...], COMMAS, AfterValidator(_shares)]
