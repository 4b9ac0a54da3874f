"""The broker's sockets: one thread, one epoll loop. The only file on the server side that touches them.

A turn: read every ready connection into one shared buffer, hand the frames in it to the handlers, let the
broker write what they staged, send the answers that are due. Knows frames and answers; does not know what
any of them mean.

No connection can hold up another: reading stops where answers pile up, sending stops after a share of a
file per turn, and a request that waits keeps only its own place.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Callable

from millrace.errors import MillraceError
from millrace.handlers.request import Part, Request
from millrace.mailbox import Mailbox
from millrace.storage.file_slice import FileSlice
from millrace.wire.framing import FrameRefused, RequestFramer

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 20
"""The shared buffer: all that is read in one turn, unless it must be written out in between."""
MIN_ROOM_BYTES = 128 << 10
"""Read into no less than this; with less room left the buffer's requests are finished first."""
MAX_QUEUED_BYTES = 1 << 20
"""Stop reading from a client that leaves more than this of its answers unread (file slices not counted)."""
MAX_QUEUED_REQUESTS = 4096
"""Stop reading from a client that has this many requests without an answer."""
FILE_BYTES_PER_TURN = 512 << 10
"""Of one connection's file slices, before the others get their turn."""
SEND_BYTES = 256 << 10
"""Small answers are joined to about this much for one send."""

Handle = Callable[["ClientConnection", memoryview], Request]


class Server:
    """Accepts Kafka clients and runs the loop; `run` returns after `stop`."""

    def __init__(self, host: str, port: int, mailbox: Mailbox, max_frame_bytes: int) -> None:
        self._mailbox = mailbox
        self._max_frame_bytes = max_frame_bytes
        self._listener = _listen(host, port)
        self.host, self.port = host, self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(mailbox.wake_fd, select.EPOLLIN)
        self._connections: dict[int, ClientConnection] = {}
        self._touched: dict[ClientConnection, None] = {}
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._used = 0
        self._running = False

    def stop(self) -> None:
        """Leave `run` after the current turn; call it on the loop."""
        self._running = False

    def run(self, handle: Handle, end_of_turn: Callable[[], None]) -> None:
        """Serve until `stop`: `handle` gets each frame, `end_of_turn` writes what the frames asked for."""
        self._handle, self._end_of_turn = handle, end_of_turn
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._running = True
        while self._running:
            timeout = self._mailbox.seconds_to_next()
            for fd, events in self._epoll.poll(-1 if timeout is None else timeout):
                connection = self._connections.get(fd)
                if connection is not None:
                    self._ready(connection, events)
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd == self._mailbox.wake_fd:
                    self._mailbox.drain()
            self._mailbox.run()
            self._finish_turn()

    def close(self) -> None:
        """Close every socket. Answers that are due are sent as far as the clients take them at once."""
        for connection in list(self._connections.values()):
            with contextlib.suppress(OSError):
                connection.send()
            self.drop(connection)
        self._listener.close()
        self._epoll.close()

    def touch(self, connection: ClientConnection) -> None:
        """Look at the connection at the end of the turn: it may have something to send."""
        self._touched[connection] = None

    def watch(self, connection: ClientConnection, events: int, *, new: bool = False) -> None:
        """Wait for these events of the connection from now on."""
        (self._epoll.register if new else self._epoll.modify)(connection.socket.fileno(), events)

    def drop(self, connection: ClientConnection) -> None:
        """Close a connection; whatever still waits for it is forgotten."""
        if connection.closed:
            return
        connection.closed = True
        fd = connection.socket.fileno()
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)
        self._connections.pop(fd, None)
        connection.forget()

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    continue  # that client is gone already
                log.error("cannot accept clients for a second: %s; raise `ulimit -n`", error.strerror)
                self._epoll.unregister(self._listener.fileno())
                self._mailbox.after(
                    1.0, lambda: self._epoll.register(self._listener.fileno(), select.EPOLLIN)
                )
                return
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection = ClientConnection(self, client, f"{address[0]}:{address[1]}", self._max_frame_bytes)
            self._connections[client.fileno()] = connection
            self.watch(connection, select.EPOLLIN, new=True)

    def _ready(self, connection: ClientConnection, events: int) -> None:
        if events & select.EPOLLOUT:
            self.touch(connection)
        if events & select.EPOLLIN:
            self._read(connection)
        elif events & (select.EPOLLHUP | select.EPOLLERR):
            self.drop(connection)

    def _read(self, connection: ClientConnection) -> None:
        if RECEIVE_BYTES - self._used < MIN_ROOM_BYTES:
            self._write_staged()
        try:
            count = connection.socket.recv_into(self._buffer[self._used :])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if count == 0:
            self.drop(connection)
            return
        received = self._buffer[self._used : self._used + count]
        self._used += count
        connection.framer.receive_data(received)
        self._serve(connection)

    def _serve(self, connection: ClientConnection) -> None:
        """Hand over the frames that are there, until answers pile up."""
        try:
            while not connection.closed and not connection.full:
                frame = connection.framer.next_frame()
                if frame is None:
                    break
                connection.requests.append(self._handle(connection, frame))
        except FrameRefused as error:
            connection.abort(str(error))
        connection.framer.release()
        self.touch(connection)

    def _write_staged(self) -> None:
        """Have the staged records written: after it, nothing needs the shared buffer any more."""
        self._end_of_turn()
        self._used = 0

    def _finish_turn(self) -> None:
        self._write_staged()
        while self._touched:
            touched, self._touched = self._touched, {}
            for connection in touched:
                if connection.closed:
                    continue
                try:
                    connection.send()
                except (OSError, ValueError):  # ValueError: the slice's file was closed under it
                    self.drop(connection)
                    continue
                if connection.framer.waiting and not connection.full:
                    self._serve(connection)
            if self._touched:
                self._write_staged()


