"""Bad and greedy clients: who is refused, who is closed, what the others notice of it (nothing)."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.config import ClientLimits
from millrace.errors import ConfigError
from millrace_broker.security.rights import UNAUTHENTICATED
from millrace_broker.server import admission as admission_module
from millrace_broker.server import loop
from millrace_broker.server.admission import MAX_WORKING, SPARE, Admission
from millrace_broker.server.connection import ClientConnection
from millrace_broker.server.request import REQUEST_BYTES, Request
from tests.support import WAIT_S, wait_until
from tests.unit.server.serving import Client, Running, waiting_requests

KIB = 1024
Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Running] = []

    def run(**limits: int) -> Running:
        started.append(Running(ClientLimits(**{"max_frame_bytes": 256 * KIB, **limits})))
        return started[-1]

    yield run
    for running in started:
        running.stop()


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def run(running: Running, source: str = "127.0.0.1") -> Client:
        clients.append(running.client(source))
        return clients[-1]

    yield run
    for client in clients:
        client.close()


Connect = Callable[..., Client]


def is_served(client: Client) -> bool:
    client.send(1)
    return client.receive() == (1, b"-text-")


def open_connections(running: Running, count: int) -> None:
    wait_until(f"{count} connections", lambda: running.server.admission.open == count)


# Connections


def test_a_connection_too_many_is_closed_at_once_until_another_leaves(start: Start, connect: Connect) -> None:
    running = start(max_connections=2)
    first, second = connect(running), connect(running)
    assert is_served(first)
    assert is_served(second)
    assert connect(running).at_end()
    assert running.server.admission.refused == 1
    first.close()
    open_connections(running, 1)
    assert is_served(connect(running))


def test_a_connection_too_many_stays_if_a_broker_copies_by_it_and_takes_nobodys_place(
    start: Start, connect: Connect
) -> None:
    running = start(max_connections=2)
    running.listener.takes_brokers = True

    def serve(request: Request, text: bytes) -> None:
        if text == b"broker":
            request.client.copies()
        request.answer([text])

    running.serve = serve
    first, second = connect(running), connect(running)
    assert is_served(first)
    assert is_served(second)
    broker = connect(running)
    for number in range(2):  # once it is known it may ask anything
        broker.send(number, b"broker")
        assert broker.receive() == (number, b"broker")
    admission = running.server.admission
    assert (admission.open, admission.refused, running.server.spare) == (2, 0, {})
    first.send(1, b"broker")  # one of the two was a broker's all the time
    assert first.receive() == (1, b"broker")
    open_connections(running, 1)
    broker.close()
    first.close()
    assert is_served(connect(running))
    open_connections(running, 2)


def test_of_connections_too_many_the_oldest_are_closed_and_so_is_who_does_not_say_that_it_is_a_broker(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SPARE", 2)
    monkeypatch.setattr(loop, "STALL_CHECK_S", 0.05)
    running = start(max_connections=1, authentication_ms=1000)
    running.listener.takes_brokers = True
    only = connect(running)
    assert is_served(only)
    spare = [connect(running) for _ in range(3)]
    assert spare[0].at_end()
    wait_until("one is refused", lambda: running.server.admission.refused == 1)
    assert spare[1].at_end()
    assert spare[2].at_end()
    wait_until("all are", lambda: running.server.admission.refused == 3)
    assert running.server.admission.open == 1
    assert is_served(only)


def test_a_broker_is_read_and_answered_while_clients_hold_all_the_memory(
    start: Start, connect: Connect
) -> None:
    running = start(max_buffered_bytes=512 * KIB)
    running.serve = lambda request, text: request.client.copies()  # and has no answer yet
    broker = connect(running)
    broker.send(0, b"broker")
    waiting_requests(running, 1)
    greedy = [connect(running) for _ in range(40)]
    for client in greedy:
        client.socket.sendall(struct.pack(">i", 200 * KIB) + bytes(20 * KIB))
    admission = running.server.admission
    wait_until("they hold too much", lambda: admission.over_limit)
    assert admission.max_queued_requests == 1, "a client may not ask anything more now"
    for number in range(1, 5):
        broker.send(number, b"broker")
    waiting_requests(running, 5)
    ordered = sorted(running.server.connections.values(), key=lambda one: one.used_s)
    assert ordered[0].is_broker


def test_one_address_does_not_lock_out_the_others(start: Start, connect: Connect) -> None:
    running = start(max_connections_per_address=3)
    assert all(is_served(connect(running)) for _ in range(3))
    assert connect(running).at_end()
    assert is_served(connect(running, "127.0.0.2"))


def test_connections_leave_file_descriptors_to_the_logs(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE - free.fileno()
    monkeypatch.setattr(admission_module, "RESERVED_FILES", files)
    assert connect(start()).at_end()


def test_an_address_that_has_left_is_not_remembered() -> None:
    clients = Admission(ClientLimits())
    for number in range(1000):
        assert clients.refusal(f"10.0.0.{number}", 5) is None
        clients.leave(f"10.0.0.{number}")
    assert (clients.open, clients.accepted, len(clients.addresses)) == (0, 1000, 0)


def test_clients_that_open_and_close_all_the_time_do_not_hold_up_the_others(
    start: Start, connect: Connect
) -> None:
    running = start()
    honest = connect(running)
    stop, opened = threading.Event(), list[None]()

    def storm() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                running.client().close()
                opened.append(None)

    threads = [threading.Thread(target=storm) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        while len(opened) < 200:
            assert is_served(honest)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    open_connections(running, 1)


# Idle connections


def test_who_does_nothing_or_never_finishes_a_request_is_closed(start: Start, connect: Connect) -> None:
    running = start(max_idle_ms=200)
    silent, half = connect(running), connect(running)
    half.socket.sendall(struct.pack(">ii", 100, 1))
    assert silent.at_end()
    assert half.at_end()


def test_a_request_that_comes_byte_by_byte_is_no_sign_of_life(start: Start, connect: Connect) -> None:
    running = start(max_idle_ms=200)
    client = connect(running)

    def trickle() -> None:
        for byte in struct.pack(">i", 10_000) + bytes(10_000):
            client.socket.sendall(bytes([byte]))
            time.sleep(0.005)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        trickle()


def test_who_waits_for_an_answer_is_not_idle(start: Start, connect: Connect) -> None:
    running = start(max_idle_ms=1000)
    running.serve = lambda request, text: None
    client = connect(running)
    client.send(1)
    waiting_requests(running, 1)
    silent = connect(running)
    assert silent.at_end()  # two idle times at least have passed for both
    silent = connect(running)
    assert silent.at_end()
    running.on_loop(lambda: running.requests[0].answer([b"late"]))
    assert client.receive() == (1, b"late")
    assert client.at_end()  # from here on it is


def test_who_takes_nothing_of_an_answer_is_closed_who_takes_a_little_is_not(
    start: Start, connect: Connect
) -> None:
    running = start(max_idle_ms=3000)
    running.serve = lambda request, text: request.answer([bytes(48 << 20)])
    slow, stuck = connect(running), connect(running)
    slow.send(1)
    stuck.send(1)
    open_connections(running, 2)

    def goes_on() -> bool:
        assert len(slow.socket.recv(128 * KIB)) > 0
        return running.server.admission.open == 1

    wait_until("only the slow reader is left", goes_on)
    running.on_loop(lambda: None)  # the check for idle connections has ended
    assert goes_on()


# Memory


def test_unfinished_requests_of_all_connections_share_a_budget(
    start: Start, connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "STALLED_S", 0.3)
    monkeypatch.setattr(loop, "STALL_CHECK_S", 0.05)
    running = start(max_buffered_bytes=2048 * KIB)
    held: list[int] = []
    greedy = [connect(running) for _ in range(40)]
    with caplog.at_level(logging.WARNING):
        for client in greedy:
            client.socket.setblocking(False)
            client.socket.send(struct.pack(">i", 200 * KIB) + bytes(150 * KIB))
            running.on_loop(lambda: held.append(running.server.admission.held))
        honest = connect(running)
        honest.send(7, bytes(200 * KIB))
        modest = connect(running)
        for _ in range(10):
            assert is_served(modest)
        assert honest.receive() == (7, bytes(200 * KIB))
    assert max(held) <= 2 * 2048 * KIB + 40 * loop.MIN_READ_BYTES
    assert "stalled for" in caplog.records[0].message
    assert len(caplog.records) < 20  # one line closes several
    for client in [*greedy, honest, modest]:
        client.close()
    open_connections(running, 0)
    admission = running.server.admission
    assert (admission.held, admission.paused, admission.unfinished) == (0, {}, {})


def test_large_requests_of_honest_clients_take_turns_when_they_are_too_many(
    start: Start, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(max_buffered_bytes=512 * KIB)
    clients = [connect(running) for _ in range(40)]
    for client in clients:  # every request has begun before the first is whole
        client.socket.sendall(struct.pack(">ii", 4 + 100 * KIB, 1) + bytes(50 * KIB))
    threads = [threading.Thread(target=client.socket.sendall, args=(bytes(50 * KIB),)) for client in clients]
    for thread in threads:
        thread.start()
    for client in clients:
        assert client.receive() == (1, bytes(100 * KIB))
    for thread in threads:
        thread.join(10)
    assert running.server.admission.open == 40
    assert not caplog.records


def holder() -> ClientConnection:
    nothing: Any = SimpleNamespace(errors=Counter(), login=lambda: None)
    return ClientConnection(
        nothing, nothing, nothing, "127.0.0.1", "127.0.0.1:1", UNAUTHENTICATED, nothing, served_at=-1.0
    )


def admitted(*, open_connections: int, limit: int = 1000) -> Admission:
    admission = Admission(ClientLimits(max_frame_bytes=1, max_buffered_bytes=limit))
    for _ in range(open_connections):
        assert admission.refusal("127.0.0.1", 5) is None
    return admission


def test_only_the_oldest_unfinished_request_is_read_beyond_a_share_when_the_budget_is_spent() -> None:
    admission = admitted(open_connections=1)
    oldest, second, third, small = holder(), holder(), holder(), holder()
    for client, held in ((oldest, 450), (second, 300), (small, 100), (third, 300)):
        admission.note(client, held, unfinished=True, now=1.0)
    assert (admission.over_limit, list(admission.paused)) == (True, [third])
    for client, held in ((oldest, 460), (second, 310), (small, 110)):
        admission.note(client, held, unfinished=True, now=2.0)
    assert list(admission.paused) == [third, second], "above 250 and not the oldest"
    assert admission.resumed() == []
    admission.note(oldest, 300, unfinished=False, now=3.0)  # it is whole, and its answer is not taken yet
    assert admission.over_limit
    assert list(admission.paused) == [third, second, oldest]
    assert admission.resumed() == [second], "it is the oldest now"
    admission.note(oldest, 100, unfinished=False, now=4.0)
    assert (admission.over_limit, admission.resumed()) == (False, [third])
    for client in (oldest, second, third, small):
        admission.note(client, 0, unfinished=False, now=5.0)
    assert (admission.held, admission.paused, admission.unfinished) == (0, {}, {})


def test_an_eighth_of_the_budget_is_free_before_those_who_wait_are_read_again() -> None:
    admission = admitted(open_connections=2)
    first, second = holder(), holder()
    admission.note(first, 400, unfinished=True, now=1.0)
    admission.note(second, 601, unfinished=True, now=1.0)
    admission.note(first, 300, unfinished=True, now=2.0)
    assert (admission.held, admission.over_limit, admission.resumed()) == (901, True, [])
    admission.note(first, 270, unfinished=True, now=3.0)
    assert (admission.over_limit, admission.resumed()) == (False, [second])


def test_who_sends_large_requests_without_a_pause_lets_others_go_first() -> None:
    admission = admitted(open_connections=2)
    busy, second = holder(), holder()
    admission.note(busy, 900, unfinished=True, now=0.0)
    admission.note(second, 600, unfinished=True, now=0.0)
    assert list(admission.paused) == [second]
    busy.served_at = 0.5  # its request is whole, and the next has begun in the same turn
    admission.note(busy, 901, unfinished=True, now=0.5)
    assert list(admission.paused) == [second, busy]
    assert admission.resumed() == [second]


def test_an_oldest_request_of_which_nothing_comes_lets_the_next_one_go_first() -> None:
    admission = admitted(open_connections=2)
    silent, second = holder(), holder()
    admission.note(silent, 900, unfinished=True, now=0.0)
    admission.note(second, 600, unfinished=True, now=0.0)
    silent.received_at = 3.0
    admission.pass_over_oldest(2.9)
    assert admission.resumed() == []
    admission.pass_over_oldest(3.0)
    assert admission.resumed() == [second]


def test_a_client_that_waits_for_its_turn_and_hangs_up_costs_no_time(start: Start, connect: Connect) -> None:
    running = start(max_buffered_bytes=512 * KIB)
    clients = [connect(running) for _ in range(4)]
    for client in clients:
        client.socket.sendall(struct.pack(">ii", 4 + 200 * KIB, 1) + bytes(190 * KIB))
    last = clients[-1].socket.getsockname()[1]
    wait_until(
        "the last waits",
        lambda: any(paused.address.endswith(f":{last}") for paused in list(running.server.admission.paused)),
    )
    before = running.turns
    clients[-1].socket.shutdown(socket.SHUT_WR)
    assert clients[-1].at_end()
    time.sleep(0.1)
    assert running.turns - before < 100


@pytest.mark.slow
def test_a_client_does_not_stall_when_it_is_the_broker_that_reads_slowly(
    start: Start, connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "STALLED_S", 0.01)
    monkeypatch.setattr(loop, "STALL_CHECK_S", 0.01)
    running = start(max_buffered_bytes=512 * KIB)
    running.end_of_turn = lambda: time.sleep(0.05)
    clients = [connect(running) for _ in range(12)]
    for client in clients:  # all of it fits into the buffers of the sockets
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 512 * KIB)
        client.send(1, bytes(200 * KIB))
    for client in clients:
        assert client.receive() == (1, bytes(200 * KIB))
    assert not caplog.records


def test_a_large_request_goes_on_with_a_part_of_it_that_is_no_trickle(start: Start, connect: Connect) -> None:
    running = start()
    client = connect(running)
    client.socket.sendall(struct.pack(">i", 200 * KIB) + bytes(100 * KIB))
    wait_until("it has begun", lambda: running.server.admission.unfinished)
    (connection,) = running.server.connections.values()
    before = connection.received_at
    client.socket.sendall(bytes(20 * KIB))
    wait_until("it has gone on", lambda: connection.received_at > before)


def test_who_sends_large_requests_byte_by_byte_does_not_keep_others_waiting(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "STALLED_S", 0.5)
    monkeypatch.setattr(loop, "STALL_CHECK_S", 0.1)
    running = start(max_buffered_bytes=512 * KIB)
    slow = [connect(running) for _ in range(3)]
    for client in slow:
        client.socket.sendall(struct.pack(">i", 250 * KIB) + bytes(200 * KIB))
    wait_until("they hold too much", lambda: running.server.admission.over_limit)
    answered = threading.Event()

    def trickle() -> None:
        while not answered.wait(0.01):
            for client in slow:
                with contextlib.suppress(OSError):
                    client.socket.sendall(b"-")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        honest = connect(running)
        honest.socket.settimeout(5)
        honest.send(7, bytes(200 * KIB))
        assert honest.receive() == (7, bytes(200 * KIB))
        wait_until("they are closed", lambda: not running.server.admission.over_limit)
    finally:
        answered.set()
        thread.join()


def test_who_does_not_take_answers_while_the_budget_is_spent_is_closed_who_takes_a_little_is_not(
    start: Start, connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "STALLED_S", 0.5)
    monkeypatch.setattr(loop, "STALL_CHECK_S", 0.1)
    running = start(max_buffered_bytes=40 << 20, max_queued_bytes=64 << 20)
    running.serve = lambda request, text: request.answer([text if text == b"-text-" else bytes(40 << 20)])
    slow, stuck, other = connect(running), connect(running), connect(running)
    slow.send(1, b"much")
    stuck.send(1, b"more")
    wait_until("both hold too much", lambda: running.server.admission.over_limit)

    def goes_on() -> bool:
        assert len(slow.socket.recv(256 * KIB)) > 0
        return running.server.admission.closed_over_limit == 1

    wait_until("only the slow reader is left", goes_on)
    assert is_served(other)
    assert len(caplog.records) == 1


def test_unread_answers_of_all_connections_share_the_budget(start: Start, connect: Connect) -> None:
    running = start(max_buffered_bytes=2048 * KIB, max_queued_bytes=512 * KIB)
    answer, held = bytes(400 * KIB), list[int]()
    admission = running.server.admission

    def serve(request: Request, text: bytes) -> None:
        held.append(admission.held)
        request.answer([text if text == b"-text-" else answer])

    running.serve = serve
    readers = [connect(running) for _ in range(30)]
    for reader in readers:
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            for number in range(100):  # 40 MB that nobody reads
                reader.send(number, b"much")
    assert is_served(connect(running))
    wait_until("some are closed", lambda: admission.closed_over_limit > 0)
    assert is_served(connect(running))
    assert max(held) <= 2 * 2048 * KIB


def test_each_connection_gets_its_share_of_the_budget_when_too_many_requests_wait(
    start: Start, connect: Connect
) -> None:
    running = start(max_queued_requests=100, max_buffered_bytes=4 << 20)
    running.serve = lambda request, text: None
    hoarders = [connect(running) for _ in range(50)]
    for client in hoarders:
        client.socket.sendall(b"".join(struct.pack(">ii", 8, n) + b"data" for n in range(150)))
    admission = running.server.admission
    wait_until("no more is served", lambda: admission.max_queued_requests == (1 << 20) // 50 // REQUEST_BYTES)
    running.serve = lambda request, text: request.answer([text])
    assert is_served(connect(running))
    assert len(running.requests) < 50 * 100 / 2
    assert admission.closed_over_limit == 0
    for client in hoarders:
        client.close()
    open_connections(running, 1)
    assert (running.server.waiting_requests, admission.max_queued_requests) == (0, 100)


@pytest.mark.parametrize("count", [11, 100], ids=["beyond the budget", "beyond twice the budget"])
def test_who_lets_large_requests_wait_beyond_the_budget_is_closed(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(loop, "STALLED_S", 0.5)
    monkeypatch.setattr(loop, "STALL_CHECK_S", 0.1)
    running = start(max_buffered_bytes=2048 * KIB)

    def serve(request: Request, text: bytes) -> None:
        if text == b"-text-":
            request.answer([text])
        else:
            request.kept = len(text)

    running.serve = serve
    hoarder, waiting = connect(running), connect(running)
    waiting.send(1, b"little")
    with contextlib.suppress(OSError):
        for number in range(count):
            hoarder.send(number, bytes(200 * KIB))
    wait_until("it is closed", lambda: running.server.admission.closed_over_limit == 1)
    assert len(running.requests) <= 2 * 2048 // 200 + 2
    assert is_served(connect(running))
    wait_until("only one waits", lambda: running.server.admission.held < 2 * REQUEST_BYTES)


def test_a_client_is_not_read_while_threads_have_enough_of_its_requests(
    start: Start, connect: Connect
) -> None:
    running = start()

    def serve(request: Request, text: bytes) -> None:
        if text == b"-text-":
            request.answer([text])
        else:
            request.client.working += 1

    def finish() -> None:
        busy.pop().answer([b"done"])
        running.requests[0].client.working -= 1

    running.serve = serve
    client = connect(running)
    client.socket.sendall(b"".join(struct.pack(">ii", 8, n) + b"work" for n in range(20)))
    wait_until("threads have enough", lambda: len(running.requests) >= MAX_WORKING)
    assert is_served(connect(running))
    busy = running.requests[:MAX_WORKING]
    assert len(running.requests) == MAX_WORKING + 1, "and the other client's"
    running.on_loop(finish)
    wait_until("one more is served", lambda: len(running.requests) == MAX_WORKING + 2)


def test_requests_that_wait_end_with_their_connection(start: Start, connect: Connect) -> None:
    running = start()
    ended = threading.Event()
    running.serve = lambda request, text: setattr(request, "abandon", ended.set)
    client = connect(running)
    client.send(1)
    waiting_requests(running, 1)
    client.close()
    assert ended.wait(WAIT_S)


def test_a_client_with_many_requests_at_once_shares_the_loop(start: Start, connect: Connect) -> None:
    running = start(max_queued_requests=10)
    busy, other = connect(running), connect(running)
    assert is_served(other)
    order: list[bytes] = []

    def serve(request: object, text: bytes) -> None:
        order.append(text)
        if len(order) == 1:
            other.send(2, b"other!")  # comes while 1,000 requests of the first are here already
        request.answer([text])  # type: ignore[attr-defined]

    running.serve = serve
    busy.socket.sendall(b"".join(struct.pack(">ii", 8, n) + b"busy" for n in range(1000)))
    assert other.receive() == (2, b"other!")
    for number in range(1000):
        assert busy.receive() == (number, b"busy")
    assert order.index(b"other!") <= 20


def test_large_answers_are_sent_without_being_copied(start: Start, connect: Connect) -> None:
    running = start()
    answer = bytes(range(256)) * 1024
    running.serve = lambda request, text: request.answer([answer])
    client = connect(running)
    for number in range(10):
        client.send(number)
    assert [client.receive() for _ in range(10)] == [(number, answer) for number in range(10)]
    assert all(answer is request.parts[1] for request in running.requests if request.parts)


def test_the_budget_must_hold_two_of_the_largest_requests() -> None:
    with pytest.raises(ConfigError, match="at least twice max_frame_bytes"):
        ClientLimits(max_frame_bytes=2, max_buffered_bytes=3)
