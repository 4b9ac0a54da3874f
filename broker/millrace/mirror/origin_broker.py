"""One broker of an origin, as a puller reads it: every partition it leads through one connection.

Blocking; for one thread. Several requests may be under way; answers come in their order. Whatever cannot be
understood is a MillraceError: the connection is then of no more use. Knows neither targets nor positions.

The records of an answer lie in one of two buffers that are used in turn: they are good until the answer after
the next is received.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from millrace.client.cluster_client import EARLIEST, LATEST
from millrace.client.connection import Connection
from millrace.client.metadata import TopicMetadata
from millrace.errors import MillraceError
from millrace.records.topic_partition import TopicPartition
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import FetchedPartition, decode_response, encode_request
from millrace.wire.messages import (
    ApiKey,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

ANSWER_BYTES = 4 << 20
"""Of one answer. A single batch may be larger, and still comes whole."""
PARTITION_BYTES = 2 << 20
SMALL_ANSWER_BYTES = 256 << 10
"""An origin that never has more to say gets no large buffers."""
FRAMING_BYTES = 1 << 20
TIMEOUT_SECONDS = 5.0
_FETCH_VERSION = 11
_METADATA_VERSION = 12
_LIST_OFFSETS_VERSION = 5
_READ_COMMITTED = 1
Bounds = tuple[int, int]
T = TypeVar("T")


class OriginBroker:
    """A connection to one broker; every method raises MillraceError when it does not answer as it should."""

    def __init__(self, address: tuple[str, int], client_id: str) -> None:
        self.address = address
        self._connection = Connection(*address, client_id=client_id, timeout_s=TIMEOUT_SECONDS)
        self._buffers: list[bytearray | None] = [None, None]
        self._large = False
        self._wait_s = 0.0

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self, wanted: Sequence[tuple[str, int, int]], *, max_bytes: int, wait_ms: int) -> None:
        """Ask for what is new at (topic, partition, offset), those named first before the others."""
        most = min(PARTITION_BYTES, max_bytes)
        asked = [(topic, partition, offset, most) for topic, partition, offset in wanted]
        self._wait_s = wait_ms / 1000
        self._send(ApiKey.FETCH, _FETCH_VERSION, encode_request(asked, max_wait=wait_ms, max_bytes=max_bytes))

    def answer(self) -> tuple[dict[TopicPartition, FetchedPartition], int]:
        """What was asked for, and the answer's bytes."""
        self._buffers.reverse()
        if self._large and self._buffers[0] is None:
            self._buffers[0] = bytearray(ANSWER_BYTES + FRAMING_BYTES)
        raw = self._connection.receive(
            timeout_s=TIMEOUT_SECONDS + self._wait_s, buffer=self._buffers[0]
        )  # fmt: skip
        self._large = self._large or len(raw) > SMALL_ANSWER_BYTES
        topics = self._understood(lambda: decode_response(_FETCH_VERSION, raw))
        found = {(topic, n): one for topic, partitions in topics.items() for n, one in partitions.items()}
        return found, len(raw)

    def forget_buffers(self) -> None:
        """Never use the memory of the answers so far again: somebody may hold on to it."""
        self._buffers = [None, None]

    def ask_ids(self, topics: Collection[str]) -> None:
        """Ask which topics bear these names now."""
        names = tuple(MetadataRequestTopic(name=name) for name in topics)
        request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        self._send(ApiKey.METADATA, _METADATA_VERSION, encode(request, ApiKey.METADATA, _METADATA_VERSION))

    def ids(self) -> Mapping[str, UUID]:
        """The answer: topic -> its id; those that are gone are missing."""
        raw = self._connection.receive(timeout_s=TIMEOUT_SECONDS)
        response = self._understood(lambda: decode(MetadataResponse, ApiKey.METADATA, _METADATA_VERSION, raw))
        return {t.name: TopicMetadata.of(t).topic_id for t in response.topics if t.name and not t.error_code}

    def bounds(self, places: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """(first offset still there, high watermark) of each; without those the broker cannot tell now."""
        earliest, latest = self._offsets(places, EARLIEST), self._offsets(places, LATEST)
        return {place: (earliest[place], latest[place]) for place in earliest.keys() & latest.keys()}

    def _offsets(self, places: Collection[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        partitions: dict[str, list[ListOffsetsPartition]] = {}
        for topic, number in places:
            asked = ListOffsetsPartition(partition_index=number, timestamp=timestamp)
            partitions.setdefault(topic, []).append(asked)
        topics = tuple(ListOffsetsTopic(name=name, partitions=tuple(p)) for name, p in partitions.items())
        request = ListOffsetsRequest(topics=topics, isolation_level=_READ_COMMITTED)
        body = encode(request, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION)
        self._send(ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, body)
        raw = self._connection.receive(timeout_s=TIMEOUT_SECONDS)
        response = self._understood(
            lambda: decode(ListOffsetsResponse, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, raw)
        )
        return {
            (topic.name, partition.partition_index): partition.offset
            for topic in response.topics
            for partition in topic.partitions
            if not partition.error_code
        }

    def _send(self, api_key: ApiKey, version: int, body: bytes) -> None:
        self._connection.send(api_key, version, body, timeout_s=TIMEOUT_SECONDS)

    def _understood(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except Exception as error:  # of any kind: the decoder was given whatever somebody has sent
            raise MillraceError(
                f"{self._connection.address} does not answer as a Kafka broker does: {error}"
            ) from error
