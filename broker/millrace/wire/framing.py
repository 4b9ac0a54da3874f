"""Cutting a client's bytes into whole requests.

A request is a 4-byte length and that many bytes. Frames that are whole in the received bytes are handed out
as views, without a copy: the server stamps and writes records where it received them. Only a frame that a
read cut in two is kept; the rest of a large frame is received right after its beginning. The module uses no
sockets and reads nothing after the request header.
"""

from __future__ import annotations

import struct

from millrace.errors import MillraceError
from millrace.wire.primitives import INT32, Reader, RequestTooLarge

_HEADER = struct.Struct(">hhih")
_SHORT_HEADER = struct.Struct(">hhi")
_API_KEY = struct.Struct(">4xh")
_SIZE_BYTES = 4
_NOTHING = memoryview(b"")
_LARGE_BYTES = 64 << 10
_LARGEST_BYTES = 8 << 20
"""Largest frame that gets memory for all of its bytes before all have arrived; the smallest is 64 KiB."""
_AHEAD = 4
"""A large frame gets its memory once one part in this number has arrived: a stated length alone gets no
memory."""
_SPARE_BYTES = 4 << 20
MAX_HEADER_TAGS = 100
"""Most tagged fields in the header of a request; clients send none, and 60 MiB of them would take 9 s."""
_TLS_HANDSHAKE = 0x1603
"""First two bytes of a TLS handshake. As a frame's length they would be 352 MiB or more."""
MIN_FRAME_BYTES = 8
"""Size of API key, version and correlation id. A shorter frame cannot be answered in the protocol."""


class FrameRefused(MillraceError):
    """A frame's length is impossible or over the limit, so the next frame cannot be found."""


