"""Connections to a web service whose clients are not authenticated yet, with limits as in a broker.

A connection is unproven until one of its requests has a known token; without an access list, until its first
request. Unproven connections are counted in all and by address. If there are too many, the oldest is closed:
an honest client is quick. A TLS handshake may take 10 s.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import socket
import ssl
import termios
import time
from array import array
from asyncio import sslproto
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from millrace.service.unproven import Unproven

logger = logging.getLogger(__name__)
MAX_UNPROVEN = 400
"""Most unproven connections of a service; as `max_unauthenticated` of a broker."""
MAX_UNPROVEN_OF_ADDRESS = 100
"""Most unproven connections from one client address."""
MAX_CONNECTIONS = 2_000
"""Most connections of a service; a further connection is closed at once."""
HANDSHAKE_S = 10.0
HEAD_TIMEOUT_S = 10.0
"""Time limit for the head of the next request; a connection without it is closed.

The time begins again while the client takes PROGRESS_BYTES of the last answer within it.
"""
PROGRESS_BYTES = 64 << 10
MAX_UNSENT_BYTES = 256 << 20
"""Most bytes of answers that wait for their clients. Above it the oldest answer's connection is closed."""
SHUTDOWN_S = 600.0
"""Longest time in which the rest of an answer is sent over a TLS connection that is being closed."""
_ACCEPT_RETRY_S, _LOG_INTERVAL_S = 0.1, 10.0
_TLS_BUFFER_BYTES = 32 << 10
"""Read buffer of a connection with TLS; asyncio's own default is 256 KiB."""

sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES


class HttpConnection(H11Protocol):
    """An HTTP connection that is closed when the head of a request does not arrive in time."""

    was_proven = False
    """True after a request that has authenticated the client."""
    _late: asyncio.TimerHandle | None = None
    _below: Any = None
    """The socket's transport. That of TLS keeps no bytes, and does not abort once it was closed twice."""
    _unsent = 0
    """Result of `_count_unsent` when the present time limit began."""
    _answered_at = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ended = asyncio.Event()

    @property
    def is_proven(self) -> bool:
        return self.was_proven or (self.scope is not None and "is_proven" in self.scope["state"])

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls: Any = getattr(transport, "_ssl_protocol", None)
        self._below = transport if tls is None else tls._transport
        self._await_head()

    def on_response_complete(self) -> None:
        self.was_proven = self.is_proven
        self._answered_at = self.loop.time()
        self._await_head()
        if self._unsent >= PROGRESS_BYTES:
            self._bound_unsent()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)
        self.ended.set()

    def abort(self) -> None:
        """Close the connection at once, if it is open."""
        if self._below is not None:
            self._below.abort()

    def _await_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._unsent = self._count_unsent()
        self._late = self.loop.call_later(HEAD_TIMEOUT_S, self._end_if_late)

    def _end_if_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            return
        if self._unsent - self._count_unsent() >= PROGRESS_BYTES:
            self._await_head()
        else:
            self.abort()

    def _bound_unsent(self) -> None:
        """Close the connections of the oldest answers while there are more than MAX_UNSENT_BYTES."""
        counted = [(one._answered_at, one._count_unsent(), one) for one in self._others()]
        excess = self._unsent + sum(unsent for _, unsent, _ in counted) - MAX_UNSENT_BYTES
        for _, unsent, one in sorted(counted, key=itemgetter(0)):
            if excess > 0 and unsent:
                excess -= unsent
                one.abort()

    def _others(self) -> Iterator[HttpConnection]:
        return (one for one in self.connections if isinstance(one, HttpConnection) and one is not self)

    def _count_unsent(self) -> int:
        """Return the bytes of answers that the client has not received, in this process and in its socket."""
        number = self._below.get_extra_info("socket").fileno()
        if number < 0:
            return 0
        in_socket = array("i", [0])
        fcntl.ioctl(number, termios.TIOCOUTQ, in_socket)
        return int(self._below.get_write_buffer_size()) + in_socket[0]


class Acceptor:
    """Accepts the connections of a service, from `open` to `close`; only on the event loop."""

    def __init__(
        self, listener: socket.socket, tls: ssl.SSLContext | None, make: Callable[[], HttpConnection]
    ) -> None:
        self._listener, self._tls, self._make = listener, tls, make
        self._unproven = Unproven[asyncio.Task[None]](
            MAX_UNPROVEN, MAX_UNPROVEN_OF_ADDRESS, lambda task: self._connections[task].is_proven
        )
        self._connections: dict[asyncio.Task[None], HttpConnection] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._closed, self._logged_at = 0, -math.inf

    def open(self) -> None:
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Stop accepting connections."""
        if self._accepting is not None:
            self._accepting.cancel()
        self._listener.close()

    async def wait_closed(self) -> None:
        """Return at once: the server itself waits for the connections."""

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(self._listener)
            except OSError as error:  # no file descriptor is left
                self._close(self._unproven.oldest(), error.strerror or "no connection can be accepted")
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            if len(self._connections) >= MAX_CONNECTIONS:
                client.close()
            else:
                self._enter(client, str(address[0]))
            await asyncio.sleep(0)  # `sock_accept` returns at once while there are more

    def _enter(self, client: socket.socket, address: str) -> None:
        connection = self._make()
        task = asyncio.create_task(self._serve(client, connection))
        self._connections[task] = connection
        task.add_done_callback(self._leave)
        if (excess := self._unproven.enter(task, address)) is not None:
            self._close(excess, f"too many of {address} or in all")

    def _close(self, unproven: asyncio.Task[None] | None, reason: str) -> None:
        if unproven is not None:
            self._unproven.leave(unproven)
            unproven.cancel()
            self._closed += 1
        if (now := time.monotonic()) > self._logged_at + _LOG_INTERVAL_S:
            logger.warning(
                "%d connections without a token were closed, the oldest first: %s", self._closed, reason
            )
            self._logged_at, self._closed = now, 0

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._unproven.leave(task)
        del self._connections[task]

    async def _serve(self, client: socket.socket, connection: HttpConnection) -> None:
        """Serve a connection until it ends."""
        loop, handshake_s = asyncio.get_running_loop(), HANDSHAKE_S if self._tls is not None else None
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=self._tls,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S if self._tls is not None else None,
            )
            await connection.ended.wait()
        except OSError:
            pass  # an unknown client's failed handshake is no event
        except asyncio.CancelledError:
            connection.abort()
            raise
