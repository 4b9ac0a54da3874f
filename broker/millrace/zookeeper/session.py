"""One ZooKeeper session: it reconnects for ever, and every call has a time limit.

Owns the client, and repeats calls over lost connections. Other modules, such as cluster.py and groups.py,
decide what is read and written. Ephemeral nodes live as long as the session.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import ACL

from millrace.config import parse_addresses
from millrace.errors import MillraceError, RequestTimedOut
from millrace.security.client import of_process
from millrace.zookeeper.node_rights import Client, load_identity

CONNECT_SECONDS = 10.0
OPERATION_SECONDS = 15.0
"""Time limit of a read or write, reconnecting included."""


class Session:
    """One ZooKeeper session. A lost session is replaced by a new session with a new `id`."""

    def __init__(self, client: KazooClient, zookeeper: str, timeout_ms: int) -> None:
        self.client, self.zookeeper, self.timeout_ms = client, zookeeper, timeout_ms
        self._closed = threading.Event()
        self._lost_at: float | None = None
        client.add_listener(self._on_state)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._lost_at = None
        elif self._lost_at is None:
            self._lost_at = time.monotonic()

    @classmethod
    def connect(cls, zookeeper: str, *, timeout_ms: int = 6000, identity: str = "") -> Session:
        """Return a session with the ensemble at `zookeeper`. Raise MillraceError within 10 s when no server
        answers.

        `identity` is the file of the process's identity there; without it the client file may name one.
        """
        parse_addresses(zookeeper, "zookeeper")
        quiet = logging.getLogger("millrace.zookeeper_session.kazoo")
        quiet.setLevel(logging.ERROR)  # kazoo logs every try to reconnect; Millrace's one line is enough
        # A back-off longer than the session would lose the session after every short outage.
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=1.5, max_delay=0.5)
        path = identity or of_process().zookeeper_identity
        known = load_identity(path) if path else None
        client = Client(zookeeper, timeout_ms / 1000, known, logger=quiet, connection_retry=retry)
        try:
            client.start(timeout=CONNECT_SECONDS)
        except (KazooTimeoutError, OSError):
            client.close()
            raise MillraceError(
                f"no ZooKeeper answers at {zookeeper}: start one (millrace zookeeper) or give its address"
            ) from None
        return cls(client, zookeeper, timeout_ms)

    @property
    def id(self) -> int:
        """The session's number: the `ephemeralOwner` of every ephemeral node it has created."""
        return int((self.client.client_id or (0,))[0])

    def call(self, operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the result of kazoo's asynchronous operation, repeated over lost connections for
        OPERATION_SECONDS.

        A repeated write may find the result of its own first try. Raise RequestTimedOut when no answer comes
        in time. Raise MillraceError when this process lacks the right.
        """
        # The time counts from the loss, not from the call: calls must not queue up while ZooKeeper is down.
        deadline = (self._lost_at or time.monotonic()) + OPERATION_SECONDS
        while True:
            # Without a connection kazoo would keep the request, and send it long after this call has failed.
            if self.client.connected:
                try:
                    return operation(*arguments, **options).get(timeout=max(0.1, deadline - time.monotonic()))
                except (ConnectionLoss, SessionExpiredError, OperationTimeoutError, ConnectionClosedError):
                    pass
                except KazooTimeoutError:
                    break
                except NoAuthError:
                    raise MillraceError(
                        f"ZooKeeper at {self.zookeeper} refuses access to this process: name the right file"
                        " as `zookeeper_identity`, or see `millrace zookeeper secure`"
                    ) from None
            if time.monotonic() >= deadline or self._closed.wait(0.1):
                break
        raise RequestTimedOut(f"ZooKeeper at {self.zookeeper} does not answer")

    def read_all(
        self, paths: Iterable[str], watch: Callable[[Any], None] | None = None
    ) -> dict[str, tuple[bytes, Any]]:
        """Return data and stat of each existing node, with all requests at once."""
        return self._call_all(partial(self.client.get_async, watch=watch), paths)

    def stats(self, paths: Iterable[str]) -> dict[str, Any]:
        """Return the stat of each existing node; a lagging server catches up first."""

        def ask(path: str) -> Any:
            return self.client.sync_async(path) if path == "/" else self.client.exists_async(path)

        answers = self._call_all(ask, ["/", *paths])
        return {path: stat for path, stat in answers.items() if path != "/" and stat is not None}

    def _call_all(self, operation: Callable[[str], Any], paths: Iterable[str]) -> dict[str, Any]:
        names = list(paths)
        started = {path: operation(path) for path in names if self.client.connected}

        def ask(path: str) -> Any:
            # The first try has been sent already. After a lost connection it is repeated, and so are all
            # later tries.
            if (first := started.pop(path, None)) is None:
                started.clear()
            return first or operation(path)

        answers = {}
        for path in names:
            with contextlib.suppress(NoNodeError):
                answers[path] = self.call(ask, path)
        return answers

    def watch_tree(self, path: str, watch: Callable[[Any], None]) -> None:
        """Call `watch` with each event of a node below `path`, until the connection is lost.

        Raise MillraceError when the server is too old for that.
        """
        try:
            self.call(self.client.watch_tree_async, path, watch)
        except UnimplementedError:
            raise MillraceError(f"ZooKeeper at {self.zookeeper} is older than 3.6: upgrade it") from None

    def get(self, path: str) -> tuple[bytes, Any] | None:
        """Return data and stat of a node; None when it does not exist."""
        return self.read_all([path]).get(path)

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        """Return the names of a node's children, sorted; none, and no watch, when the node does not exist."""
        try:
            return sorted(self.call(self.client.get_children_async, path, watch))
        except NoNodeError:
            return []

    def children_of(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Return the sorted names of the children of each existing node, with all requests at once."""
        found = self._call_all(self.client.get_children_async, paths)
        return {path: sorted(names) for path, names in found.items()}

    def touch_all(self, paths: Iterable[str]) -> None:
        """Write empty data to each existing node, so that ZooKeeper updates the node's time."""
        self._call_all(partial(self.client.set_async, value=b""), paths)

    def tree(self, path: str) -> Iterator[str]:
        """Yield the paths of an existing node and of all nodes below it."""
        yield path
        for name in self.children(path):
            yield from self.tree(f"{path}/{name}")

    def set_acl(self, path: str, acl: Sequence[ACL]) -> bool:
        """Give a node these rights. Return True when it had different rights, False also when it no longer
        exists.
        """
        with contextlib.suppress(NoNodeError):
            present, _ = self.call(self.client.get_acls_async, path)
            if sorted(present) != sorted(acl):
                self.call(self.client.set_acls_async, path, list(acl))
                return True
        return False

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` in kazoo's thread after each reconnection, also when it begins a new session."""
        self.client.add_listener(lambda state: callback() if state == KazooState.CONNECTED else None)

    def close(self) -> None:
        """End the session and its ephemeral nodes; calls under way fail. A second call is harmless."""
        self._closed.set()
        self.client.stop()
        self.client.close()
