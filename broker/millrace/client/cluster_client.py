"""A blocking client of a whole cluster: finds leaders, reconnects, retries within its time limit.

Use one client per thread. It works with Millrace and against Apache Kafka 3.0 or later (Metadata v12 returns
topic ids). It does not decode records, commit offsets or join groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from millrace.client import metadata
from millrace.client.connection import Connection, ConnectionFailed
from millrace.client.copied_topics import COPIES_TOPIC, CopiedTopics, CopiesFetcher, read_copies
from millrace.client.errors import LEADER_MOVED, TryAgain, no_topic, raise_error
from millrace.client.fetcher import EARLIEST, LATEST, BrokerFetcher, FetchLimits, with_bounds
from millrace.client.metadata import TopicMetadata
from millrace.config import ClientSecurity, parse_addresses
from millrace.errors import ErrorCode, MillraceError, UnknownTopicOrPartition
from millrace.process import HomeProcess
from millrace.records.mirror_position import Origin, PositionMismatch
from millrace.records.topic_partition import TopicPartition
from millrace.security.client import of_process
from millrace.wire import messages, mirror_append
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import FetchedPartition
from millrace.wire.fields import replace
from millrace.wire.messages import ApiKey

__all__ = ["EARLIEST", "LATEST", "ClusterClient", "FetchedPartition", "TopicMetadata"]

_CONNECT_TIMEOUT_S = 5.0
_BACKOFF_S = 0.1
T = TypeVar("T")


class ClusterClient:
    """A client of one cluster; each call returns within about `timeout_s` or raises MillraceError."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "millrace",
        timeout_s: float = 30,
        security: ClientSecurity | None = None,
    ) -> None:
        """Use `security` to connect; without it, the process's client file."""
        self.bootstrap = bootstrap
        self.security = security if security is not None else of_process()
        self._addresses = parse_addresses(bootstrap)
        self._home = HomeProcess("client")
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._controller_id = -1
        self._cluster_id: str | None = None
        self._leaders: dict[str, Mapping[int, int]] = {}
        self._epochs: dict[str, tuple[UUID, dict[int, int]]] = {}
        """Topic -> its id, and the newest leader epoch of each partition that any broker has reported."""
        self._answered: tuple[str, int] | None = None
        """Address of the broker that answered the last request to any broker."""
        self._outdated: tuple[str, int] | None = None
        """Address of the broker that last reported a stale leader: it is asked after all other brokers."""
        self._mirror_leaders: dict[tuple[str, Origin], int] = {}
        self._copies: CopiedTopics | None = None
        self._copies_are_known = False

    @property
    def copies(self) -> CopiedTopics | None:
        """The mapping of topics to their copies in a cluster filled by MirrorMaker 2.

        None in any other cluster.
        """
        if not self._copies_are_known:
            self.retry(lambda deadline: self._metadata((), deadline))
        return self._copies

    @property
    def cluster_id(self) -> str:
        if self._cluster_id is None:
            self.retry(lambda deadline: self._metadata((), deadline))
        return self._cluster_id or ""

    def topic(self, name: str) -> TopicMetadata:
        """Return the topic as it is now.

        Raise UnknownTopicOrPartition when the cluster has no topic of that name.
        """
        return self.retry(lambda deadline: self._topic(name, deadline))

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Return the topics of the cluster by name: all, or the existing ones among `names`."""
        wanted = None if names is None else tuple(names)
        response = self.retry(lambda deadline: self._metadata(wanted, deadline))
        return metadata.topics_of(response)

    def names_there(self, topic: str) -> list[str]:
        """Return the cluster's own names of a topic and of the copies that are merged into it,
        if they exist.
        """
        copies = self.copies
        names = [topic] if copies is None else copies.names(topic)
        response = self.retry(lambda deadline: self._asked_metadata(names, deadline))
        return [name for name in names if name in metadata.topics_of(response)]

    def broker_ids(self) -> list[int]:
        self.retry(lambda deadline: self._metadata((), deadline))
        return sorted(self._brokers)

    @property
    def addresses(self) -> Mapping[int, tuple[str, int]]:
        """Broker id -> address, from the last metadata answer."""
        return self._brokers

    def epoch_of(self, partition: TopicPartition) -> int:
        """Return the newest known leader epoch of a partition; -1 when none is known."""
        known = self._epochs.get(partition[0])
        return -1 if known is None else known[1].get(partition[1], -1)

    def list_offsets(
        self, topic: str, timestamp: int, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        """Return each partition's offset for LATEST, EARLIEST or a time in ms; of all partitions unless some
        are named.

        For a time: the first message at or after it, or the high watermark when there is none.
        """
        wanted = set(self.topic(topic).partitions if partitions is None else partitions)
        offsets: dict[int, int] = {}
        self.retry(lambda deadline: self._list_offsets(topic, timestamp, wanted, offsets, deadline))
        none_as_late = [partition for partition, offset in offsets.items() if offset < 0]
        if none_as_late and timestamp != LATEST:
            offsets |= self.list_offsets(topic, LATEST, none_as_late)
        return offsets

    def fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_bytes: int,
        max_wait_ms: int,
        partition_max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        last_epochs: Mapping[int, int] | None = None,
    ) -> dict[int, FetchedPartition]:
        """Return whole batches of each partition from its offset on, or an error.

        Each broker returns at least one batch. Several brokers are asked at once, each for its share, and
        wait only if none of them has data. Data that arrives while they wait is returned once all have
        answered. Only records of committed transactions count as readable (on Apache Kafka the bytes
        include aborted records, which `aborted_transactions` names). `last_epochs`: see
        BrokerFetcher.request.
        """
        last = {(topic, partition): epoch for partition, epoch in (last_epochs or {}).items()}
        fetched: dict[int, FetchedPartition] = {}

        def attempt(deadline: float) -> None:
            several = len(self._leaders_of(topic, offsets, deadline)) > 1
            for wait_ms in (0, max_wait_ms) if several and max_wait_ms > 0 else (max_wait_ms,):
                missing = {p: offset for p, offset in offsets.items() if p not in fetched}
                limits = FetchLimits(
                    max_bytes=max_bytes,
                    partition_max_bytes=partition_max_bytes,
                    max_wait_ms=wait_ms,
                    min_bytes=min_bytes,
                )
                self._fetch(topic, missing, limits, last, fetched, deadline)
                enough = sum(len(part.records) for part in fetched.values()) >= min_bytes
                if (
                    enough
                    or wait_ms == max_wait_ms
                    or any(part.error or part.parting for part in fetched.values())
                ):
                    break
                fetched.clear()

        self.retry(attempt)
        for p, part in fetched.items():
            if part.error == ErrorCode.OFFSET_OUT_OF_RANGE and part.log_start_offset < 0:
                last_epoch = last.get((topic, p), -1)
                fetched[p] = with_bounds(part, offsets[p], last_epoch, *self.bounds(topic, p))
        return fetched

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the partition's first remaining offset, and its high watermark."""
        earliest, latest = (self.list_offsets(topic, when, [partition]) for when in (EARLIEST, LATEST))
        return earliest[partition], latest[partition]

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None, *, replicas: int = -1
    ) -> None:
        """Create the topic and wait until every partition has a leader. Raise BrokerError when the cluster
        refuses.

        Without `replicas` the cluster's default replication factor applies.
        """
        settings = tuple(
            messages.CreateTopicsRequest.Topic.Config(name=k, value=v) for k, v in (configs or {}).items()
        )
        topic = messages.CreateTopicsRequest.Topic(
            name=name, num_partitions=partitions, replication_factor=replicas, configs=settings
        )
        request = messages.CreateTopicsRequest(topics=(topic,), timeout=int(self._timeout_s * 1000))

        def attempt(deadline: float) -> None:
            response = self._call_controller(
                ApiKey.CREATE_TOPICS, 4, request, messages.CreateTopicsResponse, deadline
            )
            for result in response.topics:
                raise_error(result.error_code, f"topic {name!r} was not created", result.error_message)

        def wait_for_leaders(deadline: float) -> None:
            try:
                self._leaders_of(name, range(max(partitions, 0)), deadline)
            except UnknownTopicOrPartition as error:  # a broker of Apache Kafka learns of it later
                raise TryAgain(str(error)) from error

        self.retry(attempt)
        self.retry(wait_for_leaders)

    def delete_topic(self, name: str) -> None:
        """Delete the topic and all its messages.

        Raise UnknownTopicOrPartition when there is no such topic.
        """
        request = messages.DeleteTopicsRequest(topic_names=(name,), timeout=int(self._timeout_s * 1000))

        def attempt(deadline: float) -> None:
            response = self._call_controller(
                ApiKey.DELETE_TOPICS, 3, request, messages.DeleteTopicsResponse, deadline
            )
            for result in response.responses:
                raise_error(result.error_code, f"topic {name!r} on {self.bootstrap}")

        self.retry(attempt)
        self._leaders.pop(name, None)

    def mirror_append(self, topic: str, request: mirror_append.MirrorAppend) -> mirror_append.MirrorAppended:
        """Ask the leader of the origin's target partition in `topic` to append, describe or reset.

        Millrace only. Raise PositionMismatch, with the recorded position, when an append or a reset does not
        start there, and PolicyViolation when the origin was recreated and the target does not know that yet.
        """
        body = b"".join(mirror_append.encode_request(topic, request))
        target = (topic, request.origin)

        def ask(broker_id: int | None, deadline: float) -> mirror_append.MirrorAppended:
            version = mirror_append.MIRROR_APPEND_VERSION
            return mirror_append.decode_response(
                self._ask(broker_id, ApiKey.MIRROR_APPEND, version, body, deadline)
            )

        def attempt(deadline: float) -> mirror_append.MirrorAppended:
            # Any broker names the leader. Forget it first: a leader that fails is not asked twice in a row.
            leader = self._mirror_leaders.pop(target, None)
            answer = ask(leader, deadline)
            if answer.error in LEADER_MOVED and answer.leader not in (-1, leader):
                answer = ask(answer.leader, deadline)
            if answer.error in LEADER_MOVED:
                raise TryAgain(answer.message)
            if answer.leader >= 0:
                self._mirror_leaders[target] = answer.leader
            if answer.error == PositionMismatch.code:
                raise PositionMismatch(request.expected, answer.position)
            raise_error(answer.error, answer.message)
            return answer

        return self.retry(attempt)

    def call(
        self, broker_id: int | None, api_key: ApiKey, version: int, request: object, response: type[T]
    ) -> T:
        """Return one broker's answer to a message, or any broker's when `broker_id` is None."""
        raw = self.ask(broker_id, api_key, version, encode(request, api_key, version))
        return decode(response, api_key, version, raw)

    def ask(self, broker_id: int | None, api_key: int, version: int, body: bytes) -> memoryview:
        """Return the raw response of one broker, or of any when `broker_id` is None.

        Retry lost connections.
        """
        return self.retry(lambda deadline: self._ask(broker_id, api_key, version, body, deadline))

    def retry(self, attempt: Callable[[float], T]) -> T:
        """Return the attempt's result; on TryAgain or ConnectionFailed retry until the client's time is up.

        The attempt gets that deadline, in seconds of `time.monotonic`.
        """
        self._home.check()  # two processes would take each other's answers
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

    def close(self) -> None:
        """Close every connection; the client may be used again and will reconnect."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One attempt each: TryAgain or ConnectionFailed mean that a retry may succeed.

    def _connect(self, address: tuple[str, int], deadline: float) -> Connection:
        connection = self._connections.get(address)
        if connection is not None and connection.idle and not connection.needs_renewal:
            return connection
        if connection is not None:
            # Reconnect: an abandoned attempt's response must never be mistaken for this attempt's, or the
            # login ends soon.
            connection.close()
        wait = max(0.1, min(_CONNECT_TIMEOUT_S, deadline - time.monotonic()))
        self._connections.pop(address, None)
        connection = Connection(*address, client_id=self._client_id, timeout_s=wait, security=self.security)
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
                raise TryAgain(f"broker {broker_id} of {self.bootstrap} is not alive")
            return self._request(self._brokers[broker_id], api_key, version, body, deadline)
        # Known brokers first: the bootstrap addresses may be outdated.
        addresses = list(dict.fromkeys([*self._connections, *self._brokers.values(), *self._addresses]))
        addresses.sort(key=lambda address: address == self._outdated)
        failure: ConnectionFailed | None = None
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            now = time.monotonic()
            try:  # A broker that does not answer must leave time for the others.
                answer = self._request(address, api_key, version, body, now + (deadline - now) / left)
                self._answered = address
                return answer
            except ConnectionFailed as error:
                failure = error
        assert failure is not None, "there is always a bootstrap address"
        raise failure

    def _call_controller(
        self, api_key: ApiKey, version: int, request: object, response: type[T], deadline: float
    ) -> T:
        self._metadata((), deadline)
        controller = self._controller_id if self._controller_id in self._brokers else None
        raw = self._ask(controller, api_key, version, encode(request, api_key, version), deadline)
        return decode(response, api_key, version, raw)

    def _metadata(self, names: tuple[str, ...] | None, deadline: float) -> messages.MetadataResponse:
        """Return metadata of the topics named, or of all, with MirrorMaker 2's copies merged."""
        if not self._copies_are_known:
            response = self._asked_metadata(names, deadline)
            if not (response.cluster_id or "").startswith(mirror_append.BYTE_OFFSETS_PREFIX):
                self._copies = self._read_copies(deadline)
            self._copies_are_known = True
            if self._copies is None:
                return response
        if (copies := self._copies) is None:
            return self._asked_metadata(names, deadline)
        wanted = None if names is None else [one for name in names for one in copies.names(name)]
        response = self._asked_metadata(wanted, deadline)
        return replace(response, topics=copies.merged(response.topics, names))

    def _read_copies(self, deadline: float) -> CopiedTopics | None:
        """Return the record of the copied origins; None if the cluster has no such record.

        The record is read once: a reader must keep the partition numbers that it began with.
        """
        response = self._asked_metadata([COPIES_TOPIC], deadline)
        there = metadata.topics_of(response).get(COPIES_TOPIC)
        if any(topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE for topic in response.topics):
            raise TryAgain(f"{COPIES_TOPIC} has no leader on {self.bootstrap}")
        if there is None:
            return None
        leader = there.partitions.get(0, -1)
        if leader not in self._brokers:
            raise TryAgain(f"{COPIES_TOPIC} has no leader on {self.bootstrap}")
        return read_copies(self._fetcher(leader, deadline), there.topic_id)

    def _asked_metadata(self, names: Iterable[str] | None, deadline: float) -> messages.MetadataResponse:
        body = metadata.encode_request(names)
        response = metadata.decode_response(
            self._ask(None, ApiKey.METADATA, metadata.VERSION, body, deadline)
        )
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self._controller_id = response.controller_id
        self._cluster_id = response.cluster_id
        for topic in response.topics:
            self._note_epochs(topic)
        return response

    def _note_epochs(self, topic: messages.MetadataResponse.Topic) -> None:
        """Note the leader epochs.

        Raise TryAgain for a stale leader, which may show less than was shown already.
        """
        if topic.name is None or topic.topic_id is None or topic.error_code:
            return
        topic_id, epochs = self._epochs.setdefault(topic.name, (topic.topic_id, {}))
        if topic_id != topic.topic_id:  # recreated
            _, epochs = self._epochs[topic.name] = (topic.topic_id, {})
        for partition in topic.partitions:
            number, epoch = partition.partition_index, partition.leader_epoch
            if 0 <= epoch < epochs.get(number, -1):
                self._outdated = self._answered
                raise TryAgain(f"{topic.name}-{number}: no broker of {self.bootstrap} reports its new leader")
            epochs[number] = epoch

    def _topic(self, name: str, deadline: float) -> TopicMetadata:
        (topic,) = self._metadata((name,), deadline).topics
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise no_topic(name, self.bootstrap)
        raise_error(topic.error_code, f"topic {name!r} on {self.bootstrap}")
        described = TopicMetadata.of(topic)
        self._leaders[name] = described.partitions
        return described

    def _leaders_of(self, topic: str, partitions: Iterable[int], deadline: float) -> dict[int, list[int]]:
        """Map each leader to the partitions of `partitions` that it leads."""
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
                raise TryAgain(f"{topic}-{partition} has no leader on {self.bootstrap}")
            shares.setdefault(leader, []).append(partition)
        return shares

    def _fetcher(self, leader: int, deadline: float) -> BrokerFetcher:
        connection = self._connect(self._brokers[leader], deadline)
        return self.fetcher(connection, timeout_s=max(0.1, deadline - time.monotonic()))

    def fetcher(self, connection: Connection, *, timeout_s: float) -> BrokerFetcher:
        """Return a fetcher of one broker, which merges the copies that MirrorMaker 2 makes."""
        if self._copies is None:
            return BrokerFetcher(connection, timeout_s=timeout_s, epoch_of=self.epoch_of)
        return CopiesFetcher(connection, self._copies, timeout_s=timeout_s, epoch_of=self.epoch_of)

    def _list_offsets(
        self, topic: str, timestamp: int, wanted: set[int], offsets: dict[int, int], deadline: float
    ) -> None:
        """Ask for the wanted partitions that `offsets` lacks, and add them to it."""
        missing = sorted(wanted - offsets.keys())
        for leader, share in self._leaders_of(topic, missing, deadline).items():
            listed = self._fetcher(leader, deadline).list_offsets([(topic, p) for p in share], timestamp)
            for (_, partition), answer in listed.items():
                what = f"offsets of {topic}-{partition}"
                if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    # Another broker knew the partition: either this broker will soon learn of it, or it was
                    # deleted.
                    raise TryAgain(f"{what}: broker {leader} does not have the partition")
                raise_error(answer.error_code, what)
                offsets[partition] = answer.offset

    def _fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        limits: FetchLimits,
        last_epochs: Mapping[TopicPartition, int],
        fetched: dict[int, FetchedPartition],
        deadline: float,
    ) -> None:
        """Ask every leader for its share at once, and add their answers to `fetched`."""
        fetchers = []
        for leader, share in self._leaders_of(topic, offsets, deadline).items():
            fetcher = self._fetcher(leader, deadline)
            wanted = {(topic, partition): offsets[partition] for partition in share}
            fetcher.request(wanted, limits, last_epochs)
            fetchers.append(fetcher)
        moved: list[int] = []
        for fetcher in fetchers:
            for (_, partition), part in fetcher.receive().items():
                if part.error in LEADER_MOVED:
                    moved.append(partition)
                else:
                    fetched[partition] = part
        if moved:
            raise TryAgain(f"{topic}-{moved[0]} has no leader on {self.bootstrap}")
