"""The hand-laid bytes of Produce and Fetch are what kio, an independent implementation, reads and writes."""

from __future__ import annotations

import contextlib
import datetime
import io
import struct
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from millrace.errors import InvalidRequest
from millrace.wire import fetch, produce
from millrace.wire.fetch import FetchedPartition
from millrace.wire.produce import ProducedPartition

PRODUCE, FETCH = 0, 1


@dataclass(frozen=True)
class Records:
    """Stands for a slice of a file."""

    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


def read_with_kio(api_key: int, version: int, body: bytes) -> Any:
    entity, size = entity_reader(load_response_schema(api_key, version))(body, 0)
    assert size == len(body), "bytes left over"
    return entity


def produce_body(version: int, *, transactional_id: str | None = None) -> bytearray:
    schema: Any = load_request_schema(PRODUCE, version)
    module = __import__(schema.__module__, fromlist=["x"])
    data: dict[str, list[tuple[int, bytes | None]]] = {
        "alpha": [(0, b"batch zero"), (7, None)],
        "β": [(1, b"x" * 300)],
        "c": [],
    }
    topics = tuple(
        module.TopicProduceData(
            name=name,
            partition_data=tuple(module.PartitionProduceData(index=i, records=r) for i, r in partitions),
        )
        for name, partitions in data.items()
    )
    request = schema(
        transactional_id=transactional_id, acks=-1, timeout=datetime.timedelta(seconds=30), topic_data=topics
    )
    out = io.BytesIO()
    entity_writer(schema)(out, request)
    return bytearray(out.getvalue())


@pytest.mark.parametrize("version", range(3, 13))
def test_a_produce_request_is_read_as_kio_wrote_it(version: int) -> None:
    body = produce_body(version, transactional_id="tx" if version == 5 else None)
    request = produce.decode_request(version, memoryview(body))
    assert request.transactional_id == ("tx" if version == 5 else None)
    assert request.acks == -1
    assert request.topics == [("alpha", 2), ("β", 1), ("c", 0)]
    assert [(t, p, bytes(r)) for t, p, r in request.batches] == [
        ("alpha", 0, b"batch zero"),
        ("alpha", 7, b""),
        ("β", 1, b"x" * 300),
    ]


def test_records_are_views_of_the_received_bytes() -> None:
    body = produce_body(8)
    request = produce.decode_request(8, memoryview(body))
    request.batches[0][2][:5] = b"BATCH"
    assert b"BATCH zero" in body


@pytest.mark.parametrize("version", [7, 12])
def test_a_produce_request_cut_anywhere_is_refused(version: int) -> None:
    body = memoryview(produce_body(version))
    for cut in range(len(body)):
        with pytest.raises(InvalidRequest):
            produce.decode_request(version, body[:cut])


@given(st.binary(max_size=80), st.integers(3, 12))
def test_a_produce_request_of_any_bytes_is_read_or_refused(data: bytes, version: int) -> None:
    with contextlib.suppress(InvalidRequest):
        asked = produce.decode_request(version, memoryview(data))
        assert sum(len(batch) for _, _, batch in asked.batches) <= len(data)


