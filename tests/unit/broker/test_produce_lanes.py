"""Requests of many connections are served as one, and no client can tell: real sockets, a real loop."""

from __future__ import annotations

import dataclasses
import fcntl
import random
import socket
import struct
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.config import ClientLimits, LogConfig
from millrace.wire.produce import target_at
from millrace_broker.handlers import produce_lane
from millrace_broker.handlers.produce_lane import serve_lane
from millrace_broker.handlers.table import Services
from millrace_broker.security.rights import Access, Authorizer, Operation, Resource
from millrace_broker.server.connection import ClientConnection
from millrace_broker.server.loop import Server
from millrace_broker.server.request import REQUEST_BYTES, Arrived, Request
from millrace_broker.server.transport import PlainTransport
from tests.support import WAIT_S, wait_until
from tests.unit.broker.asking import AskingClient, handlers_of
from tests.unit.broker.running import NEVER_MS, Disk, FakeCluster, Running, topic
from tests.unit.broker.test_produce_runs import MAX_BATCH_BYTES, MAX_FRAME_BYTES, Sent
from tests.unit.server.serving import listening

Answers = list[tuple[int, list[tuple[str, int, int, int]]]]
"""Responses, each with its correlation id and [(topic, partition, error, base offset)]."""
RESULT_BYTES = 30
"""Size of one partition in a response of version 7."""
ESTABLISHED = 1
"""State of a connection in TCP_INFO (tcp(7))."""
ALONE = dataclasses.replace(Sent(), name="u")
TAKEN = Sent()


class Serving:
    """A broker's loop in a thread, and connections to it."""

    def __init__(self, folder: Path, *, lanes: bool = True) -> None:
        log = LogConfig(flush_ms=NEVER_MS, max_message_bytes=MAX_BATCH_BYTES)
        self.running = Running(folder, FakeCluster(topic("t", 1, 1), topic("u", 1)), log)
        self.folder, self.listener = folder, listening()
        self.mailbox = self.running.mailbox
        limits = ClientLimits(max_frame_bytes=MAX_FRAME_BYTES)
        self.server = Server([self.listener], self.mailbox, limits)
        self.server.listen()
        self.lanes: list[int] = []
        """Number of clients of each lane that was served as one."""
        self._serve = partial(serve_lane, services_of(self.running), max_frame_bytes=MAX_FRAME_BYTES)
        take = self._take_lane if lanes else lambda lane, data: (None, lane)
        handlers = handlers_of(self.running.broker)
        run = partial(self.server.run, handlers.serve_next, take, self.running.broker.end_of_turn)
        self._thread = threading.Thread(target=run)
        self._thread.start()
        self._sockets = ExitStack()
        self.clients: list[socket.socket] = []

    def _take_lane(self, lane: Any, data: memoryview) -> Any:
        request, rest = self._serve(lane, data)
        if request is not None:
            self.lanes.append(len(lane) - len(rest))
        return request, rest

    def connect(self, count: int) -> list[socket.socket]:
        """Connections that the loop has accepted."""
        address = ("127.0.0.1", self.listener.port)
        made = [self._sockets.enter_context(socket.create_connection(address)) for _ in range(count)]
        self.clients += made
        wait_until("all are accepted", lambda: len(self.server.connections) == len(self.clients))
        for one in made:
            one.settimeout(WAIT_S)
        return made

    @contextmanager
    def one_turn(self) -> Iterator[None]:
        """Hold the loop, so that all bytes which are sent meanwhile arrive in one turn."""
        is_held, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            go_on.wait(WAIT_S)

        self.mailbox.post(hold)
        assert is_held.wait(WAIT_S)
        yield
        go_on.set()

    def settle(self) -> None:
        """Wait until everything that was sent is served and answered."""

        def is_settled() -> bool:
            return not any(
                one.requests or one.framer.waiting or one.transport.has_more()
                for one in self.server.connections.values()
            )

        wait_until("all has arrived", lambda: not any(map(unsent, self.clients)))
        wait_until("all is answered", lambda: self.mailbox.call(is_settled).result(WAIT_S))
        self.mailbox.call(lambda: None).result(WAIT_S)  # the end of that turn has answered acks=1

    def logs(self) -> dict[str, bytes]:
        return {path.parent.name[:3]: path.read_bytes() for path in sorted(self.folder.glob("*/*.log"))}

    def stop(self) -> None:
        self.mailbox.post(self.server.stop)
        self._thread.join(WAIT_S)
        self.server.close()
        self.running.stop()
        self._sockets.close()


