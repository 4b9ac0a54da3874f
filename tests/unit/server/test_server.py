"""The loop and its sockets, with handlers that do as each test says."""

from __future__ import annotations

import gc
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from millrace.config import TlsConfig
from millrace.errors import MillraceError
from millrace.records.file_slice import FileSlice
from millrace.security.certificates import client_context
from millrace_broker import mailbox
from millrace_broker.mailbox import Mailbox
from millrace_broker.server.connection import ClientConnection
from millrace_broker.server.loop import Server
from millrace_broker.server.request import Request
from millrace_broker.server.transport import PlainTransport
from millrace_broker.storage.chain import LogFile
from tests.certificates import Authority
from tests.support import WAIT_S, wait_until
from tests.unit.server.serving import (
    LIMIT,
    LIMITS,
    Client,
    Running,
    Serve,
    listening,
    listening_with_tls,
    waiting_requests,
)

PLAIN_ONLY = pytest.mark.parametrize("running", ["plain"], indirect=True)


@pytest.fixture(params=["plain", "1.2", "1.3"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """The loop with plain clients, and with those of each version of TLS: nobody may notice."""
    if request.param == "plain":
        started = Running()
    else:
        authority = Authority(tmp_path)
        issued = authority.issue("server")
        tls = client_context(TlsConfig(ca=authority.ca))
        tls.maximum_version = ssl.TLSVersion.TLSv1_2 if request.param == "1.2" else ssl.TLSVersion.TLSv1_3
        config = TlsConfig(certificate=issued.certificate, key=issued.key)
        started = Running(listener=listening_with_tls(config), tls=tls)
    yield started
    started.stop()


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    connected = running.client()
    yield connected
    connected.close()


def answer_all(requests: Iterable[Request], answer: Callable[[Request], bytes]) -> None:
    for request in list(requests):
        request.answer([answer(request)])


def test_answers_leave_in_the_order_of_their_requests(running: Running, client: Client) -> None:
    running.serve = lambda request, text: None
    for number in range(5):
        client.send(number)
    waiting_requests(running, 5)
    running.on_loop(lambda: answer_all(reversed(running.requests), lambda r: b"%d" % r.correlation_id))
    assert [client.receive() for _ in range(5)] == [(n, b"%d" % n) for n in range(5)]


def test_an_append_that_waits_does_not_stop_the_appends_behind_it(running: Running, client: Client) -> None:
    running.serve = lambda request, text: None if request.correlation_id == 0 else request.answer([text])
    for number in range(3):
        client.send(number)
    waiting_requests(running, 3)  # all were read and served ...
    client.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.socket.recv(1)  # ... but nothing overtakes the first answer
    client.socket.settimeout(10)
    running.on_loop(lambda: running.requests[0].answer([b"late"]))
    assert [client.receive() for _ in range(3)] == [(0, b"late"), (1, b"-text-"), (2, b"-text-")]


FETCH = 1 << 16
"""A number whose request is no append."""


@pytest.mark.parametrize(
    "numbers",
    [(FETCH, FETCH + 1), (FETCH, 1), (0, FETCH + 1)],
    ids=["other-other", "other-append", "append-other"],
)
def test_a_request_begins_when_the_one_before_it_has_its_answer(
    running: Running, client: Client, numbers: tuple[int, int]
) -> None:
    """Only appends follow each other at once: what a commit changes is there for the look-up behind it."""
    running.serve = lambda request, text: None
    for number in numbers:
        client.send(number)
    waiting_requests(running, 1)
    turns = running.turns
    running.on_loop(lambda: None)
    running.on_loop(lambda: None)
    assert len(running.requests) == 1
    assert running.turns - turns < 10, "a client that waits does not keep the loop busy"
    running.on_loop(lambda: running.requests[0].answer([b"first"]))
    waiting_requests(running, 2)
    running.on_loop(lambda: running.requests[1].answer([b"second"]))
    assert [client.receive() for _ in range(2)] == [(numbers[0], b"first"), (numbers[1], b"second")]


@pytest.mark.parametrize("cut", range(25))
def test_where_the_network_cuts_does_not_change_which_request_waits(
    running: Running, client: Client, cut: int
) -> None:
    running.serve = lambda request, text: None
    data = b"".join(struct.pack(">ii", 8, number) + b"data" for number in (FETCH, FETCH + 1))
    client.socket.sendall(data[:cut])
    running.on_loop(lambda: None)
    client.socket.sendall(data[cut:])
    waiting_requests(running, 1)
    running.on_loop(lambda: None)
    assert len(running.requests) == 1
    running.on_loop(lambda: running.requests[0].answer([b"first"]))
    waiting_requests(running, 2)
    running.on_loop(lambda: running.requests[1].answer([b"second"]))
    assert [client.receive()[1] for _ in range(2)] == [b"first", b"second"]


def test_a_client_that_hangs_up_while_its_request_waits_is_forgotten(
    running: Running, client: Client
) -> None:
    running.serve = lambda request, text: None
    client.send(FETCH)
    client.send(FETCH + 1)
    waiting_requests(running, 1)
    client.socket.shutdown(socket.SHUT_WR)
    wait_until("it is closed", lambda: running.requests[0].client.closed)
    assert len(running.requests) == 1


def test_a_request_without_an_answer_takes_no_place(running: Running, client: Client) -> None:
    def serve(request: Request, text: bytes) -> None:
        if request.correlation_id == 1:
            request.answer_nothing()
        else:
            request.answer([text])

    running.serve = serve
    for number in range(3):
        client.send(number)
    assert [client.receive()[0] for _ in range(2)] == [0, 2]


def test_requests_that_arrive_together_are_served_in_few_turns(running: Running, client: Client) -> None:
    client.socket.sendall(b"".join(struct.pack(">ii", 8, n) + b"data" for n in range(1000)))
    assert [client.receive()[0] for _ in range(1000)] == list(range(1000))
    assert running.turns < 100


@PLAIN_ONLY
def test_what_waits_for_an_idle_loop_comes_after_what_is_left_to_read(
    running: Running, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "BUSY_S", WAIT_S)
    events, other = list[str](), running.client()

    def serve(request: Request, text: bytes) -> None:
        events.append(f"served {request.correlation_id}")
        if request.correlation_id == 1:
            running.mailbox.when_idle(lambda: events.append("idle"))
            other.send(2)
            select.select(list(running.server.connections), [], [], WAIT_S)
        request.answer([text])

    running.serve = serve
    other.send(0)
    assert other.receive()[0] == 0
    client.send(1)
    assert [client.receive()[0], other.receive()[0]] == [1, 2]
    wait_until("the loop is idle", lambda: len(events) == 4)
    other.close()
    assert events == ["served 0", "served 1", "served 2", "idle"]


@PLAIN_ONLY
def test_what_a_thousand_clients_send_at_once_is_read_and_answered_with_one_call_each(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, plain_send = list[PlainTransport](), PlainTransport.send

    def send(self: PlainTransport, data: bytes | memoryview, *, more: bool) -> int:
        sent.append(self)
        return plain_send(self, data, more=more)

    monkeypatch.setattr(PlainTransport, "send", send)
    clients, all_sent = [running.client() for _ in range(1000)], threading.Event()
    wait_until("all are connected", lambda: running.server.admission.open == len(clients))
    held = running.mailbox.call(lambda: all_sent.wait(WAIT_S))
    for one in clients:
        one.socket.sendall(b"".join(struct.pack(">ii", 8, n) + b"data" for n in range(3)))
    turns = running.turns
    all_sent.set()
    assert held.result(WAIT_S)
    assert all([one.receive()[0] for _ in range(3)] == [0, 1, 2] for one in clients)
    assert len(set(sent)) == len(clients)
    assert len(sent) < 1.2 * len(clients)  # a few whose share of the time was up go on in the next turn
    assert running.turns - turns < 100


@pytest.mark.parametrize("size", [-5, 3, LIMIT + 1])
def test_a_frame_that_cannot_be_ends_its_connection_only(running: Running, client: Client, size: int) -> None:
    other = running.client()
    client.socket.sendall(struct.pack(">i", size) + b"x" * 16)
    assert client.at_end()
    other.send(1)
    assert other.receive() == (1, b"-text-")
    other.close()


@pytest.fixture
def big_file(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(b"".join(struct.pack(">q", n) for n in range(1 << 20)))
    return path


def file_answer(path: Path, start: int, length: int) -> Serve:
    file = LogFile(path, 0)
    return lambda request, text: request.answer([b"head", FileSlice(file, start, length), b"tail"])


@pytest.mark.parametrize(("start", "length"), [(0, 8 << 20), (3, 1), (5, (1 << 20) + 1), (100, 4096)])
def test_file_slices_arrive_whole_and_in_place(
    running: Running, client: Client, big_file: Path, start: int, length: int
) -> None:
    running.serve = file_answer(big_file, start, length)
    client.send(7)
    client.send(8)
    data = big_file.read_bytes()[start : start + length]
    assert client.receive() == (7, b"head" + data + b"tail")
    assert client.receive() == (8, b"head" + data + b"tail")


@PLAIN_ONLY
def test_the_bytes_of_a_file_go_to_the_socket_by_sendfile_alone(
    running: Running, client: Client, big_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, sendfile = list[int](), os.sendfile

    def counted(*arguments: int) -> int:
        sent.append(sendfile(*arguments))
        return sent[-1]

    monkeypatch.setattr(os, "sendfile", counted)
    running.serve = file_answer(big_file, 100, 5 << 20)
    client.send(7)
    assert client.receive()[1] == b"head" + big_file.read_bytes()[100 : 100 + (5 << 20)] + b"tail"
    assert sum(sent) == 5 << 20


def test_a_slow_reader_does_not_hold_up_the_others(running: Running, client: Client, big_file: Path) -> None:
    sends_files = file_answer(big_file, 0, 8 << 20)
    running.serve = lambda request, text: (
        sends_files(request, text) if text == b"files" else request.answer([text])
    )
    for number in range(20):
        client.send(number, b"files")  # 160 MB that nobody reads
    waiting_requests(running, 20)
    other = running.client()
    for number in range(100):
        other.send(number)
        assert other.receive()[0] == number
    other.close()
    for number in range(20):
        assert client.receive()[0] == number


@PLAIN_ONLY  # two threads may not use one connection of TLS: test_tls.py has its own
def test_a_client_that_takes_no_answers_is_not_read_any_more(running: Running, client: Client) -> None:
    answer = bytes(100_000)
    running.serve = lambda request, text: request.answer([answer])
    count = 2000  # 200 MB of answers

    def send_all() -> None:
        for number in range(count):
            client.send(number)

    sender = threading.Thread(target=send_all)
    sender.start()
    sender.join(10)
    other = running.client()
    other.send(1)
    assert other.receive()[0] == 1
    served = len(running.requests) - 1
    # What the sockets' buffers hold, the queue's limit, and no more.
    assert served * len(answer) < LIMITS.max_queued_bytes + (16 << 20)
    assert [client.receive()[0] for _ in range(count)] == list(range(count))
    other.close()


def test_a_client_with_too_many_open_requests_is_not_read_any_more(running: Running, client: Client) -> None:
    running.serve = lambda request, text: None
    count = LIMITS.max_queued_requests + 500
    client.socket.sendall(b"".join(struct.pack(">ii", 8, n) + b"data" for n in range(count)))
    limit = LIMITS.max_queued_requests
    wait_until("as many as may wait", lambda: len(running.requests) >= limit)
    assert len(running.requests) == limit
    running.serve = lambda request, text: request.answer([text])
    running.on_loop(lambda: answer_all(running.requests, lambda request: b"."))
    assert [client.receive()[0] for _ in range(count)] == list(range(count))


def test_a_file_cut_short_ends_the_connection_that_was_to_get_it(
    running: Running, client: Client, big_file: Path
) -> None:
    running.serve = file_answer(big_file, 0, (8 << 20) + 1)
    client.send(1)
    with pytest.raises((struct.error, ConnectionResetError, AssertionError)):
        assert len(client.receive()[1]) == (8 << 20) + 1 + 8
    other = running.client()
    running.serve = lambda request, text: request.answer([text])
    other.send(2)
    assert other.receive() == (2, b"-text-")
    other.close()


def test_a_client_that_goes_away_is_forgotten(running: Running) -> None:
    running.serve = lambda request, text: None
    gone = running.client()
    gone.send(1)
    waiting_requests(running, 1)
    gone.close()
    wait_until("the connection's end", lambda: running.requests[0].client.closed)
    running.on_loop(lambda: running.requests[0].answer([b"to nobody"]))


def test_a_connection_is_closed_once_however_often_it_is_asked_for(
    running: Running, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def abort(request: Request, text: bytes) -> None:
        for _ in range(3):
            request.client.abort("a reason")

    running.serve = abort
    client.send(1)
    assert client.at_end()
    assert [line.message.endswith("a reason") for line in caplog.records] == [True]


def test_what_a_closed_connection_held_does_not_wait_for_the_garbage_collector(running: Running) -> None:
    def connections() -> int:
        return sum(type(item) is ClientConnection for item in gc.get_objects())

    running.serve = lambda request, _: request.client.abort("as the test wants it")
    gc.collect()
    gc.disable()
    try:
        before = connections()
        for number in range(10):
            client = running.client()
            client.send(number)
            assert client.at_end()
        running.requests.clear()
        # The statistics may still look at the last one.
        wait_until("they are freed", lambda: connections() <= before + 1)
    finally:
        gc.enable()


def test_clients_are_refused_until_the_server_listens() -> None:
    listener = listening()
    server = Server([listener], Mailbox(), LIMITS)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.advertised)
    server.listen()
    socket.create_connection(listener.advertised).close()
    server.close()


def test_a_port_that_was_taken_before_the_server_listens_is_one_line_that_says_so() -> None:
    listener = listening()
    server = Server([listener], Mailbox(), LIMITS)
    with socket.create_server(listener.advertised), pytest.raises(MillraceError, match="cannot listen on"):
        server.listen()
    server.close()


def test_a_port_in_use_is_one_line_that_says_so() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(MillraceError, match="cannot listen on"),
    ):
        listening(taken.getsockname()[1])
