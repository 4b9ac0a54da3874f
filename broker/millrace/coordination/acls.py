"""The access control lists of one cluster: one node in ZooKeeper, and a snapshot of it in memory.

    /<cluster>/security/acls  persistent  {"version": 1, "rules": [[type, pattern, name, principal, host,
                                           operation, allow], ...]}

Types, patterns and operations are Kafka's numbers. While ZooKeeper is away, and while the node is gone or
cannot be read, the last snapshot holds. A broker with an authorizer does not start without one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from millrace.coordination.session import Session
from millrace.errors import MillraceError, PolicyViolation
from millrace.security.acls import Acls, Pattern, Rule
from millrace.security.rights import Operation, Resource, ResourceType

log = logging.getLogger(__name__)
MAX_BYTES = 900_000
"""Of the node: ZooKeeper takes 1 MB. About 8,000 rules."""
FORMAT = 1
RETRY_S = 1.0
"""How soon ZooKeeper is asked again after it did not answer."""
REREAD_S = 60.0
"""The rules are read again after this time, whatever ZooKeeper has told."""
_NONE = json.dumps({"version": FORMAT, "rules": []}).encode()


class AclStore:
    """The registry, and the authorizer of a broker's clients: `allows` and `version` are for any thread."""

    def __init__(self, session: Session, cluster: str) -> None:
        """Waits for ZooKeeper; MillraceError when it cannot be read: nobody would know who may do what."""
        self._session, self._path = session, f"/{cluster}/security/acls"
        self.acls, self.version = Acls(), 0
        """The rules, and a number that changes with them."""
        self._replacing = threading.Lock()
        self._wake = threading.Event()
        with suppress(NodeExistsError):
            session.call(session.client.create_async, self._path, _NONE, makepath=True)
        self._read()

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return self.acls.allows(principal, host, operation, resource)

    def change(self, change: Callable[[Collection[Rule]], Iterable[Rule]]) -> None:
        """Write what `change` makes of the rules; `change` may be called again. It holds here on return.

        PolicyViolation when they become too many.
        """
        while True:
            data, stat = self._node()
            rules = _decoded(data)
            encoded = _encoded(changed := sorted(set(change(rules))))
            if changed == sorted(rules):
                break
            if len(encoded) > MAX_BYTES:
                raise PolicyViolation(
                    f"{len(changed)} rules are too many: use prefixes and User:*, or delete some"
                )
            with suppress(BadVersionError, NoNodeError):
                self._session.call(self._session.client.set_async, self._path, encoded, version=stat.version)
                break
        self._read()

    # For a broker, which follows every change.

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
        threading.Thread(target=follow, name="acls", daemon=True).start()

    def _read_again(self, *, quiet: bool) -> bool:
        """Whether it went well; else nothing is changed."""
        try:
            self._read()
        except MillraceError as error:
            if not quiet:
                log.error("the access control lists stay as they were: %s", error)
            return False
        except Exception:
            log.exception("the access control lists stay as they were")
            return False
        return True

    def _read(self) -> None:
        data, stat = self._node()
        with self._replacing:
            if stat.mzxid > self.version:  # another thread may have read more than this one
                self.acls, self.version = Acls(_decoded(data)), stat.mzxid

    def _on_event(self, _: object) -> None:
        self._wake.set()

    def _node(self) -> tuple[bytes, Any]:
        node = self._session.read_all([self._path], self._on_event).get(self._path)
        if node is None:
            raise MillraceError(f"ZooKeeper at {self._session.zookeeper} has lost {self._path}: restore it")
        return node


def _encoded(rules: Iterable[Rule]) -> bytes:
    return json.dumps({"version": FORMAT, "rules": [list(rule) for rule in rules]}).encode()


def _decoded(data: bytes) -> list[Rule]:
    """The rules; MillraceError when any cannot be read: without one that denies, others allow too much."""
    try:
        kept = json.loads(data)
        if kept["version"] != FORMAT:
            raise ValueError(f"version {kept['version']} is not {FORMAT}")
        return [_rule(values) for values in kept["rules"]]
    except (ValueError, KeyError, TypeError) as error:
        raise MillraceError(f"cannot read the access control lists in ZooKeeper: {error}") from None


def _rule(values: Any) -> Rule:
    type_, pattern, name, principal, host, operation, allow = values
    if not all(isinstance(text, str) for text in (name, principal, host)) or not isinstance(allow, bool):
        raise TypeError(f"a rule of {name!r} has values of a wrong type")
    return Rule(ResourceType(type_), Pattern(pattern), name, principal, host, Operation(operation), allow)
