"""Nodes in ZooKeeper that a broker watches in a thread of its own: one node with a list of entries, or
several nodes.

While ZooKeeper does not answer, and while the nodes cannot be read, the last reading stays in force. The
content of entries is handled elsewhere.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from millrace.errors import MillraceError, PolicyViolation
from millrace.zookeeper.session import Session

logger = logging.getLogger("millrace.coordination.watching")
RETRY_S = 1.0
"""Seconds before the next request to ZooKeeper after a request without an answer."""
REREAD_S = 60.0
"""Seconds after which everything is read again, even if ZooKeeper has not notified a change."""
MAX_BYTES = 900_000
"""Largest size of a list's node, about 8,000 rules or quotas of 10,000 users: ZooKeeper takes 1 MB."""
FORMAT = 1
T = TypeVar("T")


class Watcher:
    """Calls `read` again whenever ZooKeeper notifies a change, from `start` on."""

    def __init__(self, session: Session, thread: str, what: str, read: Callable[[], None]) -> None:
        """Prepare the thread. `read` raises an error when it changes nothing.

        `what` names its subject in the log.
        """
        self._session, self._thread, self._what, self._read = session, thread, what, read
        self._wake = threading.Event()

    def changed(self, _: object) -> None:
        self._wake.set()

    def start(self) -> None:
        def follow() -> None:
            failed = False
            while True:
                self._wake.wait(RETRY_S if failed else REREAD_S)
                self._wake.clear()
                failed = not self._read_again(quiet=failed)

        self._session.on_reconnect(self._wake.set)
        self._wake.set()  # a change since the first reading had no watch
        threading.Thread(target=follow, name=self._thread, daemon=True).start()

    def _read_again(self, *, quiet: bool) -> bool:
        """Read once more. Return True if that succeeded."""
        try:
            self._read()
        except MillraceError as error:
            if not quiet:
                logger.error("the %s stay as they were: %s", self._what, error)
            return False
        except Exception:
            logger.exception("the %s stay as they were", self._what)
            return False
        return True


class WatchedList(Generic[T]):
    """One node with a list, and its newest readable value; `value` and `version` are for any thread.

    /<cluster>/security/<name>  persistent  {"version": 1, <key>: [entry, ...]}
    """

    def __init__(self, session: Session, path: str, what: str, key: str, parse: Callable[[Any], T]) -> None:
        """Wait for ZooKeeper, and create the node with an empty list if it is missing. Raise MillraceError
        when it is unreadable.

        `parse` makes the value from all entries; it raises an error for an unreadable entry.
        """
        self._session, self._path, self._what, self._key, self._parse = session, path, what, key, parse
        self.value, self.version = parse([]), 0
        """The value, and a number that grows with each change of it."""
        self._data = b""
        self._reading = threading.Lock()
        self._watcher = Watcher(session, path.rpartition("/")[2], what, self._read)
        with suppress(NodeExistsError):
            session.call(session.client.create_async, path, self._encoded([]), makepath=True)
        self._read()

    def watch(self) -> None:
        """Follow every change in a thread that has the node's name."""
        self._watcher.start()

    def write(self, change: Callable[[T], list[Any] | None], remedy: str) -> None:
        """Write the entries that `change` returns, or nothing for None; `change` may be called again.

        Waits for ZooKeeper; on return `value` is the new value. Raise PolicyViolation, with the remedy, when
        there are too many entries.
        """
        while True:
            data, stat = self._node()
            entries = change(self._decoded(data))
            if entries is None:
                break
            encoded = self._encoded(entries)
            if len(encoded) > MAX_BYTES:
                raise PolicyViolation(f"{len(entries)} {self._key} are too many: {remedy}")
            with suppress(BadVersionError, NoNodeError):
                self._session.call(self._session.client.set_async, self._path, encoded, version=stat.version)
                break
        self._read()

    def _read(self) -> None:
        with self._reading:  # otherwise an older reading of another thread could replace this one
            # A new session may be with a server that lags behind. The node's own numbers do not tell: a
            # ZooKeeper that was put back from an older copy begins again at smaller numbers.
            self._session.call(self._session.client.sync_async, self._path)
            data, _ = self._node()
            if data != self._data:
                self.value, self._data = self._decoded(data), data
                self.version += 1  # last: a client that sees it also sees the value

    def _node(self) -> tuple[bytes, Any]:
        node = self._session.read_all([self._path], self._watcher.changed).get(self._path)
        if node is None:
            raise MillraceError(f"ZooKeeper at {self._session.zookeeper} has lost {self._path}: restore it")
        return node

    def _encoded(self, entries: list[Any]) -> bytes:
        return json.dumps({"version": FORMAT, self._key: entries}).encode()

    def _decoded(self, data: bytes) -> T:
        try:
            kept = json.loads(data)
            if kept["version"] != FORMAT:
                raise ValueError(f"version {kept['version']} is not {FORMAT}")
            return self._parse(kept[self._key])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MillraceError(f"cannot read the {self._what} in ZooKeeper: {error}") from None
