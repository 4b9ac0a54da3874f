"""Authorities and certificates for tests, made when they run."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
SERVER_NAMES = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, in files."""

    certificate: str
    key: str
    serial: int


class Authority:
    """Signs certificates; `ca` is the file by which others check them."""

    def __init__(self, folder: Path, name: str = "Test CA") -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(self._name, self._name, self._key, 1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = str(folder / f"{name}.pem")
        Path(self.ca).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        subject: Sequence[tuple[x509.ObjectIdentifier, str]] = (),
        names: Sequence[str] = SERVER_NAMES,
        days: int = 1,
        password: bytes | None = None,
    ) -> Issued:
        """A certificate for CN=`name`, or a whole subject; `days` below 0 has expired so long ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = subject or [(NameOID.COMMON_NAME, name)]
        whose = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
        certificate = (
            _builder(whose, self._name, key, days)
            .add_extension(x509.SubjectAlternativeName([_general_name(one) for one in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encryption = (
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        )
        key_file.touch(mode=0o600)
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return Issued(str(file), str(key_file), certificate.serial_number)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 9 * DAY)
        .not_valid_after(now + days * DAY)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