class FrameBuffers:
    """Reusable memory for large frames: new memory costs as much as receiving the frame into it."""

    def __init__(self) -> None:
        self._spare: list[bytearray] = []
        self._in_use: list[bytearray] = []
        self.over_limit = False
        """True while frames must not get memory before their bytes have arrived."""

    def take(self, size: int) -> bytearray:
        """Return a buffer of at least `size` bytes with arbitrary content."""
        for index, buffer in enumerate(self._spare):
            if len(buffer) >= size:
                return self._spare.pop(index)
        return bytearray(-size // _LARGE_BYTES * -_LARGE_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        """Take the buffer back at the end of the turn: until then its frame is in use."""
        self._in_use.append(buffer)

    def end_of_turn(self) -> None:
        """Make the buffers given back in this turn available again, up to 4 MiB."""
        while self._in_use:
            buffer = self._in_use.pop()
            if sum(map(len, self._spare)) + len(buffer) <= _SPARE_BYTES:
                self._spare.append(buffer)


class RequestFramer:
    """Cuts one connection's bytes into frames.

    If `room` is not None, read into `room` and call `received`. Otherwise read into any buffer and call
    `receive_data`. Then call `next_frame` until it returns None, and `release` before reusing the buffer.
    """

    def __init__(self, max_frame_bytes: int, buffers: FrameBuffers) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffers = buffers
        self._data = _NOTHING
        self._position = 0
        self._kept = bytearray()
        self._filled = 0  # bytes of the unfinished frame in `_kept`, which may be longer
        self._wanted = 0  # bytes of that frame when it is whole, length included; 0 while unknown
        self._own = False  # `_data` is a copy of our own
        self.held = 0
        """Bytes held after the last `release`, of a frame cut in two and of frames not handed out yet."""

    def receive_data(self, data: memoryview) -> None:
        """Take the bytes of one read. Every frame received before must have been handed out."""
        self._data, self._own, self._position = data, False, 0

    @property
    def room(self) -> memoryview | None:
        """Buffer for the rest of a large unfinished frame.

        None: read into any buffer, and call `receive_data`.
        """
        if self._wanted - self._filled < _LARGE_BYTES or len(self._kept) < self._wanted:
            return None
        return memoryview(self._kept)[self._filled : self._wanted]

    def received(self, count: int) -> None:
        """Note the number of bytes that one read has put into `room`."""
        self._filled += count

    @property
    def waiting(self) -> bool:
        """True while received bytes were not cut into frames yet."""
        return self._position < len(self._data)

    @property
    def unfinished(self) -> bool:
        """True while a frame cut in two is kept."""
        return self._filled > 0

    @property
    def next_api_key(self) -> int | None:
        """The API key of the request that comes next, or None while its first bytes are missing."""
        size, at = _API_KEY.size, self._position
        beginning: bytes | memoryview = self._data[at : at + size]
        if self._filled:
            beginning = bytes(self._kept[: min(size, self._filled)]) + beginning
        return None if len(beginning) < size else _API_KEY.unpack_from(beginning)[0]

    @property
    def rest(self) -> tuple[memoryview, int]:
        """Received bytes and the position of the next frame.

        No bytes while the rest of a frame is awaited.
        """
        return (_NOTHING, 0) if self._filled else (self._data, self._position)

    def skip_to(self, position: int) -> None:
        """Count the frames of `rest` before this position as handed out."""
        self._position = position

    def next_frame(self) -> memoryview | None:
        """Return the next whole request without its length, or None when more bytes are needed.

        Raise FrameRefused before any byte of an oversized frame is kept.
        """
        if self._filled:
            return self._complete_kept()
        data, start = self._data, self._position
        if len(data) - start < _SIZE_BYTES:
            self._keep(len(data) - start)
            return None
        size = self._size_at(data, start)
        start += _SIZE_BYTES
        end = start + size
        if end > len(data):
            self._wanted = _SIZE_BYTES + size
            self._make_room()
            self._keep(len(data) - self._position)
            return None
        self._position = end
        return data[start:end]

    def release(self) -> None:
        """Release the bytes given to `receive_data`; frames not handed out yet are copied."""
        if self._position >= len(self._data):
            self._data = _NOTHING
            self._position = 0
            self.held = len(self._kept)
            return
        if not self._own:
            self._data = memoryview(bytearray(self._data[self._position :]))
            self._own = True
            self._position = 0
        self.held = len(self._kept) + len(self._data)

    def _size_at(self, data: memoryview | bytearray, position: int) -> int:
        size: int = INT32.unpack_from(data, position)[0]
        # Check before buffering: otherwise a bad client could make the broker hold 2 GiB for one request.
        if not MIN_FRAME_BYTES <= size <= self.max_frame_bytes:
            if size >> 16 == _TLS_HANDSHAKE:
                raise FrameRefused("it uses TLS, which this listener does not (protocol PLAINTEXT)")
            allowed = f"allowed are {MIN_FRAME_BYTES} to {self.max_frame_bytes}"
            raise FrameRefused(f"a frame of {size} bytes; {allowed}")
        return size

    def _make_room(self) -> None:
        """Get memory for the whole unfinished frame, once enough of it has arrived."""
        size, come = self._wanted, self._filled + len(self._data) - self._position
        if self._buffers.over_limit:
            return
        if _LARGE_BYTES <= size <= _LARGEST_BYTES and len(self._kept) < size <= come * _AHEAD:
            buffer = self._buffers.take(size)
            buffer[: self._filled] = self._kept
            self._kept = buffer

    def _keep(self, count: int) -> None:
        """Append the next bytes of the data to the unfinished frame."""
        part = self._data[self._position : self._position + count]
        self._kept[self._filled : self._filled + len(part)] = part
        self._filled += len(part)
        self._position += len(part)

    def _complete_kept(self) -> memoryview | None:
        if not self._wanted:
            self._keep(_SIZE_BYTES - self._filled)
            if self._filled < _SIZE_BYTES:
                return None
            self._wanted = _SIZE_BYTES + self._size_at(self._kept, 0)
        self._make_room()
        self._keep(self._wanted - self._filled)
        if self._filled < self._wanted:
            return None
        frame = memoryview(self._kept)[_SIZE_BYTES : self._wanted]
        if self._wanted >= _LARGE_BYTES:
            self._buffers.give_back(self._kept)
        self._kept, self._filled, self._wanted = bytearray(), 0, 0  # the frame keeps the old one alive
        return frame


def parse_header(frame: memoryview) -> tuple[int, int, int, int]:
    """Return (API key, version, correlation id, position of the body) of a frame of at least 8 bytes.

    The client's name is skipped; the tagged fields of a flexible header are not.
    """
    if len(frame) < _HEADER.size:
        api_key, version, correlation_id = _SHORT_HEADER.unpack_from(frame)
        return api_key, version, correlation_id, len(frame)
    api_key, version, correlation_id, size = _HEADER.unpack_from(frame)
    return api_key, version, correlation_id, _HEADER.size + size if size > 0 else _HEADER.size


def client_id(frame: memoryview) -> str:
    """Return the client id in the header of a frame; empty when there is none."""
    if len(frame) < _HEADER.size:
        return ""
    size = _HEADER.unpack_from(frame)[3]
    return bytes(frame[_HEADER.size : _HEADER.size + max(size, 0)]).decode(errors="replace")


def skip_tagged_fields(frame: memoryview, position: int) -> int:
    """Return the position after the tagged fields at `position`.

    A malformed list extends to the frame's end.
    """
    reader = Reader(frame, items=MAX_HEADER_TAGS)
    reader.position = position
    try:
        reader.skip_tagged_fields()
    except (ValueError, IndexError, RequestTooLarge):
        return len(frame)
    return reader.position