class ClientConnection:
    """One client: its unfinished frame, the requests that wait for their turn, the bytes on their way out."""

    __slots__ = (
        "_events", "_out", "_queued_bytes", "_server", "address", "closed", "framer", "requests", "socket",
    )  # fmt: skip

    def __init__(self, server: Server, client: socket.socket, address: str, max_frame_bytes: int) -> None:
        self._server = server
        self.socket = client
        self.address = address
        self.framer = RequestFramer(max_frame_bytes)
        self.requests: deque[Request] = deque()
        self.closed = False
        self._out: deque[Part | memoryview] = deque()
        self._queued_bytes = 0
        self._events: int = select.EPOLLIN

    @property
    def full(self) -> bool:
        """True while the client must take answers before it may ask for more."""
        return self._queued_bytes > MAX_QUEUED_BYTES or len(self.requests) >= MAX_QUEUED_REQUESTS

    def answered(self, size: int) -> None:
        """Some request has its answer now; `size` bytes of it are in memory."""
        self._queued_bytes += size
        self._server.touch(self)

    def abort(self, reason: str) -> None:
        """Close the connection and say why in the log."""
        log.warning("closed the connection of %s: %s", self.address, reason)
        self._server.drop(self)

    def forget(self) -> None:
        """Let go of the socket and of everything queued."""
        self.socket.close()
        self.requests.clear()
        self._out.clear()

    def send(self) -> None:
        """Send what is due, in order, as far as the socket takes it; OSError when it is broken."""
        requests = self.requests
        while requests and (parts := requests[0].parts) is not None:
            requests.popleft()
            self._out.extend(parts)
        with contextlib.suppress(BlockingIOError):
            self._send_queued()
        events = 0 if self.full or self.framer.waiting else select.EPOLLIN
        if self._out:
            events |= select.EPOLLOUT
        if events != self._events:
            self._events = events
            self._server.watch(self, events)

    def _send_queued(self) -> None:
        file_bytes = 0
        while self._out:
            part = self._out[0]
            if isinstance(part, FileSlice):
                if file_bytes >= FILE_BYTES_PER_TURN:
                    return
                file_bytes += self._send_file(part, FILE_BYTES_PER_TURN - file_bytes)
            else:
                self._send_bytes()

    def _send_bytes(self) -> None:
        """Join the small parts in front and send them as one."""
        joined: list[bytes | memoryview] = []
        size = 0
        while self._out and size < SEND_BYTES and not isinstance(self._out[0], FileSlice):
            part = self._out.popleft()
            assert not isinstance(part, FileSlice)
            joined.append(part)
            size += len(part)
        data = joined[0] if len(joined) == 1 else b"".join(joined)
        sent = 0
        try:
            # With records to follow, the kernel waits for them rather than send a short packet.
            sent = self.socket.send(data, socket.MSG_MORE if self._out else 0)
        finally:
            self._queued_bytes -= sent
            if sent < size:
                self._out.appendleft(memoryview(data)[sent:])

    def _send_file(self, part: FileSlice, limit: int) -> int:
        count = min(part.length, limit)
        file = part.file.fileno()
        # Ask for the piece after this one now: a cold read would otherwise hold up every connection.
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, part.position + count, FILE_BYTES_PER_TURN, os.POSIX_FADV_WILLNEED)
        sent = os.sendfile(self.socket.fileno(), file, part.position, count)
        if sent == 0:
            raise OSError(errno.EIO, "a log file is shorter than it was")
        if sent == part.length:
            self._out.popleft()
        else:
            self._out[0] = FileSlice(part.file, part.position + sent, part.length - sent)
        return sent


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise MillraceError(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it or set another `listen`"
        ) from error
    listener.setblocking(False)
    return listener