def test_tagged_fields_of_later_clients_are_passed_over() -> None:
    tagged = b"\2\5\3abc\7\0"  # two fields of three bytes and none
    body = b"\0" + struct.pack(">hi", 1, 1000) + b"\2\2t\2" + struct.pack(">i", 4) + b"\3xy" + tagged * 3
    request = produce.decode_request(9, memoryview(body))
    assert [(topic, partition, bytes(batch)) for topic, partition, batch in request.batches] == [
        ("t", 4, b"xy")
    ]
    wanted = struct.pack(">iiqiqi", 3, -1, 77, -1, -1, 99) + tagged
    head = struct.pack(">iiibii", 500, 1, 99, 0, 0, -1)
    body = head + b"\2" + bytes(16) + b"\3" + wanted * 2 + tagged + b"\1\1" + tagged
    assert fetch.decode_request(16, memoryview(body)).topics == [("", [(3, 77, 99, -1, -1)] * 2)]


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("partitions", [1, 3])
def test_kio_reads_our_produce_response(version: int, partitions: int) -> None:
    results = [
        ProducedPartition(5, 0, 4711, 17),
        ProducedPartition(6, 87, message="no"),
        ProducedPartition(0, 3),
    ]
    topics = [("alpha", 1)] if partitions == 1 else [("alpha", 2), ("β", 1)]
    body = produce.encode_response(version, topics, results[:partitions])
    if version >= 9:  # no tagged fields in the header
        assert body[:1] == b"\0"
        body = body[1:]
    response = read_with_kio(PRODUCE, version, body)
    assert [topic.name for topic in response.responses] == [name for name, _ in topics]
    first = response.responses[0].partition_responses[0]
    assert (first.index, first.error_code, first.base_offset, first.log_append_time) == (5, 0, 4711, None)
    if version >= 5:
        assert first.log_start_offset == 17
    if partitions == 3:
        second = response.responses[0].partition_responses[1]
        assert (second.index, second.error_code, second.base_offset) == (6, 87, -1)
        if version >= 8:
            assert second.error_message == "no"
        assert response.responses[1].partition_responses[0].error_code == 3


def test_the_bytes_of_a_produce_response_stay_as_they_are() -> None:
    body = produce.encode_response(7, [("t", 1)], [ProducedPartition(2, 0, 300, 0)])
    assert body.hex() == (
        "0000000100017400000001000000020000000000000000012cffffffffffffffff000000000000000000000000"
    )
    assert struct.unpack(">i h1s i ihqqq i", body) == (1, 1, b"t", 1, 2, 0, 300, -1, 0, 0)


@pytest.mark.parametrize("version", range(3))
def test_old_produce_responses_have_their_old_layout(version: int) -> None:
    body = produce.encode_response(version, [("t", 1)], [ProducedPartition(2, 35)])
    layout = [">i h1s i ihq", ">i h1s i ihq i", ">i h1s i ihqq i"][version]
    assert struct.unpack(layout, body)[3:6] == (1, 2, 35)


IDS = {name: uuid.uuid5(uuid.NAMESPACE_URL, name) for name in ("alpha", "β", "c")}


WANTED = [[(0, 5, 100, 6, 2), (7, 1 << 40, 0x7FFFFFFF, -1, -1)], [(1, -1, 0, 0, 0)], []]
"""Partitions of each topic: number, offset, most bytes, leader epoch, epoch of the last batch read."""


def fetch_body(version: int) -> bytes:
    schema: Any = load_request_schema(FETCH, version)
    module = __import__(schema.__module__, fromlist=["x"])
    wanted = dict(zip(IDS, WANTED, strict=True))
    topics = tuple(
        module.FetchTopic(
            **({"topic_id": IDS[name]} if version >= 13 else {"topic": name}),
            partitions=tuple(
                module.FetchPartition(
                    partition=p,
                    fetch_offset=offset,
                    partition_max_bytes=size,
                    **({"current_leader_epoch": epoch} if version >= 9 else {}),
                    **({"last_fetched_epoch": last_epoch} if version >= 12 else {}),
                )
                for p, offset, size, epoch, last_epoch in partitions
            ),
        )
        for name, partitions in wanted.items()
    )
    forgotten: dict[str, Any] = {}
    if version >= 7:
        named = {"topic_id": IDS["c"]} if version >= 13 else {"topic": "f"}
        forgotten["forgotten_topics_data"] = (module.ForgottenTopic(**named, partitions=(1, 2)),)
    if version >= 11:
        forgotten["rack_id"] = "rack"
    if version < 15:
        forgotten["replica_id"] = -1
    request = schema(
        max_wait=datetime.timedelta(milliseconds=500),
        min_bytes=3,
        max_bytes=1 << 20,
        isolation_level=1,
        topics=topics,
        **forgotten,
    )
    out = io.BytesIO()
    entity_writer(schema)(out, request)
    return out.getvalue()


