"""One broker's answers, and the rounds, pauses and turns of a thread that reads from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from millrace.client import fetcher
from millrace.client.connection import Connection
from millrace.client.fetcher import BrokerFetcher, FetchLimits, Puller, Rounds
from millrace.errors import MillraceError
from millrace.records.topic_partition import TopicPartition
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import decode_request
from millrace.wire.fields import group_by_topic
from millrace.wire.messages import ApiKey, ListOffsetsRequest, ListOffsetsResponse
from tests.support import WAIT_S

LIMITS = FetchLimits(max_bytes=10, partition_max_bytes=5, max_wait_ms=100)


class ScriptedConnection:
    """Answers each request with the next of some bodies."""

    address, needs_renewal = "origin:1", False

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.timeouts = list(answers), list[float]()
        self.idle, self.closed = True, False
        self.sent: list[bytes] = []

    def send(self, api_key: int, version: int, body: bytes, *, timeout_s: float) -> None:
        self.idle = False
        self.sent.append(body)

    def receive(self, *, timeout_s: float, buffer: bytearray | None = None) -> memoryview:
        self.timeouts.append(timeout_s)
        self.idle = True
        return memoryview(self.answers.pop(0))

    def close(self) -> None:
        self.closed = True


def broker(connection: ScriptedConnection) -> BrokerFetcher:
    epochs = {("t", 1): 4}
    return BrokerFetcher(
        cast(Connection, connection), timeout_s=5, epoch_of=lambda name: epochs.get(name, -1)
    )


def listed(**offsets: tuple[int, int]) -> bytes:
    topics = group_by_topic(
        ("t", ListOffsetsResponse.Partition(partition_index=int(name[1:]), error_code=error, offset=offset))
        for name, (error, offset) in offsets.items()
    )
    return encode(ListOffsetsResponse(topics=topics), ApiKey.LIST_OFFSETS, 5)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request", b"\xff" * 40])
def test_what_is_no_answer_of_a_broker_is_one_line(answer: bytes) -> None:
    asked = broker(ScriptedConnection(answer))
    asked.request({("t", 0): 0}, LIMITS)
    with pytest.raises(MillraceError, match="origin:1 does not answer as a Kafka broker does"):
        asked.receive()


def test_an_answer_may_take_as_long_as_the_broker_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "decode_response", lambda body: {})
    connection = ScriptedConnection(b"1234")
    asked = broker(connection)
    asked.request({("t", 0): 0}, LIMITS)
    assert asked.receive() == {}
    assert connection.timeouts == [5.1]
    assert asked.answer_bytes == 4


def test_bounds_leave_out_what_the_broker_cannot_tell() -> None:
    earliest, latest = listed(p0=(0, 3), p1=(6, -1), p2=(0, 4)), listed(p0=(0, 9), p1=(0, 8), p2=(6, -1))
    asked = broker(ScriptedConnection(earliest, latest))
    assert asked.bounds([("t", 0), ("t", 1), ("t", 2), ("t", 3)]) == {("t", 0): (3, 9)}


def test_offsets_of_many_topics_are_asked_for_in_requests_that_a_broker_takes() -> None:
    names = [f"topic-{number}" for number in range(2_500)]

    class Listing(ScriptedConnection):
        def send(self, api_key: int, version: int, body: bytes, *, timeout_s: float) -> None:
            asked = decode(ListOffsetsRequest, api_key, version, body)  # refuses what is too much
            topics = group_by_topic(
                (one.name, ListOffsetsResponse.Partition(partition_index=0, error_code=0, offset=7))
                for one in asked.topics
            )
            self.answers.append(encode(ListOffsetsResponse(topics=topics), api_key, version))

    listed = broker(Listing()).list_offsets([(name, 0) for name in names], fetcher.EARLIEST)
    assert [(name, answer.offset) for (name, _), answer in listed.items()] == [(name, 7) for name in names]


def test_a_broker_is_told_the_leader_epoch_that_is_known() -> None:
    connection = ScriptedConnection(listed(_0=(0, 5), _1=(0, 6)))
    asked = broker(connection)
    asked.request({("t", 0): 7, ("t", 1): 8}, LIMITS, {("t", 0): 3})
    ((_, wanted),) = decode_request(12, memoryview(connection.sent[0])).topics
    assert [(number, offset, *epochs) for number, offset, _, *epochs in wanted] == [
        (0, 7, -1, 3),
        (1, 8, 4, -1),
    ]
    asked.list_offsets([("t", 0), ("t", 1)], fetcher.LATEST)
    (topic,) = decode(ListOffsetsRequest, ApiKey.LIST_OFFSETS, 5, connection.sent[1]).topics
    assert [(one.partition_index, one.current_leader_epoch) for one in topic.partitions] == [(0, -1), (1, 4)]


class ScriptedPuller(Puller):
    """A puller whose rounds are functions; the last one stops it."""

    def __init__(self, *rounds: Callable[[], None]) -> None:
        super().__init__("pull", "client", logging.getLogger("millrace.test"), "the test")
        self.rounds, self.reasons, self.pauses = list(rounds), list[str](), list[float | None]()
        self.at = ("origin", 1)
        self.connections: list[ScriptedConnection] = []

    def address(self) -> tuple[str, int]:
        return self.at

    def epoch_of(self, partition: TopicPartition) -> int:
        return -1

    def connect(self, address: tuple[str, int]) -> BrokerFetcher:
        self.connections.append(ScriptedConnection())
        return broker(self.connections[-1])

    def round(self) -> None:
        if not self.rounds:
            self.stop()
            return
        self.rounds.pop(0)()

    def failed(self, reason: str) -> None:
        self.reasons.append(reason)

    def sleep(self, seconds: float | None) -> None:
        self.pauses.append(seconds)


def raising(error: Exception) -> Callable[[], None]:
    def round_() -> None:
        raise error

    return round_


def test_a_round_that_fails_ends_the_connection_and_the_next_follows_after_a_longer_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = raising(MillraceError("gone"))
    puller = ScriptedPuller(gone, gone, lambda: None, gone, raising(ZeroDivisionError("a mistake")))
    first = puller.connected()
    puller.start()
    puller.join(WAIT_S)
    assert puller.connections[0].closed
    assert puller.connected() is not first
    assert puller.reasons == ["gone"] * 3 + ["unexpected ZeroDivisionError: a mistake"]
    beyond_the_first = [0, 0.2, 0, 0.2]
    assert puller.pauses == beyond_the_first, "they begin anew behind a round that did not fail"
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert logged == [
        ("WARNING", "the test: gone"),
        ("WARNING", "the test: gone"),
        ("ERROR", "the test: unexpected ZeroDivisionError: a mistake"),
    ], "once until something else happens"


class WokenRounds(Rounds):
    """Fails, and is woken all the time."""

    def __init__(self) -> None:
        super().__init__("rounds", logging.getLogger("millrace.test"), "the test")
        self.rounds = 0

    def round(self) -> None:
        self.rounds += 1
        self.wake()
        raise MillraceError("gone")


def test_a_round_that_fails_is_not_tried_again_at_once_however_often_it_is_woken() -> None:
    rounds, began = WokenRounds(), time.monotonic()
    rounds.start()
    time.sleep(0.3)
    rounds.stop()
    rounds.join(WAIT_S)
    assert 1 <= rounds.rounds <= 1 + (time.monotonic() - began) / fetcher.FIRST_PAUSE_SECONDS


def test_a_broker_that_moves_is_asked_where_it_is_once_it_has_answered() -> None:
    puller = ScriptedPuller()
    first = puller.connected()
    first.request({("t", 0): 0}, LIMITS)
    puller.at = ("origin", 2)
    assert puller.connected() is first
    cast(Any, puller.connections[0]).idle = True
    assert puller.connected() is not first
    assert [connection.closed for connection in puller.connections] == [True, False]


def test_a_connection_that_sent_nothing_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now, puller = [1000.0], ScriptedPuller()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    first = puller.connected()
    for _ in range(2):
        now[0] += 0.6 * fetcher.MAX_UNUSED_SECONDS
        first.request_topic_ids([])
        cast(Any, puller.connections[0]).idle = True
        assert puller.connected() is first
    now[0] += 0.6 * fetcher.MAX_UNUSED_SECONDS
    assert puller.connected() is first
    now[0] += 0.6 * fetcher.MAX_UNUSED_SECONDS
    assert puller.connected() is not first, "to look whether there is anything to ask for is no use"
    assert [connection.closed for connection in puller.connections] == [True, False]


def test_who_has_sent_something_is_asked_last_and_who_is_new_first() -> None:
    puller = ScriptedPuller()
    a, b, c, d = (("t", number) for number in range(4))
    assert puller.in_turn({a, b, c}) == [a, b, c]
    puller.serve_last([a])
    assert puller.in_turn({a, b, c}) == [b, c, a]
    assert puller.in_turn({a, b, c, d}) == [d, b, c, a]
    puller.serve_last([b, d])
    assert puller.in_turn({a, b, d}) == [a, b, d]
    puller.serve_last([c])
    assert puller.in_turn({a, b, d}) == [a, b, d], "what is not read any more is not remembered"
