"""Pulls batches ahead of the application: one thread for each broker that leads a partition of ours.

Owns requests, their retries and what an answer means. Where the leaders are is read from the broker registry;
what is wanted and what becomes of it is the streams' business. Every CRC is checked here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.consumer.streams import Batch, Jump, OwnedPartition, damaged
from millrace.coordination.cluster import Cluster
from millrace.coordination.state import BrokerAddress
from millrace.errors import CorruptMessage, ErrorCode, MillraceError
from millrace.records import split_batches
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition, decode_response, encode_request, error_name
from millrace.wire.messages import ApiKey

log = logging.getLogger(__name__)

FETCH_VERSION = 11
FETCH_WAIT_MS = 250
FULL_WAIT_MS = 50
"""How long an answer may be waited for while another stream's queue is full: room may come any moment."""
REQUEST_SECONDS = 5.0
PAUSE_SECONDS = 0.2
IDLE_SECONDS = 1.0
CRC_TRIES = 3
"""The network may have damaged a batch: only one that comes damaged so often is damaged in the log."""

_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_UNDERSTOOD = _MOVED | {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE}
Owned = Mapping[TopicPartition, OwnedPartition]
Asked = dict[TopicPartition, tuple[OwnedPartition, int, int]]
"""TopicPartition -> (partition, its life, offset)."""


class Pullers:
    """The threads that pull what `owned()` names, from whoever leads it."""

    def __init__(
        self, group: str, cluster: Cluster, owned: Callable[[], Owned], *, start: int, fetch_bytes: int
    ) -> None:
        """`start`: EARLIEST or LATEST, where nothing is committed or what was is gone."""
        self.group, self.cluster, self.owned, self.start = group, cluster, owned, start
        self.fetch_bytes = fetch_bytes
        self._pullers: dict[int, _Puller] = {}
        self._closed = False

    def wake(self) -> None:
        """Something has changed: a queue has room, partitions came or went, a leader moved."""
        for puller in list(self._pullers.values()):
            puller.wake.set()

    def refresh(self) -> None:
        """Have a thread for every broker that leads one of our partitions. From one thread."""
        for broker_id in {self.leader(place) for place in self.owned()} - self._pullers.keys():
            if broker_id is not None and not self._closed:
                puller = self._pullers[broker_id] = _Puller(self, broker_id)
                puller.start()
        self.wake()

    def leader(self, place: TopicPartition) -> int | None:
        """The live broker that leads a partition, or None."""
        topic = self.cluster.topics.get(place[0])
        state = topic.partitions.get(place[1]) if topic is not None else None
        return state.leader if state is not None and state.leader in self.cluster.brokers else None

    def stop(self) -> None:
        """Pull nothing more."""
        self._closed = True
        for puller in list(self._pullers.values()):
            puller.stopping.set()
        self.wake()

    def close(self) -> None:
        """Stop, and wait a moment for answers that are on their way."""
        self.stop()
        for puller in self._pullers.values():
            puller.join(2 * FETCH_WAIT_MS / 1000)


