"""Access to a web service: a file of tokens with roles, and the check of a request's token.

A token is 32 random bytes as text; the file holds its SHA-256 only. A client sends it as a bearer token, or
as the password of its name: `http://NAME:TOKEN@HOST:PORT` therefore works wherever Millrace takes a URL. The
file is read again when it changes. It depends on no routes.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.config import from_mapping
from millrace.errors import ConfigError

logger = logging.getLogger(__name__)
NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ROLE = re.compile(r"[a-z]+(:[^\s\"\\]{1,255})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Unauthenticated(Exception):
    """A request has no valid token; the text is for its client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One client of a service."""

    token_sha256: str
    roles: Sequence[str]
    """Roles such as `read`, or limited to names: `register:NAME`, `register:PREFIX*`."""

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.token_sha256):
            raise ConfigError("token_sha256 is not 64 hex digits: make entries with `millrace access add`")
        for role in self.roles:
            if not _ROLE.fullmatch(role):
                raise ConfigError(f"role {role!r} is neither ROLE nor ROLE:NAME nor ROLE:PREFIX*")

    def allows(self, role: str, name: str) -> bool:
        return any(_gives(given, role, name) for given in self.roles)


def _gives(given: str, role: str, name: str) -> bool:
    kind, limited, pattern = given.partition(":")
    if kind != role:
        return False
    if not limited:
        return True
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


class AccessList:
    """The clients of one service, with their tokens and roles. Callable from any thread."""

    def __init__(self, path: str) -> None:
        """Read the file. Raise ConfigError when it cannot be used."""
        self._path = Path(path)
        self._seen = self._mark()
        self._entries = self._read()

    def name_of(self, authorization: str | None) -> str:
        """Return the name of the client whose token is in this header.

        Raise Unauthenticated without a valid token.
        """
        self._read_again()
        if not authorization:
            raise Unauthenticated(
                "this service requires a token: send `Authorization: Bearer TOKEN`, or NAME:TOKEN"
            )
        kind, _, shown = authorization.partition(" ")
        claimed, token = None, shown.strip()
        if kind.lower() == "basic":
            try:
                claimed, _, token = base64.b64decode(token, validate=True).decode().partition(":")
            except ValueError:  # of base64 or of UTF-8
                token = ""
        elif kind.lower() != "bearer":
            token = ""
        # Looked up by its hash, so the time taken reveals nothing about a token.
        name, _ = self._entries.get(hashlib.sha256(token.encode()).hexdigest(), (None, None))
        if name is None or claimed not in (None, name):
            raise Unauthenticated("the token is unknown: ask an operator for a token")
        return name

    def allows(self, name: str, role: str, what: str = "") -> bool:
        """Return True if a client has a role; a limited role must allow the name `what`."""
        return any(name == known and entry.allows(role, what) for known, entry in self._entries.values())

    def _read(self) -> Mapping[str, tuple[str, Entry]]:
        try:
            tables = tomllib.loads(self._path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read {self._path}: {error}") from None
        entries = {}
        for name, table in tables.items():
            if not NAME.fullmatch(name) or not isinstance(table, dict):
                raise ConfigError(f"{self._path}: {name!r} is no [NAME] of letters, digits, _ and -")
            entry = from_mapping(Entry, table, f"{self._path}: {name}")
            entries[entry.token_sha256] = name, entry
        return entries

    def _read_again(self) -> None:
        """Read the file again if it has changed; if it cannot be used, keep the old entries."""
        mark = self._mark()
        if mark == self._seen:
            return
        self._seen = mark
        try:
            self._entries = self._read()
        except ConfigError as error:
            logger.error("the old access list stays in use: %s", error)
        else:
            logger.info("read %s again", self._path)

    def _mark(self) -> object:
        try:
            found = self._path.stat()
            return found.st_mtime_ns, found.st_size, found.st_ino
        except OSError:
            return None


def add_entry(path: Path, name: str, roles: Sequence[str]) -> str:
    """Append a client to the file, which is created if missing. Return the client's token, which is not
    stored.

    Raise ConfigError when the name is taken or malformed.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"name {name!r} is not 1 to 100 letters, digits, _ and -")
    if path.exists() and name in {known for known, _ in AccessList(str(path))._entries.values()}:
        raise ConfigError(f"{path} already has an entry for {name}: delete the lines of this entry first")
    token = secrets.token_urlsafe(32)
    entry = Entry(token_sha256=hashlib.sha256(token.encode()).hexdigest(), roles=roles)
    listed = ", ".join(f'"{role}"' for role in entry.roles)
    begun = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write("\n" if begun else "")
        file.write(f'[{name}]\ntoken_sha256 = "{entry.token_sha256}"\nroles = [{listed}]\n')
    return token
