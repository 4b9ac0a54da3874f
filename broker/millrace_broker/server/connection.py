"""One client's connection: its unfinished frame, the requests that wait for their turn, the bytes to send.

Answers are sent in the order of the requests, as far as the socket accepts bytes. As in Apache Kafka, a
request begins when all earlier requests have their answers, so that it sees their effects. Only appends begin
before earlier appends are answered. A connection is independent of all other connections.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from millrace.records.file_slice import FileSlice
from millrace.wire.framing import RequestFramer
from millrace.wire.messages import ApiKey
from millrace_broker.security.login import Login
from millrace_broker.security.rights import Access
from millrace_broker.server.listener import Listener
from millrace_broker.server.request import FILE_SLICE_BYTES, Part, Request
from millrace_broker.server.transport import PlainTransport, Transport

logger = logging.getLogger("millrace.server.connection")

FILE_BYTES_PER_TURN = 1 << 20
"""Limit of one connection's bytes of file slices in a row; then other connections get their turn. The value
is one usual fetch, which takes about 0.2 ms to send. With half the value a fetch would cost an
eighth more."""
SEND_BYTES = 256 << 10
"""Size up to which small answers are joined for one send."""
MIN_UNJOINED_BYTES = 64 << 10
"""Size from which a part is sent without a copy: many clients' answers may share the same bytes."""
APPENDS = frozenset({ApiKey.PRODUCE, ApiKey.MIRROR_APPEND})
PROGRESS_BYTES = 16 << 10
"""Fewest bytes that count as progress of a request. A client that sends a byte now and then counts as
stalled."""


class Loop(Protocol):
    """The server as its connections see it."""

    now: float
    errors: Counter[tuple[int, int]]

    def identified(self, connection: ClientConnection) -> None:
        """Note that the client is authenticated."""

    def ends_in(self, connection: ClientConnection, seconds: float | None) -> None:
        """Close the connection after `seconds`, unless the method is called again; None: never."""

    def mute(self, connection: ClientConnection, seconds: float) -> None:
        """Read nothing of a connection for a while."""

    def exempt(self, connection: ClientConnection) -> None:
        """Serve the connection before clients' connections, and do not count it as a client."""

    def touch(self, connection: ClientConnection) -> None:
        """Make the connection send at the end of the turn."""

    def drop(self, connection: ClientConnection) -> None: ...


