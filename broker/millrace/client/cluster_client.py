"""A blocking client of a whole cluster: finds leaders, reconnects, retries within its time limit.

One per thread. Works against Millrace and against Apache Kafka 3.0 or later (Metadata v12 tells the topic
ids). Does not decode records, commits no offsets, joins no group.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TypeVar

from millrace.client.connection import Connection, ConnectionFailed
from millrace.client.errors import LEADER_MOVED, TryAgain, raise_error
from millrace.client.metadata import TopicMetadata
from millrace.config import parse_addresses
from millrace.errors import ErrorCode, MillraceError, UnknownTopicOrPartition
from millrace.records.mirror_position import Origin, PositionMismatch
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import FetchedPartition, decode_response
from millrace.wire.fetch import encode_request as encode_fetch
from millrace.wire.messages import (
    ApiKey,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from millrace.wire.mirror_append import MIRROR_APPEND_VERSION, MirrorAppend, MirrorAppended
from millrace.wire.mirror_append import decode_response as decode_mirror_append
from millrace.wire.mirror_append import encode_request as encode_mirror_append

__all__ = ["EARLIEST", "LATEST", "ClusterClient", "FetchedPartition", "TopicMetadata"]

LATEST = -1
"""As a timestamp: the end of what can be read; on Apache Kafka open transactions lie behind it."""
EARLIEST = -2
"""As a timestamp: the first offset still kept."""

_METADATA_VERSION = 12
_FETCH_VERSION = 11
_LIST_OFFSETS_VERSION = 5
_CREATE_TOPICS_VERSION = 4
_DELETE_TOPICS_VERSION = 3
# What an open transaction has written may yet be aborted: neither read, nor counted as there.
_READ_COMMITTED = 1
_CONNECT_TIMEOUT_S = 5.0
_BACKOFF_S = 0.1
T = TypeVar("T")


class ClusterClient:
    """A connection to a cluster; each call returns within about `timeout_s` or raises MillraceError."""

    def __init__(self, bootstrap: str, *, client_id: str = "millrace", timeout_s: float = 30) -> None:
        self.bootstrap = bootstrap
        self._addresses = parse_addresses(bootstrap)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._controller_id = -1
        self._cluster_id: str | None = None
        self._leaders: dict[str, Mapping[int, int]] = {}
        self._mirror_leaders: dict[tuple[str, Origin], int] = {}

    @property
    def cluster_id(self) -> str:
        """The cluster's own random id."""
        if self._cluster_id is None:
            self._retry(lambda deadline: self._metadata((), deadline))
        return self._cluster_id or ""

    def topic(self, name: str) -> TopicMetadata:
        """The topic as it is now; raises UnknownTopicOrPartition when the cluster has none of that name."""
        return self._retry(lambda deadline: self._topic(name, deadline))

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Every topic of the cluster by name, or of those named the ones that are there."""
        wanted = None if names is None else tuple(names)
        response = self._retry(lambda deadline: self._metadata(wanted, deadline))
        return {t.name: TopicMetadata.of(t) for t in response.topics if t.name and not t.error_code}

    def broker_ids(self) -> list[int]:
        """Every live broker of the cluster."""
        self._retry(lambda deadline: self._metadata((), deadline))
        return sorted(self._brokers)

    @property
    def addresses(self) -> Mapping[int, tuple[str, int]]:
        """Where the brokers are, as the last answer said."""
        return self._brokers

    def list_offsets(
        self, topic: str, timestamp: int, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        """Partition -> offset for LATEST, EARLIEST or a time in ms; all partitions unless some are named.

        For a time: the first message at or after it, or the high watermark when there is none.
        """
        wanted = set(self.topic(topic).partitions if partitions is None else partitions)
        found: dict[int, int] = {}

        def attempt(deadline: float) -> dict[int, int]:
            self._list_offsets(topic, timestamp, wanted - found.keys(), found, deadline)
            return found

        self._retry(attempt)
        none_as_late = [partition for partition, offset in found.items() if offset < 0]
        if none_as_late and timestamp != LATEST:
            found |= self.list_offsets(topic, LATEST, none_as_late)
        return found

    def fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_bytes: int,
        max_wait_ms: int,
        partition_max_bytes: int = 1 << 20,
        min_bytes: int = 1,
    ) -> dict[int, FetchedPartition]:
        """Partition -> whole batches from the offset on (or its error); at least one batch per broker.

        Several brokers are asked at once, each for its share, and wait only if none of them has anything; one
        that gets something while they wait is heard when all have answered. Only committed transactions'
        records count as readable (on Apache Kafka the aborted ones are in the bytes too, named by
        `aborted_transactions`).
        """
        found: dict[int, FetchedPartition] = {}

        def attempt(deadline: float) -> dict[int, FetchedPartition]:
            several = len(self._leaders_of(topic, offsets, deadline)) > 1
            for wait_ms in (0, max_wait_ms) if several and max_wait_ms > 0 else (max_wait_ms,):
                missing = {p: offset for p, offset in offsets.items() if p not in found}
                limits = (max_bytes, wait_ms, partition_max_bytes, min_bytes)
                self._fetch(topic, missing, limits, found, deadline)
                enough = sum(len(one.records) for one in found.values()) >= min_bytes
                if enough or wait_ms == max_wait_ms or any(one.error for one in found.values()):
                    break
                found.clear()
            return found

        return {p: self._with_bounds(topic, p, one) for p, one in self._retry(attempt).items()}

    def _with_bounds(self, topic: str, partition: int, fetched: FetchedPartition) -> FetchedPartition:
        """What was fetched; where the offset is out of range with the bounds Apache Kafka leaves out."""
        if fetched.error != ErrorCode.OFFSET_OUT_OF_RANGE or fetched.log_start_offset >= 0:
            return fetched
        earliest = self.list_offsets(topic, EARLIEST, [partition])[partition]
        latest = self.list_offsets(topic, LATEST, [partition])[partition]
        return dataclasses.replace(fetched, log_start_offset=earliest, high_watermark=latest)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create the topic and wait until every partition has a leader; BrokerError when it is refused."""
        settings = tuple(CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items())
        # As many replicas as the cluster says: on Apache Kafka that is not for us to know.
        topic = CreatableTopic(name=name, num_partitions=partitions, configs=settings)
        request = CreateTopicsRequest(topics=(topic,), timeout=int(self._timeout_s * 1000))
        body = encode(request, ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION)

        def attempt(deadline: float) -> None:
            raw = self._ask_controller(ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION, body, deadline)
            response = decode(CreateTopicsResponse, ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION, raw)
            for result in response.topics:
                raise_error(result.error_code, f"topic {name!r}", result.error_message)

        def there(deadline: float) -> None:
            try:
                self._leaders_of(name, range(max(partitions, 0)), deadline)
            except UnknownTopicOrPartition as error:  # a broker of Apache Kafka hears of it a moment later
                raise TryAgain(str(error)) from error

        self._retry(attempt)
        self._retry(there)

    def delete_topic(self, name: str) -> None:
        """Delete the topic and all its messages; UnknownTopicOrPartition when there is none."""
        request = DeleteTopicsRequest(topic_names=(name,), timeout=int(self._timeout_s * 1000))
        body = encode(request, ApiKey.DELETE_TOPICS, _DELETE_TOPICS_VERSION)

        def attempt(deadline: float) -> None:
            raw = self._ask_controller(ApiKey.DELETE_TOPICS, _DELETE_TOPICS_VERSION, body, deadline)
            response = decode(DeleteTopicsResponse, ApiKey.DELETE_TOPICS, _DELETE_TOPICS_VERSION, raw)
            for result in response.responses:
                raise_error(result.error_code, f"topic {name!r} on {self.bootstrap}")

        self._retry(attempt)
        self._leaders.pop(name, None)

    def mirror_append(self, topic: str, request: MirrorAppend) -> MirrorAppended:
        """Have the leader of the origin's target partition in `topic` append, describe or reset.

        Millrace only. Raises PositionMismatch, with what is recorded, when an append or a reset does not
        start there, and PolicyViolation when the origin was created anew and that is not known yet.
        """
        body = b"".join(encode_mirror_append(topic, request))
        place = (topic, request.origin)

        def attempt(deadline: float) -> MirrorAppended:
            # Any broker tells who leads. Forgotten first: a leader that fails is not asked twice in a row.
            leader = self._mirror_leaders.pop(place, None)
            answer = self._mirror_append(leader, body, deadline)
            if answer.error in LEADER_MOVED and answer.leader not in (-1, leader):
                answer = self._mirror_append(answer.leader, body, deadline)
            if answer.error in LEADER_MOVED:
                raise TryAgain(answer.message)
            if answer.leader >= 0:
                self._mirror_leaders[place] = answer.leader
            if answer.error == PositionMismatch.code:
                raise PositionMismatch(request.expected, answer.position)
            raise_error(answer.error, answer.message)
            return answer

        return self._retry(attempt)

    def ask(self, broker_id: int | None, api_key: int, version: int, body: bytes) -> memoryview:
        """The raw response of one broker, or of any when `broker_id` is None; retries lost connections."""
        return self._retry(lambda deadline: self._ask(broker_id, api_key, version, body, deadline))

    def close(self) -> None:
        """Close every connection; the client may be used again and will reconnect."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # One attempt each: raises TryAgain or ConnectionFailed when it is worth repeating.

    def _retry(self, attempt: Callable[[float], T]) -> T:
        deadline = time.monotonic() + self._timeout_s
        pause = _BACKOFF_S
        while True:
            try:
                return attempt(deadline)
            except (TryAgain, ConnectionFailed) as error:
                self._leaders.clear()
                if time.monotonic() + pause >= deadline:
                    raise MillraceError(f"{error} (gave up after {self._timeout_s:g} s)") from error
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _connect(self, address: tuple[str, int], deadline: float) -> Connection:
        connection = self._connections.get(address)
        if connection is not None and connection.idle:
            return connection
        if connection is not None:
            connection.close()  # an attempt was given up half-way: its response must never be taken for ours
        wait = max(0.1, min(_CONNECT_TIMEOUT_S, deadline - time.monotonic()))
        self._connections.pop(address, None)
        connection = Connection(*address, client_id=self._client_id, timeout_s=wait)
        self._connections[address] = connection
        return connection

    def _request(
        self, address: tuple[str, int], api_key: int, version: int, body: bytes, deadline: float
    ) -> memoryview:
        wait = max(0.1, deadline - time.monotonic())
        return self._connect(address, deadline).request(api_key, version, body, timeout_s=wait)

    def _ask(
        self, broker_id: int | None, api_key: int, version: int, body: bytes, deadline: float
    ) -> memoryview:
        if broker_id is not None:
            if broker_id not in self._brokers:
                self._metadata((), deadline)
            if broker_id not in self._brokers:
                raise TryAgain(f"broker {broker_id} of {self.bootstrap} is not there")
            return self._request(self._brokers[broker_id], api_key, version, body, deadline)
        # Known brokers first: the bootstrap addresses may be long gone.
        addresses = dict.fromkeys([*self._connections, *self._brokers.values(), *self._addresses])
        failure: ConnectionFailed | None = None
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            now = time.monotonic()
            try:  # One that does not answer must leave time for the others.
                return self._request(address, api_key, version, body, now + (deadline - now) / left)
            except ConnectionFailed as error:
                failure = error
        assert failure is not None, "there is always a bootstrap address"
        raise failure

    def _ask_controller(self, api_key: int, version: int, body: bytes, deadline: float) -> memoryview:
        self._metadata((), deadline)
        known = self._controller_id if self._controller_id in self._brokers else None
        return self._ask(known, api_key, version, body, deadline)

    def _metadata(self, names: tuple[str, ...] | None, deadline: float) -> MetadataResponse:
        topics = None if names is None else tuple(MetadataRequestTopic(name=name) for name in names)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        raw = self._ask(
            None,
            ApiKey.METADATA,
            _METADATA_VERSION,
            encode(request, ApiKey.METADATA, _METADATA_VERSION),
            deadline,
        )
        response = decode(MetadataResponse, ApiKey.METADATA, _METADATA_VERSION, raw)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self._controller_id = response.controller_id
        self._cluster_id = response.cluster_id
        return response

    def _topic(self, name: str, deadline: float) -> TopicMetadata:
        (topic,) = self._metadata((name,), deadline).topics
        raise_error(topic.error_code, f"topic {name!r} on {self.bootstrap}")
        metadata = TopicMetadata.of(topic)
        self._leaders[name] = metadata.partitions
        return metadata

    def _leaders_of(self, topic: str, partitions: Iterable[int], deadline: float) -> dict[int, list[int]]:
        """Leader -> the partitions it leads, out of those named."""
        wanted = list(partitions)
        leaders = self._leaders.get(topic, {})
        if not leaders or any(partition not in leaders for partition in wanted):
            leaders = self._topic(topic, deadline).partitions  # a topic may get partitions at any time
        shares: dict[int, list[int]] = {}
        for partition in wanted:
            leader = leaders.get(partition)
            if leader is None:
                raise UnknownTopicOrPartition(f"topic {topic!r} on {self.bootstrap} has no {partition=}")
            if leader not in self._brokers:
                raise TryAgain(f"nobody leads {topic}-{partition} on {self.bootstrap}")
            shares.setdefault(leader, []).append(partition)
        return shares

    def _mirror_append(self, broker_id: int | None, body: bytes, deadline: float) -> MirrorAppended:
        raw = self._ask(broker_id, ApiKey.MIRROR_APPEND, MIRROR_APPEND_VERSION, body, deadline)
        return decode_mirror_append(raw)

    def _list_offsets(
        self, topic: str, timestamp: int, wanted: set[int], found: dict[int, int], deadline: float
    ) -> None:
        for leader, share in self._leaders_of(topic, sorted(wanted), deadline).items():
            asked = tuple(ListOffsetsPartition(partition_index=p, timestamp=timestamp) for p in share)
            request = ListOffsetsRequest(
                topics=(ListOffsetsTopic(name=topic, partitions=asked),), isolation_level=_READ_COMMITTED
            )
            body = encode(request, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION)
            raw = self._ask(leader, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, body, deadline)
            response = decode(ListOffsetsResponse, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, raw)
            for answer in response.topics[0].partitions:
                what = f"offsets of {topic}-{answer.partition_index}"
                if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    # Another broker knows it already: its leader hears of it a moment later, or it is gone.
                    raise TryAgain(f"{what}: broker {leader} knows no such partition")
                raise_error(answer.error_code, what)
                found[answer.partition_index] = answer.offset

    def _fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        limits: tuple[int, int, int, int],
        found: dict[int, FetchedPartition],
        deadline: float,
    ) -> None:
        max_bytes, max_wait_ms, partition_max_bytes, min_bytes = limits
        asked: list[Connection] = []
        wait = max(0.1, deadline - time.monotonic()) + max_wait_ms / 1000
        for leader, share in self._leaders_of(topic, offsets, deadline).items():
            wanted = [(topic, partition, offsets[partition], partition_max_bytes) for partition in share]
            body = encode_fetch(wanted, max_wait=max_wait_ms, max_bytes=max_bytes, min_bytes=min_bytes)
            asked.append(self._connect(self._brokers[leader], deadline))
            asked[-1].send(ApiKey.FETCH, _FETCH_VERSION, body, timeout_s=wait)
        moved: list[int] = []
        for connection in asked:
            raw = connection.receive(timeout_s=wait)
            for partition, fetched in decode_response(_FETCH_VERSION, raw).get(topic, {}).items():
                if fetched.error in LEADER_MOVED:
                    moved.append(partition)
                else:
                    found[partition] = fetched
        if moved:
            raise TryAgain(f"nobody leads {topic}-{moved[0]} on {self.bootstrap}")
