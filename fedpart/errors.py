"""What can go wrong, one class for each exit code of ``sim.py``."""

import re

# Why there is no reply of a client that has dropped out by chance, as the settings want it.
DROPPED = "dropped out, by client-failure-rate"
# Between the exceptions of a traceback.
_CHAIN = "\nThe above exception was the direct cause of the following exception:\n"


class FedpartError(Exception):
    """A fault that is explained to the user in one sentence.

    The sentence names the value, its limit and what to do about it.
    """

    exit_code = 1


class ConfigError(FedpartError):
    """A flag, key, value or model that cannot be used."""

    exit_code = 2


class DivergedError(ConfigError):
    """A training whose loss, weights or psi are no longer finite: its steps are too long."""


class DataError(FedpartError):
    """Data that is missing, damaged, or cannot be split as asked."""

    exit_code = 3


class OutputError(FedpartError):
    """A run folder that cannot be written or read."""

    exit_code = 4


class TakenError(OutputError):
    """A folder for a new run that holds something already."""


class BusyError(OutputError):
    """A run folder that another process works on."""


class DamagedError(OutputError):
    """A file of a run that is missing, cut or changed, so that the run cannot be read."""


class ClientFailure(FedpartError):
    """Clients that failed so that the run cannot go on."""

    exit_code = 5


def cause(reason: str) -> str:
    """What went wrong and where, on one line.

    Args:
        reason: a traceback, or what Flower says instead.

    Returns:
        the exception, and the innermost frame where there is one:
        ``ValueError: no images (client.py, line 92, in client_update)``.
    """
    # Flower's simulation raises what a client has raised once more, in a frame of its own.
    before, _, last = reason.rpartition(_CHAIN)
    if "ClientAppException" in last:
        reason = before or reason
    lines = [line for line in reason.splitlines() if line.strip()] or ["no reason given"]
    if any("Exception Group Traceback" in line for line in lines):
        # Each level has a margin of its own, and rules between its exceptions.
        lines = [re.sub(r"^ *\| ?", "", line) for line in lines if not re.match(r" *\+-", line)]
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    text, where = lines[-1], ""
    if frames:
        # After the frame comes its source, indented; then the exception, whose text may go on.
        raised = range(frames[-1] + 1, len(lines))
        first = next((i for i in raised if not lines[i].startswith(" ")), len(lines) - 1)
        text = lines[first]
        if re.fullmatch(r"[\w.]+:\s*", text):
            # The exception's own text begins with a line break.
            text = " ".join(line.strip() for line in lines[first : first + 2])
        path, _, place = lines[frames[-1]].removeprefix('  File "').partition('"')
        where = f" ({path.replace(chr(92), '/').rsplit('/', 1)[-1]}{place})"
    if text.endswith(":"):
        # A list that follows on lines of its own, such as torch's "but expected one of:".
        text = text.rpartition(",")[0] or text.rstrip(":")
    # It may come from another machine: nothing in it may move a terminal's cursor.
    line = "".join(c if c.isprintable() else " " for c in text.strip()[:300] + where[:200])
    return line.strip()
