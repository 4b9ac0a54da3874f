"""MirrorAppend as the leader of a target partition serves it: answered for what is on the disk only."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from millrace.errors import ErrorCode
from millrace.handlers import Handlers
from millrace.handlers.mirror_append import mirror_append
from millrace.mirror.states import MirrorStates
from millrace.records import Cursor, Message, build_batch
from millrace.server.request import Repeated, Request
from millrace.wire.messages import ApiKey
from millrace.wire.mirror_append import (
    MirrorAppend,
    MirrorAppended,
    MirrorMode,
    decode_response,
    encode_request,
)
from tests.unit.broker.running import ORIGIN, Disk, Running, Start, topic


class FakeClient:
    closed = False
    address = "127.0.0.1:1"
    principal = "User:ANONYMOUS"
    repeated: Repeated | None = None

    def __init__(self) -> None:
        self.errors: Counter[tuple[int, int]] = Counter()

    def answered(self, size: int) -> None:
        pass

    def abort(self, reason: str) -> None:
        pass


@pytest.fixture
def running(start: Start, disk: Disk) -> Running:
    return start(topic("t", 1, origin=ORIGIN))


def ask(running: Running, request: MirrorAppend) -> Request:
    body = b"".join(encode_request("t", request))
    handlers = Handlers(running.broker, [mirror_append(MirrorStates())])
    header = int(ApiKey.MIRROR_APPEND).to_bytes(2, "big") + b"\0\0" + b"\0\0\0\7" + b"\xff\xff"
    return handlers.handle(FakeClient(), memoryview(bytearray(header + body)))


def answer(running: Running, asked: Request) -> MirrorAppended:
    running.until("the answer", lambda: asked.parts is not None)
    parts: Any = asked.parts
    return decode_response(b"".join(parts)[8:])


def append_of_one(expected: int | None = None) -> MirrorAppend:
    batch = build_batch([Message(1, None, b"x")], base_offset=expected or 0)
    cursor = Cursor((expected or 0) + 1, (expected or 0) + len(batch))
    return MirrorAppend(
        mode=MirrorMode.APPEND, origin=ORIGIN, expected=expected, cursor=cursor, records=batch
    )  # fmt: skip


def test_an_append_starts_a_flush_at_once_and_is_answered_behind_it(running: Running, disk: Disk) -> None:
    disk.free.clear()
    asked = ask(running, append_of_one())
    running.turn()
    assert asked.parts is None, "nothing is on the disk yet"
    disk.free.set()
    found = answer(running, asked)  # though a flush would be due in an hour only
    assert (found.error, found.position and found.position.records) == (0, 1)
    assert found.high_watermark == running.high_watermark() > 0


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


@pytest.mark.parametrize("mode", [MirrorMode.DESCRIBE, MirrorMode.RESET])
def test_only_an_append_carries_records(running: Running, mode: MirrorMode) -> None:
    """The others may wait for a thread, and what was received is gone by then."""
    asked = ask(running, dataclasses.replace(append_of_one(), mode=mode))
    assert answer(running, asked).error == ErrorCode.INVALID_REQUEST
    assert asked.client.errors == {(ApiKey.MIRROR_APPEND, ErrorCode.INVALID_REQUEST): 1}
    assert running.broker.partition("t", 0).log.end == 0