@pytest.mark.parametrize("version", range(4, 18))
def test_a_fetch_request_is_read_as_kio_wrote_it(version: int) -> None:
    asked = fetch.decode_request(version, memoryview(fetch_body(version)))
    assert asked[:3] == (500, 3, 1 << 20)
    known = 5 if version >= 12 else 4 if version >= 9 else 3
    wanted = [[(*one[:known], *[-1] * (5 - known)) for one in partitions] for partitions in WANTED]
    assert [partitions for _, partitions in asked.topics] == wanted
    if version >= 13:
        assert asked.ids == [one.bytes for one in IDS.values()]
    else:
        assert [topic for topic, _ in asked.topics] == list(IDS)


def test_kio_and_we_read_our_own_fetch_request() -> None:
    asked = [
        ("a", 3, 1 << 40, 7, -1, -1),
        ("a", 1, 0, 8, 0, 0),
        ("b", 0, 5, 9, 3, 2),
        ("a", 2, 6, 10, 1 << 30, 1),
    ]
    body = fetch.encode_request(asked, max_wait=500, max_bytes=1 << 20)
    schema: Any = load_request_schema(1, 12)
    read, rest = entity_reader(schema)(body, 0)
    assert rest == len(body)
    assert [
        (
            topic.topic,
            each.partition,
            each.fetch_offset,
            each.partition_max_bytes,
            each.current_leader_epoch,
            each.last_fetched_epoch,
        )
        for topic in read.topics
        for each in topic.partitions
    ] == asked
    assert (read.max_bytes, read.min_bytes, read.session_id, read.session_epoch) == (1 << 20, 1, 0, -1)
    assert fetch.decode_request(12, memoryview(body)).topics == [
        ("a", [(3, 1 << 40, 7, -1, -1), (1, 0, 8, 0, 0)]),
        ("b", [(0, 5, 9, 3, 2)]),
        ("a", [(2, 6, 10, 1 << 30, 1)]),
    ]


@pytest.mark.parametrize("version", range(4, 18))
def test_a_fetch_request_cut_anywhere_is_refused(version: int) -> None:
    body = memoryview(fetch_body(version))
    for cut in range(len(body)):
        with pytest.raises(InvalidRequest):
            fetch.decode_request(version, body[:cut])


@given(st.binary(max_size=80), st.integers(4, 17))
def test_a_fetch_request_of_any_bytes_is_read_or_refused(data: bytes, version: int) -> None:
    try:
        asked = fetch.decode_request(version, memoryview(data))
    except InvalidRequest:
        return
    assert sum(4 + 8 + 4 for _, partitions in asked.topics for _ in partitions) <= len(data)


def test_a_fetch_of_too_many_partitions_is_refused() -> None:
    wanted = struct.pack(">iqi", 0, 0, 1) * 10_000
    body = struct.pack(">iiiibihsi", -1, 0, 1, 1, 0, 1, 1, b"t", 10_000) + wanted
    with pytest.raises(InvalidRequest, match="10000 partitions"):
        fetch.decode_request(4, memoryview(body))


def fetch_parts(version: int) -> bytes:
    def part(index: int, error: int, records: Records | None, parting: Any = None) -> tuple[Any, ...]:
        return index, error, 900, 100, records, parting

    topics: list[tuple[str | bytes, Any]] = [
        ("alpha", [part(0, 0, Records(b"first")), part(1, 3, None), part(2, 0, Records(b"second"))]),
        ("β", [part(9, 0, None, (4, 1 << 40))]),
    ]
    if version >= 13:
        topics = [(IDS[str(name)].bytes, partitions) for name, partitions in topics]
    parts = fetch.encode_response(version, topics)
    assert [p.data for p in parts if isinstance(p, Records)] == [b"first", b"second"]
    return b"".join(p if isinstance(p, bytes) else p.data for p in parts)


