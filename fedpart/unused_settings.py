"""Which settings have an effect: markers of the models' fields, for help and for a warning."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from fedpart.machine import slow_precision
from fedpart.spelling import kebab
from fedpart.values import Resolved

# Under Flower's own runtime no back end of sim.py runs the clients.
ON_NODES = dict.fromkeys(
    ("backend", "workers", "gpus-per-client", "ray-address"), "the clients are Flower's nodes"
)


@dataclass(frozen=True)
class Condition:
    """When a setting has an effect: ``Annotated[float, only_with("method", "augerino")]``.

    Attributes:
        text: in words, such as "only with method augerino".
        holds: whether settings meet it.
    """

    text: str
    holds: Callable[[Any], bool]


def only_with(name: str, *values: str) -> Condition:
    """Another setting has one of these values, in one of the runs at least."""
    listed = " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))
    return Condition(
        f"only with {name} {listed}",
        lambda config: any(value in values for value in config.values_of(name)),
    )


def not_with(name: str, value: str) -> Condition:
    """Another setting has another value than this, in one of the runs at least."""
    return Condition(
        f"not with {name} {value}",
        lambda config: any(other != value for other in config.values_of(name)),
    )


def above(name: str, limit: int) -> Condition:
    """Another setting is above ``limit``."""
    return Condition(
        f"only with {kebab(name)} above {limit}",
        lambda config: bool(getattr(config, name) > limit),
    )


def conditions(field: FieldInfo) -> list[Condition]:
    """Conditions of a setting, all of which must hold."""
    return [marker for marker in field.metadata if isinstance(marker, Condition)]


def unused_settings(
    config: Resolved, typed: Mapping[str, object], ignored: Mapping[str, str] = {}
) -> str:
    """One sentence that names what was typed without effect, and why; empty where there is none.

    Keys of a settings file are not looked at: a file serves several methods and back ends. Nor is
    what was typed as the default.

    Args:
        config: the settings, checked and resolved.
        typed: TOML keys and values as they were typed.
        ignored: TOML key -> reason, for those that have no effect whatever the others are.
    """
    found = []
    for name, field in type(config).model_fields.items():
        key = kebab(name)
        reasons = [ignored[key]] if key in ignored else []
        reasons += [one.text for one in conditions(field) if not one.holds(config)]
        if key in typed and reasons and not _default(field, typed[key], getattr(config, name)):
            found.append(f"{key} {typed[key]} ({reasons[0]})")
    return f"settings of no use: {', '.join(found)}" if found else ""


def _default(field: FieldInfo, typed: object, value: object) -> bool:
    """Whether a setting was typed as its default, and stayed so whatever the method sets."""
    # None is no marker: a type without markers needs one here.
    kind: Any = Annotated[(field.annotation, None, *field.metadata)]
    return bool(TypeAdapter(kind).validate_python(typed) == value == field.default)


def first_warnings(
    config: Any, typed: Mapping[str, object], ignored: Mapping[str, str] = {}
) -> list[str]:
    """What to say before a run that its settings allow, one sentence each.

    Args:
        config: settings of a run, checked and resolved.
        typed: see ``unused_settings``.
        ignored: see ``unused_settings``.
    """
    unused = unused_settings(config, typed, ignored)
    return [text for text in (unused, slow_precision(config.precision, config.device)) if text]
