"""The thread that copies from a leader, which is a socket here."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from uuid import UUID

import pytest

from millrace.config import ClientSecurity
from millrace.replication.leader_thread import LeaderThread, Received
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
from tests.support import WAIT_S, wait_until

DIRECTORY = "b" * 16
PLACES = [ReplicaPartition(UUID(int=5), number) for number in range(3)]
WANTED = [Wanted(place, 1, 0, -1, 0) for place in PLACES]


class Leader:
    """Takes one connection at a time, and answers when it is told to."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(WAIT_S)
        self._client = socket.socket()
        self.delivered: list[Sequence[Received]] = []
        port = self._socket.getsockname()[1]
        self.thread = LeaderThread(
            1,
            2,
            DIRECTORY,
            lambda: ("127.0.0.1", port),
            ClientSecurity(),
            lambda _, received: self.delivered.append(received),
        )
        self.thread.start()

    def accept(self) -> None:
        """Take the next connection; the one before has ended."""
        self._client.close()
        self._client, _ = self._socket.accept()
        self._client.settimeout(WAIT_S)

    def hang_up(self) -> None:
        self._client.close()

    def _request(self) -> tuple[int, memoryview]:
        (size,) = struct.unpack(">i", self._client.recv(4, socket.MSG_WAITALL))
        frame = memoryview(self._client.recv(size, socket.MSG_WAITALL))
        key, _, self._correlation_id, body = parse_header(frame)
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
        body = b"".join(part for part in encode_answer(0, copied) if isinstance(part, bytes))
        number = self._correlation_id if to is None else to
        self._client.sendall(struct.pack(">ii", 4 + len(body), number) + body)

    def close(self) -> None:
        self.thread.stop()
        self.hang_up()
        self._socket.close()


@pytest.fixture
def leader() -> Iterator[Leader]:
    made = Leader()
    made.thread.want(WANTED[0])
    made.accept()
    yield made
    made.close()
    made.thread.join(WAIT_S)
    assert not made.thread.is_alive()


def test_what_is_wanted_anew_is_told_while_the_leader_still_waits(leader: Leader) -> None:
    first = leader.fetch()
    assert (first.follower, first.directory, first.anew) == (2, DIRECTORY, True)
    assert list(first.wanted) == WANTED[:1]
    leader.thread.want(WANTED[1])
    second = leader.fetch()
    assert (second.anew, list(second.wanted)) == (False, WANTED[1:2])
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
    leader.thread.want(WANTED[0]._replace(position=9))
    leader.thread.taken()
    assert [one.position for one in leader.fetch().wanted] == [9]


def test_an_answer_without_news_is_followed_by_the_next_request(leader: Leader) -> None:
    leader.fetch()
    leader.answer()
    assert list(leader.fetch().wanted) == []
    assert leader.delivered == []


def test_another_connection_hears_of_everything_anew(leader: Leader) -> None:
    leader.thread.want(WANTED[1])
    leader.fetch()
    leader.hang_up()
    leader.accept()
    again = leader.fetch()
    assert (again.anew, set(again.wanted)) == (True, set(WANTED[:2]))


def test_an_answer_to_another_request_ends_the_connection(leader: Leader) -> None:
    leader.fetch()
    leader.answer(to=99)
    leader.accept()
    assert leader.fetch().anew
