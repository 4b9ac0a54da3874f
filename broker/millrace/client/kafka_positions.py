"""Positions of the mirror of one origin in an Apache Kafka, read from the mirror's own topic there.

    topic     __millrace-mirror-<origin>, one partition, compacted: nothing in it expires
    record := key = <topic id of the copy, 32 hex digits>-<its partition>,
              value = an encoded MirrorPosition; its records_end is the offset after the last record copied
            | key = begin, value = random bytes: the current mirror process begins here

A position is written in the transaction of the records that it accounts for. A group's offsets would expire
when a mirror is away for a week. Only one transactional id writes to the topic, so no other open transaction
holds back its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.transactions import batches_from
from millrace.errors import MillraceError
from millrace.records import Record, iter_records
from millrace.records.mirror_position import MirrorPosition, stated_end

FETCH_BYTES = 4 << 20
FETCH_WAIT_MS = 200
STALL_SECONDS = 30.0
"""Longest time without progress for a read that has not reached the end that the cluster reported."""
AGAIN_SECONDS = 0.1
SETTINGS = {"cleanup.policy": "compact"}
BEGIN_KEY = b"begin"
"""Key of the record that a process writes when it begins. A reader that has read this record has read all
records before it."""


class Copy(NamedTuple):
    """A partition of the aggregate cluster, for as long as its topic lives."""

    topic_id: UUID
    partition: int

    def key(self) -> bytes:
        return f"{self.topic_id.hex}-{self.partition}".encode()

    @classmethod
    def of_key(cls, key: bytes) -> Copy:
        topic_id, _, partition = key.decode().partition("-")
        return cls(UUID(topic_id), int(partition))


class Recorded(NamedTuple):
    """A position, and the offset after the last record that it accounts for in the copy."""

    position: MirrorPosition
    records_end: int


def positions_topic(origin: str) -> str:
    return f"__millrace-mirror-{origin}"


class TopicLog:
    """A reader of a topic with one partition: each record once, in order. For one thread."""

    def __init__(self, client: ClusterClient, topic: str) -> None:
        self._client, self._topic = client, topic
        self._offset = -1

    def read(self) -> Iterator[Record]:
        """Read on to the end of the committed records. Raise MillraceError when they cannot be read."""
        if self._offset < 0:
            self._offset = self._client.list_offsets(self._topic, EARLIEST, [0])[0]
        end = self._client.list_offsets(self._topic, LATEST, [0])[0]
        give_up_at = time.monotonic() + STALL_SECONDS
        while self._offset < end:
            before = self._offset
            yield from self._fetch()
            if self._offset > before:
                give_up_at = time.monotonic() + STALL_SECONDS
            elif time.monotonic() >= give_up_at:
                raise MillraceError(
                    f"{self._topic} returns nothing at offset {before}, below its end {end}:"
                    " see its broker's log"
                )

    def _fetch(self) -> Iterator[Record]:
        fetched = self._client.fetch(
            self._topic, {0: self._offset}, max_bytes=FETCH_BYTES, max_wait_ms=FETCH_WAIT_MS
        )[0]
        for header, batch, readable in batches_from(fetched, self._offset, self._topic):
            if readable:
                yield from iter_records(header, batch)
            self._offset = header.next_offset


class PositionLog:
    """The newest position of every partition copied from one origin. For one thread."""

    def __init__(self, client: ClusterClient, origin: str) -> None:
        self._topic = positions_topic(origin)
        self._log = TopicLog(client, self._topic)
        self._newest: dict[Copy, Recorded] = {}
        self.begun: bytes | None = None
        """Value of the newest `begin` record: written by the last process that began to copy."""

    def read(self) -> dict[Copy, Recorded]:
        """Read on to the end of the committed records; return all positions. Raise as `TopicLog.read`."""
        for record in self._log.read():
            if record.key == BEGIN_KEY:
                self.begun = record.value
            else:
                self._newest |= recorded_positions(record.key, record.value, self._topic)
        return self._newest

    def read_through(self, begun: bytes) -> dict[Copy, Recorded]:
        """Read until the `begin` record with value `begun`. Raise MillraceError when it does not appear in
        time.

        The end that the cluster reports may be too early: before a hanging transaction, or from a broker that
        does not know yet that it was replaced. Records copied after that end would be copied again.
        """
        give_up_at = time.monotonic() + STALL_SECONDS
        while True:
            recorded = self.read()
            if self.begun == begun:
                return recorded
            if time.monotonic() >= give_up_at:
                raise MillraceError(
                    f"{self._topic} does not return a record that was just committed: an open transaction"
                    " hides it (see kafka-transactions.sh --find-hanging), or the topic's leader is stale"
                )
            time.sleep(AGAIN_SECONDS)


def recorded_positions(key: bytes | None, value: bytes | None, topic: str) -> dict[Copy, Recorded]:
    """Return the position in a record; empty if it holds none.

    Raise MillraceError if it holds a malformed one.
    """
    try:
        position, end = MirrorPosition.decode(value or b""), stated_end(value or b"")
        if position is None or end is None or key is None:
            return {}
        return {Copy.of_key(key): Recorded(position, end)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise MillraceError(
            f"{topic} has a record that is no position: allow only the mirror to write"
        ) from None
