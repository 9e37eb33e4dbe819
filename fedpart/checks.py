"""Checks of single settings: validators that say what is wrong with a value, and its limits."""

from pydantic import AfterValidator, BeforeValidator

MAX_CHUNKS = 255


def _thousands(value: object) -> object:
    if isinstance(value, str) and value.strip().lower().endswith("k"):
        try:
            number = float(value.strip()[:-1]) * 1000
        except ValueError:
            return value
        return int(number) if number.is_integer() else value
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
# "0.7, 0.3" -> two shares.
COMMAS = BeforeValidator(_commas)
SHARES = AfterValidator(_shares)
