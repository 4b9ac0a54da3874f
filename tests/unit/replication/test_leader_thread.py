"""The thread that copies from a leader, which is a socket here."""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from millrace.config import ClientSecurity
from millrace.records.file_slice import FileSlice
from millrace.wire.framing import parse_header
from millrace.wire.messages import ApiKey
from millrace.wire.replica import (
    Acked,
    Copied,
    ReplicaAckRequest,
    ReplicaFetchRequest,
    ReplicaPartition,
    Wanted,
    decode_ack,
    decode_fetch,
    encode_answer,
)
from millrace_broker.allowance import Allowance
from millrace_broker.replication.copying import Checked, Copying
from millrace_broker.replication.leader_thread import LeaderThread, Received
from tests.support import WAIT_S, Clock, wait_until

DIRECTORY = "b" * 16
PLACES = [ReplicaPartition(UUID(int=5), number) for number in range(3)]
WANTED = [Wanted(place, 1, 0, -1, 0) for place in PLACES]
NO_LIMIT = Allowance(None, 1)


def copying(wanted: Wanted, *, is_behind: bool = False) -> Copying:
    """All that the thread is told of a partition."""
    told = SimpleNamespace(partition=wanted.partition, wanted=wanted, is_behind=is_behind)
    return cast(Copying, told)


class Leader:
    """Takes one connection at a time, and answers when it is told to."""

    def __init__(self, limit: Allowance = NO_LIMIT) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(WAIT_S)
        self._client = socket.socket()
        self.delivered: list[Sequence[Received]] = []
        self._unanswered: list[int] = []
        port = self._socket.getsockname()[1]
        self.thread = LeaderThread(
            1,
            2,
            DIRECTORY,
            lambda: ("127.0.0.1", port),
            ClientSecurity(),
            lambda _, received: self.delivered.append(received),
            limit,
        )
        self.thread.start()

    def accept(self) -> None:
        """Take the next connection; the one before has ended."""
        self._client.close()
        self._unanswered = []
        self._client, _ = self._socket.accept()
        self._client.settimeout(WAIT_S)

    def hang_up(self) -> None:
        self._client.close()

    def _request(self) -> tuple[int, memoryview]:
        (size,) = struct.unpack(">i", self._client.recv(4, socket.MSG_WAITALL))
        frame = memoryview(self._client.recv(size, socket.MSG_WAITALL))
        key, _, number, body = parse_header(frame)
        if key == ApiKey.REPLICA_FETCH:
            self._unanswered.append(number)
        return key, frame[body:]

    def fetch(self) -> ReplicaFetchRequest:
        key, body = self._request()
        assert key == ApiKey.REPLICA_FETCH
        return decode_fetch(body)

    def ack(self) -> ReplicaAckRequest:
        key, body = self._request()
        assert key == ApiKey.REPLICA_ACK
        return decode_ack(body)

    def answer(self, *copied: Copied, to: int | None = None) -> None:
        """To the oldest request that has none."""
        parts = encode_answer(0, copied)
        body = b"".join(part if isinstance(part, bytes) else bytes(part.length) for part in parts)
        number = self._unanswered.pop(0) if to is None else to
        self._client.sendall(struct.pack(">ii", 4 + len(body), number) + body)

    def close(self) -> None:
        self.thread.stop()
        self.hang_up()
        self._socket.close()


@pytest.fixture
def leader() -> Iterator[Leader]:
    made = Leader()
    made.thread.want(copying(WANTED[0]))
    made.accept()
    yield made
    made.close()
    made.thread.join(WAIT_S)
    assert not made.thread.is_alive()


def test_what_is_wanted_anew_is_told_while_the_leader_still_waits(leader: Leader) -> None:
    first = leader.fetch()
    assert (first.follower, first.directory, first.starts_over) == (2, DIRECTORY, True)
    assert list(first.wanted) == WANTED[:1]
    leader.thread.want(copying(WANTED[1]))
    second = leader.fetch()
    assert (second.starts_over, list(second.wanted)) == (False, WANTED[1:2])
    leader.thread.forget(PLACES[0])
    third = leader.fetch()
    assert (list(third.wanted), list(third.forgotten)) == ([], PLACES[:1])


def test_what_is_on_the_disk_is_told_while_the_leader_still_waits_and_has_no_answer(leader: Leader) -> None:
    leader.fetch()
    leader.thread.ack(Acked(PLACES[0], 1, 77))
    assert list(leader.ack().acked) == [Acked(PLACES[0], 1, 77)]


def test_it_asks_for_no_more_before_the_loop_has_taken_what_came(leader: Leader) -> None:
    leader.fetch()
    leader.answer(Copied(PLACES[0], 0, committed=9))
    wait_until("it is delivered", lambda: leader.delivered)
    ((received,),) = leader.delivered
    assert received.wanted == WANTED[0]
    leader.thread.ack(Acked(PLACES[0], 1, 5))
    leader.ack()  # and no fetch before it
    leader.thread.want(copying(WANTED[0]._replace(position=9)))
    leader.thread.taken()
    assert [one.position for one in leader.fetch().wanted] == [9]


