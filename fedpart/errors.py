"""What can go wrong, one class for each exit code of ``sim.py``."""

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
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    text, where = lines[-1], ""
    if frames:
        # After the frame comes its source, indented; then the exception, whose text may go on.
        after = lines[frames[-1] + 1 :]
        text = next((line for line in after if not line.startswith(" ")), text)
        path, _, place = lines[frames[-1]].removeprefix('  File "').partition('"')
        where = f" ({path.replace(chr(92), '/').rsplit('/', 1)[-1]}{place})"
    # It may come from another machine: nothing in it may move a terminal's cursor.
    line = "".join(c if c.isprintable() else " " for c in text.strip()[:300] + where[:200])
    return line.strip()
