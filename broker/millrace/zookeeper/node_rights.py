"""ZooKeeper's own rights: the identity of a process there, and the access of identities to nodes.

Two identities share a cluster's nodes, by user and password (ZooKeeper's scheme `digest`). Brokers may do
everything. Clients, which are consumers with streams, audit readers and the auditor, may change groups and
turns, and read everything else but the nodes of users and rights. All other access is refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential

from millrace.config import ZooKeeperIdentity, load
from millrace.security.certificates import check_secret
from millrace.zookeeper.tree_watch import AddWatch, TreeWatchingConnection

BROKERS, CLIENTS = "brokers", "clients"
_SECRET_BYTES = 32
_CHANGE = Permissions.READ | Permissions.WRITE | Permissions.CREATE | Permissions.DELETE


def load_identity(path: str) -> ZooKeeperIdentity:
    """Return the identity in a file that only its owner may read.

    Raise ConfigError, with the reason, when the file cannot be used.
    """
    check_secret(path, "the identity for ZooKeeper")
    return load(ZooKeeperIdentity, Path(path))


def draw_identities() -> dict[str, ZooKeeperIdentity]:
    """Return new identities of one ensemble by name, each with its own password and the digests of both."""
    passwords = {name: secrets.token_hex(_SECRET_BYTES) for name in (BROKERS, CLIENTS)}
    digests = {name: make_digest_acl_credential(name, password) for name, password in passwords.items()}
    return {
        name: ZooKeeperIdentity(
            user=name, password=password, brokers=digests[BROKERS], clients=digests[CLIENTS]
        )
        for name, password in passwords.items()
    }


def node_acl(identity: ZooKeeperIdentity, path: str) -> list[ACL]:
    """Return the access list of a node: path := /<cluster>/..., or /audit/..."""
    brokers = ACL(Permissions.ALL, Id("digest", identity.brokers))
    parts = path.strip("/").split("/")
    kind = parts[1] if len(parts) > 1 else ""
    if kind == "security":
        return [brokers]
    shared = kind == "consumers" or parts[0] == "audit"
    return [brokers, ACL(_CHANGE if shared else Permissions.READ, Id("digest", identity.clients))]


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """Kazoo's client; with an identity, it creates every node with the rights for its path."""

    def __init__(
        self, hosts: str, timeout: float, identity: ZooKeeperIdentity | None, **options: Any
    ) -> None:
        self.identity = identity
        self._seen, self._session_s, self._lost_at = 0, timeout, 0.0
        credentials = [] if identity is None else [("digest", f"{identity.user}:{identity.password}")]
        super().__init__(hosts, timeout, auth_data=credentials, **options)
        self._connection = TreeWatchingConnection(self, self._conn_retry.copy(), logger=self.logger)
        self.add_listener(self._note)

    def _note(self, state: str) -> None:
        self._lost_at = 0.0 if state == KazooState.CONNECTED else self._lost_at or time.monotonic()

    @property
    def last_zxid(self) -> int:
        """Newest transaction that this session has seen; 0 once a lost session has expired.

        A server refuses a client that has seen newer transactions than it holds. A server that was restored
        from an older copy would therefore refuse this client.
        """
        is_over = self._lost_at and time.monotonic() - self._lost_at > self._session_s
        return 0 if is_over else self._seen

    @last_zxid.setter
    def last_zxid(self, seen: int) -> None:
        self._seen = seen

    def acl(self, path: str) -> Sequence[ACL] | None:
        return None if self.identity is None else node_acl(self.identity, path)

    def create_async(self, path: str, value: bytes = b"", acl: Any = None, **options: Any) -> Any:
        return super().create_async(path, value, acl or self.acl(path), **options)

    def watch_tree_async(self, path: str, watcher: Callable[[Any], None]) -> Any:
        """Call `watcher` with each event of a node below `path`, until the connection is lost."""
        self._connection.trees[path] = watcher
        done = self.handler.async_result()
        self._call(AddWatch(path), done)
        return done

    def transaction(self) -> TransactionRequest:
        return _Transaction(self)


class _Transaction(TransactionRequest):  # type: ignore[misc]
    def create(self, path: str, value: bytes = b"", acl: Any = None, **options: Any) -> None:
        super().create(path, value, acl or self.client.acl(path), **options)
