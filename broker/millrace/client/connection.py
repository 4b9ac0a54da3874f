"""One blocking connection to a broker: a request goes out, its response comes back.

The client side's only socket. It handles frames, headers and time limits, does not interpret messages, and
does not retry. TLS and login are done when the constructor returns.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import time
from functools import partial
from typing import NoReturn

from millrace.config import ClientSecurity
from millrace.errors import MillraceError
from millrace.security.client import of_process, tls_context
from millrace.wire.codec import is_flexible
from millrace.wire.messages import ApiKey

_HEADER = struct.Struct(">ihhi")
_MAX_RESPONSE_BYTES = 1 << 30
FIRST_BYTES = 16 << 20
"""Most memory allocated for a response's stated length; a larger response gets more as its bytes arrive."""
_SLOWEST_BYTES_PER_SECOND = 64 << 10
"""Slowest rate at which a response may arrive beyond its time limit."""
_LOGIN_SHARE = 0.8
"""Share of a login's lifetime after which a new connection replaces the connection."""
_NO_ANSWER_YET = (
    "; if this is not a broker's port, correct the address;"
    " if its listener asks for TLS or a login, name a client file with that in MILLRACE_CLIENT;"
    " if it is older than this client, upgrade it first"
)


class ConnectionFailed(MillraceError):
    """A broker cannot be reached, closed the connection or did not answer in time."""


class NotTrusted(MillraceError):
    """A broker has not proved its identity, so a retry is of no use."""


class Connection:
    """A connection to HOST:PORT; one request at a time, or several sent before the first is received."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        security: ClientSecurity | None = None,
    ) -> None:
        """Connect, and log in if `security` requires it; without `security`, use the process's client file.

        With TLS the broker must prove that it is `host`. Raise ConnectionFailed, or NotTrusted and
        LoginRefused when a retry is of no use.
        """
        self.address = f"{host}:{port}"
        security = security if security is not None else of_process()
        tls = tls_context(security)
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._expected: list[tuple[int, bool]] = []
        self._failed = False
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except (OSError, UnicodeError) as error:  # a broker may report an impossible host name
            reason = getattr(error, "strerror", None) or error
            raise ConnectionFailed(
                f"cannot reach a broker at {self.address}: {reason}; start it or give another address"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._has_answered = False
        self._renew_at: float | None = None
        if tls is not None:
            self._secure(tls, host)
        if security.uses_sasl:
            self._log_in(security, timeout_s)

    def _secure(self, tls: ssl.SSLContext, host: str) -> None:
        try:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)  # closes it when it fails
        except ssl.SSLCertVerificationError as error:
            raise NotTrusted(
                f"the broker at {self.address} does not prove its identity: {error.verify_message}"
            ) from error
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            raise ConnectionFailed(f"no TLS with the broker at {self.address}: {reason}") from error

    def _log_in(self, security: ClientSecurity, timeout_s: float) -> None:
        from millrace.client.login import log_in  # only logins need its library

        began = time.monotonic()
        try:
            holds_ms = log_in(partial(self.request, timeout_s=timeout_s), security, self.address)
        except BaseException:
            self.close()
            raise
        if holds_ms:
            self._renew_at = began + _LOGIN_SHARE * holds_ms / 1000

    @property
    def idle(self) -> bool:
        """True when the connection is whole and no response is outstanding: safe to use for a new request."""
        return not self._failed and not self._expected

    @property
    def needs_renewal(self) -> bool:
        """True when the login will soon expire: reconnect."""
        return self._renew_at is not None and time.monotonic() > self._renew_at

    def request(self, api_key: int, version: int, body: bytes, *, timeout_s: float) -> memoryview:
        """Send one request and return its response's body. Raise ConnectionFailed when no response comes."""
        self.send(api_key, version, body, timeout_s=timeout_s)
        return self.receive(timeout_s=timeout_s)

    def send(
        self, api_key: int, version: int, body: bytes, *, timeout_s: float, answered: bool = True
    ) -> None:
        """Send one request. `receive` returns the responses of requests with `answered`, in the
        order sent.
        """
        flexible = is_flexible(api_key, version)
        self._correlation_id += 1
        client = struct.pack(">h", len(self._client_id)) + self._client_id + (b"\0" if flexible else b"")
        size = _HEADER.size - 4 + len(client) + len(body)
        header = _HEADER.pack(size, api_key, version, self._correlation_id)
        # ApiVersions is answered with the old header at every version, so that any client can read it.
        if answered:
            self._expected.append((self._correlation_id, flexible and api_key != ApiKey.API_VERSIONS))
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(header + client + body)
        except OSError as error:
            self._fail(error)

    def wait(self, wake_fd: int, timeout_s: float) -> bool:
        """Wait for bytes of a response. Return False when the time is up or only the pipe `wake_fd` has
        bytes.

        The bytes of the pipe are consumed.
        """
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(wake_fd, select.POLLIN)
        ready = dict(poll.poll(timeout_s * 1000))
        if wake_fd in ready:
            os.read(wake_fd, 4096)
        return self._socket.fileno() in ready

    def receive(self, *, timeout_s: float, buffer: bytearray | None = None) -> memoryview:
        """Return the body of the next response. Raise ConnectionFailed when it does not come in time.

        The body is in `buffer` if it fits, else in new memory.
        """
        correlation_id, flexible = self._expected.pop(0)
        try:
            self._socket.settimeout(timeout_s)
            began = time.monotonic()
            size = int.from_bytes(self._receive_exactly(4, began + timeout_s), "big", signed=True)
            if not 4 <= size <= _MAX_RESPONSE_BYTES:
                raise ConnectionError("another program answers there: give the port of a broker")
            response = self._receive_exactly(size, began + timeout_s, buffer)
        except OSError as error:
            self._fail(error)
        answered = int.from_bytes(response[:4], "big", signed=True)
        if answered != correlation_id:
            self._fail(ConnectionError(f"answer to request {answered}, expected {correlation_id}"))
        # A flexible response header ends in tagged fields; no broker sends any, so it is one zero byte.
        return response[5 if flexible else 4 :]

    def _receive_exactly(self, size: int, give_up_at: float, buffer: bytearray | None = None) -> memoryview:
        if buffer is None or len(buffer) < size:
            buffer = bytearray(min(size, FIRST_BYTES))
        received = 0
        while received < size:
            if received == len(buffer):
                buffer += bytes(min(size, 2 * received) - received)
            count = self._socket.recv_into(memoryview(buffer)[received:size])
            if count == 0:
                raise ConnectionError(
                    "the broker closed the connection" + ("" if self._has_answered else _NO_ANSWER_YET)
                )
            self._has_answered = True
            received += count
            if received < size and time.monotonic() > give_up_at + received / _SLOWEST_BYTES_PER_SECOND:
                raise TimeoutError(f"{received} of {size} bytes came in time")
        return memoryview(buffer)[:size]

    def _fail(self, error: OSError) -> NoReturn:
        self.close()
        raise ConnectionFailed(f"no answer from the broker at {self.address}: {error}") from error

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._failed = True
        self._socket.close()
