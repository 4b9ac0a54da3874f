"""A mistake in any step of a turn costs the connection it was made for, not the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.wire.framing import FrameBuffers, RequestFramer
from millrace_broker.server.admission import Admission
from millrace_broker.server.connection import ClientConnection
from millrace_broker.server.loop import Server
from millrace_broker.server.request import Request
from millrace_broker.server.statistics import Statistics
from tests.unit.server.serving import Client, Running


@pytest.fixture
def running() -> Iterator[Running]:
    started = Running()
    yield started
    started.stop()


@pytest.fixture
def other(running: Running) -> Iterator[Client]:
    """A client that is there before the mistake, and must not notice it."""
    client = running.client()
    client.send(1)
    assert client.receive() == (1, b"-text-")
    yield client
    client.close()


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[object]:
    """The next call of a method raises; the list then says whose it was."""
    real: Callable[..., Any] = getattr(owner, name)
    failed: list[object] = []

    def failing(self: object, *arguments: Any, **options: Any) -> Any:
        if failed:
            return real(self, *arguments, **options)
        failed.append(self)
        raise MemoryError

    monkeypatch.setattr(owner, name, failing)
    return failed


def ended(client: Client) -> bool:
    """True once the server has closed the connection; what it answered before does not matter."""
    with contextlib.suppress(ConnectionResetError):
        client.file.read()
    return True


def still_served(client: Client) -> bool:
    client.send(2)
    return client.receive() == (2, b"-text-")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (RequestFramer, "receive_data"),
        (RequestFramer, "next_frame"),
        (RequestFramer, "release"),
        (Statistics, "served"),
        (ClientConnection, "answered"),
        (ClientConnection, "send"),
        (Server, "_measure"),
        (ClientConnection, "_send_queued"),
        (Server, "_serve"),
        (Server, "_read"),
    ],
)
def test_a_mistake_while_a_client_is_served_costs_its_connection_and_no_other(
    running: Running, other: Client, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    unlucky = running.client()
    unlucky.send(1)
    assert unlucky.receive() == (1, b"-text-")
    failed = fail_once(monkeypatch, owner, name)
    unlucky.send(2)
    assert ended(unlucky)
    assert failed
    assert still_served(other)
    assert running.server.admission.open == 1
    unlucky.close()


def test_a_mistake_in_what_serves_a_request_costs_its_connection_and_no_other(
    running: Running, other: Client
) -> None:
    def serve(request: Request, text: bytes) -> None:
        if text == b"fail":
            raise ZeroDivisionError
        request.answer([text])

    running.serve = serve
    unlucky = running.client()
    unlucky.send(1, b"fail")
    assert unlucky.at_end()
    assert still_served(other)
    unlucky.close()


def test_a_mistake_while_the_rest_of_many_requests_is_served_costs_that_connection(
    running: Running, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.serve = lambda request, text: None if request.correlation_id == 0 else request.answer([text])
    unlucky = running.client()
    limit = running.server.admission.max_queued_requests
    for number in range(limit + 1):
        unlucky.send(number)
    other.send(2)
    assert other.receive() == (2, b"-text-")  # by now the last request of the first waits for its turn
    fail_once(monkeypatch, RequestFramer, "next_frame")
    running.on_loop(lambda: running.requests[1].answer([b"late"]))
    assert ended(unlucky)
    unlucky.close()


@pytest.mark.parametrize(("owner", "name"), [(RequestFramer, "__init__"), (ClientConnection, "__init__")])
def test_a_mistake_while_a_client_is_admitted_costs_its_connection_and_no_other(
    running: Running, other: Client, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    fail_once(monkeypatch, owner, name)
    unlucky = running.client()
    assert unlucky.at_end()
    assert still_served(other)
    assert running.server.admission.open == 1, "it does not count as open"
    unlucky.close()
    fresh = running.client()
    assert still_served(fresh)
    fresh.close()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Admission, "refusal"),
        (Admission, "leave"),
        (Admission, "note"),
        (Admission, "pass_over_oldest"),
        (Statistics, "end_turn"),
        (FrameBuffers, "end_of_turn"),
        (ClientConnection, "forget"),
        (Server, "_finish_turn"),
    ],
)
def test_a_mistake_that_belongs_to_nobody_leaves_the_loop_running(
    running: Running, other: Client, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    fail_once(monkeypatch, owner, name)
    for _ in range(3):
        client = running.client()
        client.close()
    running.on_loop(lambda: None)
    assert running.thread.is_alive()
    assert still_served(other)


def test_the_end_of_a_turn_that_fails_leaves_the_loop_running(running: Running, other: Client) -> None:
    real, failed = running.end_of_turn, list[int]()

    def failing() -> None:
        if not failed:
            failed.append(1)
            raise MemoryError
        real()

    running.end_of_turn = failing
    assert still_served(other)
    assert failed
