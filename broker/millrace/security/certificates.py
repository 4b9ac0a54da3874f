"""A process's certificates: the contexts of its TLS connections, read again when files change.

If a context cannot be read, new connections get the old one, and the log gives the reason. It uses no
sockets.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from millrace.config import TlsConfig
from millrace.errors import ConfigError
from millrace.security.principals import Subject, parse_rules, principal

logger = logging.getLogger(__name__)
CHECK_S = 5.0
"""Interval at which the files are checked for changes."""
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {"none": ssl.CERT_NONE, "wanted": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def read_secret(path: str, what: str) -> str:
    """Return the first line of a file. Raise ConfigError unless `check_secret` accepts the file."""
    check_secret(path, what)
    try:
        return Path(path).read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {what} {path}: {error}") from None


def check_secret(path: str, what: str) -> None:
    """Raise ConfigError unless the file exists and only its owner may read it.

    The group may read it, too, if root owns it and this process runs as another user: Kubernetes mounts
    secrets in this way.
    """
    try:
        found = Path(path).stat()
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror}") from None
    others = 0o037 if found.st_uid == 0 != os.geteuid() else 0o077
    if stat.S_IMODE(found.st_mode) & others:
        raise ConfigError(f"{what} {path} can be read by others: chmod 600 {path}")


def server_context(config: TlsConfig, client_certificates: str) -> ssl.SSLContext:
    """Return the TLS context of a listener.

    Raise ConfigError, with the file's name, when a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    # Each connection makes its own handshake, exactly once: no renegotiation, no resumption.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    _load_certificate(context, config)
    context.verify_mode = _VERIFY[client_certificates]
    if context.verify_mode is not ssl.CERT_NONE:
        _load_authorities(context, config.ca)
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """Return the TLS context of a client: it checks the host's name, and the host's certificate by `ca`.

    Without `ca` the context trusts the machine's authorities.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[config.min_version]
    if config.ca:
        _load_authorities(context, config.ca)
    else:
        context.load_default_certs()
    if config.certificate:
        _load_certificate(context, config)
    return context


def _load_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    key = config.key or config.certificate
    check_secret(key, "the key")
    password = read_secret(config.key_password_file, "the key's password") if config.key_password_file else ""
    try:
        # With a function, OpenSSL never asks on the terminal.
        context.load_cert_chain(config.certificate, key, lambda: password)
    except OSError as error:  # an SSLError is one
        reason = getattr(error, "reason", None) or error.strerror or error
        raise ConfigError(f"cannot use certificate {config.certificate} with key {key}: {reason}") from None
    expires = _expires(config.certificate)
    if expires <= datetime.now(UTC):
        raise ConfigError(
            f"certificate {config.certificate} expired at {expires:%Y-%m-%d %H:%M} UTC: renew it"
        )


def _expires(certificate: str) -> datetime:
    """Return the expiry of the first certificate of a PEM file."""
    from asn1crypto import pem, x509  # only TLS needs it

    parts = pem.unarmor(Path(certificate).read_bytes(), multiple=True)  # the key may come before it
    encoded = next(data for kind, _, data in parts if kind.endswith("CERTIFICATE"))
    expires: datetime = x509.Certificate.load(encoded).not_valid_after
    return expires


def _load_authorities(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        raise ConfigError(f"cannot use ca {ca}: {reason}") from None


class ServerCertificates:
    """The TLS contexts of a broker's listeners; `context` is the newest that could be read.

    Callable from any thread.
    """

    def __init__(self, config: TlsConfig, client_certificates: Sequence[str]) -> None:
        """Read the files.

        Raise ConfigError when they cannot be used. `client_certificates` has the setting of every listener.
        """
        self._config, self._rules = config, parse_rules(config.principal_rules)
        self._contexts = {mode: server_context(config, mode) for mode in client_certificates}
        self.expires = _expires(config.certificate).timestamp()
        """Expiry of the certificate of new connections, in seconds since 1970."""
        self._seen = self.watched_files()
        self._stopped, self._reading = threading.Event(), threading.Lock()

    def context(self, client_certificates: str) -> ssl.SSLContext:
        return self._contexts[client_certificates]

    def principal(self, subject: Subject) -> str | None:
        """Return the principal of a client by its certificate; None when no rule matches it."""
        return principal(self._rules, subject)

    def watch(self) -> None:
        """Check the files for changes every CHECK_S seconds, in a thread of its own, until `stop`."""

        def check() -> None:
            while not self._stopped.wait(CHECK_S):
                if self.watched_files() != self._seen:
                    self.read_again()

        threading.Thread(target=check, name="certificates", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def read_again(self) -> None:
        """Read every file again; if one cannot be used, keep all as they were and log the reason."""
        with self._reading:
            self._seen = self.watched_files()  # before they are read: a later change is noticed the next time
            try:
                contexts = {mode: server_context(self._config, mode) for mode in self._contexts}
                self._contexts, self.expires = contexts, _expires(self._config.certificate).timestamp()
            except ConfigError as error:
                logger.error("the old certificates stay in use: %s", error)
            except Exception:
                logger.exception("the old certificates stay in use")
            else:
                logger.info("read the certificates again; new connections get them")

    def watched_files(self) -> Sequence[object]:
        return files_of(self._config)


def files_of(config: TlsConfig) -> Sequence[object]:
    """Return values that change when a file named in `config` does; unset names are skipped."""
    paths = (config.certificate, config.key, config.key_password_file, config.ca)
    return [_mark(path) for path in paths if path]


def _mark(path: str) -> object:
    """Return a value that changes when the file does; None when it cannot be found."""
    try:
        found = Path(path).stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
    except OSError:
        return None
