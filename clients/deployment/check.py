"""Why a node cannot reach its SuperLink, in a sentence: address, certificate, clock or key.

``python -m clients.deployment.check HOST:PORT --root-certificates ca.crt`` looks before a node is
started; Flower's own words come only once it has ended.
"""

import argparse
import contextlib
import http.client
import re
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path

from clients.deployment.keys import is_host
from fedpart.errors import ConfigError
from fedpart.output import run_command

_SECONDS = 10.0
# What Flower allows a node's clock, less a second, which is as exact as HTTP tells the time.
_FAST, _SLOW = 4.0, 304.0
# What Flower says.
_NO_ACTIVATION = "[code: 2004]"
_PLAIN, _RETRY = "Option `--insecure` was set", "Connection attempt failed"
_VERIFY = "certificate verify failed: "


def check_superlink(address: str, ca: Path) -> str:
    """Look at a SuperLink as a node would that is about to trust it; nothing is sent.

    Args:
        address: ``host:port``, as for ``--superlink``.
        ca: the authority's certificate, as for ``--root-certificates``.

    Returns:
        one sentence: all is well.

    Raises:
        ConfigError: one sentence that names what is wrong: the address, TLS, the certificate's
            issuer, dates or names, or this machine's clock.
    """
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host[:1] + host[-1:] == "[]" else host
    if not is_host(host) or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address; it must be host:port")
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except OSError as error:
        raise ConfigError(f"{ca} is no certificate that can be read: {error}") from None
    connection = http.client.HTTPSConnection(host, int(port), timeout=_SECONDS, context=context)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            status, date = answer.status, answer.getheader("Date")
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(f"{address}: {_certificate(error.verify_message)}") from None
        except ssl.SSLError as error:
            raise ConfigError(
                f"{address} does not speak TLS ({error.reason}): the SuperLink must be started "
                "with its certificate and without --insecure"
            ) from None
        except (OSError, http.client.HTTPException, socket.gaierror) as error:
            raise ConfigError(
                f"nobody answers at {address} ({error}): is the SuperLink running there, and does "
                "a firewall let it through?"
            ) from None
    if status != http.HTTPStatus.OK:
        raise ConfigError(
            f"{address} answers with HTTP status {status}: SuperLink is not running behind the "
            "proxy, or something else listens there"
        )
    try:
        ahead = 0.0 if date is None else time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        raise ConfigError(
            f"{address} answers with the date {date!r:.60}, which is none: something else than a "
            "SuperLink listens there"
        ) from None
    if not -_SLOW < ahead < _FAST:
        raise ConfigError(
            f"this machine's clock is {ahead:+.0f} s off that of {address}; Flower refuses more "
            "than 5 s ahead or 305 s behind: set both by NTP"
        )
    return f"{address}: certificate and clock are right"


def _certificate(reason: str) -> str:
    """What is wrong with a server's certificate, from OpenSSL's words for it."""
    if "has expired" in reason:
        return "the server's certificate, or its authority's, has expired: make a new one"
    if "not yet valid" in reason:
        return "the server's certificate is not valid yet: set this machine's clock by NTP"
    if "mismatch" in reason:
        return "the server's certificate is for another host: make one with this name"
    return "the server's certificate is not signed by the authority of this ca.crt: copy it again"


def explain(log: str) -> str:
    """Why a SuperNode has ended, from what it has printed; its last line where it does not say."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    if _PLAIN in plain and _RETRY in plain:
        return (
            "the node speaks plain text (--insecure), and who listens there expects TLS or is not "
            "there: start the node with --root-certificates"
        )
    reason = re.findall(r"Exit Code: \d+\n(?:Failed to initialize.*\n)?(.*)", plain)
    if not reason:
        lines = [line.strip() for line in plain.splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"
    last = str(reason[-1]).strip()
    if _NO_ACTIVATION in last:
        return (
            "the SuperLink refuses the node's key: it is not registered, it was revoked, or a node "
            "with it ran within the last minute"
        )
    return _certificate(last.partition(_VERIFY)[2]) if _VERIFY in last else last


def main(argv: Sequence[str] | None = None) -> None:
    """Check, and say that all is well.

    Raises:
        ConfigError: see ``check_superlink``.
    """
    parser = argparse.ArgumentParser(
        prog="python -m clients.deployment.check",
        description="Look at a SuperLink as a node would: address, certificate, clock.",
    )
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--root-certificates", type=Path, required=True, metavar="ca.crt")
    known = parser.parse_args(argv)
    sys.stdout.write(check_superlink(known.address, known.root_certificates) + "\n")


if __name__ == "__main__":
    sys.exit(run_command(main))
