"""One request on its way through the broker, and the place of its answer.

Answers are sent in the order of the requests. A request that waits (a fetch without data, acks=all) therefore
keeps its place while the connection reads further requests. A request is independent of sockets and APIs.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from millrace.records.file_slice import FileSlice
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import MIN_ITEM_LIMIT
from millrace_broker.security.login import Login
from millrace_broker.security.quotas import Kind
from millrace_broker.security.rights import Access

Part: TypeAlias = "bytes | FileSlice"
_PREFIX = struct.Struct(">ii")
NOTHING = memoryview(b"")
OTHER_API = -1
"""Key under which unknown APIs are counted."""
_APIS = frozenset(map(int, ApiKey))
FILE_SLICE_BYTES = 200
"""Counted memory of a file slice that is being sent: its objects, without the file's content."""
REQUEST_BYTES = 4 << 10
"""Counted memory of each unanswered request, at least. A waiting fetch takes 2.5 KB."""
MIN_SHARED_BYTES = 16 << 10
"""Size from which an answer is sent separately from its prefix, without a copy: other clients may receive the
same bytes."""


MAX_MUTE_S = 5.0
"""Longest throttle time in one answer."""
LANE_BYTES = 32 << 10
"""Size from which a connection's bytes are served alone: what a lane saves hardly counts there."""


class Client(Protocol):
    """The connection that a request came from."""

    closed: bool
    spare: bool
    """True if the connection exceeds a limit: it stays only if a broker replicates over it."""
    address: str
    """HOST:PORT of the client."""
    access: Access
    """The client's principal and rights."""
    errors: Counter[tuple[int, int]]
    """Number of answers by API (key) and error (code), over all connections."""

    working: int
    """Number of the client's requests in the threads' queue."""

    login: Login | None
    """The client's login, on a listener that requires a login."""
    last_target: object | None
    """The common content of its last requests, if requests like them may be served with those of others."""
    lane: Hashable
    """The lane of its next requests: they are served together with those of clients whose lane is equal. None
    if they are served by themselves."""
    may_share: bool
    """True if its requests may be served together with those of other clients."""

    @property
    def listener_name(self) -> str:
        """Name of the listener that the client connected to."""

    def keep_place(self, request: Request) -> None:
        """Keep the place of a request's answer, behind those of earlier ones."""

    @property
    def is_free(self) -> bool:
        """True if nothing is before the next request, neither a part of it nor an answer that is due."""

    def reply(self, answers: bytes) -> None:
        """Send answers to requests without a place, while no other answer is due, unless it is closed."""

    def answered(self, size: int) -> None:
        """Note that a request has its answer, which uses `size` bytes of memory."""

    def logged_in(self, principal: str) -> None:
        """Note that the client has logged in as this principal."""

    def copies(self) -> None:
        """Note that a broker replicates over this connection. Client limits do not apply to it."""

    def mute(self, seconds: float) -> None:
        """Read nothing from the client for a while, because its user has exceeded a quota."""

    def end(self) -> None:
        """Serve nothing more, and close the connection once the client has its answers."""

    def abort(self, reason: str) -> None:
        """Close the connection and log the reason.

        Without an answer, the client has no other sign of an error.
        """


C = TypeVar("C", bound=Client)


@dataclass(slots=True, eq=False)
class Request:
    """A request and, once `answer` was called, its answer.

    `frame` and `body`, its part after the header, are valid during the turn only.
    """

    client: Client
    api_key: int
    api_version: int
    correlation_id: int
    body: memoryview
    frame: memoryview = NOTHING
    item_limit: int = MIN_ITEM_LIMIT
    """Largest number of items that are served in each list of the request. Further items are refused."""
    client_id: str = ""
    """The client's `client.id`; not read for Produce and Fetch."""
    count: int = 1
    """Number of client requests in this request: more than 1 for a run of produce requests."""
    kept: int = 0
    """Bytes that the request keeps beyond REQUEST_BYTES until its answer."""
    parts: Sequence[Part] | None = None
    is_only: bool = False
    """True if the client has no other request, and this one is answered in the turn that has read it. Such a
    request needs no place: its answer is sent at once."""
    abandon: Callable[[], None] | None = None
    """Callback to run when the client disconnects before the answer. With None, the request keeps waiting."""

    def answer(self, parts: Sequence[Part], *, header: bytes = b"") -> None:
        """Answer with the response's body; `header` is the addition of a flexible response header."""
        size, in_memory, slices = 4 + len(header), 0, 0
        for part in parts:
            if isinstance(part, bytes):
                in_memory += len(part)
            else:
                size += part.length
                slices += 1
        prefix = _PREFIX.pack(size + in_memory, self.correlation_id) + header
        if parts and isinstance(parts[0], bytes) and len(parts[0]) < MIN_SHARED_BYTES:
            self.parts = [prefix + parts[0], *parts[1:]]
        else:
            self.parts = [prefix, *parts]
        self.client.answered(in_memory + len(prefix) + slices * FILE_SLICE_BYTES)

    def answer_frames(self, frames: bytes) -> None:
        """Answer all `count` requests with whole responses, as made by `response_frame`."""
        if self.is_only:
            self.parts = ()
            self.client.reply(frames)
        else:
            self.parts = (frames,)
            self.client.answered(len(frames))

    def answer_nothing(self) -> None:
        """Complete the request without an answer, as the client expects none (acks=0)."""
        self.parts = ()
        self.client.answered(0)

    def failed(self, code: int) -> None:
        self.client.errors[self.api_key if self.api_key in _APIS else OTHER_API, code] += 1

    def forget(self) -> None:
        """Stop waiting for the answer, because the client has disconnected."""
        if self.abandon is not None:
            self.abandon()


class Arrived(NamedTuple, Generic[C]):
    """Bytes that one read has brought from a client: `size` of them at `start` of the turn's buffer."""

    client: C
    start: int
    size: int


def throttle_ms(client: Client, kind: Kind, amount: float) -> int:
    """Charge `amount` to a client's quota; return the ms for which the client is throttled and not read."""
    if client.access.meter is None:
        return 0
    seconds = min(client.access.meter.took(kind, amount), MAX_MUTE_S)
    if seconds > 0:
        client.mute(seconds)
        client.access.meter.throttled_s[kind] += seconds
    return math.ceil(seconds * 1000)


def response_frame(correlation_id: int, body: bytes) -> bytes:
    """Return one whole response without a flexible header."""
    return _PREFIX.pack(4 + len(body), correlation_id) + body
