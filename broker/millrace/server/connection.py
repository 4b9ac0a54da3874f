"""One client's connection: its unfinished frame, the requests that wait for their turn, the bytes to send.

Sends in the order of the requests, as far as the socket takes it. Knows what it holds itself, not what others
hold.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import select
import socket
import termios
from collections import Counter, deque
from typing import Protocol

from millrace.config import ClientLimits
from millrace.records.file_slice import FileSlice
from millrace.server.admission import REQUEST_BYTES, Admission
from millrace.server.request import FILE_SLICE_BYTES, Part, Request
from millrace.wire.framing import FrameBuffers, RequestFramer
from millrace.wire.produce import OneBatch

log = logging.getLogger(__name__)

FILE_BYTES_PER_TURN = 1 << 20
"""Of one connection's file slices, before the others get their turn: a usual fetch, or about 0.2 ms. Half of
it makes each fetch an eighth dearer."""
SEND_BYTES = 256 << 10
"""Small answers are joined to about this much for one send."""
MIN_UNJOINED_BYTES = 64 << 10
"""Parts this large are sent as they are: the same bytes may be in the answers to many."""
FEW_REQUESTS = 8
ANONYMOUS = "User:ANONYMOUS"


class Loop(Protocol):
    """What a connection needs of the server that it belongs to."""

    limits: ClientLimits
    admission: Admission[ClientConnection]
    frame_buffers: FrameBuffers
    errors: Counter[tuple[int, int]]
    now: float

    def note(self, connection: ClientConnection, held: int, *, unfinished: bool) -> None:
        """Count what the connection holds now; this may close it."""

    def touch(self, connection: ClientConnection) -> None: ...

    def watch(self, connection: ClientConnection, events: int) -> None: ...

    def drop(self, connection: ClientConnection) -> None: ...


class ClientConnection:
    """One client: its unfinished frame, the requests that wait for their turn, the bytes on their way out."""

    __slots__ = (
        "_admission",
        "_events",
        "_loop",
        "_out",
        "address",
        "closed",
        "errors",
        "framer",
        "held",
        "host",
        "principal",
        "produced",
        "queued_bytes",
        "received_at",
        "requests",
        "served_at",
        "socket",
        "took_at",
        "unanswered",
        "used_s",
    )

    def __init__(self, loop: Loop, client: socket.socket, host: str, port: int) -> None:
        self._loop, self._admission = loop, loop.admission
        self.socket = client
        self.host = host
        self.address = f"{host}:{port}"
        self.principal = ANONYMOUS
        self.errors = loop.errors
        self.framer = RequestFramer(loop.limits.max_frame_bytes, loop.frame_buffers)
        self.requests: deque[Request] = deque()
        self.unanswered = 0
        """How many requests those stand for."""
        self.produced: OneBatch | None = None
        self.closed = False
        self.used_s = 0.0
        """Time of the loop that it has used lately."""
        self.queued_bytes = self.held = 0
        self.served_at = self.received_at = self.took_at = loop.now
        self._out: deque[Part | memoryview] = deque()
        self._events: int = select.EPOLLIN | select.EPOLLRDHUP

    @property
    def full(self) -> bool:
        """True while the client must take answers before it may ask for more."""
        admission = self._admission
        return self.queued_bytes > admission.max_unread or self.unanswered >= admission.max_waiting

    def idle_since(self, since: float) -> bool:
        """True when the client has done nothing since then, and nothing here is still to be done for it."""
        if self.served_at > since or self.took_at > since or self in self._admission.paused:
            return False
        return bool(self._out) or not self.requests or self.requests[0].parts is not None

    def stalled_since(self, since: float) -> bool:
        """True when since then the client has neither sent more of its request nor taken its answers."""
        if self.received_at > since or self.took_at > since:
            return False
        return bool(self._out) or (self._unfinished and not self._sent_more())

    @property
    def _unfinished(self) -> bool:
        return self.framer.held > self.framer.unserved

    def _sent_more(self) -> bool:
        """True when bytes wait in the socket: then not the client is late."""
        count = bytearray(4)
        fcntl.ioctl(self.socket, termios.FIONREAD, count)
        return any(count)

    @property
    def holds_much(self) -> bool:
        """False while what it holds can as well be noted at the end of the turn."""
        return self.framer.held > 0 or self.unanswered > FEW_REQUESTS or self.held > 0

    def measure(self) -> None:
        """Note what this connection holds."""
        held = self.framer.held + self.queued_bytes + REQUEST_BYTES * self.unanswered
        if held or self.held:
            self._loop.note(self, held, unfinished=self._unfinished)

    def answered(self, size: int) -> None:
        """Some request has its answer now, for which `size` bytes of memory are needed."""
        self.queued_bytes += size
        self._loop.touch(self)

    def abort(self, reason: str) -> None:
        """Close the connection and say why in the log."""
        if not self.closed:
            log.warning("closed the connection of %s: %s", self.address, reason)
        self._loop.drop(self)

    def forget(self) -> None:
        """Let go of everything queued."""
        self._out.clear()
        while self.requests:
            self.requests.popleft().forget()

    def send(self) -> None:
        """Send what is due, in order, as far as the socket takes it; OSError when it is broken."""
        requests = self.requests
        while requests and (parts := requests[0].parts) is not None:
            self.unanswered -= requests.popleft().count
            self._out.extend(parts)
        if self._out:
            with contextlib.suppress(BlockingIOError):
                self._send_queued()
        self.measure()
        if self.closed:
            return
        events = select.EPOLLRDHUP
        if not (self.full or self.framer.waiting or self in self._admission.paused):
            events |= select.EPOLLIN
        if self._out:
            events |= select.EPOLLOUT
        if events != self._events:
            self._events = events
            self._loop.watch(self, events)

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
        while self._out and size < SEND_BYTES and not isinstance(part := self._out[0], FileSlice):
            if joined and len(part) >= MIN_UNJOINED_BYTES:
                break
            self._out.popleft()
            joined.append(part)
            size += len(part)
        data = joined[0] if len(joined) == 1 else b"".join(joined)
        sent = 0
        try:
            # With records to follow, the kernel waits for them rather than send a short packet.
            sent = self.socket.send(data, socket.MSG_MORE if self._out else 0)
        finally:
            self.queued_bytes -= sent
            self.took_at = self._loop.now
            if sent < size:
                self._out.appendleft(memoryview(data)[sent:])

    def _send_file(self, part: FileSlice, limit: int) -> int:
        count = min(part.length, limit)
        file = part.file.fileno()
        # Ask for the piece after this one now: a cold read would otherwise hold up every connection.
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, part.position + count, FILE_BYTES_PER_TURN, os.POSIX_FADV_WILLNEED)
        try:
            sent = os.sendfile(self.socket.fileno(), file, part.position, count)
            if sent == 0:
                raise OSError(errno.EIO, "it is shorter than it was")
        except OSError as error:
            if error.errno == errno.EIO:  # the disk's, not the client's: what it got so far is no answer
                log.error("cannot read %s for %s: %s", part.file.name, self.address, error.strerror)
            raise
        self.took_at = self._loop.now
        if sent == part.length:
            self._out.popleft()
            self.queued_bytes -= FILE_SLICE_BYTES
        else:
            self._out[0] = FileSlice(part.file, part.position + sent, part.length - sent)
        return sent
