"""One request on its way through the broker, and the place of its answer.

Answers leave in the order in which their requests came, so a request that has to wait (a fetch without data,
acks=all) holds its place while the connection goes on reading. Knows no sockets and no API.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

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
"""The key under which unknown APIs are counted."""
_APIS = frozenset(map(int, ApiKey))
FILE_SLICE_BYTES = 200
"""Bytes for which a file slice on its way counts, with the objects that hold it, but without its content."""
REQUEST_BYTES = 4 << 10
"""Least bytes for each request without an answer: a waiting fetch takes 2.5 KB, and time to look again."""
MIN_SHARED_BYTES = 16 << 10
"""An answer of this size is not copied behind its prefix: other clients may be receiving the same bytes."""


MAX_MUTE_S = 5.0
"""Longest time that a client is told to wait at once."""


class Client(Protocol):
    """The connection that a request came from."""

    closed: bool
    spare: bool
    """The connection exceeds a limit: it stays only if a broker copies by it."""
    address: str
    """HOST:PORT of the client."""
    access: Access
    """The client's principal and rights."""
    errors: Counter[tuple[int, int]]
    """Number of answers by API (key) and error (code), over all connections."""

    working: int
    """Number of its requests on which threads work or will work."""

    login: Login | None
    """Its login, on a listener that requires one."""

    @property
    def listener_name(self) -> str:
        """Name of the listener that the client connected to."""

    def answered(self, size: int) -> None:
        """Note that a request has its answer now, for which `size` bytes of memory are needed."""

    def logged_in(self, principal: str) -> None:
        """Note that the client has proved to be this principal."""

    def copies(self) -> None:
        """Note that a broker copies by this connection: limits of clients do not hold for it."""

    def mute(self, seconds: float) -> None:
        """Read nothing of the client for a while: its user has taken more than its quota."""

    def end(self) -> None:
        """Serve nothing more, and close the connection once the client has its answers."""

    def abort(self, reason: str) -> None:
        """Close the connection and log why: the only sign that a request without an answer can get."""


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
    """Items in its lists that are served; each item beyond this number is refused."""
    client_id: str = ""
    """The client's `client.id`; not read for Produce and Fetch."""
    count: int = 1
    """Number of requests that this one stands for."""
    kept: int = 0
    """Bytes it takes beyond REQUEST_BYTES while its content waits for the answer."""
    parts: Sequence[Part] | None = None
    abandon: Callable[[], None] | None = None
    """Callback to run when the client disconnects before the answer; None: the wait goes on."""

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
        """Answer with whole responses, `response_frame`s, to each of the requests this one stands for."""
        self.parts = (frames,)
        self.client.answered(len(frames))

    def answer_nothing(self) -> None:
        """Free the place: the client expects no answer (acks=0)."""
        self.parts = ()
        self.client.answered(0)

    def failed(self, code: int) -> None:
        self.client.errors[self.api_key if self.api_key in _APIS else OTHER_API, code] += 1

    def forget(self) -> None:
        """End the wait for the answer: the client has gone."""
        if self.abandon is not None:
            self.abandon()


def throttle_ms(client: Client, kind: Kind, amount: float) -> int:
    """Count what a client takes; return the ms that it must wait, unread, for its quota."""
    if client.access.meter is None:
        return 0
    seconds = min(client.access.meter.took(kind, amount), MAX_MUTE_S)
    if seconds > 0:
        client.mute(seconds)
        client.access.meter.told[kind] += seconds
    return math.ceil(seconds * 1000)


def response_frame(correlation_id: int, body: bytes) -> bytes:
    """Return one whole response without a flexible header."""
    return _PREFIX.pack(4 + len(body), correlation_id) + body
