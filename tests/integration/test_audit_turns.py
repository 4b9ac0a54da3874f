"""Turns on a real ZooKeeper: one reader counts a tier, the next one begins behind its end, nobody forges."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from millrace.zookeeper.session import Session
from millrace_audit.reports.turn_taker import KEPT_MS, Holder, TurnTaker
from millrace_audit.reports.turns import Seat, Turn, TurnBook, read_turns
from tests.support import wait_until

Connect = Callable[[], Session]


@pytest.fixture
def connect(zookeeper: str) -> Iterator[Connect]:
    sessions: list[Session] = []

    def connect() -> Session:
        sessions.append(Session.connect(zookeeper, timeout_ms=2000))
        return sessions[-1]

    yield connect
    for session in sessions:
        session.close()


@pytest.fixture
def seat() -> Seat:
    return Seat.of(f"dc-{uuid4().hex[:8]}", "aggregate")


def taken(taker: TurnTaker) -> Turn:
    turn = taker.take()
    assert isinstance(turn, Turn)
    return turn


def test_the_second_reader_is_told_who_counts_and_takes_over_when_that_one_ends(
    connect: Connect, seat: Seat
) -> None:
    first, second = (TurnTaker(connect(), seat, "c") for _ in range(2))
    turn = taken(first)
    assert second.take() == Holder(turn.host, turn.pid)
    stop, free = threading.Event(), threading.Event()

    def wait() -> None:
        second.wait_until_free(stop, 60)
        free.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not free.wait(0.3)
    first.release()
    assert free.wait(30)
    assert taken(second).number > turn.number


@pytest.mark.parametrize("tier", ["offline", "warehouse"])
def test_aggregate_clusters_that_share_a_zookeeper_do_not_share_turns(connect: Connect, tier: str) -> None:
    run = uuid4().hex[:8]
    seats = [Seat.of(tier, f"{name}-{run}") for name in ("eu", "us")]
    eu, us = (taken(TurnTaker(connect(), seat, seat.cluster)) for seat in seats)
    book = TurnBook(connect(), seats[0].cluster)
    assert book.signed(tier, eu.key(b"x"), b"x", 1) == eu.number
    assert book.signed(tier, us.key(b"x"), b"x", 2) is None
    assert Seat.of("dc1", "eu") == Seat.of("dc1", "us"), "an origin is counted once for all of them"


def test_a_session_that_ends_is_noticed_and_frees_the_tier(connect: Connect, seat: Seat) -> None:
    session = connect()
    first, second = TurnTaker(session, seat, "c"), TurnTaker(connect(), seat, "c")
    turn = taken(first)
    session_id, password = session.client.client_id
    thief = KazooClient(session.zookeeper, client_id=(session_id, password))
    thief.start()
    thief.stop()  # closing a session from elsewhere is how ZooKeeper's own tests expire one
    thief.close()
    assert first.lost.wait(30)
    wait_until("the tier is free", lambda: not isinstance(second.take(), Holder))
    assert isinstance(first.take(), Holder)
    assert max(read_turns(connect(), seat)) > turn.number


def test_turn_and_holder_come_into_being_together(connect: Connect, seat: Seat) -> None:
    """A reader that stood still while it began cannot make a turn newer than its successor's."""
    session = connect()
    turn = taken(TurnTaker(session, seat, "c"))
    holder = session.get(seat.holder)
    node = session.get(f"{seat.turns}/turn-{turn.number:010}")
    assert holder is not None
    assert node is not None
    assert holder[1].czxid == node[1].czxid
    assert turn.secret.hex() not in holder[0].decode()


def test_a_turn_whose_answer_was_lost_is_found_again(connect: Connect, seat: Seat) -> None:
    session = connect()
    taker = TurnTaker(session, seat, "c")
    call, lost = session.call, list[object]()

    def lose_the_answer(operation: Callable[..., object], *arguments: object) -> object:
        if operation.__name__ == "begin" and not lost:
            lost.append(call(operation, *arguments))
        return call(operation, *arguments)

    session.call = lose_the_answer  # type: ignore[method-assign]
    turn = taken(taker)
    assert lost
    assert read_turns(connect(), seat) == {turn.number: turn}
    assert taker.take() == turn, "and one that was not begun can be taken again"


def test_it_is_known_that_the_turn_before_counted_another_cluster(connect: Connect, seat: Seat) -> None:
    first = TurnTaker(connect(), seat, "cluster-one")
    assert first.counted_elsewhere() is None
    taken(first)
    assert first.counted_elsewhere() is None
    other = TurnTaker(connect(), seat, "cluster-two").counted_elsewhere()
    assert other is not None
    assert other.cluster_id == "cluster-one"


def test_a_key_is_of_one_turn_and_one_value(connect: Connect, seat: Seat) -> None:
    first = TurnTaker(connect(), seat, "c")
    old = taken(first)
    first.release()
    new = taken(first)
    book = TurnBook(connect(), "aggregate")
    assert book.signed(seat.tier, old.key(b"x"), b"x", 1) == old.number
    assert book.signed(seat.tier, new.key(b"x"), b"x", 1) == new.number
    for key, value in (
        (new.key(b"x"), b"y"),
        (old.key(b"x")[:8] + new.key(b"x")[8:], b"x"),
        (new.key(b"x")[:-1], b"x"),
        (b"", b"x"),
        (None, b"x"),
        ((new.number + 9).to_bytes(8, "big") + new.key(b"x")[8:], b"x"),
    ):
        assert book.signed(seat.tier, key, value, 2) is None
    assert book.signed("another tier", new.key(b"x"), b"x", 2) is None


def test_a_turn_that_began_since_is_looked_up_once_for_each_fetch(connect: Connect, seat: Seat) -> None:
    taker, book = TurnTaker(connect(), seat, "c"), TurnBook(connect(), "aggregate")
    forged = Turn(number=77, secret=b"s" * 32, cluster_id="c", host="h", pid=1, began=0)
    assert book.signed(seat.tier, forged.key(b"x"), b"x", 1) is None
    turn = taken(taker)
    assert book.signed(seat.tier, turn.key(b"x"), b"x", 1) is None, "the registry was asked for this fetch"
    assert book.signed(seat.tier, turn.key(b"x"), b"x", 2) == turn.number


def test_turns_that_ended_long_ago_go_and_one_that_has_just_ended_stays(
    connect: Connect, seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = TurnTaker(connect(), seat, "c")
    numbers = []
    for _ in range(3):
        numbers.append(taken(taker).number)
        taker.release()
        time.sleep(0.02)  # ZooKeeper counts in milliseconds
    assert sorted(read_turns(connect(), seat)) == numbers
    assert KEPT_MS == 60 * 24 * 3600 * 1000
    monkeypatch.setattr("millrace_audit.reports.turn_taker.KEPT_MS", 5)
    newest = taken(taker).number
    assert sorted(read_turns(connect(), seat)) == [numbers[-1], newest], "it may have signed until now"


def test_what_somebody_else_wrote_there_is_nobodys_turn(connect: Connect, seat: Seat) -> None:
    session = connect()
    turn = taken(TurnTaker(session, seat, "c"))
    with closing(connect()) as other:
        for number, data in enumerate((b"", b"{}", b"[1]", json.dumps({"secret": "zz"}).encode())):
            other.call(other.client.create_async, f"{seat.turns}/turn-900000000{number}", data)
    assert read_turns(session, seat) == {turn.number: turn}
