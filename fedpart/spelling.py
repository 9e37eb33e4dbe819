"""How settings are spelled, and what is wrong with one, in a sentence for people."""

from collections.abc import Mapping
from typing import Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedpart.plugins import nearest

_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
# So few choices need no hint beside their list: 'gpu' is nearer to 'cpu' than to 'cuda'.
_FEW = 2


def kebab(name: str) -> str:
    """Field name -> TOML key and flag: ``train_size`` -> ``train-size``."""
    return name.replace("_", "-")


def spelled(fields: Mapping[str, FieldInfo]) -> list[str]:
    """TOML keys of a model's fields, in their order."""
    return [field.alias or kebab(name) for name, field in fields.items()]


def _choices(annotation: object) -> tuple[object, ...]:
    """What a ``Literal`` allows, also one within a tuple or beside None."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return next(filter(None, map(_choices, get_args(annotation))), ())


def sentence(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """The first thing that is wrong: key, value, limit, and what to do where there is one thing.

    Args:
        error: what pydantic says.
        fields: of the model that it is about.
    """
    first = error.errors()[0]
    key = kebab(str(first["loc"][0])) if first["loc"] else ""
    kind, given, context = first["type"], first["input"], first.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown setting {key!r}{nearest(key, spelled(fields)) or '; see sim.py --help'}"
    if kind == "value_error":
        return f"{key} {context['error']}".strip()
    shown = repr(given) if isinstance(given, str) else f"{given}"
    if kind == "literal_error":
        field = next(f for n, f in fields.items() if (f.alias or kebab(n)) == key)
        choices = [str(choice) for choice in _choices(field.annotation)]
        listed = ", ".join(choices)
        hint = nearest(str(given), choices) if len(choices) > _FEW else ""
        return f"{key} is {shown}; it must be one of {listed}{hint}"
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"{key} is {shown}; it must be {words} {context[name]:,.10g}"
    if kind.startswith("int"):
        return f"{key} is {shown}; it must be a whole number"
    if kind.startswith(("float", "finite")):
        return f"{key} is {shown}; it must be a finite number"
    return f"{key} is {shown}; {first['msg'][0].lower()}{first['msg'][1:]}"