def services_of(running: Running) -> Services:
    return Services(running.broker, cast(Any, SimpleNamespace(size=0)))


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path)
    yield serving
    serving.stop()


def unsent(client: socket.socket) -> int:
    """Number of bytes that the broker's side has not acknowledged yet."""
    if client.fileno() < 0 or client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED:
        return 0  # one side has closed the connection
    return int(struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)))[0])


def received(client: socket.socket) -> tuple[bytes, bool]:
    """Everything that has come, and whether the broker has closed the connection."""
    data = b""
    client.setblocking(False)
    try:
        while part := client.recv(1 << 16):
            data += part
    except BlockingIOError:
        return data, False
    except ConnectionResetError:
        pass
    return data, True


def parsed(data: bytes) -> Answers:
    """Responses of version 7."""
    answers: Answers = []
    position = 0
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        body = data[position + 4 : position + 4 + size]
        number, topics = struct.unpack_from(">ii", body)
        at, results = 8, []
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", body, at)
            name = body[at + 2 : at + 2 + length].decode()
            (count,) = struct.unpack_from(">i", body, at + 2 + length)
            at += 6 + length
            for _ in range(count):
                partition, error, base = struct.unpack_from(">ihq", body, at)
                results.append((name, partition, error, base))
                at += RESULT_BYTES
        answers.append((number, results))
        position += 4 + size
    return answers


def seldom(usual: object, *others: object) -> st.SearchStrategy[object]:
    """Nearly always the same, so that there are lanes."""
    return st.sampled_from([usual] * 14 + list(others))


REQUESTS = st.builds(
    Sent,
    name=seldom("t", "u", "missing"),
    partition=seldom(0, 1),
    acks=seldom(1, -1, 0, 5),
    records=seldom(1, 3, 12),
    sequence=st.sampled_from([-1, -1, -1, 0, 1, 2, 3]),
    damage=seldom(None, (20, 1, False), (62, 1, True), (70, 255, True)),
)
CLIENTS = st.lists(st.lists(REQUESTS, min_size=3, max_size=7), min_size=2, max_size=5)


def outcome(
    folder: Path, streams: Sequence[Sequence[bytes]], unsure: set[int], seed: int, *, lanes: bool
) -> tuple[Any, ...]:
    """Return everything that clients and an operator can see, whatever the order of the clients.

    Requests of the numbers in `unsure` may be damaged, or answered with the place of an earlier one.
    """
    chance = random.Random(seed)
    serving = Serving(folder, lanes=lanes)
    try:
        clients = serving.connect(len(streams))
        rest = [b"".join(frames) for frames in streams]
        while any(rest):
            with serving.one_turn():
                for number, client in enumerate(clients):
                    # Nearly always one frame or several, as far as the others have come.
                    turn = chance.choice(streams[number])
                    usual = rest[number].find(turn) + len(turn) if turn in rest[number] else len(rest[number])
                    count = usual if chance.random() < 0.9 else chance.randint(0, 400)
                    try:
                        client.sendall(rest[number][:count])
                    except OSError:  # it was closed
                        count = len(rest[number])
                    rest[number] = rest[number][count:]
            serving.settle()
        seen = [received(client) for client in clients]
        connections = list(serving.server.connections.values())
        assert not any(one.pending or one.unanswered or one.queued_bytes for one in connections)
        errors = dict(serving.server.errors)
        counted = sum(serving.server.statistics.apis[0].requests)
    finally:
        serving.stop()
    logs = serving.logs()
    facts = []
    for data, is_closed in seen:
        answers = parsed(data)
        for number, results in answers:
            for name, partition, error, base in results:
                if not error:
                    batch = logs[f"{name}-{partition}"][base : base + 2000]
                    assert int.from_bytes(batch[:8], "big") == base
                    assert number in unsure or b"some value %d" % number in batch
        # What was sent to a client before its connection was closed may not reach it.
        told = [(number, [each[:3] for each in results]) for number, results in answers]
        facts.append("closed" if is_closed else told)
    return facts, errors, counted, {name: len(data) for name, data in logs.items()}, serving.lanes


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(CLIENTS, st.integers(0, 1 << 16))
def test_what_is_served_together_is_what_is_served_alone(clients: list[list[Sent]], seed: int) -> None:
    streams, unsure = [], set[int]()
    for client, requests in enumerate(clients):
        own = [dataclasses.replace(request, producer=client + 1) for request in requests]
        streams.append([one.frame(1000 * client + number) for number, one in enumerate(own)])
        unsure |= {1000 * client + n for n, one in enumerate(own) if one.sequence >= 0 or one.damage}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        together = outcome(Path(one), streams, unsure, seed, lanes=seed % 2 == 0)
        with mock.patch.object(ClientConnection, "is_free", False):  # each answer has its place, too
            alone = outcome(Path(other), streams, unsure, seed, lanes=False)
    assert together[:-1] == alone[:-1]


