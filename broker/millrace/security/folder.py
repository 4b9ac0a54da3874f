"""The folder of a secure deployment: an authority, the brokers' certificate, users, client files.

    ca.pem           the authority's certificate, for every client
    ca.key           its key, 0600: its holder can pose as any broker; keep it away from the brokers
    broker.pem       the brokers' certificate and key, 0600, in one file so that a renewal is one rename
    NAME.password    a user's password, 0600
    NAME.toml        the client file of that user
    SERVICE.token    the token that clients show to a service of `millrace up`, 0600

Existing files stay; only `renew` replaces one. It contacts no brokers and no ZooKeeper.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.config import ClientSecurity
from millrace.errors import ConfigError
from millrace.security.certificates import read_secret
from millrace.security.client import load_client

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

USERS: Mapping[str, str] = {
    "admin": "creates topics and sets offsets",
    "producer": "publishes events and reports",
    "consumer": "reads events",
    "broker": "copies replicas from the other brokers of its cluster",
    "mirror": "the aggregate cluster's brokers, in the clusters that they mirror",
    "reader": "counts for the audit",
    "auditor": "reads the reports of producers and readers",
    "loads": "loads, reloads, publications and the batch mirror",
}
"""User of each kind of process -> description of its work."""
HOSTS = ("localhost", "127.0.0.1")
_AUTHORITY_DAYS = 3650
DAYS = 365
"""Lifetime of a broker's certificate in days."""
_EARLIER = datetime.timedelta(hours=1)
"""Certificates are valid from this time before they are made, because clocks differ."""


class SecurityFolder:
    """The folder at `path`; `make` fills it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.ca, self.broker = self.path / "ca.pem", self.path / "broker.pem"
        self._ca_key = self.path / "ca.key"

    def client_file(self, user: str) -> Path:
        return self.path / f"{user}.toml"

    def client(self, user: str) -> ClientSecurity:
        """Return the connection settings of the user's processes."""
        return load_client(str(self.client_file(user)))

    def token_file(self, service: str) -> Path:
        return self.path / f"{service}.token"

    def write_token(self, service: str, token: str) -> None:
        _write(self.token_file(service), token.encode() + b"\n", 0o600)

    def passwords(self) -> dict[str, str]:
        """Return user -> password, of every user with a password file here."""
        files = sorted(self.path.glob("*.password"))
        return {file.stem: read_secret(str(file), "the password") for file in files}

    def make(
        self, hosts: Sequence[str] = HOSTS, users: Iterable[str] = USERS, days: int = DAYS
    ) -> list[Path]:
        """Make the missing files; return them. `hosts` are names by which clients reach brokers."""
        made: list[Path] = []
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.ca.exists():
                self._make_authority()
                made += [self.ca, self._ca_key]
            if not self.broker.exists():
                self._issue(hosts, days)
                made.append(self.broker)
            for user in users:
                made += self._add_user(user)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written ({error.strerror}): name another folder"
            ) from None
        return made

    def renew(self, days: int = DAYS) -> None:
        """Give the brokers a new key and certificate, for the hosts of the old one."""
        from cryptography import x509

        try:
            old = x509.load_pem_x509_certificate(self.broker.read_bytes())
        except (OSError, ValueError):
            raise ConfigError(
                f"no certificate in {self.broker}: run `millrace security init {self.path}` first"
            ) from None
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        self._issue([str(name.value) for name in names], days)

    def _add_user(self, user: str) -> list[Path]:
        password, file = self.path / f"{user}.password", self.client_file(user)
        made = []
        if not password.exists():
            _write(password, secrets.token_urlsafe(32).encode() + b"\n", 0o600)
            made.append(password)
        if not file.exists():
            named = {"protocol": "SASL_SSL", "ca": self.ca.name, "user": user, "password_file": password.name}
            text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in named.items())
            _write(file, text.encode(), 0o644)
            made.append(file)
        return made

    def _make_authority(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key, name = ec.generate_private_key(ec.SECP256R1()), _name(f"Millrace {secrets.token_hex(4)}")
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        built = (
            _begun(name, key.public_key(), _AUTHORITY_DAYS)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        # The certificate last: if it exists, so does its key.
        _write(self._ca_key, _key_in_pem(key), 0o600)
        _write(self.ca, _signed_in_pem(built, key), 0o644)

    def _issue(self, hosts: Sequence[str], days: int) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        if not self._ca_key.exists():
            raise ConfigError(f"no {self._ca_key}: run this where the authority's key is kept")
        signer = load_pem_private_key(self._ca_key.read_bytes(), None)
        authority = x509.load_pem_x509_certificate(self.ca.read_bytes())
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{self._ca_key} is not a key that `millrace security init` has made")
        key = ec.generate_private_key(ec.SECP256R1())
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        built = (
            _begun(_name(hosts[0][:64]), key.public_key(), days)
            .issuer_name(authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .add_extension(identifier, critical=False)
        )
        _write(self.broker, _signed_in_pem(built, signer) + _key_in_pem(key), 0o600)


def _begun(subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _signed_in_pem(built: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _key_in_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a whole file under another name, then rename it. The file has its final mode from the start."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
