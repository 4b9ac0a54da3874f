"""A connection's login: what is in order when, how long it holds, how many proofs wait for a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from millrace_broker.security.login import (
    MAX_WAITING,
    MAX_WAITING_OF_HOST,
    Exchange,
    Login,
    LoginFailed,
    LoginThread,
)
from millrace_broker.security.plain import MAX_BYTES, PlainExchange
from millrace_broker.security.scram import MECHANISMS, Credentials, make_credential
from tests.support import Clock

ALICE = {name: make_credential(name, "wonderland", 4096) for name in MECHANISMS}


class Named:
    """Believes what it is told."""

    slow, listed = False, True

    def __init__(self, until: float | None = None) -> None:
        self.until = until
        self.user: str | None = None

    def answer(self, message: bytes) -> bytes:
        self.user = message.decode() or None
        return b""


def logged_in(login: Login, user: str = "alice") -> str | None:
    assert login.may_begin
    login.begin("NAMED")
    exchange = login.take()
    assert exchange is not None
    exchange.answer(user.encode())
    return login.answered(exchange)


def test_a_login_without_an_end_is_proved_once() -> None:
    login = Login({"NAMED": Named}, clock=Clock())
    assert logged_in(login) == "User:alice"
    assert (login.holds_s, login.may_begin, login.take()) == (None, False, None)


def test_a_login_with_an_end_is_proved_again_by_the_same_user_and_not_at_once() -> None:
    clock = Clock()
    login = Login({"NAMED": Named}, 60.0, clock)
    assert logged_in(login) == "User:alice"
    assert login.holds_s == 60
    assert not login.may_begin
    clock.now += 2
    assert logged_in(login) == "User:alice"
    clock.now += 2
    with pytest.raises(LoginFailed, match="User:alice logs in as User:bob"):
        logged_in(login, "bob")


def test_a_login_holds_no_longer_than_its_proof() -> None:
    login = Login({"NAMED": lambda: Named(time.time() + 5)}, 60.0)
    logged_in(login)
    assert login.holds_s is not None
    assert 0 < login.holds_s <= 5
    with pytest.raises(LoginFailed, match="has expired"):
        logged_in(Login({"NAMED": lambda: Named(time.time() - 1)}))


def test_nobody_logs_in_as_who_has_not_logged_in() -> None:
    with pytest.raises(LoginFailed, match="User:ANONYMOUS is the name of clients without a login"):
        logged_in(Login({"NAMED": Named}), "ANONYMOUS")


def test_while_an_answer_is_made_no_other_message_is_taken() -> None:
    login = Login({"NAMED": Named})
    login.begin("NAMED")
    exchange = login.take()
    assert exchange is not None
    assert login.take() is None
    exchange.answer(b"")
    assert login.answered(exchange) is None
    assert login.take() is exchange


def plain(message: bytes, find: Callable[[str], Credentials | None] | None = None) -> str | None:
    exchange = PlainExchange(find or {"alice": ALICE}.get)
    exchange.answer(message)
    return exchange.user


def test_plain_takes_the_password_whatever_is_kept_of_it() -> None:
    assert plain(b"\0alice\0wonderland") == "alice"
    assert plain(b"alice\0alice\0wonderland") == "alice"
    for name in MECHANISMS:
        assert plain(b"\0alice\0wonderland", lambda _: {name: ALICE[name]}) == "alice"  # noqa: B023


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"\0alice\0",
        b"\0alice\0wonderlanD",
        b"\0bob\0wonderland",
        b"bob\0alice\0wonderland",
        b"\0alice\0wonderland\0",
        b"\0alice\0\xff",
        b"\0alice\0" + b"x" * MAX_BYTES,
    ],
)
def test_plain_refuses_everything_else_and_its_text_shows_no_password(message: bytes) -> None:
    with pytest.raises(LoginFailed) as failed:
        plain(message)
    assert "wonderlan" not in str(failed.value)


def test_plain_refuses_who_is_deleted_or_gets_another_password_meanwhile() -> None:
    for later in (None, {name: make_credential(name, "else", 4096) for name in MECHANISMS}):
        kept = iter([ALICE, later])
        with pytest.raises(LoginFailed, match="changed meanwhile"):
            plain(b"\0alice\0wonderland", lambda _: next(kept))  # noqa: B023


class Slow:
    slow, listed = True, True
    until: float | None = None

    def __init__(self, go_on: threading.Event) -> None:
        self.user: str | None = None
        self._go_on = go_on

    def answer(self, message: bytes) -> bytes:
        assert self._go_on.wait(20)
        return message


def test_proofs_that_wait_for_the_thread_are_bounded_and_all_are_answered_on_the_loop() -> None:
    posted: list[Callable[[], None]] = []
    came = threading.Semaphore(0)

    def post(function: Callable[[], None]) -> None:
        posted.append(function)
        came.release()

    thread, go_on = LoginThread(post), threading.Event()
    answers: list[Future[bytes]] = []
    exchange: Exchange = Slow(go_on)
    for number in range(MAX_WAITING_OF_HOST):
        thread.answer("10.0.0.1", exchange, str(number).encode(), answers.append)
    with pytest.raises(LoginFailed, match="8 other logins wait already, 8 of them from there"):
        thread.answer("10.0.0.1", exchange, b"one too many of a host", answers.append)
    for number in range(MAX_WAITING_OF_HOST, MAX_WAITING):
        thread.answer(f"10.0.1.{number}", exchange, str(number).encode(), answers.append)
    with pytest.raises(LoginFailed, match="16 other logins wait already, 0 of them from there"):
        thread.answer("10.0.0.2", exchange, b"one too many", answers.append)
    go_on.set()
    for _ in range(MAX_WAITING):
        assert came.acquire(timeout=20)
    for function in posted:
        function()
    assert [answer.result() for answer in answers] == [str(number).encode() for number in range(MAX_WAITING)]
    for _ in range(MAX_WAITING_OF_HOST):
        thread.answer("10.0.0.1", exchange, b"again", answers.append)


def test_a_proof_is_looked_at_though_the_system_has_no_thread_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    came, answers = queue.SimpleQueue[Callable[[], None]](), list[Future[bytes]]()
    thread = LoginThread(came.put)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    thread.answer("10.0.0.1", Named(), b"alice", answers.append)
    came.get(timeout=20)()
    assert answers[0].result() == b""