def ready_clients(serving: Serving, count: int, sent: Sent = TAKEN) -> list[socket.socket]:
    """Clients whose next requests of this kind may be served together."""
    clients = serving.connect(count)
    for _ in range(2):
        for client in clients:
            client.sendall(sent.frame(0))
        serving.settle()
    for client in clients:
        received(client)
    return clients


def answers_to(client: socket.socket, count: int) -> Answers:
    """The next responses of a client; they are of one size."""
    data = b""
    client.settimeout(WAIT_S)
    while len(parsed_sizes(data)) < count:
        part = client.recv(1 << 16)
        assert part, "the connection was closed"
        data += part
    return parsed(data)


def parsed_sizes(data: bytes) -> list[int]:
    """Sizes of the whole responses in the data."""
    sizes: list[int] = []
    position = 0
    while len(data) - position >= 4:
        (size,) = struct.unpack_from(">i", data, position)
        position += 4 + size
        if position <= len(data):
            sizes.append(size)
    return sizes


@pytest.mark.parametrize("acks", [1, -1])
def test_requests_that_come_in_one_turn_are_one_append_and_each_client_gets_its_own_answers(
    serving: Serving, acks: int
) -> None:
    sent = Sent(acks=acks)
    clients = ready_clients(serving, 5, sent)
    with serving.one_turn():
        for number, client in enumerate(clients):
            client.sendall(b"".join(sent.frame(10 * number + i) for i in range(number + 1)))
    for number, client in enumerate(clients):
        found = answers_to(client, number + 1)
        assert [each[0] for each in found] == [10 * number + i for i in range(number + 1)]
        assert all(results[0][2] == 0 for _, results in found)
    assert serving.lanes[-1] == 5


def test_clients_of_different_names_share_a_lane(serving: Serving) -> None:
    clients = serving.connect(3)
    kinds = [Sent(client_id=name) for name in ("a", "the second", "c")]
    for _ in range(2):
        for client, kind in zip(clients, kinds, strict=True):
            client.sendall(kind.frame(0))
        serving.settle()
    with serving.one_turn():
        for client, kind in zip(clients, kinds, strict=True):
            client.sendall(kind.frame(1))
    for client in clients:
        assert [number for number, _ in answers_to(client, 3)] == [0, 0, 1]
    assert serving.lanes[-1] == 3


