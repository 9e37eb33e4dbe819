"""What users bring themselves, named as ``module:attribute`` where a setting takes a name."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpart.errors import ConfigError, cause


@contextmanager
def users_code(kind: str, spec: str) -> Iterator[None]:
    """Whatever is raised inside is the user's to read, on one line.

    Args:
        kind: the setting.
        spec: its value.
    Raises:
        ConfigError: in place of any exception.
    """
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{kind} {spec!r}: {cause(traceback.format_exc())}") from error


def call_own(kind: str, spec: str, **arguments: object) -> object:
    """Import ``module:attribute`` and call it; the working directory is searched too.

    Args:
        kind: the setting.
        spec: its value.
        arguments: by name.
    Returns:
        what the user's code returns.
    Raises:
        ConfigError: it cannot be imported, or raises.
    """
    module, _, attribute = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    with users_code(kind, spec):
        return getattr(importlib.import_module(module), attribute)(**arguments)
