"""The brokers of a cluster: the registration of a broker in ZooKeeper, and the list of live brokers.

This module decides the content of a broker's node. cluster.py reads and watches all nodes.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import NodeExistsError

from millrace.records.topic_partition import TopicPartition
from millrace.zookeeper.session import Session
from millrace.zookeeper.topic_state import MAX_ENTRY_BYTES, REPLICATING, BrokerAddress

PROTOCOL = REPLICATING
"""Version of the protocol between brokers of this release."""
Record = Mapping[str, Any]
"""Content of a broker's node, as JSON: drawn in cluster.py."""


def address_in(record: Record) -> BrokerAddress:
    """Return a broker's addresses, rack, directory and protocol, from its record."""
    listeners = {name: (host, port) for name, (host, port) in record.get("listeners", {}).items()}
    place = (record.get("rack", ""), record.get("directory", ""), record.get("protocol", 1))
    return BrokerAddress(record["host"], record["port"], listeners, *place)


def stored_partitions(partitions: Iterable[TopicPartition]) -> dict[str, object]:
    """Return the partitions that a broker stores, for its record: their number, and ranges by topic.

    `{"partitions": 5, "topics": {"PageView": "0-3", "audit": "2"}}`; `topics` is None when that would not fit
    into a ZooKeeper node.
    """
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    topics = {topic: _ranges(sorted(stored)) for topic, stored in sorted(numbers.items())}
    fits = len(json.dumps(topics)) <= MAX_ENTRY_BYTES
    return {"partitions": sum(map(len, numbers.values())), "topics": topics if fits else None}


def _ranges(numbers: Sequence[int]) -> str:
    """Return rising numbers as text: 0-3,7."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def register(session: Session, path: str, record: Record) -> Record | None:
    """Write `record` into this broker's ephemeral node. Return None, or the record of another broker that has
    the id.

    The node of a broker that certainly no longer runs is replaced, even if its session has not expired yet.
    """
    data = json.dumps(record).encode()
    while True:
        try:
            session.call(session.client.create_async, path, data, ephemeral=True)
            return None
        except NodeExistsError:
            pass
        if (node := session.get(path)) is None:
            continue
        present, stat = node
        holder: Record = json.loads(present)
        if holder["boot"] == record["boot"] and stat.ephemeralOwner == session.id:
            if present != data:
                session.call(session.client.set_async, path, data)
            return None
        if not is_dead(holder, record):
            return holder
        results = session.call(_replace, session, path, stat.version, data)
        if not any(isinstance(result, Exception) for result in results):
            return None  # else it has expired, or been replaced, in the meantime


def _replace(session: Session, path: str, version: int, data: bytes) -> Any:
    change = session.client.transaction()
    change.delete(path, version)
    change.create(path, data, ephemeral=True)
    return change.commit_async()


def is_dead(holder: Record, ours: Record) -> bool:
    if holder["boot"] == ours["boot"]:
        return True  # this broker's own node, of a session that was lost
    if holder["machine"] != ours["machine"]:
        return False
    # This broker listens on its own address, so no other process does; and a live broker never refuses
    # connections.
    bound = _bound(holder)
    return bound == _bound(ours) or listens(*bound) is False


def has_ended(holder: Record) -> bool:
    """Return True if the broker ran on this machine and its port refuses connections."""
    return holder["machine"] == socket.gethostname() and listens(*_bound(holder)) is False


def _bound(record: Record) -> tuple[str, int]:
    """Return a broker's address on its machine; its advertised address may lead to a proxy before it."""
    host, port = record.get("bound", (record["host"], record["port"]))
    return host, port


def listens(host: str, port: int) -> bool | None:
    """Return True if a server accepts connections at the address, False if it refuses them, None when
    unknown.
    """
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True


class Registration(NamedTuple):
    """A broker's record, and the ZooKeeper session of its node."""

    record: Record
    session: int


class Presence:
    """The brokers that one member of the cluster counts as alive, also while ZooKeeper comes back.

    A ZooKeeper that was down for longer than a session has forgotten every broker, and each broker registers
    again a moment later. A client that asks in between must not see brokers missing: some clients then forget
    them, even the coordinator of their group. Therefore a broker that lost its own session continues to list
    the brokers that it knew, until each is registered again, but no longer than a session lasts.
    """

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s, self._clock = grace_s, clock
        self._session = 0
        self._listed: Mapping[int, Registration] = {}
        self._awaited: Mapping[int, Registration] = {}
        self._until = 0.0

    def alive(self, session: int, registered: Mapping[int, Registration]) -> dict[int, BrokerAddress]:
        """Return the brokers that were registered in this broker's present session, and the awaited brokers,
        by id.
        """
        if session != self._session:
            self._session, self._until = session, self._clock() + self._grace_s
            self._awaited = self._listed
        waiting = self._clock() < self._until
        self._awaited = {
            broker: before
            for broker, before in self._awaited.items()
            # An unchanged registration may be about to end: only a new registration shows that its broker is
            # back.
            if waiting and registered.get(broker, before).session == before.session
        }
        self._listed = {**self._awaited, **registered}
        return {
            broker: address_in(registration.record) for broker, registration in sorted(self._listed.items())
        }

    def wait_s(self) -> float | None:
        """Return the seconds for which brokers are still awaited; None when no broker is awaited."""
        return max(0.0, self._until - self._clock()) if self._awaited else None
