"""One request on its way through the broker, and the place its answer will take.

Answers leave in the order their requests came in, so a request that has to wait (a fetch without data,
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
"""What APIs that clients make up are counted for."""
_APIS = frozenset(map(int, ApiKey))
FILE_SLICE_BYTES = 200
"""What a file slice on its way counts for, with what holds it; its bytes stay in the file."""
REQUEST_BYTES = 4 << 10
"""What a request without an answer counts for: a fetch that waits takes 2.5 KB, and time to look again."""
MIN_SHARED_BYTES = 16 << 10
"""An answer this large is not copied behind its prefix: others may be sending the same bytes."""


MAX_MUTE_S = 5.0
"""The longest that a client is told to wait at a time."""


class Client(Protocol):
    """The connection a request came from."""

    closed: bool
    spare: bool
    """It is one too many: it stays only if a broker copies by it."""
    address: str
    """HOST:PORT."""
    access: Access
    """Who it is, and what it may do."""
    errors: Counter[tuple[int, int]]
    """How often an API (key) answered with an error (code), all connections together."""

    working: int
    """How many of its requests threads work on, or will."""

    login: Login | None
    """How it logs in, on a listener where it must."""

    @property
    def listener_name(self) -> str:
        """Of the listener that it came by."""

    def answered(self, size: int) -> None:
        """Some request has its answer now, for which `size` bytes of memory are needed."""

    def logged_in(self, principal: str) -> None:
        """It has proved who it is."""

    def copies(self) -> None:
        """It is another broker's, which copies by it: what holds for clients does not hold for it."""

    def mute(self, seconds: float) -> None:
        """Read nothing of it for a while: its user has taken more than its quota."""

    def end(self) -> None:
        """Serve nothing more, and close the connection once it has its answers."""

    def abort(self, reason: str) -> None:
        """Close the connection and log why: the only sign that a request without an answer can get."""


@dataclass(slots=True, eq=False)
class Request:
    """A request and, once `answer` was called, its answer.

    `frame` and `body`, the part of it behind the header, are valid during the turn only.
    """

    client: Client
    api_key: int
    api_version: int
    correlation_id: int
    body: memoryview
    frame: memoryview = NOTHING
    item_limit: int = MIN_ITEM_LIMIT
    """Items in its lists that are served; of more each is refused."""
    client_id: str = ""
    """How the client calls itself; not read for Produce and Fetch."""
    count: int = 1
    """How many requests this one stands for."""
    kept: int = 0
    """What it takes beyond REQUEST_BYTES while its content waits for the answer."""
    parts: Sequence[Part] | None = None
    abandon: Callable[[], None] | None = None
    """Set by who lets the request wait, if its client's going away ends the wait."""

    def answer(self, parts: Sequence[Part], *, header: bytes = b"") -> None:
        """Answer with the response's body; `header` is what a flexible response header adds."""
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
        """Answer with whole responses, `response_frame`s, for each of the requests this one stands for."""
        self.parts = (frames,)
        self.client.answered(len(frames))

    def answer_nothing(self) -> None:
        """Free the place: the client expects no answer (acks=0)."""
        self.parts = ()
        self.client.answered(0)

    def failed(self, code: int) -> None:
        self.client.errors[self.api_key if self.api_key in _APIS else OTHER_API, code] += 1

    def forget(self) -> None:
        """The client has gone: end the wait for an answer that nobody takes."""
        if self.abandon is not None:
            self.abandon()


def throttle_ms(client: Client, kind: Kind, amount: float) -> int:
    """Count what a client takes; the ms that it is to wait, and is not read, for a quota."""
    if client.access.meter is None:
        return 0
    seconds = min(client.access.meter.took(kind, amount), MAX_MUTE_S)
    if seconds > 0:
        client.mute(seconds)
        client.access.meter.told[kind] += seconds
    return math.ceil(seconds * 1000)


def response_frame(correlation_id: int, body: bytes) -> bytes:
    """One whole response without a flexible header."""
    return _PREFIX.pack(4 + len(body), correlation_id) + body
