"""What users bring themselves, named as ``module:attribute`` where a setting takes a name."""

import difflib
import functools
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

from fedpart.errors import ConfigError, FedpartError, cause


@contextmanager
def users_code(kind: str, spec: str) -> Iterator[None]:
    """Whatever is raised inside is the user's to read, on one line.

    Args:
        kind: the setting.
        spec: its value.
    Raises:
        ConfigError: in place of any exception but a ``FedpartError``, a sentence already.
    """
    try:
        yield
    except FedpartError:
        raise
    # A script that ends its process ends no run.
    except (Exception, SystemExit) as error:
        ours = traceback.extract_tb(error.__traceback__)[-1].filename == __file__
        told = traceback.format_exception_only(error) if ours else [traceback.format_exc()]
        raise ConfigError(f"{kind} {spec!r}: {cause(''.join(told))}") from error


def own_code(model: str, augmentation: str, doing: str) -> AbstractContextManager[None]:
    """``users_code`` around what runs both model and augmentation.

    Args:
        model: the setting.
        augmentation: the setting; where neither names the user's own, nothing is caught.
        doing: what is done with them, for the sentence.
    Raises:
        ConfigError: inside, as ``users_code`` does.
    """
    settings = {"model": model, "augmentation": augmentation}
    own = [(kind, spec) for kind, spec in settings.items() if ":" in spec]
    if not own:
        return nullcontext()
    *first, (kind, spec) = own
    named = "".join(f"{kind} {spec!r} and " for kind, spec in first)
    return users_code(f"{doing} with {named}{kind}", spec)


def call_own(kind: str, spec: str, **arguments: object) -> object:
    """Import ``module:attribute`` and call it; the working directory is searched too.

    Args:
        kind: the setting.
        spec: its value.
        arguments: by name.
    Returns:
        what the user's code returns.
    Raises:
        ConfigError: there is no such module, it cannot be imported, or it raises.
    """
    module, _, attribute = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    if not _is_there(module):
        raise ConfigError(
            f"{kind} {spec!r}: there is no module {module!r} in {here}, on PYTHONPATH or among the "
            "installed packages; go to its folder, or set PYTHONPATH"
        )
    with users_code(kind, spec):
        return getattr(importlib.import_module(module), attribute)(**arguments)


def code_hashes(settings: Mapping[str, object]) -> dict[str, str]:
    """sha256 of the file of each module that ``settings`` name, by setting, as it was imported."""
    found = {}
    for setting, value in settings.items():
        name, colon, _ = value.partition(":") if isinstance(value, str) else ("", "", "")
        if colon and name in sys.modules and (digest := _hash(sys.modules[name])):
            found[setting] = digest
    return found


# Kept, since a file may change while a process trains one run after the other with what it was.
@functools.cache
def _hash(module: ModuleType) -> str | None:
    try:
        return hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest()
    # Built in, or of an archive.
    except (AttributeError, OSError):
        return None


def _is_there(module: str) -> bool:
    """Whether Python finds a module, however it fares when it is imported."""
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    # A parent that is no package, or that raises; the import will say so.
    except ModuleNotFoundError:
        return False
    except Exception:
        return True


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name most like ``name``, or an empty string."""
    # Flags are told apart by what follows their dashes.
    words = {word.lstrip("-"): word for word in known}
    matches = difflib.get_close_matches(name.lstrip("-"), words, n=1)
    return f"; did you mean {words[matches[0]]!r}?" if matches else ""


def check_name(value: str, known: Sequence[str], own: str) -> str:
    """``value``, where it is a known name or says ``module:<own>`` for what the user brings.

    Raises:
        ValueError: neither; the text goes on after the name of the setting.
    """
    module, _, attribute = value.partition(":")
    if value not in known and not (module and attribute):
        raise ValueError(
            f"is {value!r}; it must be one of {', '.join(known)}, or module:{own} for your own"
            f"{nearest(value, known)}"
        )
    return value