def test_an_answer_without_news_is_followed_by_the_next_request(leader: Leader) -> None:
    leader.fetch()
    leader.answer()
    assert list(leader.fetch().wanted) == []
    assert leader.delivered == []


def test_another_connection_hears_of_everything_anew(leader: Leader) -> None:
    leader.thread.want(copying(WANTED[1]))
    leader.fetch()
    leader.hang_up()
    leader.accept()
    again = leader.fetch()
    assert (again.starts_over, set(again.wanted)) == (True, set(WANTED[:2]))


def test_a_leader_that_hangs_up_while_nothing_is_asked_is_asked_again_at_once(
    leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    leader.fetch()
    leader.answer(Copied(PLACES[0], 0, committed=9))
    wait_until("it is delivered", lambda: leader.delivered)  # and not taken yet: nothing more is asked
    leader.hang_up()
    leader.accept()
    leader.thread.taken()
    assert leader.fetch().starts_over
    assert "it has closed the connection" in caplog.text
    assert "a bug" not in caplog.text


def test_an_answer_to_another_request_ends_the_connection(leader: Leader) -> None:
    leader.fetch()
    leader.answer(to=99)
    leader.accept()
    assert leader.fetch().starts_over


def test_an_answer_sent_before_a_newer_request_arrived_is_no_answer_to_that_request(leader: Leader) -> None:
    leader.fetch()
    newer = WANTED[0]._replace(epoch=3)
    leader.thread.want(copying(newer))
    assert list(leader.fetch().wanted) == [newer]
    leader.answer(Copied(PLACES[0], 0, committed=4))
    leader.answer(Copied(PLACES[0], 0, committed=9))
    wait_until("it is delivered", lambda: leader.delivered)
    ((received,),) = leader.delivered
    assert received.wanted == newer
    assert isinstance(received.outcome, Checked)
    assert received.outcome.copied.committed == 9


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limited(clock: Clock) -> Iterator[Leader]:
    """The first two partitions are behind, and the leader was asked for the first."""
    made = Leader(Allowance(10_000, 1 << 20, clock))
    for wanted in WANTED[:2]:
        made.thread.want(copying(wanted, is_behind=True))
    made.accept()
    assert list(made.fetch().wanted) == WANTED[:1]
    yield made
    made.close()
    made.thread.join(WAIT_S)
    assert not made.thread.is_alive()


def told(partition: int, size: int) -> Copied:
    return Copied(PLACES[partition], 0, records=FileSlice(io.BytesIO(), 0, size))


def test_who_is_behind_is_asked_for_one_after_the_other_as_the_limit_allows_and_others_at_once(
    limited: Leader, clock: Clock
) -> None:
    def answer(copied: Copied) -> None:
        before = len(limited.delivered)
        limited.answer(copied)
        wait_until("it is delivered", lambda: len(limited.delivered) > before)

    limited.thread.want(copying(WANTED[2]))
    assert list(limited.fetch().wanted) == WANTED[2:], "while the first has no answer"
    limited.answer()
    answer(told(0, 3_000))
    again = WANTED[0]._replace(position=3_000)
    limited.thread.want(copying(again, is_behind=True))
    limited.thread.taken()
    assert list(limited.fetch().wanted) == []
    answer(told(2, 50_000))
    after = WANTED[2]._replace(position=50_000)
    limited.thread.want(copying(after))
    limited.thread.taken()
    assert list(limited.fetch().wanted) == [after], "which is not limited"
    clock.now += 0.2  # then there are 1,500 bytes again: at first there were 2,500
    assert list(limited.fetch().wanted) == WANTED[1:2]
    limited.answer()
    answer(told(1, 100))
    limited.thread.taken()
    assert list(limited.fetch().wanted) == [again]


def test_who_is_forgotten_or_behind_no_more_keeps_nobody_waiting(limited: Leader) -> None:
    limited.thread.forget(PLACES[0])
    asked = limited.fetch()
    assert (list(asked.wanted), list(asked.forgotten)) == (WANTED[1:2], PLACES[:1])
    limited.thread.want(copying(WANTED[0], is_behind=True))
    limited.thread.want(copying(WANTED[0]))
    assert list(limited.fetch().wanted) == WANTED[:1]


def test_who_is_behind_waits_at_another_connection_too(limited: Leader) -> None:
    limited.hang_up()
    limited.accept()
    again = limited.fetch()
    assert (again.starts_over, list(again.wanted)) == (True, WANTED[:1])


def test_what_comes_over_another_connection_counts_for_the_limit_too(limited: Leader, clock: Clock) -> None:
    limited.answer(told(0, 50_000))
    wait_until("it is delivered", lambda: limited.delivered)
    limited.thread.taken()  # and what is wanted next follows later
    limited.hang_up()
    limited.accept()
    assert list(limited.fetch().wanted) == [], "the limit has nothing left"
    clock.now += 10
    limited.answer()
    assert list(limited.fetch().wanted) == WANTED[:1]
