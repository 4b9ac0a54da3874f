"""The client's connection: nobody who answers slowly, or not as a broker does, is waited for without end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from millrace.client import connection as module
from millrace.client.connection import Connection, ConnectionFailed

Serve = Callable[[socket.socket], None]


@pytest.fixture
def answered_by() -> Iterator[Callable[[Serve], Connection]]:
    """A connection to somebody who answers as a function does."""
    server = socket.create_server(("127.0.0.1", 0))

    def connect(serve: Serve) -> Connection:
        def accept() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65_536)
                serve(client)

        threading.Thread(target=accept, daemon=True).start()
        return Connection(*server.getsockname(), client_id="test", timeout_s=5)

    yield connect
    server.close()


def response(size: int) -> bytes:
    return (size + 4).to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes(size)


def test_an_answer_a_byte_at_a_time_is_given_up_in_time(answered_by: Callable[[Serve], Connection]) -> None:
    stop = threading.Event()

    def trickle(client: socket.socket) -> None:
        client.sendall((100 << 20).to_bytes(4, "big"))
        while not stop.wait(0.05):
            client.sendall(b"\0")

    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match="came in time"):
        answered_by(trickle).request(3, 1, b"", timeout_s=0.3)
    assert time.monotonic() - began < 30
    stop.set()


@pytest.mark.parametrize("size", [10, 1000, 1001, 5_000_000])
def test_an_answer_of_any_size_comes_whole_into_the_buffer_or_beside_it(
    answered_by: Callable[[Serve], Connection], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "FIRST_BYTES", 1 << 10)
    buffer = bytearray(b"\xff" * 1004)
    with closing(answered_by(lambda client: client.sendall(response(size)))) as connection:
        connection.send(3, 1, b"", timeout_s=5)
        body = connection.receive(timeout_s=5, buffer=buffer)
    assert len(body) == size
    assert not any(body)
    assert (buffer[4] == 0) == (size <= 1000)


def test_a_name_that_can_be_no_hosts_is_not_reached() -> None:
    with pytest.raises(ConnectionFailed, match=r"cannot reach a broker at a\.\.b:9092: .*; start it"):
        Connection("a..b", 9092, client_id="test", timeout_s=5)
