"""What users bring themselves, named as ``module:attribute`` where a setting takes a name."""

import importlib
import sys
import traceback
from pathlib import Path

from fedpart.errors import ConfigError, cause


def call_own(kind: str, spec: str, **arguments: object) -> object:
    """Import ``module:attribute`` and call it; the working directory is searched too.

    Args:
        kind: the setting, for the message.
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
    try:
        return getattr(importlib.import_module(module), attribute)(**arguments)
    except Exception as error:  # whatever the user's code raises is the user's to read
        raise ConfigError(f"{kind} {spec!r}: {cause(traceback.format_exc())}") from error
