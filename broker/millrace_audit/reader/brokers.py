"""Requests to each of the cluster's brokers: a broker that fails affects only its own partitions.

An error of one partition affects no other partition. Nothing is retried here: the caller decides when to ask
again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millrace.client.cluster_client import ClusterClient
from millrace.client.connection import Connection
from millrace.client.errors import in_words
from millrace.client.fetcher import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BrokerFetcher,
    FetchLimits,
    with_bounds,
)
from millrace.errors import ErrorCode, MillraceError
from millrace.records import Cursor
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition
from millrace_audit.reader.partition import CannotRead

FETCH_BYTES = 8 << 20
_PARTITION_BYTES = 1 << 20
_WAIT_MS = 100
_TIMEOUT_S = 5.0


class Brokers:
    """Connections to the leaders of partitions. For one thread."""

    def __init__(self, client: ClusterClient, client_id: str) -> None:
        self._client, self._client_id = client, client_id
        self._fetchers: dict[int, BrokerFetcher] = {}
        self._buffer = bytearray(FETCH_BYTES + _PARTITION_BYTES)  # fresh memory for each answer costs more

    def earliest(
        self, leader: int, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | CannotRead]:
        """Return the first offset of each log, or the error.

        Raise CannotRead when the broker cannot be reached.
        """
        return self._offsets(leader, partitions, EARLIEST)

    def latest(
        self, leader: int, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | CannotRead]:
        """Return the end of each log for consumers, or the error, as `earliest` does."""
        return self._offsets(leader, partitions, LATEST)

    def written(
        self, leader: int, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | CannotRead]:
        """Return the end of the acknowledged messages, or the error.

        On Apache Kafka it may be after an open transaction.
        """
        return self._offsets(leader, partitions, LATEST, READ_UNCOMMITTED)

    def fetch(
        self, leader: int, cursors: Mapping[TopicPartition, Cursor]
    ) -> dict[TopicPartition, FetchedPartition]:
        """Return the contents of one answer from these offsets on.

        Raise CannotRead when the broker cannot be reached.
        """
        limits = FetchLimits(
            max_bytes=FETCH_BYTES, partition_max_bytes=_PARTITION_BYTES, max_wait_ms=_WAIT_MS
        )
        try:
            fetcher = self._fetcher(leader)
            offsets = {name: cursor.next_offset for name, cursor in cursors.items()}
            fetcher.request(offsets, limits, {name: cursor.epoch for name, cursor in cursors.items()})
            fetched = fetcher.receive(self._buffer)
            for name, part in fetched.items():
                if part.error == ErrorCode.OFFSET_OUT_OF_RANGE and part.log_start_offset < 0:
                    # Apache Kafka leaves the bounds out.
                    bounds, cursor = fetcher.bounds([name]).get(name, (-1, -1)), cursors[name]
                    fetched[name] = with_bounds(part, cursor.next_offset, cursor.epoch, *bounds)
            return fetched
        except MillraceError as error:
            raise self._away(leader, error) from error

    def _offsets(
        self, leader: int, partitions: Collection[TopicPartition], when: int, level: int = READ_COMMITTED
    ) -> dict[TopicPartition, int | CannotRead]:
        if not partitions:
            return {}
        try:
            answers = self._fetcher(leader).list_offsets(partitions, when, isolation_level=level)
        except MillraceError as error:
            raise self._away(leader, error) from error
        return {
            name: CannotRead(in_words(answer.error_code)) if answer.error_code else answer.offset
            for name, answer in answers.items()
        }

    def _fetcher(self, leader: int) -> BrokerFetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is not None and fetcher.idle and not fetcher.unused:
            return fetcher
        self._forget(leader)
        address = self._client.addresses.get(leader)
        if address is None:
            raise CannotRead(
                "it has no leader: start its broker" if leader < 0 else f"broker {leader} is away"
            )
        connection = Connection(
            *address, client_id=self._client_id, timeout_s=_TIMEOUT_S, security=self._client.security
        )
        self._fetchers[leader] = self._client.fetcher(connection, timeout_s=_TIMEOUT_S)
        return self._fetchers[leader]

    def _away(self, leader: int, error: MillraceError) -> CannotRead:
        self._forget(leader)
        return error if isinstance(error, CannotRead) else CannotRead(str(error))

    def _forget(self, leader: int) -> None:
        if (fetcher := self._fetchers.pop(leader, None)) is not None:
            fetcher.close()

    def close(self) -> None:
        for leader in list(self._fetchers):
            self._forget(leader)
