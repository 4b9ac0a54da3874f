"""The quotas of one cluster's users: one node in ZooKeeper, and a snapshot of it in memory.

    /<cluster>/security/quotas  persistent  {"version": 1, "quotas": [[user or null, {KEY: NUMBER}], ...]}

null stands for everybody who has not the quota itself. While ZooKeeper is away, and while the node is gone or
cannot be read, the last snapshot holds.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from millrace.coordination.session import Session
from millrace.errors import MillraceError, PolicyViolation
from millrace.security.quotas import KEYS, Limits

log = logging.getLogger(__name__)
MAX_BYTES = 900_000
"""Of the node: ZooKeeper takes 1 MB. About 10,000 users."""
FORMAT = 1
RETRY_S = 1.0
"""How soon ZooKeeper is asked again after it did not answer."""
REREAD_S = 60.0
"""The quotas are read again after this time, whatever ZooKeeper has told."""
Quotas = Mapping[str | None, Limits]


class QuotaStore:
    """The registry; `limits` is for any thread, what waits for ZooKeeper says so."""

    def __init__(self, session: Session, cluster: str) -> None:
        """Waits for ZooKeeper; MillraceError when the quotas cannot be read."""
        self._session, self._path = session, f"/{cluster}/security/quotas"
        self.limits: Quotas = {}
        self._read_at = 0
        self._replacing = threading.Lock()
        self._wake = threading.Event()
        with suppress(NodeExistsError):
            session.call(session.client.create_async, self._path, _encoded({}), makepath=True)
        self._read()

    def change(self, change: Callable[[Quotas], Quotas]) -> None:
        """Write what `change` makes of the quotas; `change` may be called again. It holds here on return.

        Waits for ZooKeeper. PolicyViolation when they become too many.
        """
        while True:
            data, stat = self._node()
            encoded = _encoded(change(_decoded(data)))
            if len(encoded) > MAX_BYTES:
                raise PolicyViolation("these are quotas of too many users: set those of everybody instead")
            with suppress(BadVersionError, NoNodeError):
                self._session.call(self._session.client.set_async, self._path, encoded, version=stat.version)
                break
        self._read()

    def watch(self) -> None:
        """Follow every change in a thread of its own."""

        def follow() -> None:
            failed = False
            while True:
                self._wake.wait(RETRY_S if failed else REREAD_S)
                self._wake.clear()
                failed = not self._read_again(quiet=failed)

        self._session.on_reconnect(self._wake.set)
        self._wake.set()  # what has changed since they were read first is not watched
        threading.Thread(target=follow, name="quotas", daemon=True).start()

    def _read_again(self, *, quiet: bool) -> bool:
        """Whether it went well; else nothing is changed."""
        try:
            self._read()
        except MillraceError as error:
            if not quiet:
                log.error("the quotas stay as they were: %s", error)
            return False
        except Exception:
            log.exception("the quotas stay as they were")
            return False
        return True

    def _read(self) -> None:
        data, stat = self._node()
        with self._replacing:
            if stat.mzxid > self._read_at:  # another thread may have read more than this one
                self.limits, self._read_at = _decoded(data), stat.mzxid

    def _on_event(self, _: object) -> None:
        self._wake.set()

    def _node(self) -> tuple[bytes, Any]:
        node = self._session.read_all([self._path], self._on_event).get(self._path)
        if node is None:
            raise MillraceError(f"ZooKeeper at {self._session.zookeeper} has lost {self._path}: restore it")
        return node


def _encoded(quotas: Quotas) -> bytes:
    kept = [[user, dict(limits)] for user, limits in quotas.items() if limits]
    return json.dumps({"version": FORMAT, "quotas": kept}).encode()


def _decoded(data: bytes) -> Quotas:
    """The quotas; MillraceError when any cannot be read."""
    try:
        kept = json.loads(data)
        if kept["version"] != FORMAT:
            raise ValueError(f"version {kept['version']} is not {FORMAT}")
        return {
            user: {key: float(value) for key, value in limits.items() if key in KEYS}
            for user, limits in kept["quotas"]
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MillraceError(f"cannot read the quotas in ZooKeeper: {error}") from None
