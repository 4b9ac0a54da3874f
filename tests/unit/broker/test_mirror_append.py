"""MirrorAppend as the leader of a target partition serves it: answered for what is on the disk only."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from millrace.errors import ErrorCode
from millrace.records import Cursor, Message, build_batch, control_batch
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey
from millrace.wire.mirror_append import (
    MirrorAppend,
    MirrorAppended,
    MirrorMode,
    decode_response,
    encode_request,
)
from millrace.zookeeper.topic_state import BrokerAddress
from millrace_broker.server.request import Request
from millrace_mirror.translation import MAX_OFFSETS, TranslateOffsetsRequest, TranslateOffsetsResponse
from tests.unit.broker.asking import AskingClient, handlers_of
from tests.unit.broker.running import ORIGIN, Disk, Running, Start, topic


@pytest.fixture
def running(start: Start, disk: Disk) -> Running:
    return start(topic("t", 1, origin=ORIGIN))


def ask(running: Running, request: MirrorAppend, address: str = "127.0.0.1:1") -> Request:
    body = b"".join(encode_request("t", request))
    handlers = handlers_of(running.broker)
    header = int(ApiKey.MIRROR_APPEND).to_bytes(2, "big") + b"\0\1" + b"\0\0\0\7" + b"\xff\xff"
    return handlers.handle(AskingClient(address=address), memoryview(bytearray(header + body)))


def answer(running: Running, asked: Request) -> MirrorAppended:
    running.until("the answer", lambda: asked.parts is not None)
    parts: Any = asked.parts
    return decode_response(b"".join(parts)[8:])


def append_of_one(expected: int | None = None) -> MirrorAppend:
    batch = build_batch([Message(1, None, b"x")], base_offset=expected or 0)
    cursor = Cursor((expected or 0) + 1, (expected or 0) + len(batch))
    return MirrorAppend(
        mode=MirrorMode.APPEND, origin=ORIGIN, expected=expected, cursor=cursor, records=batch
    )


def test_an_append_starts_a_flush_at_once_and_is_answered_behind_it(running: Running, disk: Disk) -> None:
    disk.free.clear()
    asked = ask(running, append_of_one())
    running.turn()
    assert asked.parts is None, "nothing is on the disk yet"
    disk.free.set()
    found = answer(running, asked)  # though a flush would be due in an hour only
    assert (found.error, found.position and found.position.records) == (0, 1)
    assert found.high_watermark == running.high_watermark() > 0


def test_a_position_is_described_with_the_high_watermark_of_its_own_append(
    running: Running, disk: Disk
) -> None:
    flushed = answer(running, ask(running, append_of_one()))
    disk.free.clear()
    ask(running, append_of_one(expected=1))
    running.turn()
    found = answer(running, ask(running, MirrorAppend(mode=MirrorMode.DESCRIBE, origin=ORIGIN)))
    assert found.position is not None
    assert found.position.records == 2
    assert found.high_watermark > running.high_watermark() == flushed.high_watermark
    disk.free.set()
    running.until("the flush", lambda: running.high_watermark() == found.high_watermark)


def test_appends_that_come_during_a_flush_are_answered_behind_the_next(running: Running, disk: Disk) -> None:
    disk.free.clear()
    first = ask(running, append_of_one())
    second = ask(running, append_of_one(expected=1))
    running.turn()
    disk.free.set()
    assert [answer(running, asked).error for asked in (first, second)] == [0, 0]


def test_an_append_whose_flush_fails_is_refused(running: Running, disk: Disk) -> None:
    disk.fails = True
    assert answer(running, ask(running, append_of_one())).error == ErrorCode.STORAGE_ERROR


def test_an_append_to_a_topic_that_goes_away_is_answered(running: Running, disk: Disk) -> None:
    disk.free.clear()
    asked = ask(running, append_of_one())
    running.cluster.set()
    assert answer(running, asked).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    disk.free.set()


ONE = build_batch([Message(1, None, b"x")])


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (ONE[:-1] + bytes([ONE[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
        (ONE[:-1], ErrorCode.CORRUPT_MESSAGE),
        (ONE + b"x", ErrorCode.CORRUPT_MESSAGE),
        (control_batch(0, b"marker", timestamp=1), ErrorCode.INVALID_RECORD),
    ],
)
def test_only_whole_intact_data_batches_are_mirrored(
    running: Running, records: bytes, error: ErrorCode
) -> None:
    asked = ask(running, dataclasses.replace(append_of_one(), records=records))
    assert answer(running, asked).error == error
    assert running.broker.partition("t", 0).log.end == 0


@pytest.mark.parametrize("mode", [MirrorMode.DESCRIBE, MirrorMode.RESET])
def test_only_an_append_carries_records(running: Running, mode: MirrorMode) -> None:
    """The others may wait for a thread, and what was received is gone by then."""
    asked = ask(running, dataclasses.replace(append_of_one(), mode=mode))
    assert answer(running, asked).error == ErrorCode.INVALID_REQUEST
    assert asked.client.errors == {(ApiKey.MIRROR_APPEND, ErrorCode.INVALID_REQUEST): 1}
    assert running.broker.partition("t", 0).log.end == 0


@pytest.mark.parametrize(
    ("address", "taken"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("::1:1", True),
        ("::ffff:127.0.0.1:1", True),
        ("10.0.0.7:1", True),
        ("10.0.0.8:1", True),
        ("10.0.0.9:1", False),
        ("fe80::1:1", False),
    ],
)
def test_a_mirror_is_reset_from_the_clusters_machines_and_named_hosts_only(
    running: Running, address: str, taken: bool
) -> None:
    running.cluster.brokers[2] = BrokerAddress("10.0.0.7", 9092)
    running.broker.config = dataclasses.replace(running.broker.config, admin_hosts=("10.0.0.8",))
    assert answer(running, ask(running, append_of_one())).error == 0
    cursor = Cursor(500)
    reset = MirrorAppend(mode=MirrorMode.RESET, origin=ORIGIN, expected=1, cursor=cursor, records=b"")
    found = answer(running, ask(running, reset, address))
    assert found.error == (0 if taken else ErrorCode.POLICY_VIOLATION)
    partition = running.broker.partition("t", 0)
    recorded = partition.log.mirror_position
    assert recorded is not None
    assert recorded.cursor.next_offset == (500 if taken else 1)
    assert "admin_hosts" in (found.message or "admin_hosts")
    assert answer(running, ask(running, append_of_one(expected=500 if taken else 1), address)).error == 0


def test_a_translation_of_too_many_offsets_is_refused(running: Running) -> None:
    key = ApiKey.TRANSLATE_OFFSETS
    offsets = (0,) * (MAX_OFFSETS + 1)
    request = TranslateOffsetsRequest(to_origin=True, topic="t", partition=0, offsets=offsets)
    header = int(key).to_bytes(2, "big") + b"\0\0" + b"\0\0\0\7" + b"\xff\xff"
    frame = memoryview(bytearray(header + encode(request, key, 0)))
    asked = handlers_of(running.broker).handle(AskingClient(), frame)
    running.until("the answer", lambda: asked.parts is not None)
    parts: Any = asked.parts
    response = decode(TranslateOffsetsResponse, key, 0, parts[0][8:])
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert "1001 offsets; 1000 are allowed" in response.message
