"""A server whose loop runs in a thread, with handlers that do as each test says, and clients for it."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable

from millrace.config import ClientLimits, ListenerConfig, TlsConfig
from millrace.security.certificates import ServerCertificates
from millrace.wire.framing import RequestFramer
from millrace_broker.mailbox import Mailbox
from millrace_broker.server.connection import ClientConnection
from millrace_broker.server.listener import Listener
from millrace_broker.server.loop import Lane, Server
from millrace_broker.server.request import Request
from tests.support import WAIT_S, wait_until

LIMIT = 1 << 20
LIMITS = ClientLimits(max_frame_bytes=LIMIT)
Serve = Callable[[Request, bytes], None]


def listening(port: int = 0) -> Listener:
    return Listener("default", ListenerConfig(listen=f"127.0.0.1:{port}"))


def listening_with_tls(config: TlsConfig, client_certificates: str = "none") -> Listener:
    listener = ListenerConfig(listen="127.0.0.1:0", protocol="SSL", client_certificates=client_certificates)
    return Listener("tls", listener, ServerCertificates(config, [client_certificates]))


def no_lane(lane: Lane, data: memoryview) -> tuple[Request | None, Lane]:
    raise AssertionError("no client has a lane here")


class Running:
    """A server whose loop runs in a thread; `serve` gets each request with its text."""

    def __init__(
        self,
        limits: ClientLimits = LIMITS,
        listener: Listener | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` is what its clients connect with."""
        self.mailbox, self.tls = Mailbox(), tls
        self.listener = listener or listening()
        self.server = Server([self.listener], self.mailbox, limits)
        self.server.listen()
        self.serve: Serve = lambda request, text: request.answer([text])
        self.requests: list[Request] = []
        self.clients: list[Client] = []
        self.turns = 0
        self.end_of_turn: Callable[[], None] = self._count_turn
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.server.run(self._serve_next, no_lane, lambda: self.end_of_turn())

    def _serve_next(self, client: ClientConnection, framer: RequestFramer) -> Request | None:
        frame = framer.next_frame()
        if frame is None:
            return None
        number = int.from_bytes(frame[:4], "big")
        request = Request(client, number >> 16, 0, number, frame)
        self.requests.append(request)
        self.serve(request, bytes(frame[4:]))
        return request

    def _count_turn(self) -> None:
        self.turns += 1

    def client(self, source: str = "127.0.0.1") -> Client:
        self.clients.append(Client(self.listener.port, source, self.tls))
        return self.clients[-1]

    def on_loop(self, function: Callable[[], None]) -> None:
        self.mailbox.call(function).result(timeout=WAIT_S)

    def stop(self) -> None:
        self.mailbox.post(self.server.stop)
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.server.close()
        self.mailbox.close()
        for client in self.clients:
            client.close()


class Client:
    """A blocking client of frames that begin with a number; its upper half is the API key, Produce's is 0."""

    def __init__(self, port: int, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        address = ("127.0.0.1", port)
        self.socket = socket.create_connection(address, timeout=WAIT_S, source_address=(source, 0))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.file = self.socket.makefile("rb")

    def send(self, number: int, text: bytes = b"-text-") -> None:
        self.socket.sendall(struct.pack(">ii", 4 + len(text), number) + text)

    def receive(self) -> tuple[int, bytes]:
        size, number = struct.unpack(">ii", self.file.read(8))
        return number, self.file.read(size - 4)

    def at_end(self) -> bool:
        try:
            return self.file.read(1) == b""
        except (ConnectionResetError, ssl.SSLEOFError):
            return True

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def waiting_requests(running: Running, count: int) -> None:
    wait_until(f"{count} requests", lambda: len(running.requests) == count)