@dataclass(slots=True, eq=False)
class ClientConnection:
    """One client: its unfinished frame, the requests that wait for their turn, the bytes on their way out."""

    loop: Loop
    transport: Transport
    listener: Listener
    host: str
    address: str
    access: Access
    framer: RequestFramer
    served_at: float
    """Time of the last whole request, or of the connection's opening."""
    errors: Counter[tuple[int, int]] = field(init=False)
    requests: deque[Request] = field(default_factory=deque)
    unanswered: int = 0
    """Number of requests in `requests`. Every request of a run counts."""
    kept_bytes: int = 0
    """Bytes that `requests` keep beyond REQUEST_BYTES each."""
    pending: int = 0
    """Number of requests without an answer, with a run counted as one. All of them are of one API."""
    working: int = 0
    login: Login | None = field(init=False)
    ending: bool = False
    """True if no further request is served. The connection is closed once its answers are sent."""
    muted: bool = False
    """True if nothing is read for now, because the connection's user has exceeded a quota."""
    closed: bool = False
    spare: bool = False
    is_broker: bool = False
    """True if another broker replicates over this connection. No client limit applies to it."""
    used_s: float = 0.0
    """Event-loop time that the client has used recently."""
    queued_bytes: int = 0
    held: int = 0
    opened_at: float = field(init=False)
    received_at: float = field(init=False)
    """Time of the last progress or completion of a request."""
    received_bytes: int = 0
    """Bytes received since `received_at`."""
    took_at: float = field(init=False)
    """Time at which the client last received bytes of an answer."""
    events: int = select.EPOLLIN | select.EPOLLRDHUP
    last_target: object | None = None
    lane: Hashable = None
    may_share: bool = field(init=False)
    _out: deque[Part | memoryview] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.errors, self.login = self.loop.errors, self.listener.login()
        self.opened_at = self.received_at = self.took_at = self.served_at
        self.may_share = isinstance(self.transport, PlainTransport)

    @property
    def listener_name(self) -> str:
        return self.listener.name

    def idle_since(self, since: float) -> bool:
        """Return True if the client has done nothing since `since`, and no work is pending for it."""
        if self.served_at > since or self.took_at > since:
            return False
        return bool(self._out) or not self.requests or self.requests[0].parts is not None

    def stalled_since(self, since: float, share: int) -> bool:
        """Return True if since `since` no request of the client progressed and the client received no bytes
        of its answers.

        A client with nothing to send or receive stalls if its waiting requests keep more than `share` bytes.
        """
        if self.received_at > since or self.took_at > since:
            return False
        to_send = bool(self._out) or self.transport.unsent or self.kept_bytes > share
        return to_send or (self.framer.unfinished and not self.transport.has_more())

    @property
    def must_wait(self) -> bool:
        """True while the next request may not begin, because an earlier request has no answer yet.

        Appends are staged in the order in which they come, even if they are answered later. A broker's own
        connection fetches and acknowledges at the same time.
        """
        if self.pending <= 0 or self.is_broker:
            return False
        key = self.framer.next_api_key
        return key is not None and not (key in APPENDS and key == self.requests[-1].api_key)

    def note_received(self, count: int) -> None:
        self.received_bytes += count
        if self.received_bytes >= PROGRESS_BYTES:
            self.received_bytes, self.received_at = 0, self.loop.now

    @property
    def is_free(self) -> bool:
        """True if nothing is before the next request, neither a part of it nor an answer that is due."""
        return not (self.requests or self._out or self.framer.held)

    def keep_place(self, request: Request) -> None:
        self.requests.append(request)
        self.pending += 1
        self.unanswered += request.count
        self.kept_bytes += request.kept
        self.note_served()

    def reply(self, answers: bytes) -> None:
        if self.closed:
            return
        try:
            sent = self.transport.send(answers, more=False)
        except BlockingIOError:  # the socket accepts no more now
            sent = 0
        except OSError:
            self.loop.drop(self)
            return
        self.note_served()
        self.took_at = self.loop.now
        if sent < len(answers):
            self.queued_bytes += len(answers) - sent
            self._out.append(memoryview(answers)[sent:])
            self.loop.touch(self)

    def note_served(self) -> None:
        """Note that a whole request was served in this turn."""
        self.served_at = self.received_at = self.loop.now
        self.received_bytes = 0

    def answered(self, size: int) -> None:
        self.queued_bytes += size
        self.pending -= 1
        self.loop.touch(self)

    def logged_in(self, principal: str) -> None:
        assert self.login is not None, "it has just logged in"
        self.loop.ends_in(self, self.login.holds_s)
        if self.access.principal != principal:
            self.access = self.listener.access_of(principal, self.host)
            self.loop.identified(self)

    def copies(self) -> None:
        if not (self.is_broker or self.closed):
            self.loop.exempt(self)

    def mute(self, seconds: float) -> None:
        self.loop.mute(self, seconds)

    def end(self) -> None:
        self.ending = True

    def abort(self, reason: str) -> None:
        if not self.closed:
            logger.warning("closed the connection of %s: %s", self.address, reason)
        self.loop.drop(self)

    def forget(self) -> None:
        self._out.clear()
        while self.requests:
            self.requests.popleft().forget()

    def send(self) -> bool:
        """Send the due answers in order, as far as the socket accepts bytes. Return True if bytes are left.

        Raise OSError when the connection is broken. Raise ValueError when a slice's file was closed
        meanwhile.
        """
        requests = self.requests
        while requests and (parts := requests[0].parts) is not None:
            request = requests.popleft()
            self.unanswered -= request.count
            self.kept_bytes -= request.kept
            self._out.extend(parts)
        try:
            return self._send_queued()
        except BlockingIOError:  # the socket accepts no more now
            return True

    def _send_queued(self) -> bool:
        if self.transport.unsent:
            self.transport.flush()
        file_bytes = 0
        while self._out:
            part = self._out[0]
            if not isinstance(part, FileSlice):
                self._out.popleft()
                self._send_bytes(part)
            elif file_bytes >= FILE_BYTES_PER_TURN:
                return True
            else:
                file_bytes += self._send_file(part, FILE_BYTES_PER_TURN - file_bytes)
        return self.transport.unsent

    def _send_bytes(self, data: bytes | memoryview) -> None:
        """Send the next bytes, joined with small parts that follow."""
        if self._out:
            data = self._join(data)
        size = len(data)
        sent = 0
        try:
            sent = self.transport.send(data, more=bool(self._out))
        finally:
            self.queued_bytes -= sent
            if sent:
                self.took_at = self.loop.now
            if sent < size:
                self._out.appendleft(memoryview(data)[sent:])

    def _join(self, first: bytes | memoryview) -> bytes | memoryview:
        joined, size = [first], len(first)
        while self._out and size < SEND_BYTES:
            part = self._out[0]
            if isinstance(part, FileSlice) or len(part) >= MIN_UNJOINED_BYTES:
                break
            self._out.popleft()
            joined.append(part)
            size += len(part)
        return b"".join(joined) if len(joined) > 1 else first

    def _send_file(self, part: FileSlice, limit: int) -> int:
        count = min(part.length, limit)
        # Request the next piece from the disk now: otherwise a cold read would delay every connection.
        with contextlib.suppress(OSError):
            os.posix_fadvise(
                part.file.fileno(), part.position + count, FILE_BYTES_PER_TURN, os.POSIX_FADV_WILLNEED
            )
        try:
            sent = self.transport.send_file(part, count)
            if sent == 0:
                raise OSError(errno.EIO, "it is shorter than it was")
        except OSError as error:
            if error.errno == errno.EIO:  # the disk failed, not the client: its answer is incomplete
                logger.error("cannot read %s for %s: %s", part.file.name, self.address, error.strerror)
            raise
        self.took_at = self.loop.now
        if sent == part.length:
            self._out.popleft()
            self.queued_bytes -= FILE_SLICE_BYTES
        else:
            self._out[0] = FileSlice(part.file, part.position + sent, part.length - sent)
        return sent
