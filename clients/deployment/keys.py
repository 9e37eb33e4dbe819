"""What TLS and node authentication need: an authority, a server certificate, a key for each node.

``python -m clients.deployment.keys FOLDER --host NAME ... --node NAME ...`` makes them for real
machines; a rehearsal makes its own.
"""

import argparse
import ipaddress
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpart import output
from fedpart.errors import ConfigError, OutputError

# Clocks differ: a certificate must not begin in a device's future.
_SKEW = timedelta(hours=1)
_DAYS = 365
_NONE = serialization.NoEncryption()


class Authority:
    """A certificate authority of one's own.

    Attributes:
        folder: holds ``ca.crt``, for every node, and ``ca.key``, for nobody.
    """

    def __init__(self, folder: Path) -> None:
        """Take up the authority in ``folder``, or make one there.

        Raises:
            OutputError: what is there cannot be read as one.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "ca.key").exists():
            try:
                key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
                public = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
            except (OSError, ValueError, TypeError) as error:
                raise _no_authority(folder, str(error)) from None
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise _no_authority(folder, "ca.key is not of an elliptic curve")
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
        write_secret(folder / "ca.key", _pem(self._key))
        (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def certify(self, hosts: Sequence[str], days: float = _DAYS) -> tuple[Path, Path]:
        """A server's certificate and its key, ``server.crt`` and ``server.key``; made anew.

        Args:
            hosts: names and addresses that nodes call the server by; another one is refused.
            days: from now until it expires; negative for one that has.
        """
        key = ec.generate_private_key(ec.SECP384R1())
        certificate = (
            self._begin(_name(hosts[0]), key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA384())
        )
        paths = self.folder / "server.crt", self.folder / "server.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_secret(paths[1], _pem(key))
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
    """
    public = path.with_name(path.name + ".pub")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, _NONE
        )
        write_secret(path, private)
        text = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        public.write_bytes(text + b"\n")
    return public


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that nobody but its owner may read, at no moment."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _no_authority(folder: Path, why: str) -> OutputError:
    return OutputError(
        f"ca.key and ca.crt in {folder} cannot be used ({why}): put them back from a copy, or name "
        "another folder"
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


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
    for name in known.node:
        if Path(name).name != name:
            raise ConfigError(f"--node {name!r} is no name of a file: name it without folders")
    made = []
    try:
        if known.host:
            made = [known.folder / "ca.crt", *Authority(known.folder).certify(known.host)]
        made += [node_key(known.folder / name) for name in known.node]
    except OSError as error:
        raise OutputError(f"cannot write {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--host {' '.join(known.host)}: {error}") from None
    sys.stdout.write("".join(f"{path}\n" for path in made))


if __name__ == "__main__":
    sys.exit(output.told(main))
