"""The layer between a frame and the broker: order, memory, errors."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.config import BrokerConfig, LogConfig
from millrace.errors import ErrorCode
from millrace.records import Message, build_batch
from millrace.wire.codec import decode, encode, is_flexible
from millrace.wire.fetch import encode_request
from millrace.wire.framing import FrameBuffers, RequestFramer
from millrace.wire.messages import ApiKey, ApiVersionsResponse, MetadataRequest, MetadataResponse
from millrace.wire.primitives import MIN_ITEM_LIMIT, REFUSED_ITEMS
from millrace.wire.replica import ReplicaAckRequest, encode_ack
from millrace.zookeeper.topic_state import BrokerAddress, PartitionState, TopicState
from millrace_broker.mailbox import Mailbox
from millrace_broker.partitions.broker import Broker
from millrace_broker.security.quotas import Meter
from millrace_broker.security.rights import Access
from millrace_broker.server.request import REQUEST_BYTES, Request
from millrace_broker.server.statistics import Statistics
from millrace_broker.storage.log_directory import LogDirectory
from tests.support import wait_until
from tests.unit.broker.asking import AskingClient, handlers_of
from tests.unit.broker.running import topic


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    state = PartitionState(1, (1,), {1: ""}, 0)
    cluster: Any = SimpleNamespace(
        brokers={1: BrokerAddress("127.0.0.1", 1, directory="a" * 16)},
        cluster_id="c",
        on_change=lambda callback: None,
        store=lambda places: None,
        topics={"t": TopicState("t", uuid.uuid4(), {}, {0: state})},
    )
    log = LogConfig(flush_ms=3_600_000)
    config = BrokerConfig(broker_id=1, cluster="test", log=log)
    made = Broker(config, cluster, LogDirectory.open(tmp_path, log, time.time), Mailbox())
    made.start()
    yield made
    made.finalize()
    made.close()


def frame(api_key: int, version: int, body: bytes) -> bytearray:
    return bytearray(struct.pack(">hhih", api_key, version, 7, -1) + body)


def produce_frame(acks: int) -> bytearray:
    records = build_batch([Message(1, None, b"x" * 10_000)])
    body = (
        struct.pack(">hhiih", -1, acks, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, len(records)) + records
    )
    return frame(ApiKey.PRODUCE, 7, body)


def body_of(request: Request) -> bytes:
    assert request.parts is not None
    (answer,) = request.parts
    assert isinstance(answer, bytes)
    assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 7)
    return answer[8:]


def test_a_request_that_waits_keeps_none_of_the_received_bytes(broker: Broker) -> None:
    handlers = handlers_of(broker)
    received = produce_frame(acks=-1)
    request = handlers.handle(AskingClient(), memoryview(received))
    broker.end_of_turn()
    assert request.parts is None, "it waits for the flush"
    assert request.kept == 0, "its batches are written"
    received.append(0)  # BufferError as long as anybody holds a view


def test_a_request_whose_content_waits_for_its_answer_counts_for_its_size(broker: Broker) -> None:
    wanted = [("t", 0, 0, 1, -1, -1)] * 1000
    received = frame(ApiKey.FETCH, 12, b"\0" + encode_request(wanted, max_wait=60_000, max_bytes=1))
    request = handlers_of(broker).handle(AskingClient(), memoryview(received))
    assert request.parts is None
    assert request.kept == len(received) - REQUEST_BYTES > 0


@pytest.mark.parametrize(
    ("api_key", "version", "body", "served"),
    [
        (ApiKey.API_VERSIONS, 0, b"", True),
        (ApiKey.REPLICA_ACK, 0, encode_ack(ReplicaAckRequest(1, "a" * 16, [])), True),
        (ApiKey.METADATA, 1, struct.pack(">i", -1), False),
        (ApiKey.PRODUCE, 7, b"", False),
    ],
)
def test_over_a_connection_too_many_only_a_broker_is_served(
    broker: Broker, api_key: int, version: int, body: bytes, served: bool
) -> None:
    client = AskingClient()
    client.spare = True
    frame = produce_frame(acks=1) if api_key == ApiKey.PRODUCE else b""
    frame = frame or struct.pack(">hhih", api_key, version, 1, -1) + body
    framer = RequestFramer(1 << 20, FrameBuffers())
    framer.receive_data(memoryview(struct.pack(">i", len(frame)) + frame))
    request = handlers_of(broker).serve_next(client, framer)
    assert request is not None
    assert (request.parts is not None, client.closed) == (served, not served)
    broker.end_of_turn()
    assert broker.partition("t", 0).log.end == 0


def test_a_handler_that_fails_says_so_in_the_log_and_closes_what_it_cannot_answer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = handlers_of(broker)
    monkeypatch.setattr(broker, "produce", lambda *arguments: 1 // 0)
    client = AskingClient()
    request = handlers.handle(client, memoryview(produce_frame(acks=1)))
    assert (request.parts, client.closed) == (None, True)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("api_key", "version", "body", "answered"),
    [
        (
            ApiKey.LIST_OFFSETS,
            1,
            struct.pack(">iih", -1, 1, 1) + b"t" + struct.pack(">iiq", 1, 0, 1000),
            False,
        ),
        (ApiKey.CREATE_TOPICS, 2, struct.pack(">ii?", 0, 1000, False), False),
        (ApiKey.DELETE_TOPICS, 1, struct.pack(">ii", 0, 1000), False),
        (ApiKey.DESCRIBE_LOG_DIRS, 3, b"\1\0", True),
    ],
)
def test_work_that_fails_is_answered_or_closes_the_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, api_key: int, version: int, body: bytes, answered: bool
) -> None:
    def fails(*_: object) -> bytes:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("millrace_broker.handlers.table.encode", fails)
    flexible = b"\0" if is_flexible(api_key, version) else b""
    received, client = memoryview(frame(api_key, version, flexible + body)), AskingClient()
    request = handlers_of(broker).handle(client, received)
    deadline = time.monotonic() + 10
    while request.parts is None and not client.closed:
        assert time.monotonic() < deadline, "nobody answers"
        broker.mailbox.run()
        time.sleep(0.005)
    assert (request.parts is not None) == answered


class Counting(AskingClient):
    """A client whose user has used up its share of the processor; its waits are noted."""

    def __init__(self) -> None:
        super().__init__(Access(None, "User:alice", "127.0.0.1"))
        book = SimpleNamespace(limits={"alice": {"request_percentage": 1e-9}})
        self.access.meter = Meter(book, "alice")
        self.waits: list[float] = []

    def mute(self, seconds: float) -> None:
        self.waits.append(seconds)


def test_work_in_a_thread_counts_until_it_is_done_and_its_time_for_the_quota(broker: Broker) -> None:
    received, client = memoryview(frame(ApiKey.DELETE_TOPICS, 1, struct.pack(">ii", 0, 1000))), Counting()
    request = handlers_of(broker).handle(client, received)
    assert client.working == 1
    deadline = time.monotonic() + 10
    while request.parts is None:
        assert time.monotonic() < deadline, "nobody answers"
        broker.mailbox.run()
        time.sleep(0.005)
    assert (client.working, len(client.waits)) == (0, 1)


def test_every_api_version_and_body_is_answered_or_closes_the_connection(broker: Broker) -> None:
    handlers = handlers_of(broker)
    for api_key in range(-2, 100):
        for version in [-1, *range(17), 99]:
            for body in (b"", b"\xff" * 40, bytes(40)):
                client = AskingClient()
                request = handlers.handle(client, memoryview(frame(api_key, version, body)))
                deadline = time.monotonic() + 10
                while request.parts is None and not client.closed:
                    assert time.monotonic() < deadline, f"API {api_key} v{version} with {body!r}"
                    broker.mailbox.run()


def test_a_request_without_acks_and_batches_takes_no_answer(broker: Broker) -> None:
    empty = frame(ApiKey.PRODUCE, 7, struct.pack(">hhii", -1, 0, 1000, 0))
    request = handlers_of(broker).handle(AskingClient(), memoryview(empty))
    assert request.parts == ()


def test_the_api_list_is_the_same_at_every_version(broker: Broker) -> None:
    handlers = handlers_of(broker)
    lists = []
    for version in range(4):
        body = body_of(
            handlers.handle(AskingClient(), memoryview(frame(ApiKey.API_VERSIONS, version, b"\0")))
        )
        lists.append(decode(ApiVersionsResponse, ApiKey.API_VERSIONS, version, body))
    assert all(answer == lists[0] for answer in lists)
    keys = [api.api_key for api in lists[0].api_keys]
    assert keys == sorted(keys)


def test_metadata_is_encoded_once_per_snapshot(broker: Broker) -> None:
    handlers = handlers_of(broker)
    ask = memoryview(frame(ApiKey.METADATA, 8, b"\xff\xff\xff\xff\0\0\0"))
    first, second = (body_of(handlers.handle(AskingClient(), ask)) for _ in range(2))
    assert first is not None
    assert first == second
    assert b"\0\x01t" in first
    broker.cluster.topics = {}
    assert b"\0\x01t" not in body_of(handlers.handle(AskingClient(), ask))


@pytest.mark.parametrize("version", [1, 8, 12])
def test_metadata_encodes_a_topic_again_when_it_or_the_brokers_change_and_no_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    encoded: list[str] = []

    def encode_and_note(message: Any, *which: int) -> bytes:
        if isinstance(message, MetadataResponse.Topic):
            encoded.append(str(message.name))
        return encode(message, *which)

    monkeypatch.setattr(import_module("millrace_broker.handlers.metadata"), "encode", encode_and_note)
    handlers, cluster = handlers_of(broker), broker.cluster
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    flexible = b"\0" * is_flexible(ApiKey.METADATA, version)
    ask = memoryview(frame(ApiKey.METADATA, version, flexible + encode(request, ApiKey.METADATA, version)))

    def answer() -> MetadataResponse:
        encoded.clear()
        answered = body_of(handlers.handle(AskingClient(), ask)).removeprefix(flexible)
        return decode(MetadataResponse, ApiKey.METADATA, version, answered)

    cluster.brokers = dict.fromkeys((1, 2), BrokerAddress("127.0.0.1", 1))
    cluster.topics = {name: topic(name, 1, 1) for name in ("t", "u")}
    assert [told.name for told in answer().topics] == ["t", "u"]
    assert encoded == ["t", "u"]
    cluster.topics = {**cluster.topics, "u": topic("u", 1, 1, 2)}
    assert [len(told.partitions) for told in answer().topics] == [2, 3]
    assert encoded == ["u"]
    cluster.brokers = {1: BrokerAddress("127.0.0.1", 1)}
    assert [told.partitions[-1].leader_id for told in answer().topics] == [1, -1]
    assert encoded == ["t", "u"]


def test_errors_are_counted_by_api_and_code_whatever_clients_make_up(broker: Broker) -> None:
    handlers, client = handlers_of(broker), AskingClient()
    for api_key in range(1000, 3000):
        handlers.handle(client, memoryview(frame(api_key, 0, b"")))
    wanted = struct.pack(">iiqi", 1, 0, 10**9, 1000)
    asked = struct.pack(">iiiib", -1, 0, 1, 1000, 0) + struct.pack(">ih", 1, 1) + b"t" + wanted
    assert client.errors == {(-1, ErrorCode.UNSUPPORTED_VERSION): 2000}
    client = AskingClient()
    handlers.handle(client, memoryview(frame(ApiKey.FETCH, 4, asked)))
    assert client.errors == {(ApiKey.FETCH, ErrorCode.OFFSET_OUT_OF_RANGE): 1}


def test_an_error_of_each_partition_is_counted_whatever_api_says_it(broker: Broker) -> None:
    client = AskingClient()
    wanted = [struct.pack(">iq", number, -1) for number in (0, 5, 6)]
    body = struct.pack(">iih", -1, 1, 1) + b"t" + struct.pack(">i", len(wanted)) + b"".join(wanted)
    handlers_of(broker).handle(client, memoryview(frame(ApiKey.LIST_OFFSETS, 1, body)))
    assert client.errors == {(ApiKey.LIST_OFFSETS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): 2}


def test_requests_are_counted_by_api_and_version_whatever_clients_make_up() -> None:
    statistics, client = Statistics(), AskingClient()
    made_up = [(api_key, 0) for api_key in range(1000, 3000)]
    for api_key, version in [*made_up, *((ApiKey.FETCH, version) for version in (-1, 4, 30, 31, 0x7FFF))]:
        statistics.served(Request(client, api_key, version, 1, memoryview(b"")), 0.0)
    found = {key: api.requests for key, api in statistics.apis.items() if any(api.requests)}
    assert found == {-1: [2000, *[0] * 31], ApiKey.FETCH: [*[0] * 4, 1, *[0] * 25, 1, 3]}


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (ApiKey.FETCH, 3), (ApiKey.METADATA, 9), (2, 0)])
def test_an_api_or_version_that_is_not_offered_closes_the_connection(
    broker: Broker, api_key: int, version: int
) -> None:
    client = AskingClient()
    request = handlers_of(broker).handle(client, memoryview(frame(api_key, version, b"")))
    assert client.closed
    assert request.parts is None


@pytest.mark.parametrize(("partitions", "at_once"), [(MIN_ITEM_LIMIT - 1, True), (MIN_ITEM_LIMIT, False)])
def test_a_thread_serves_a_request_of_thousands_of_items(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, partitions: int, at_once: bool
) -> None:
    """The loop goes on meanwhile: threads give it up after less than a millisecond."""
    monkeypatch.setattr("millrace_broker.handlers.item_bound.FACTOR", 10_000)
    wanted = struct.pack(">iiq", 0, -1, -1) * partitions
    body = struct.pack(">ibih", -1, 0, 1, 1) + b"t" + struct.pack(">i", partitions) + wanted
    request = handlers_of(broker).handle(AskingClient(), memoryview(frame(ApiKey.LIST_OFFSETS, 5, body)))
    assert (request.parts is not None) == at_once

    def is_answered() -> bool:
        broker.mailbox.run()
        return request.parts is not None

    wait_until("an answer", is_answered)


def test_a_request_of_more_items_than_are_read_closes_its_connection(broker: Broker) -> None:
    client = AskingClient()
    body = struct.pack(">i", MIN_ITEM_LIMIT + REFUSED_ITEMS + 1) + bytes(100_000)
    request = handlers_of(broker).handle(client, memoryview(frame(ApiKey.METADATA, 1, body)))
    assert client.closed
    assert request.parts is None  # an answer with an empty list would say that there is nothing
