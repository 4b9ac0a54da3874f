"""The users of one cluster: the records of their passwords in ZooKeeper, and a snapshot of them in memory.

    /<cluster>/security/secret        persistent  32 random bytes in hex, drawn once
    /<cluster>/security/users/<name>  persistent  {MECHANISM: {"salt", "stored_key", "server_key": base64,
                                                   "iterations"}, ..., "changed_ms"}

Names are percent-encoded. While ZooKeeper does not answer, the last snapshot stays in force. An unreadable
entry leaves its user as before.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from millrace.errors import ConfigError, MillraceError
from millrace.zookeeper.session import Session
from millrace_broker.coordination.watching import Watcher
from millrace_broker.security.scram import ITERATIONS, MECHANISMS, Credential, Credentials, make_credential

logger = logging.getLogger("millrace.coordination.users")
MAX_NAME_CHARACTERS = 249
_CHANGED_MEANWHILE = (NodeExistsError, BadVersionError, NoNodeError)


def check_user_name(name: str) -> None:
    """Raise ConfigError unless a user may have this name."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"a user's name has 1 to {MAX_NAME_CHARACTERS} printable characters, not {name[:300]!r}"
        )


class Users:
    """The registry of users. `credentials` is for any thread.

    Docstrings state which methods wait for ZooKeeper.
    """

    def __init__(self, session: Session, cluster: str) -> None:
        """Wait for ZooKeeper.

        Raise MillraceError when the users cannot be read: without users no client could log in.
        """
        self._session, self._base = session, f"/{cluster}/security"
        self._path = f"{self._base}/users"
        self._users: Mapping[str, Credentials] = {}
        self._notified: Mapping[str, Credentials] = self._users
        self._on_change: Callable[[], None] = lambda: None
        self._reading = threading.Lock()
        self._watcher = Watcher(session, "users", "users", self._follow)
        session.call(session.client.ensure_path_async, self._path)
        with suppress(NodeExistsError):
            session.call(session.client.create_async, f"{self._base}/secret", secrets.token_hex(32).encode())
        self.secret = bytes.fromhex(
            session.call(session.client.get_async, f"{self._base}/secret")[0].decode()
        )
        self._read(strict=True)

    def credentials(self, name: str) -> Credentials | None:
        return self._users.get(name)

    @property
    def names(self) -> list[str]:
        return sorted(self._users)

    # For a broker, which follows every change

    def watch(self, changed: Callable[[], None]) -> None:
        """Follow every change in a thread of its own, and call `changed` there after each."""
        self._notified, self._on_change = self._users, changed
        self._watcher.start()

    def _follow(self) -> None:
        self._read()
        if (users := self._users) != self._notified:  # `put` in another thread may have read them first
            self._notified = users
            self._on_change()

    def _read(self, *, strict: bool = False) -> None:
        with self._reading:  # otherwise an older reading of another thread could bring back a deleted user
            self._users = self._all(strict=strict)

    def _all(self, *, strict: bool) -> Mapping[str, Credentials]:
        names = self._session.children(self._path, self._watcher.changed)
        if not names and self._session.get(self._path) is None:
            raise MillraceError(f"ZooKeeper at {self._session.zookeeper} has lost {self._path}: restore it")
        nodes = self._session.read_all((f"{self._path}/{name}" for name in names), self._watcher.changed)
        users: dict[str, Credentials] = {}
        for path, (data, _) in nodes.items():
            name = unquote(path.rpartition("/")[2])
            try:
                users[name] = _decoded(data)
            except (ValueError, KeyError, TypeError) as error:
                if strict:
                    raise MillraceError(
                        f"cannot read user {name} in ZooKeeper: {error}; delete or rewrite the node {path}"
                    ) from None
                logger.error("cannot read user %s in ZooKeeper, which stays as before: %s", name, error)
                users |= {name: self._users[name]} if name in self._users else {}
        return users

    # For administration of users; these methods wait for ZooKeeper

    def put(self, name: str, mechanism: str, credential: Credential | None) -> None:
        """Set a user's credential for one mechanism, or delete it; a user without credentials is deleted.

        Raise LookupError for the deletion of a credential or user that does not exist.
        """
        check_user_name(name)
        path = f"{self._path}/{quote(name, safe='')}"
        client, tried = self._session.client, False
        while True:
            node = self._session.get(path)
            kept = dict(_decoded(node[0])) if node is not None else {}
            if credential is not None:
                kept[mechanism] = credential
            elif kept.pop(mechanism, None) is None:
                if tried:
                    break  # deleted by this call, whose first answer was lost
                raise LookupError(f"user {name} has no {mechanism}")
            tried = True
            with suppress(*_CHANGED_MEANWHILE):
                if node is None:
                    self._session.call(client.create_async, path, _encoded(kept))
                elif kept:
                    self._session.call(client.set_async, path, _encoded(kept), version=node[1].version)
                else:
                    self._session.call(client.delete_async, path, version=node[1].version)
                break
        self._read()

    def set_password(
        self,
        name: str,
        password: str,
        mechanisms: Sequence[str] = tuple(MECHANISMS),
        iterations: int = ITERATIONS,
    ) -> None:
        """Set the password of a user, who may be new. Raise ConfigError when the password cannot be used."""
        for mechanism, credential in [(m, make_credential(m, password, iterations)) for m in mechanisms]:
            self.put(name, mechanism, credential)

    def delete(self, name: str) -> None:
        """Delete a user. Raise LookupError when the user does not exist."""
        path = f"{self._path}/{quote(name, safe='')}"
        if self._session.get(path) is None:
            raise LookupError(f"there is no user {name}")
        # After a lost connection a repeated delete may find that its first try has succeeded.
        with suppress(NoNodeError):
            self._session.call(self._session.client.delete_async, path)
        self._read()


def _encoded(credentials: Credentials) -> bytes:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    kept: dict[str, object] = {
        mechanism: {
            "salt": text(one.salt),
            "stored_key": text(one.stored_key),
            "server_key": text(one.server_key),
            "iterations": one.iterations,
        }
        for mechanism, one in credentials.items()
    }
    return json.dumps({**kept, "changed_ms": int(time.time() * 1000)}).encode()


def _decoded(data: bytes) -> Credentials:
    values = json.loads(data)
    return {name: _credential(values[name]) for name in MECHANISMS if name in values}


def _credential(values: Mapping[str, Any]) -> Credential:
    salt, stored_key, server_key = (
        base64.b64decode(values[key], validate=True) for key in ("salt", "stored_key", "server_key")
    )
    return Credential(salt, stored_key, server_key, int(values["iterations"]))
