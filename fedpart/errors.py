"""What can go wrong, one class for each exit code of ``sim.py``."""


class FedpartError(Exception):
    """A fault that is explained to the user in one sentence.

    The sentence names the value, its limit and what to do about it.
    """

    exit_code = 1


class ConfigError(FedpartError):
    """A flag, key, value or model that cannot be used."""

    exit_code = 2


class DataError(FedpartError):
    """Data that is missing, damaged, or cannot be split as asked."""

    exit_code = 3


class OutputError(FedpartError):
    """A run folder that cannot be written or read."""

    exit_code = 4


class ClientFailure(FedpartError):
    """Clients that failed so that the run cannot go on."""

    exit_code = 5
