"""Fetches from one broker of the partitions that it leads, and threads that fetch round by round.

Blocking. It does not look for leaders, retry, or read records: the caller interprets an answer. CRCs are
checked where batches are taken out of an answer (transactions.py).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import UUID

from millrace.client import metadata
from millrace.client.connection import Connection
from millrace.config import ClientSecurity
from millrace.errors import MillraceError
from millrace.records.topic_partition import TopicPartition
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import FetchedPartition, Parting, decode_response, encode_request
from millrace.wire.fields import group_by_topic
from millrace.wire.messages import ApiKey, ListOffsetsRequest, ListOffsetsResponse
from millrace.wire.primitives import MIN_ITEM_LIMIT

LATEST = -1
"""As a timestamp: the end of the readable log; on Apache Kafka open transactions lie after it."""
EARLIEST = -2
"""As a timestamp: the first offset still kept."""
TIMEOUT_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.2
MAX_UNUSED_SECONDS = 60.0
"""Reconnect after this time without a request: brokers close idle connections."""

_FETCH_VERSION = 12
_LIST_OFFSETS_VERSION = 5
_LISTED_AT_ONCE = MIN_ITEM_LIMIT // 2
"""Most partitions of one request; Millrace's brokers accept it even if each is of a different topic."""
NO_EPOCHS: Mapping[TopicPartition, int] = {}
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels. With READ_COMMITTED, records of an open transaction, which may yet be aborted, are not
read, and LATEST lies before them. READ_UNCOMMITTED is for requests of the log's own end."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits of one answer; its first batch may be larger and still comes whole."""

    max_bytes: int
    partition_max_bytes: int
    max_wait_ms: int
    min_bytes: int = 1


