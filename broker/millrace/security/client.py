"""Credentials of Millrace's clients: the client file, the TLS context, the password, the token.

All connections of a process use the client file that MILLRACE_CLIENT names; without it they are plain. Every
file is read again when a connection is made, so certificates and passwords change without a restart.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import os
import ssl
from functools import lru_cache
from pathlib import Path

from millrace.config import ClientSecurity, TlsConfig, load
from millrace.errors import ConfigError
from millrace.security.certificates import client_context, files_of, read_secret

VARIABLE = "MILLRACE_CLIENT"
"""The environment variable that names a process's client file; processes that it starts inherit it."""
_FILES = (
    "ca",
    "certificate",
    "key",
    "key_password_file",
    "password_file",
    "token_file",
    "zookeeper_identity",
)


def of_process() -> ClientSecurity:
    """Return the connection settings of this process, from the file that MILLRACE_CLIENT names.

    Without it connections are plain.
    """
    path = os.environ.get(VARIABLE)
    return load_client(path) if path else ClientSecurity()


def load_client(path: str) -> ClientSecurity:
    """Read a client file; the files it names are relative to its folder.

    Raise ConfigError when it is wrong.
    """
    file = Path(path).absolute()
    security = load(ClientSecurity, file)
    named = {name: getattr(security, name) for name in _FILES}
    return dataclasses.replace(security, **{name: str(file.parent / at) for name, at in named.items() if at})


def tls_context(security: ClientSecurity) -> ssl.SSLContext | None:
    """Return the TLS context of new connections, from the current files; None if they use no TLS."""
    if not security.uses_tls:
        return None
    config = TlsConfig(
        certificate=security.certificate,
        key=security.key,
        key_password_file=security.key_password_file,
        ca=security.ca,
        min_version=security.min_version,
    )
    return _context(config, tuple(files_of(config)))


@lru_cache(maxsize=16)  # each takes milliseconds, with the machine's authorities 50 of them
def _context(config: TlsConfig, marks: tuple[object, ...]) -> ssl.SSLContext:
    return client_context(config)


def password(security: ClientSecurity) -> str:
    """Read the user's password from its file. Raise ConfigError when the file cannot be used."""
    return read_secret(security.password_file, "the password")


def token(security: ClientSecurity) -> tuple[str, float]:
    """Return the token in its file, and its expiry in seconds since 1970.

    Raise ConfigError when the file cannot be used.
    """
    text = read_secret(security.token_file, "the token").strip()
    try:
        claims = text.split(".")[1]
        ends = float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])
        if not math.isfinite(ends):
            raise ValueError
    except (LookupError, ValueError, TypeError, OverflowError, RecursionError):  # their texts show it
        raise ConfigError(f"{security.token_file} has no token (JWT) with an expiry: get a new one") from None
    return text, ends