@pytest.mark.parametrize("version", range(4, 18))
def test_kio_reads_our_fetch_response(version: int) -> None:
    response = read_with_kio(FETCH, version, fetch_parts(version))
    if version >= 13:
        assert [topic.topic_id for topic in response.responses] == [IDS["alpha"], IDS["β"]]
    else:
        assert [topic.topic for topic in response.responses] == ["alpha", "β"]
    first, second, third = response.responses[0].partitions
    assert (first.partition_index, first.error_code, bytes(first.records)) == (0, 0, b"first")
    assert (first.high_watermark, first.last_stable_offset) == (900, 900)
    assert (second.error_code, bytes(second.records), bytes(third.records)) == (3, b"", b"second")
    if version >= 5:
        assert first.log_start_offset == 100
    if version >= 7:
        assert (response.error_code, response.session_id) == (0, 0)
    if version >= 11:
        assert first.preferred_read_replica == -1
    if version >= 12:
        (parted,) = response.responses[1].partitions
        assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (4, 1 << 40)


def test_we_read_our_own_fetch_response() -> None:
    decoded = fetch.decode_response(fetch_parts(12))
    first = decoded["alpha"][0]
    assert (first.error, first.high_watermark, bytes(first.records)) == (0, 900, b"first")
    assert decoded["alpha"][1].error == 3
    assert bytes(decoded["β"][9].records) == b""
    assert first.parting is None
    assert decoded["β"][9].parting == (4, 1 << 40)


def test_we_read_a_fetch_response_with_aborted_transactions() -> None:
    schema: Any = load_response_schema(FETCH, 12)
    module = __import__(schema.__module__, fromlist=["x"])
    aborted = (module.AbortedTransaction(producer_id=77, first_offset=12),)
    partition = module.PartitionData(
        partition_index=4,
        error_code=KioErrorCode.none,
        high_watermark=50,
        last_stable_offset=40,
        log_start_offset=3,
        aborted_transactions=aborted,
        records=b"bytes",
    )
    topic = module.FetchableTopicResponse(topic="t", partitions=(partition,))
    response = schema(throttle_time=datetime.timedelta(0), error_code=KioErrorCode.none, responses=(topic,))
    out = io.BytesIO()
    entity_writer(schema)(out, response)
    decoded = fetch.decode_response(out.getvalue())["t"][4]
    assert decoded == FetchedPartition(0, 50, 40, 3, decoded.records, ((77, 12),))
    assert bytes(decoded.records) == b"bytes"


def test_a_fetch_response_cut_anywhere_is_refused() -> None:
    whole = fetch_parts(12)
    for cut in range(len(whole)):
        with pytest.raises(InvalidRequest):
            fetch.decode_response(whole[:cut])


def test_an_error_of_the_whole_fetch_is_raised_by_name() -> None:
    with pytest.raises(InvalidRequest, match="UNSUPPORTED_VERSION"):
        fetch.decode_response(struct.pack(">ihibb", 0, 35, 0, 1, 0))


@pytest.mark.parametrize(("topics", "refused"), [(fetch.MIN_ITEM_LIMIT, False), (10_001, True)])
def test_a_fetch_forgets_a_bounded_number_of_topics(topics: int, refused: bool) -> None:
    nothing = struct.pack(">iiiibiii", -1, 0, 0, 0, 1, 0, -1, 0)
    body = memoryview(nothing + struct.pack(">i", topics) + bytes(6 * topics) + bytes(2))
    with pytest.raises(InvalidRequest, match="over 10000") if refused else contextlib.nullcontext():
        assert fetch.decode_request(11, body).topics == []
    assert fetch.decode_request(11, body, 10_001).topics == []