class BrokerFetcher:
    """Requests about one broker's partitions, through one connection. For one thread.

    Several requests may be sent before the first answer is received; answers come in the order of the
    requests. An answer that cannot be decoded raises MillraceError: close the connection then.
    """

    def __init__(
        self, connection: Connection, *, timeout_s: float, epoch_of: Callable[[TopicPartition], int]
    ) -> None:
        """Use the connection; `epoch_of` returns the known leader epoch of a partition, -1 for none.

        A broker in another epoch refuses to answer, so a leader that was replaced without noticing cannot
        send stale data.
        """
        self._connection, self._timeout_s, self._wait_s = connection, timeout_s, 0.0
        self._epoch_of = epoch_of
        self._used_at = time.monotonic()
        self.answer_bytes = 0
        """Size of the last answer, framing included."""

    @property
    def idle(self) -> bool:
        return self._connection.idle

    @property
    def unused(self) -> bool:
        """True when the broker may close the connection: it was unused too long, or its login ends."""
        return self._connection.needs_renewal or time.monotonic() - self._used_at > MAX_UNUSED_SECONDS

    def close(self) -> None:
        self._connection.close()

    def request(
        self,
        offsets: Mapping[TopicPartition, int],
        limits: FetchLimits,
        last_epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
    ) -> None:
        """Request the batches from these offsets on; the broker fills its answer in their order.

        `last_epochs` holds, where known, the leader epoch of the batch read before each offset. A broker
        whose log does not hold that batch answers with a `parting`.
        """
        most = limits.partition_max_bytes
        body = encode_request(
            [
                (*partition, offset, most, self._epoch_of(partition), last_epochs.get(partition, -1))
                for partition, offset in offsets.items()
            ],
            max_wait=limits.max_wait_ms,
            max_bytes=limits.max_bytes,
            min_bytes=limits.min_bytes,
        )
        self._wait_s = limits.max_wait_ms / 1000
        self._send(ApiKey.FETCH, _FETCH_VERSION, body)

    def receive(self, buffer: bytearray | None = None) -> dict[TopicPartition, FetchedPartition]:
        """Return the answer to `request`.

        Records lie in `buffer` if that is large enough, else in new memory.
        """
        raw = self._receive(self._wait_s, buffer)
        self.answer_bytes = len(raw)
        topics = self._understood(lambda: decode_response(raw))
        return {(topic, n): one for topic, partitions in topics.items() for n, one in partitions.items()}

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, isolation_level: int = READ_COMMITTED
    ) -> dict[TopicPartition, ListOffsetsResponse.Partition]:
        """Return each partition's first offset at or after a time in ms (or EARLIEST, LATEST),
        or an error.
        """
        api, version, rest = ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, list(partitions)
        listed: dict[TopicPartition, ListOffsetsResponse.Partition] = {}
        while rest:
            topics = group_by_topic(
                (
                    partition[0],
                    ListOffsetsRequest.Partition(
                        partition_index=partition[1],
                        current_leader_epoch=self._epoch_of(partition),
                        timestamp=timestamp,
                    ),
                )
                for partition in rest[:_LISTED_AT_ONCE]
            )
            del rest[:_LISTED_AT_ONCE]
            request = ListOffsetsRequest(topics=topics, isolation_level=isolation_level)
            self._send(api, version, encode(request, api, version))
            response = self._understood(partial(decode, ListOffsetsResponse, api, version, self._receive()))
            listed |= {(t.name, p.partition_index): p for t in response.topics for p in t.partitions}
        return listed

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (first remaining offset, high watermark) of each partition that was answered without an
        error.
        """
        earliest = self.list_offsets(partitions, EARLIEST)
        latest = self.list_offsets(partitions, LATEST)
        return {
            partition: (earliest[partition].offset, latest[partition].offset)
            for partition in earliest.keys() & latest.keys()
            if not earliest[partition].error_code and not latest[partition].error_code
        }

    def request_topic_ids(self, topics: Collection[str]) -> None:
        self._send(ApiKey.METADATA, metadata.VERSION, metadata.encode_request(topics))

    def receive_topic_ids(self) -> dict[str, UUID]:
        """Return the id of each topic that still exists."""
        raw = self._receive()
        response = self._understood(lambda: metadata.decode_response(raw))
        return {name: topic.topic_id for name, topic in metadata.topics_of(response).items()}

    def _send(self, api_key: ApiKey, version: int, body: bytes) -> None:
        self._used_at = time.monotonic()
        self._connection.send(api_key, version, body, timeout_s=self._timeout_s)

    def _receive(self, wait_s: float = 0.0, buffer: bytearray | None = None) -> memoryview:
        return self._connection.receive(timeout_s=self._timeout_s + wait_s, buffer=buffer)

    def _understood(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except Exception as error:  # of any kind: the decoder reads arbitrary bytes of a peer
            raise MillraceError(
                f"{self._connection.address} does not answer as a Kafka broker does: {error}"
            ) from error


def with_bounds(
    fetched: FetchedPartition, offset: int, last_epoch: int, earliest: int, latest: int
) -> FetchedPartition:
    """Return an OFFSET_OUT_OF_RANGE answer with the bounds of the log, which Apache Kafka leaves out."""
    fetched = dataclasses.replace(fetched, log_start_offset=earliest, high_watermark=latest)
    parting = unknown_epoch(offset, last_epoch, earliest, latest)
    return dataclasses.replace(fetched, error=0, parting=parting) if parting else fetched


def unknown_epoch(offset: int, last_epoch: int, earliest: int, latest: int) -> Parting | None:
    """Return a parting if OFFSET_OUT_OF_RANGE was answered for an offset within the bounds of the log.

    Apache Kafka gives this answer when its log has neither a batch of the last epoch nor a newer one.
    """
    return Parting(-1, latest) if last_epoch >= 0 and earliest <= offset <= latest else None


def log_was_cut(name: str, offset: int, last_epoch: int, parting: Parting) -> str:
    """Explain that a log, read up to `offset`, was cut back and has reused offsets for other messages."""
    has = f"epoch {parting.epoch} ends at offset {parting.end} there"
    if parting.epoch < 0:
        has = "that epoch is not known there"
    return (
        f"{name} was read up to offset {offset} in epoch {last_epoch}, and {has}: its log was cut back"
        " (restored from an older copy, or led by a replica that lacked messages), and offsets were reused"
    )


class Rounds(threading.Thread, ABC):
    """A thread that repeats rounds until `stop`.

    A failed round is logged unless the round before it failed in the same way, and retried after a pause that
    doubles.
    """

    max_pause_seconds = 5.0

    def __init__(self, name: str, log: logging.Logger, subject: str) -> None:
        """Prepare the thread; `subject` begins the log lines about failures."""
        super().__init__(name=name, daemon=True)  # waiting for a broker must not keep the process alive
        self.stopping = threading.Event()
        self._wake = threading.Event()
        self._log, self._subject = log, subject

    # From any thread

    def wake(self) -> None:
        """End the pause, because something has changed."""
        self._wake.set()

    def stop(self) -> None:
        self.stopping.set()
        self._wake.set()

    # In the thread

    @abstractmethod
    def round(self) -> None:
        """Do all pending work once, or sleep when there is none."""

    def failed(self, reason: str) -> None:
        """React to a failed round."""

    def disconnect(self) -> None:
        """Close everything that rounds have opened, after a failed round or the last."""

    def run(self) -> None:
        pause, logged = FIRST_PAUSE_SECONDS, ""
        while not self.stopping.is_set():
            unexpected: Exception | None = None
            try:
                self.round()
                pause, logged = FIRST_PAUSE_SECONDS, ""
                continue
            except MillraceError as error:
                reason = str(error)
            except Exception as error:  # a bug, here or in a broker, must not end the rounds
                reason, unexpected = f"unexpected {type(error).__name__}: {error}", error
            self.disconnect()
            if self.stopping.is_set():
                break
            if reason != logged:
                level = logging.ERROR if unexpected else logging.WARNING
                self._log.log(level, "%s: %s", self._subject, reason, exc_info=unexpected)
            logged = reason
            self.failed(reason)
            self.stopping.wait(FIRST_PAUSE_SECONDS)  # ignores `wake`, which may come all the time
            self.sleep(pause - FIRST_PAUSE_SECONDS)
            pause = min(2 * pause, self.max_pause_seconds)
        self.disconnect()

    def sleep(self, seconds: float | None) -> None:
        """Wait at most `seconds`, or until `wake` or `stop`."""
        self._wake.wait(seconds)
        if not self.stopping.is_set():
            self._wake.clear()


class Puller(Rounds):
    """A thread that reads from one broker; subclasses make the requests and use the answers."""

    def __init__(
        self,
        name: str,
        client_id: str,
        log: logging.Logger,
        subject: str,
        security: ClientSecurity | None = None,
    ) -> None:
        """Prepare the thread; `security` has the connection settings.

        Without it the process's client file applies.
        """
        super().__init__(name, log, subject)
        self._client_id, self._security = client_id, security
        self._broker: tuple[tuple[str, int], BrokerFetcher] | None = None
        self._turns: dict[TopicPartition, None] = {}

    @abstractmethod
    def address(self) -> tuple[str, int]:
        """Return the broker's current address. Raise MillraceError when the broker has none."""

    @abstractmethod
    def epoch_of(self, partition: TopicPartition) -> int:
        """Return the known leader epoch of a partition; -1 when none is known."""

    def connected(self) -> BrokerFetcher:
        """Return a fetcher at the broker's current address.

        A fetcher at an old address is kept until its last answer has arrived.
        """
        address = self.address()
        if self._broker is not None:
            connected_to, broker = self._broker
            if broker.idle and (broker.unused or connected_to != address):
                self.disconnect()
        if self._broker is None:
            self._broker = (address, self.connect(address))
        return self._broker[1]

    def connect(self, address: tuple[str, int]) -> BrokerFetcher:
        """Connect to the broker. Raise MillraceError when the connection fails."""
        connection = Connection(
            *address, client_id=self._client_id, timeout_s=TIMEOUT_SECONDS, security=self._security
        )
        return BrokerFetcher(connection, timeout_s=TIMEOUT_SECONDS, epoch_of=self.epoch_of)

    def disconnect(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker[1].close()

    def in_turn(self, partitions: Set[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions in request order: an answer always has room for a batch of the first
        partition.
        """
        if partitions != self._turns.keys():
            new = sorted(partitions - self._turns.keys())
            self._turns = dict.fromkeys([*new, *(p for p in self._turns if p in partitions)])
        return list(self._turns)

    def serve_last(self, partitions: Iterable[TopicPartition]) -> None:
        """Move partitions that have sent records to the end of the request order."""
        for partition in partitions:
            if partition in self._turns:
                del self._turns[partition]
                self._turns[partition] = None
