"""Settings under Flower's own runtime: ``[tool.flwr.app.config]`` and ``flwr run --run-config``."""

from collections.abc import Mapping
from pathlib import Path

from fedpart.config import load_toml
from fedpart.errors import ConfigError
from fedpart.plugins import nearest

# The bundle's top folder, where Flower unpacked it; in a checkout, the checkout.
_TOP = Path(__file__).resolve().parents[1]


def given_settings(run_config: Mapping[str, object]) -> dict[str, object]:
    """What the user has set: a key wins over the file that ``config`` names, as a flag does.

    Flower sends a value for every declared key and does not say which of them the user has typed.
    So each is declared as ``""``, "not given". With the defaults in their place, a ``rounds=100``
    that is typed could not be told from a default that gives way to the file.

    Args:
        run_config: every declared key, with ``""`` for those that are not given.

    Returns:
        TOML keys and values, not yet checked.

    Raises:
        ConfigError: ``config`` names no settings file of the bundle, or an unreadable one.
    """
    values, name = typed_settings(run_config), run_config.get("config", "")
    return values if name == "" else load_toml(_bundled(str(name))) | values


def typed_settings(run_config: Mapping[str, object]) -> dict[str, object]:
    """TOML keys and values that the user has typed, without those of the file."""
    # Not settings: where they come from, and what is done with them.
    others = ("config", "resume")
    return {key: v for key, v in run_config.items() if v != "" and key not in others}


def is_resumed(run_config: Mapping[str, object]) -> bool:
    """Whether the run in ``out`` is to be taken up; its settings are given again.

    Nodes know the run folder as little as each other: they must be told the settings anyway.

    Raises:
        ConfigError: ``resume`` is neither true nor false, or ``out`` is not given.
    """
    value = run_config.get("resume", "")
    if value not in ("", True, False):
        raise ConfigError(f"resume is {value!r}; it must be true or false")
    if value is True and not given_settings(run_config).get("out"):
        raise ConfigError("resume is true, but out does not say which run: name its folder")
    return value is True


def _bundled(name: str) -> Path:
    # Only what travels in the bundle is the same file at the server and on every node.
    path = (_TOP / name).resolve()
    if not path.is_file() or not path.is_relative_to(_TOP):
        known = [file.relative_to(_TOP).as_posix() for file in sorted(_TOP.glob("configs/*.toml"))]
        raise ConfigError(
            f"config is {name!r}; it must be a file of the bundle, named from its top folder, such "
            f"as configs/mnist-5k-fedavg.toml{nearest(name, known)}"
        )
    return path