class _Puller(threading.Thread):
    """Pulls from one broker."""

    def __init__(self, pullers: Pullers, broker_id: int) -> None:
        super().__init__(name=f"consumer {pullers.group} broker {broker_id}", daemon=True)
        self.wake, self.stopping = threading.Event(), threading.Event()
        self._pullers, self._broker_id = pullers, broker_id
        self._client: tuple[BrokerAddress, ClusterClient] | None = None
        self._turn, self._told = 0, ""
        self._crc_failures: dict[tuple[TopicPartition, int], int] = {}

    def run(self) -> None:
        """Pull until told to stop."""
        while not self.stopping.is_set():
            self.wake.clear()
            try:
                if self._round():
                    continue
                self.wake.wait(IDLE_SECONDS)
            except MillraceError as error:
                self._tell(str(error))
                self.stopping.wait(PAUSE_SECONDS)
            except Exception:  # a mistake of ours, or of a broker's: the application must not wait for ever
                log.exception("group %s: pulling from broker %d failed", self._pullers.group, self._broker_id)
                self.stopping.wait(5 * PAUSE_SECONDS)
        if self._client is not None:
            self._client[1].close()

    def _tell(self, what: str) -> None:
        if what != self._told and not self.stopping.is_set():
            log.warning("group %s: %s", self._pullers.group, what)
        self._told = what

    def _round(self) -> bool:
        """Ask for everything that is wanted from this broker, once; False when nothing is."""
        ours = self._ours()
        asked: Asked = {}
        for partition in ours:
            wanted = partition.stream.next_pull(partition)
            if wanted is not None:
                life, offset = wanted
                if offset is None:
                    self._begin(partition, life)
                    return True
                asked[partition.place] = (partition, life, offset)
        if not asked:
            return False
        self._turn += 1
        found = self._fetch(asked, FETCH_WAIT_MS if len(asked) == len(ours) else FULL_WAIT_MS)
        for place, answer in found.items():
            if place in asked:
                self._take(*asked[place], answer)
        if any(answer.error in _MOVED for answer in found.values()):
            self.stopping.wait(PAUSE_SECONDS)  # the registry will say where they have gone
        for (topic, number), answer in found.items():  # after the others: they go on
            if answer.error and answer.error not in _UNDERSTOOD:
                raise MillraceError(
                    f"broker {self._broker_id} answers {error_name(answer.error)} for {topic}-{number}"
                )
        return True

    def _ours(self) -> list[OwnedPartition]:
        """Our partitions at this broker; another one first each time: the first may send a large batch."""
        owned = self._pullers.owned()
        found = [
            owned[place]
            for place in sorted(owned)
            if self._pullers.leader(place) == self._broker_id and not owned[place].broken
        ]
        shift = self._turn % len(found) if found else 0
        return found[shift:] + found[:shift]

    def _connected(self) -> ClusterClient:
        address = self._pullers.cluster.brokers.get(self._broker_id)
        if address is None:
            raise MillraceError(f"broker {self._broker_id} is not there")
        if self._client is None or self._client[0] != address:
            if self._client is not None:
                self._client[1].close()
            client = ClusterClient(
                f"{address.host}:{address.port}",
                client_id=f"millrace-{self._pullers.group}"[:200],
                timeout_s=REQUEST_SECONDS,
            )
            self._client = (address, client)
        return self._client[1]

    def _fetch(self, asked: Asked, wait_ms: int) -> dict[TopicPartition, FetchedPartition]:
        each = self._pullers.fetch_bytes
        wanted = [(topic, number, offset, each) for (topic, number), (_, _, offset) in asked.items()]
        # All of the answer may be for the stream that has the least room.
        room = min(partition.stream.room for partition, _, _ in asked.values())
        body = encode_request(wanted, max_wait=wait_ms, max_bytes=max(each, room))
        raw = self._connected().ask(self._broker_id, ApiKey.FETCH, FETCH_VERSION, body)
        found = decode_response(FETCH_VERSION, raw)
        return {(topic, number): each for topic, parts in found.items() for number, each in parts.items()}

    def _take(self, partition: OwnedPartition, life: int, offset: int, answer: FetchedPartition) -> None:
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._skip_gap(partition, life, offset)
            return
        if answer.error == ErrorCode.CORRUPT_MESSAGE:
            self._corrupt(partition, life, offset, CorruptMessage("the broker refuses to send it"))
            return
        if answer.error:
            return
        self._told = ""
        try:
            for header, batch in split_batches(answer.records):
                offset = header.next_offset
                # Copied: one batch that waits must not keep the whole answer in memory.
                partition.stream.put(partition, life, Batch(header, bytes(batch)))
        except CorruptMessage as error:
            self._corrupt(partition, life, offset, error)

    def _corrupt(self, partition: OwnedPartition, life: int, offset: int, error: CorruptMessage) -> None:
        key = (partition.place, offset)
        failures = self._crc_failures.pop(key, 0) + 1
        if failures < CRC_TRIES:
            self._crc_failures[key] = failures
            self._tell(f"{partition} at offset {offset}: {error}; asking again")
            self.stopping.wait(PAUSE_SECONDS)
            return
        partition.stream.put(partition, life, CorruptMessage(damaged(partition, offset, error)))

    # Where to begin

    def _bounds(self, partition: OwnedPartition) -> tuple[int, int]:
        topic, number = partition.place
        client = self._connected()
        earliest = client.list_offsets(topic, EARLIEST, [number])[number]
        return earliest, client.list_offsets(topic, LATEST, [number])[number]

    def _begin(self, partition: OwnedPartition, life: int) -> None:
        earliest, latest = self._bounds(partition)
        begin = earliest if self._pullers.start == EARLIEST else latest
        partition.stream.put(partition, life, Jump(None, begin))

    def _skip_gap(self, partition: OwnedPartition, life: int, offset: int) -> None:
        earliest, latest = self._bounds(partition)
        if earliest <= offset <= latest:
            self.stopping.wait(PAUSE_SECONDS)  # it is there: the answer was of a moment ago
            return
        to = earliest if self._pullers.start == EARLIEST else latest
        log.warning(
            "group %s: offset %d of %s is gone: what is kept begins at %d and ends at %d. Going on at %d; "
            "what was between is not delivered",
            self._pullers.group,
            offset,
            partition,
            earliest,
            latest,
            to,
        )
        partition.stream.put(partition, life, Jump(offset, to))
