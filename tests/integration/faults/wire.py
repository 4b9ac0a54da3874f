"""A socket that speaks frames and nothing else, so that tests see exactly what the broker answers."""

from __future__ import annotations

import socket
import struct
from types import TracebackType

from millrace.records import Message, build_batch
from millrace.wire.messages import ApiKey

PRODUCE_VERSION = 7
FETCH_VERSION = 4


def batch(text: str, count: int = 1) -> bytes:
    """A batch of `count` messages `<text> <number>`."""
    return build_batch([Message(1000, None, f"{text} {n}".encode()) for n in range(count)])


def frame(api_key: int, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    """A whole request with its length in front."""
    content = struct.pack(">hhih", api_key, version, correlation_id, 4) + b"test" + body
    return struct.pack(">i", len(content)) + content


def produce_body(topic: str, partition: int, records: bytes, acks: int = -1) -> bytes:
    """The body of a Produce request for one partition."""
    name = topic.encode()
    body = struct.pack(">hhiih", -1, acks, 30_000, 1, len(name)) + name
    return body + struct.pack(">iii", 1, partition, len(records)) + records


def fetch_body(
    topic: str, offsets: dict[int, int], *, max_wait_ms: int = 0, max_bytes: int = 1 << 20
) -> bytes:
    """The body of a Fetch request."""
    name = topic.encode()
    body = struct.pack(">iiiibih", -1, max_wait_ms, 1, max_bytes, 0, 1, len(name)) + name
    body += struct.pack(">i", len(offsets))
    return body + b"".join(struct.pack(">iqi", *place, max_bytes) for place in offsets.items())


class Wire:
    """One connection; a context manager."""

    def __init__(self, bootstrap: str, timeout_s: float = 20) -> None:
        host, _, port = bootstrap.partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it; twice is harmless."""
        self._file.close()
        self.socket.close()

    def receive(self) -> bytes:
        """The body of the next answer; ConnectionError when the broker closed the connection."""
        size, _ = struct.unpack(">ii", self._exactly(8))
        return self._exactly(size - 4)

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectionError("the broker closed the connection")
        return data

    def ask(self, api_key: int, version: int, body: bytes = b"") -> bytes:
        """Send a request and wait for its answer."""
        self.socket.sendall(frame(api_key, version, body))
        return self.receive()

    def produce(self, topic: str, records: bytes, *, partition: int = 0, acks: int = -1) -> tuple[int, int]:
        """(error, base offset) of one batch."""
        answer = self.ask(ApiKey.PRODUCE, PRODUCE_VERSION, produce_body(topic, partition, records, acks))
        error, base_offset = struct.unpack_from(">hq", answer, 4 + 2 + len(topic.encode()) + 4 + 4)
        return error, base_offset

    def fetch(
        self, topic: str, offset: int, *, partition: int = 0, max_bytes: int = 1 << 20
    ) -> tuple[int, bytes]:
        """(error, records) from one offset of one partition."""
        body = fetch_body(topic, {partition: offset}, max_bytes=max_bytes)
        answer = self.ask(ApiKey.FETCH, FETCH_VERSION, body)
        position = 4 + 4 + 2 + len(topic.encode()) + 4 + 4
        (error,) = struct.unpack_from(">h", answer, position)
        position += 2 + 8 + 8
        (aborted,) = struct.unpack_from(">i", answer, position)
        position += 4 + max(0, aborted) * 16
        return error, answer[position + 4 :]