def test_a_bug_after_a_read_closes_the_connection_whose_bytes_are_lost(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ready_clients(serving, 3)
    broken = clients[0].getsockname()[1]

    def arrived(client: ClientConnection, start: int, size: int) -> Any:
        if client.address.endswith(f":{broken}"):
            raise MemoryError
        return Arrived(client, start, size)

    monkeypatch.setattr("millrace_broker.server.loop.Arrived", arrived)
    with serving.one_turn():
        for client in clients:
            client.sendall(TAKEN.frame(1))
    for client in clients[1:]:
        assert answers_to(client, 1)[0][0] == 1
    wait_until("the connection is closed", lambda: received(clients[0])[1])


def test_reading_a_lane_is_not_charged_to_a_client_that_is_in_none(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ready_clients(serving, 4)
    other = serving.connect(1)[0]
    slow = 0.05

    def gather(self: Server, connection: ClientConnection) -> bool:
        time.sleep(slow)
        return real(self, connection)

    real = Server._gather
    monkeypatch.setattr(Server, "_gather", gather)
    with serving.one_turn():
        for client in clients:
            client.sendall(TAKEN.frame(1))
        other.sendall(ALONE.frame(1))
    for client in (*clients, other):
        answers_to(client, 1)

    def used_by(client: socket.socket) -> float:
        (found,) = [
            one
            for one in serving.server.connections.values()
            if one.address.endswith(f":{client.getsockname()[1]}")
        ]
        return found.used_s

    assert used_by(other) < slow / 2
    assert all(used_by(client) > slow / 2 for client in clients)


def test_what_waits_for_the_disk_counts_as_memory_of_its_clients(disk: Disk, serving: Serving) -> None:
    clients = ready_clients(serving, 2, Sent(acks=-1))
    disk.free.clear()
    with serving.one_turn():
        for client in clients:
            client.sendall(b"".join(Sent(acks=-1).frame(number) for number in range(20)))
    wait_until("both wait", lambda: serving.server.waiting_requests == 40)
    held = serving.mailbox.call(lambda: serving.server.admission.held).result(WAIT_S)
    disk.free.set()
    assert serving.lanes[-1] == 2
    assert held >= 40 * REQUEST_BYTES
    for client in clients:
        assert [number for number, _ in answers_to(client, 20)] == list(range(20))


def test_the_only_request_of_a_client_is_answered_without_a_place_in_the_queue(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []

    def keep_place(self: ClientConnection, request: Request) -> None:
        kept.append(request.correlation_id)
        real(self, request)

    real = ClientConnection.keep_place
    monkeypatch.setattr(ClientConnection, "keep_place", keep_place)
    (client,) = serving.connect(1)
    for number, sent in enumerate([TAKEN, ALONE, dataclasses.replace(TAKEN, partition=1)]):
        client.sendall(sent.frame(number))
        assert [each[0] for each in answers_to(client, 1)] == [number]
    assert kept == []
    client.sendall(TAKEN.frame(3) + ALONE.frame(4) + Sent(acks=-1).frame(5))
    assert [each[0] for each in answers_to(client, 3)] == [3, 4, 5]
    assert kept == [3, 4, 5], "answers are in the order of the requests"


def test_an_only_request_is_answered_after_one_that_waits_for_the_disk(disk: Disk, serving: Serving) -> None:
    (client,) = serving.connect(1)
    disk.free.clear()
    client.sendall(Sent(acks=-1).frame(1))
    wait_until("it waits", lambda: serving.server.waiting_requests == 1)
    client.sendall(TAKEN.frame(2))
    wait_until("the next one waits for it", lambda: serving.server.waiting_requests == 2)
    disk.free.set()
    assert [number for number, _ in answers_to(client, 2)] == [1, 2]


def test_a_request_is_never_put_together_from_the_bytes_of_two_clients(serving: Serving) -> None:
    clients = ready_clients(serving, 3)
    frame = TAKEN.frame(7)
    with serving.one_turn():
        clients[0].sendall(frame[:60])
        clients[1].sendall(frame[60:])
        clients[2].sendall(TAKEN.frame(8))
    assert answers_to(clients[2], 1)[0][0] == 8
    serving.settle()
    assert received(clients[0]) == (b"", False), "it has sent no whole request"
    assert received(clients[1]) == (b"", True), "its bytes are no request"
    clients[0].sendall(frame[60:])
    assert answers_to(clients[0], 1)[0][0] == 7


def test_answers_that_a_socket_does_not_take_at_once_come_whole_and_in_order(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ready_clients(serving, 4)
    chance = random.Random(1)
    send = PlainTransport.send

    def send_some(self: PlainTransport, data: bytes | memoryview, *, more: bool) -> int:
        if chance.random() < 0.5:
            raise BlockingIOError
        return send(self, data[: chance.randint(1, len(data))], more=more)

    monkeypatch.setattr(PlainTransport, "send", send_some)
    for turn in range(5):
        with serving.one_turn():
            for client in clients:
                client.sendall(TAKEN.frame(2 * turn) + TAKEN.frame(2 * turn + 1))
    for client in clients:
        assert [number for number, _ in answers_to(client, 10)] == list(range(10))


def test_a_client_that_hangs_up_or_cannot_be_answered_costs_no_other_its_answer(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ready_clients(serving, 4)
    reply, broken = ClientConnection.reply, clients[1].getsockname()[1]

    def fail(self: ClientConnection, answers: bytes) -> None:
        if self.address.endswith(f":{broken}"):
            raise MemoryError
        reply(self, answers)

    monkeypatch.setattr(ClientConnection, "reply", fail)
    with serving.one_turn():
        for client in clients:
            client.sendall(TAKEN.frame(1))
        clients[0].close()
    for client in clients[2:]:
        assert answers_to(client, 1)[0][0] == 1
    serving.settle()
    assert received(clients[1]) == (b"", True)


def test_a_bug_in_serving_a_lane_closes_its_connections_and_no_other(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ready_clients(serving, 3)
    other = ready_clients(serving, 1, ALONE)[0]

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(produce_lane, "requests_of", fail)
    with serving.one_turn():
        for client in (*clients, other):
            client.sendall((ALONE if client is other else TAKEN).frame(1))
    assert answers_to(other, 1)[0][0] == 1
    serving.settle()
    for client in clients:
        wait_until("the connection is closed", lambda client=client: received(client)[1])  # type: ignore[misc]


class SharingClient(AskingClient):
    """A client that has a lane, and keeps its answers."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        target = target_at(memoryview(TAKEN.frame(1)), 0)
        assert target is not None
        self.last_target, self.lane, self.got = target, target.kind, b""
        self.places: list[int] = []

    def keep_place(self, request: Request) -> None:
        self.places.append(request.correlation_id)

    def reply(self, answers: bytes) -> None:
        self.got += answers


class Rights:
    """Everybody may write but one."""

    version = 0

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return host != "10.0.0.9"


def test_who_has_a_quota_another_name_or_no_right_is_left_out_of_a_lane(tmp_path: Path) -> None:
    rights, everything = cast(Authorizer, Rights()), Access(None, "User:web", "10.0.0.1")
    running = Running(tmp_path, FakeCluster(topic("t", 1, 1)), LogConfig(flush_ms=NEVER_MS))
    clients = {
        "first": SharingClient(everything),
        "another name": SharingClient(Access(None, "User:batch", "10.0.0.2")),
        "no right": SharingClient(Access(rights, "User:web", "10.0.0.9")),
        "a right": SharingClient(Access(rights, "User:web", "10.0.0.3")),
        "a quota": SharingClient(Access(None, "User:web", "10.0.0.4", meter=cast(Any, object()))),
        "closed": SharingClient(everything),
    }
    clients["closed"].closed = True
    frames = [TAKEN.frame(number) for number in range(len(clients))]
    data, start, lane = memoryview(bytearray(b"".join(frames))), 0, []
    for client, frame in zip(clients.values(), frames, strict=True):
        lane.append(Arrived(client, start, len(frame)))
        start += len(frame)
    try:
        request, rest = serve_lane(services_of(running), lane, data, MAX_FRAME_BYTES)
        running.turn()
    finally:
        running.stop()
    assert request is not None
    assert request.count == 2
    names = {id(client): name for name, client in clients.items()}
    assert [names[id(arrived.client)] for arrived in rest] == [
        "another name",
        "no right",
        "a quota",
        "closed",
    ]
    assert [number for number, _ in parsed(clients["first"].got)] == [0]
    assert [number for number, _ in parsed(clients["a right"].got)] == [3]


def test_a_client_that_has_gone_keeps_no_place_for_the_refusal_of_its_request(tmp_path: Path) -> None:
    running = Running(tmp_path, FakeCluster(topic("t", 1, 1)), LogConfig(flush_ms=NEVER_MS))
    clients = [SharingClient(Access(None, "User:web", "10.0.0.1")) for _ in range(2)]
    frame = TAKEN.frame(1)
    lane = [Arrived(client, len(frame) * number, len(frame)) for number, client in enumerate(clients)]
    try:
        serve_lane(services_of(running), lane, memoryview(bytearray(2 * frame)), MAX_FRAME_BYTES)
        running.whole_log().refusal = "the disk failed"
        clients[0].closed = True
        running.turn()
    finally:
        running.stop()
    assert [client.places for client in clients] == [[], [1]]
