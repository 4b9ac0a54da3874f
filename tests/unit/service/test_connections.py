"""Strangers' connections to a web service are counted in all and by address; of too many the oldest goes."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi import FastAPI, Response

from millrace.config import TlsConfig
from millrace.service import connections, web
from millrace.service.access import AccessList, add_entry
from millrace.service.admission import admit
from millrace.service.connections import MAX_UNPROVEN_OF_ADDRESS
from millrace.service.unproven import Unproven
from tests.certificates import Authority
from tests.support import wait_until

LONG_BYTES = 24 << 20


def test_the_oldest_of_too_many_goes_of_an_address_first_then_of_all() -> None:
    unproven = Unproven[int](most=4, most_of_address=3, is_proven=lambda _: False)
    assert [unproven.enter(number, "a") for number in (1, 2, 3)] == [None, None, None]
    assert unproven.enter(4, "a") == 1
    unproven.leave(1)
    assert unproven.enter(5, "b") is None
    assert unproven.enter(6, "b") == 2
    assert unproven.oldest() == 2


def test_clients_that_have_proved_who_they_are_do_not_count() -> None:
    proven: set[int] = set()
    unproven = Unproven[int](most=2, most_of_address=2, is_proven=proven.__contains__)
    assert [unproven.enter(number, "a") for number in (1, 2)] == [None, None]
    proven.add(1)
    assert unproven.enter(3, "a") is None
    assert unproven.enter(4, "a") == 2


class Service:
    """A web service with TLS and a token, in a thread."""

    def __init__(self, server: web.WebServer, ca: str, token: str) -> None:
        self._tls = ssl.create_default_context(cafile=ca)
        self.server, self._token = server, token
        self.address = server.listener.getsockname()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def secure(self) -> ssl.SSLSocket:
        return self._tls.wrap_socket(self.connect(), server_hostname="127.0.0.1")

    def ask(self, connection: ssl.SSLSocket, token: str = "", path: str = "/") -> bytes:
        head = f"Host: x\r\nAuthorization: Bearer {token or self._token}"
        connection.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())
        return connection.recv(12)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(web, "stop_on_signals", lambda *_, **__: None)
    authority, file = Authority(tmp_path), tmp_path / "access.toml"
    issued, token = authority.issue("server"), add_entry(file, "web", ["read"])
    app = FastAPI(openapi_url=None)
    app.get("/")(lambda: "well")
    app.get("/long")(lambda: Response(bytes(LONG_BYTES)))
    admit(app, lambda *_: "read", AccessList(str(file)))
    tls = TlsConfig(certificate=issued.certificate, key=issued.key)
    server = web.WebServer(app, "127.0.0.1:0", "service", tls)
    thread = threading.Thread(target=server.serve_until_stopped)
    thread.start()
    wait_until("the service", lambda: server.started)
    yield Service(server, authority.ca, token)
    server.stop()
    thread.join()


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_strangers_close_each_other_and_no_known_client(service: Service) -> None:
    with ExitStack() as stack:
        known = stack.enter_context(service.secure())
        assert service.ask(known) == b"HTTP/1.1 200"
        while b"well" not in known.recv(1 << 16):
            pass
        guessing = stack.enter_context(service.secure())
        assert service.ask(guessing, "guess") == b"HTTP/1.1 401"
        strangers = [stack.enter_context(service.connect()) for _ in range(MAX_UNPROVEN_OF_ADDRESS + 5)]
        for stranger in strangers[:5]:
            assert is_closed(stranger)
        while guessing.recv(1 << 16):
            pass  # to its end: a wrong token proves nothing
        assert service.ask(known) == b"HTTP/1.1 200"
        assert len(service.server.server_state.connections) == 1


def test_a_handshake_that_does_not_end_is_given_up(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, service.connect() as stranger:
        patched.setattr(connections, "HANDSHAKE_S", 0.3)
        stranger.sendall(b"\x16\x03\x01")
        assert is_closed(stranger)
    with service.secure() as known:
        assert service.ask(known) == b"HTTP/1.1 200"


def test_more_connections_than_a_service_holds_are_closed_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    with service.secure() as known, service.connect() as stranger:
        assert is_closed(stranger)
        assert service.ask(known) == b"HTTP/1.1 200"


def test_a_long_answer_is_sent_whole_to_a_client_that_takes_it_slowly(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.5)
    with service.secure() as known:
        assert service.ask(known, path="/long") == b"HTTP/1.1 200"
        taken, began = 0, time.monotonic()
        while taken < LONG_BYTES and (part := known.recv(1 << 16)):
            taken += len(part)
            time.sleep(0.008)
        assert taken >= LONG_BYTES
        assert time.monotonic() - began > 2


def test_a_client_that_takes_nothing_of_its_answer_is_closed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.5)
    with service.secure() as known:
        assert service.ask(known, path="/long") == b"HTTP/1.1 200"
        wait_until("it is closed", lambda: not service.server.server_state.connections, timeout_s=10)


def test_of_too_many_bytes_that_wait_for_their_clients_the_oldest_answer_goes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_UNSENT_BYTES", LONG_BYTES * 3 // 2)
    with service.secure() as old, service.secure() as young:
        for known in (old, young):
            assert service.ask(known, path="/long") == b"HTTP/1.1 200"
        wait_until("one is closed", lambda: len(service.server.server_state.connections) == 1, timeout_s=5)
        taken = 0
        while taken < LONG_BYTES and (part := young.recv(1 << 16)):
            taken += len(part)
        assert taken >= LONG_BYTES
