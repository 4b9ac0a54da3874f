"""The cluster client against a broker that answers as each test says."""

from __future__ import annotations

import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.connection import Connection, ConnectionFailed
from millrace.errors import MillraceError, TopicAlreadyExists, UnknownTopicOrPartition
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import decode_request, encode_response
from millrace.wire.fields import TopicItems
from millrace.wire.messages import (
    ApiKey,
    CreateTopicsRequest,
    CreateTopicsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataResponse,
)
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from tests.support import WAIT_S

Serve = Callable[[int, int, bytes], bytes | None]
CLUSTER_ID = f"{BYTE_OFFSETS_PREFIX}the-id"
TOPIC_ID = uuid.UUID(int=9)


class ScriptedBroker:
    """Answers frames with what `serve` returns; None closes the connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.serve: Serve = lambda api_key, version, body: None
        self.asked: list[int] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            while head := file.read(4):
                frame = file.read(struct.unpack(">i", head)[0])
                api_key, version, correlation_id, client = struct.unpack_from(">hhih", frame)
                self.asked.append(api_key)
                answer = self.serve(api_key, version, frame[10 + client :])
                if answer is None:
                    return
                flexible = b"\0" if api_key in (ApiKey.METADATA, ApiKey.FETCH) else b""
                body = struct.pack(">i", correlation_id) + flexible + answer
                connection.sendall(struct.pack(">i", len(body)) + body)

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()

    def metadata(self, *topics: MetadataResponse.Topic) -> bytes:
        response = MetadataResponse(
            brokers=(MetadataResponse.Broker(node_id=7, host="127.0.0.1", port=self.port),),
            cluster_id=CLUSTER_ID,
            controller_id=7,
            topics=topics,
        )
        return encode(response, ApiKey.METADATA, 12)

    def topic(
        self,
        leader: int = 7,
        partitions: int = 2,
        error: int = 0,
        epoch: int = -1,
        topic_id: uuid.UUID = TOPIC_ID,
    ) -> MetadataResponse.Topic:
        return MetadataResponse.Topic(
            error_code=error,
            name="t",
            topic_id=topic_id,
            partitions=tuple(
                MetadataResponse.Topic.Partition(
                    error_code=0, partition_index=number, leader_id=leader, leader_epoch=epoch
                )
                for number in range(partitions)
            ),
        )


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    yield scripted
    scripted.close()


@pytest.fixture
def client(broker: ScriptedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(f"127.0.0.1:{broker.port}", timeout_s=5) as connected:
        yield connected


def listed(offsets: dict[int, int], error: int = 0) -> bytes:
    partitions = tuple(
        ListOffsetsResponse.Partition(partition_index=p, error_code=error, offset=offset)
        for p, offset in offsets.items()
    )
    topics = (TopicItems(name="t", partitions=partitions),)
    return encode(ListOffsetsResponse(topics=topics), ApiKey.LIST_OFFSETS, 5)


def test_topics_and_cluster_id_come_from_metadata(broker: ScriptedBroker, client: ClusterClient) -> None:
    broker.serve = lambda *_: broker.metadata(broker.topic())
    assert client.cluster_id == CLUSTER_ID
    assert client.topic("t").partitions == {0: 7, 1: 7}
    assert client.topics()["t"].topic_id == TOPIC_ID


def test_an_unknown_topic_is_told_at_once(broker: ScriptedBroker, client: ClusterClient) -> None:
    broker.serve = lambda *_: broker.metadata(broker.topic(error=3))
    advice = f"create it with `millrace topics create t --bootstrap {client.bootstrap}`"
    with pytest.raises(UnknownTopicOrPartition, match=f"topic 't' does not exist on 127.*{advice}"):
        client.topic("t")
    assert len(broker.asked) == 1


def test_a_lost_connection_is_made_anew(broker: ScriptedBroker, client: ClusterClient) -> None:
    broker.serve = lambda *_: broker.metadata(broker.topic()) if len(broker.asked) > 2 else None
    assert client.topic("t").partitions


def test_a_leader_that_has_moved_is_looked_up_again(broker: ScriptedBroker, client: ClusterClient) -> None:
    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.METADATA:
            return broker.metadata(broker.topic())
        moved = broker.asked.count(ApiKey.LIST_OFFSETS) == 1
        return listed({0: -1}, error=6) if moved else listed({0: 42})

    broker.serve = serve
    assert client.list_offsets("t", LATEST, [0]) == {0: 42}
    assert broker.asked.count(ApiKey.METADATA) >= 2


@pytest.mark.parametrize("error", [74, 75])
def test_a_leader_of_another_epoch_is_looked_up_again_and_told_the_epoch(
    broker: ScriptedBroker, client: ClusterClient, error: int
) -> None:
    epochs: list[int] = []

    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.METADATA:
            return broker.metadata(broker.topic(epoch=len(epochs)))
        (topic,) = decode(ListOffsetsRequest, ApiKey.LIST_OFFSETS, 5, body).topics
        epochs.append(topic.partitions[0].current_leader_epoch)
        return listed({0: 42}) if len(epochs) > 1 else listed({0: -1}, error=error)

    broker.serve = serve
    assert client.list_offsets("t", LATEST, [0]) == {0: 42}
    assert epochs == [0, 1]


def test_a_broker_that_knows_an_older_leader_only_is_not_believed_and_others_are_asked_first(
    broker: ScriptedBroker,
) -> None:
    other = ScriptedBroker()

    def tells(epoch: int, topic_id: uuid.UUID = TOPIC_ID) -> Serve:
        topic = broker.topic(epoch=epoch, topic_id=topic_id)
        brokers = tuple(
            MetadataResponse.Broker(node_id=7, host="127.0.0.1", port=one.port) for one in (broker, other)
        )
        response = MetadataResponse(brokers=brokers, cluster_id=CLUSTER_ID, controller_id=7, topics=(topic,))
        return lambda *_: encode(response, ApiKey.METADATA, 12)

    with ClusterClient(f"127.0.0.1:{broker.port},127.0.0.1:{other.port}", timeout_s=5) as client:
        broker.serve = tells(4)
        assert client.topic("t").epoch_of(0) == 4
        broker.serve, other.serve = tells(3), tells(4)
        assert client.topic("t").epoch_of(0) == 4
        assert (len(broker.asked), len(other.asked)) == (2, 1)
        assert client.topic("t").epoch_of(0) == 4
        assert (len(broker.asked), len(other.asked)) == (2, 2)
        assert (client.epoch_of(("t", 0)), client.epoch_of(("t", 7)), client.epoch_of(("u", 0))) == (
            4,
            -1,
            -1,
        )
        other.serve = tells(0, uuid.UUID(int=10))
        assert client.topic("t").epoch_of(0) == 0, "it was created anew"
    other.close()


def test_a_leader_that_has_not_heard_of_its_topic_yet_is_asked_again(
    broker: ScriptedBroker, client: ClusterClient
) -> None:
    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.METADATA:
            return broker.metadata(broker.topic())
        return listed({0: 42}) if broker.asked.count(ApiKey.LIST_OFFSETS) > 2 else listed({0: -1}, error=3)

    broker.serve = serve
    assert client.list_offsets("t", LATEST, [0]) == {0: 42}


def test_a_partition_that_came_later_is_looked_up(broker: ScriptedBroker, client: ClusterClient) -> None:
    partitions = 1

    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.METADATA:
            return broker.metadata(broker.topic(partitions=partitions))
        (topic,) = decode(ListOffsetsRequest, ApiKey.LIST_OFFSETS, 5, body).topics
        return listed({p.partition_index: 80 for p in topic.partitions})

    broker.serve = serve
    assert client.list_offsets("t", LATEST, [0]) == {0: 80}
    partitions = 2
    assert client.list_offsets("t", LATEST, [0, 1]) == {0: 80, 1: 80}
    with pytest.raises(UnknownTopicOrPartition, match="has no partition=2"):
        client.list_offsets("t", LATEST, [2])


def test_a_time_later_than_every_message_gives_the_end(broker: ScriptedBroker, client: ClusterClient) -> None:
    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.METADATA:
            return broker.metadata(broker.topic())
        (topic,) = decode(ListOffsetsRequest, ApiKey.LIST_OFFSETS, 5, body).topics
        late = topic.partitions[0].timestamp == 5000
        return listed({p.partition_index: -1 if late and p.partition_index else 80 for p in topic.partitions})

    broker.serve = serve
    assert client.list_offsets("t", 5000) == {0: 80, 1: 80}
    assert client.list_offsets("t", EARLIEST) == {0: 80, 1: 80}


def test_nobody_leading_is_one_line_within_the_time_limit(broker: ScriptedBroker) -> None:
    broker.serve = lambda *_: broker.metadata(broker.topic(leader=-1))
    started = time.monotonic()
    with (
        ClusterClient(f"127.0.0.1:{broker.port}", timeout_s=0.5) as client,
        pytest.raises(MillraceError, match=r"t-0 has no leader .* \(gave up after 0.5 s\)"),
    ):
        client.list_offsets("t", LATEST)
    assert time.monotonic() - started < WAIT_S


def test_no_broker_at_all_is_one_line_within_the_time_limit() -> None:
    started = time.monotonic()
    with pytest.raises(MillraceError, match="Connection refused; start it or give another address"):
        ClusterClient("127.0.0.1:1", timeout_s=0.5).topics()
    assert time.monotonic() - started < WAIT_S


def test_a_late_answer_is_never_taken_for_the_next_ones(broker: ScriptedBroker) -> None:
    slow = threading.Event()

    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.METADATA:
            return broker.metadata(broker.topic(partitions=1))
        number = broker.asked.count(ApiKey.FETCH)
        if number == 1:
            slow.wait(WAIT_S)
        return fetched(0, high_watermark=number)

    broker.serve = serve
    with ClusterClient(f"127.0.0.1:{broker.port}", timeout_s=0.3) as client:
        with pytest.raises(MillraceError):
            client.fetch("t", {0: 0}, max_bytes=10, max_wait_ms=0)
        slow.set()
        assert client.fetch("t", {0: 0}, max_bytes=10, max_wait_ms=0)[0].high_watermark >= 2


@dataclass(frozen=True)
class Records:
    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


def fetched(partition: int, records: bytes = b"", *, high_watermark: int = 9) -> bytes:
    parts = encode_response(12, [("t", [(partition, 0, high_watermark, 0, Records(records), None)])])
    return b"".join(part.data if isinstance(part, Records) else part for part in parts)


def test_an_offset_out_of_range_comes_with_the_log_s_bounds_although_kafka_does_not_send_them(
    broker: ScriptedBroker, client: ClusterClient
) -> None:
    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.METADATA:
            return broker.metadata(broker.topic())
        if api_key == ApiKey.LIST_OFFSETS:
            (topic,) = decode(ListOffsetsRequest, ApiKey.LIST_OFFSETS, 5, body).topics
            return listed({1: {EARLIEST: 30, LATEST: 40}[topic.partitions[0].timestamp]})
        errors = [(partition, code, -1, -1, None, None) for partition, code in ((0, 0), (1, 1))]
        return b"".join(part for part in encode_response(12, [("t", errors)]) if isinstance(part, bytes))

    broker.serve = serve
    found = client.fetch("t", {0: 5, 1: 5}, max_bytes=10, max_wait_ms=0)
    assert (found[1].error, found[1].log_start_offset, found[1].high_watermark) == (1, 30, 40)
    assert found[0].log_start_offset == -1
    within = client.fetch("t", {0: 5, 1: 35}, max_bytes=10, max_wait_ms=0, last_epochs={1: 6})[1]
    assert (within.error, within.parting) == (0, (-1, 40)), "it has no batch of epoch 6, nor of a newer one"


def test_a_broker_without_news_does_not_hold_up_the_others(broker: ScriptedBroker) -> None:
    quiet = ScriptedBroker()
    partitions = tuple(
        MetadataResponse.Topic.Partition(error_code=0, partition_index=number, leader_id=leader)
        for number, leader in enumerate((7, 8))
    )
    metadata = MetadataResponse(
        brokers=tuple(
            MetadataResponse.Broker(node_id=node, host="127.0.0.1", port=one.port)
            for node, one in ((7, broker), (8, quiet))
        ),
        cluster_id="c",
        controller_id=7,
        topics=(MetadataResponse.Topic(error_code=0, name="t", topic_id=TOPIC_ID, partitions=partitions),),
    )
    waits: list[int] = []
    something = b""

    def serve(api_key: int, version: int, body: bytes) -> bytes:
        return encode(metadata, ApiKey.METADATA, 12) if api_key == ApiKey.METADATA else fetched(0, something)

    def wait(api_key: int, version: int, body: bytes) -> bytes:
        waits.append(decode_request(12, memoryview(body[1:])).max_wait)
        time.sleep(waits[-1] / 1000)
        return fetched(1)

    broker.serve, quiet.serve = serve, wait
    with ClusterClient(f"127.0.0.1:{broker.port}", timeout_s=5) as client:
        something = b"records"
        found = client.fetch("t", {0: 0, 1: 0}, max_bytes=10, max_wait_ms=400)
        assert (bytes(found[0].records), len(found), waits) == (b"records", 2, [0])
        something = b""
        client.fetch("t", {0: 0, 1: 0}, max_bytes=10, max_wait_ms=400)
        assert waits == [0, 0, 400], "when there is nothing at all they wait together"
    quiet.close()


def test_a_broker_that_does_not_answer_leaves_time_to_ask_another(broker: ScriptedBroker) -> None:
    def serve(*_: object) -> bytes:
        time.sleep(0.3)
        return broker.metadata(broker.topic())

    broker.serve = serve
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        ClusterClient(f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{broker.port}", timeout_s=2) as client,
    ):
        assert client.topic("t").partitions == {0: 7, 1: 7}


def test_what_the_broker_says_of_a_refused_topic_is_what_people_read(
    broker: ScriptedBroker, client: ClusterClient
) -> None:
    result = CreateTopicsResponse.Topic(name="t", error_code=36, error_message="topic t exists already")
    created = encode(CreateTopicsResponse(topics=(result,)), ApiKey.CREATE_TOPICS, 4)
    broker.serve = lambda api_key, *_: broker.metadata() if api_key == ApiKey.METADATA else created
    with pytest.raises(TopicAlreadyExists, match="topic 't' was not created: topic t exists already"):
        client.create_topic("t", 1)


def test_a_new_topic_that_the_brokers_have_not_heard_of_yet_is_awaited(
    broker: ScriptedBroker, client: ClusterClient
) -> None:
    created = encode(
        CreateTopicsResponse(topics=(CreateTopicsResponse.Topic(name="t", error_code=0),)),
        ApiKey.CREATE_TOPICS,
        4,
    )
    asked: list[CreateTopicsRequest] = []

    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.CREATE_TOPICS:
            asked.append(decode(CreateTopicsRequest, ApiKey.CREATE_TOPICS, 4, body))
            return created
        known = broker.asked.count(ApiKey.METADATA) > 3
        return broker.metadata(broker.topic(error=0 if known else 3))

    broker.serve = serve
    client.create_topic("t", 2)
    assert broker.asked.count(ApiKey.METADATA) > 3
    assert [topic.replication_factor for topic in asked[0].topics] == [-1], "as many as the cluster says"


def test_what_an_open_transaction_has_written_counts_as_not_there(
    broker: ScriptedBroker, client: ClusterClient
) -> None:
    asked: list[ListOffsetsRequest] = []

    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.METADATA:
            return broker.metadata(broker.topic())
        asked.append(decode(ListOffsetsRequest, ApiKey.LIST_OFFSETS, 5, body))
        return listed({0: 42})

    broker.serve = serve
    assert client.list_offsets("t", LATEST, [0]) == {0: 42}
    assert [request.isolation_level for request in asked] == [1], "as fetches ask"


def test_a_new_leader_that_does_not_know_its_end_yet_is_asked_again(
    broker: ScriptedBroker, client: ClusterClient
) -> None:
    def serve(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == ApiKey.METADATA:
            return broker.metadata(broker.topic())
        first = broker.asked.count(ApiKey.LIST_OFFSETS) == 1
        return listed({0: -1}, error=78) if first else listed({0: 42})

    broker.serve = serve
    assert client.list_offsets("t", LATEST, [0]) == {0: 42}


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad", struct.pack(">ii", 4, 999), struct.pack(">i", 3) + b"xyz"]
)
def test_a_server_that_speaks_something_else_is_told_as_such(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(1000)
                accepted.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        connection = Connection("127.0.0.1", listener.getsockname()[1], client_id="x", timeout_s=5)
        with closing(connection), pytest.raises(ConnectionFailed, match="no answer from the broker"):
            connection.request(ApiKey.LIST_OFFSETS, 5, b"", timeout_s=5)
        assert not connection.idle
