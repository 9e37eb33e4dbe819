"""What TLS and node authentication need: an authority, a server certificate, a key for each node.

``python -m clients.deployment.keys FOLDER --host NAME ... --node NAME ...`` makes them for real
machines; a rehearsal makes its own.
"""

import argparse
import ipaddress
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpart.errors import ConfigError, OutputError
from fedpart.files import write_atomic, writing
from fedpart.output import run_command

# Clocks differ: a certificate must not begin in a device's future.
_SKEW = timedelta(hours=1)
_DAYS = 365
_NONE = serialization.NoEncryption()
# What loading a key raises.
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)
# Letters that a certificate's common name has room for; nodes go by the names besides.
_COMMON_NAME = 64
# Names of machines, RFC 1123, and the underscores that some have.
_HOST = re.compile(r"(?=.{1,253}$)(?:[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(?:\.(?!$)|$))+")
_NODE = re.compile(r"(?!.*\.(?:pub|tmp)$)[A-Za-z0-9][A-Za-z0-9._-]*")
_OTHERS = ("ca.key", "ca.crt", "server.key", "server.crt")


class Authority:
    """A certificate authority of one's own.

    Attributes:
        folder: holds ``ca.crt``, for every node, and ``ca.key``, for nobody.
    """

    def __init__(self, folder: Path) -> None:
        """Take up the authority in ``folder``, or make one there.

        Raises:
            OutputError: what is there is none, or the folder cannot be written.
        """
        self.folder = folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if any((folder / name).exists() for name in ("ca.key", "ca.crt")):
            try:
                key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
                public = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
                fit = public.public_key() == key.public_key()
            except (OSError, *_UNREADABLE) as error:
                raise _no_authority(folder, str(error)) from None
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise _no_authority(folder, "ca.key is not of an elliptic curve")
            if not fit:
                raise _no_authority(folder, "ca.crt is not that of ca.key")
            if public.not_valid_after_utc < datetime.now(timezone.utc):
                raise _no_authority(folder, f"ca.crt has expired, {public.not_valid_after_utc:%F}")
            self._key, self._name = key, public.subject
            return
        self._key = ec.generate_private_key(ec.SECP384R1())
        self._name = _name("fedpart authority")
        usage = x509.KeyUsage(
            key_cert_sign=True,
            crl_sign=True,
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            self._begin(self._name, self._key, _DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA384())
        )
        write_atomic(folder / "ca.key", _pem(self._key), secret=True)
        try:
            write_atomic(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
        except BaseException:
            # One without the other would be refused the next time.
            (folder / "ca.key").unlink()
            raise

    def certify(self, hosts: Sequence[str], days: float = _DAYS) -> tuple[Path, Path]:
        """A server's certificate and its key, ``server.crt`` and ``server.key``; made anew.

        Args:
            hosts: names and addresses that nodes call the server by; another one is refused.
            days: from now until it expires; negative for one that has.
        Raises:
            OutputError: the folder cannot be written.
        """
        key = ec.generate_private_key(ec.SECP384R1())
        certificate = (
            self._begin(_name(hosts[0][:_COMMON_NAME]), key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA384())
        )
        paths = self.folder / "server.crt", self.folder / "server.key"
        write_atomic(paths[0], certificate.public_bytes(serialization.Encoding.PEM))
        write_atomic(paths[1], _pem(key), secret=True)
        return paths

    def _begin(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
    ) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc)
        end = now + timedelta(days=days)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - _SKEW)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
        )


def node_key(path: Path) -> Path:
    """A node's private key at ``path``, and beside it the public one, whose path is returned.

    As ``ssh-keygen -t ecdsa -b 384`` makes them, which is what Flower reads. A key that is there
    stays: it is the node's identity.

    Raises:
        OutputError: what is there is no such key, or the folder cannot be written.
    """
    public = path.with_name(path.name + ".pub")
    if path.exists():
        try:
            key = serialization.load_ssh_private_key(path.read_bytes(), None)
        except (OSError, *_UNREADABLE) as error:
            raise _no_key(path, str(error)) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise _no_key(path, "it is not of an elliptic curve")
    else:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, _NONE
        )
        write_atomic(path, private, secret=True)
    text = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    if not public.exists():
        write_atomic(public, text + b"\n")
    elif not public.is_file() or public.read_bytes().split()[:2] != text.split():
        raise OutputError(f"{public} is not that of {path.name}: remove it, and it is made anew")
    return public


def _no_key(path: Path, why: str) -> OutputError:
    return OutputError(
        f"{path} is no private key that can be used ({why}): put it back from a copy, or name "
        "another node"
    )


def _no_authority(folder: Path, why: str) -> OutputError:
    return OutputError(
        f"ca.key and ca.crt in {folder} cannot be used ({why}): put them back from a copy, or name "
        "another folder and give all nodes its ca.crt"
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    if _is_address(text):
        return x509.IPAddress(ipaddress.ip_address(text))
    return x509.DNSName(text)


def is_host(text: str) -> bool:
    """Whether ``text`` can be the name or the address of a machine."""
    return _is_address(text) or _HOST.fullmatch(text) is not None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, _NONE)


def main(argv: Sequence[str] | None = None) -> None:
    """Make keys for real machines; what is there stays, but for the server's certificate.

    Raises:
        ConfigError: a name that no certificate or file can have.
        OutputError: the folder cannot be written, or holds an authority that is none.
    """
    parser = argparse.ArgumentParser(
        prog="python -m clients.deployment.keys", description="Make TLS and node keys."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--host",
        nargs="+",
        default=[],
        help="names and addresses of the server, as nodes type them",
    )
    parser.add_argument("--node", nargs="+", default=[], help="names of nodes, one key for each")
    known = parser.parse_args(argv)
    for host in known.host:
        if not is_host(host):
            raise ConfigError(
                f"--host {host!r} is no name or address of a machine: leave port and protocol out"
            )
    for name in known.node:
        if not _NODE.fullmatch(name) or name in _OTHERS:
            raise ConfigError(
                f"--node {name!r} cannot be the name of a key: take letters, digits, . _ and -, a "
                "letter or digit first, no .pub or .tmp at the end, and none of "
                f"{', '.join(_OTHERS)}"
            )
    made = []
    if known.host:
        made = [known.folder / "ca.crt", *Authority(known.folder).certify(known.host)]
    made += [node_key(known.folder / name) for name in known.node]
    sys.stdout.write("".join(f"{path}\n" for path in made))


if __name__ == "__main__":
    sys.exit(run_command(main))
