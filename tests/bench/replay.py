"""A client that replays requests encoded beforehand, and what the machine itself can do.

The requests are made once and the answers only counted, so that the broker is what is measured: real clients
need 0.3 to 1.5 s of CPU for a million messages themselves. Speaks to Millrace and to Apache Kafka alike
(Produce v7, Fetch v4); an answer with an error ends the run. Starts no broker.

    produce("127.0.0.1:9092", "t", per_request=50, requests=20_000)     # the topic must exist
    consume("127.0.0.1:9092", "t")
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.records import HEADER_BYTES, BatchHeader, Message, build_batch
from millrace.security.client import of_process, tls_context

MB = 1 << 20
VALUE_BYTES = 200
PRODUCE_VERSION = 7
FETCH_VERSION = 4
CHUNK_BYTES = MB
"""Requests are repeated to about this much for one send."""
TIMEOUT_S = 120
_RECORDS_A_TURN = 64
"""TLS sends a record of 16 KiB at a time; so many are the chunk."""
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Figures of one replay. `data_bytes` counts whole batches, headers included."""

    requests: int
    messages: int
    data_bytes: int
    seconds: float
    client_cpu_s: float

    @property
    def messages_per_s(self) -> float:
        """Messages each second of the clock."""
        return self.messages / self.seconds

    @property
    def requests_per_s(self) -> float:
        """Requests each second of the clock."""
        return self.requests / self.seconds

    @property
    def mb_per_s(self) -> float:
        """10^6 bytes of batches each second of the clock."""
        return self.data_bytes / self.seconds / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Limits of the machine without a broker: bytes moved, and the CPU of everyone involved."""

    data_bytes: int
    seconds: float
    cpu_s: float

    @property
    def mb_per_s(self) -> float:
        """10^6 bytes each second of the clock."""
        return self.data_bytes / self.seconds / 1e6


# Processes


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all its threads, exact."""
    return time.clock_gettime((~pid << 3) | 2)  # the id of its clock, as clock_getcpuclockid(3) makes it


def rss_bytes(pid: int) -> int:
    """Resident memory of a process, shared libraries included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Requests


def batch_of(messages: int) -> bytes:
    """One uncompressed batch of messages of 200 random bytes each."""
    return build_batch(_messages(messages))


def _messages(count: int) -> list[Message]:
    now = int(time.time() * 1000)
    return [Message(now + i, None, os.urandom(VALUE_BYTES)) for i in range(count)]


def produce_request(topic: str, batches: dict[int, bytes], acks: int) -> bytes:
    """One whole Produce frame with a batch for each partition."""
    body = struct.pack(">hhii", -1, acks, 30_000, 1) + _string(topic) + struct.pack(">i", len(batches))
    for partition, batch in batches.items():
        body += struct.pack(">ii", partition, len(batch)) + batch
    return _frame(0, PRODUCE_VERSION, body)


def fetch_request(topic: str, offsets: dict[int, int], max_bytes: int, *, max_wait_ms: int = 100) -> bytes:
    """One whole Fetch frame: from an offset of each partition, answered as soon as one byte is there."""
    body = struct.pack(">iiiibi", -1, max_wait_ms, 1, max_bytes, 0, 1)
    body += _string(topic) + struct.pack(">i", len(offsets))
    for partition, offset in offsets.items():
        body += struct.pack(">iqi", partition, offset, max_bytes)
    return _frame(1, FETCH_VERSION, body)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhi", api_key, version, 1) + _string("replay")
    return struct.pack(">i", len(header) + len(body)) + header + body


# Replay


def produce(
    address: str,
    topic: str,
    *,
    per_request: int,
    requests: int,
    acks: int = 1,
    in_flight: int = 1000,
    connections: int = 1,
    partitions: int = 1,
    idempotent: bool = False,
) -> Run:
    """Send so many requests over each connection, at most `in_flight` ahead of the answers.

    Each is for one partition, the next one for the next partition; connections begin at different ones. With
    acks=0 nothing limits it; the time then ends with the answer to one more request with acks=1. With
    `idempotent` each connection is a producer with an id and sequences, and `acks` is not 0.
    """
    batch = batch_of(per_request)
    last = produce_request(topic, {0: batch}, 1)
    if idempotent:
        sent = [
            _idempotent_requests(topic, per_request, requests, acks, number, partitions)
            for number in range(connections)
        ]
    else:
        each = [produce_request(topic, {number: batch}, acks) for number in range(partitions)]
        firsts = [number % partitions for number in range(connections)]
        sent = [[*each[first:], *each[:first]] for first in firsts]
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(address)) for _ in range(connections)]
        started, cpu = time.monotonic(), time.process_time()
        if acks == 0:
            size = len(sent[0][0])
            chunk = b"".join(sent[0]) * max(1, CHUNK_BYTES // size // partitions)
            for start in range(0, requests * size, len(chunk)):
                for one in sockets:
                    one.sendall(memoryview(chunk)[: requests * size - start])
            _replay(sockets, [[last]] * connections, 1, 1, _produced_bytes(topic))
        else:
            _replay(sockets, sent, requests, in_flight, _produced_bytes(topic))
        return Run(
            requests=requests * connections,
            messages=requests * connections * per_request,
            data_bytes=requests * connections * len(batch),
            seconds=time.monotonic() - started,
            client_cpu_s=time.process_time() - cpu,
        )


def _idempotent_requests(
    topic: str, per_request: int, count: int, acks: int, first: int, partitions: int
) -> list[bytes]:
    """All requests of one idempotent producer, which begins with partition `first`."""
    messages, producer_id = _messages(per_request), secrets.randbits(63)
    requests = []
    for number in range(count):
        sequence = number // partitions * per_request
        batch = build_batch(messages, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        requests.append(produce_request(topic, {(first + number) % partitions: batch}, acks))
    return requests


def acknowledged_ms(address: str, topic: str, *, requests: int, pause_s: float) -> list[float]:
    """Send produce requests of one message, one at a time; return each one's time until acks=all.

    `pause_s` passes from each answer to the next request.
    """
    request = produce_request(topic, {0: batch_of(1)}, -1)
    taken, answer = [], bytearray(_produced_bytes(topic))
    with connect(address) as connection:
        for _ in range(requests):
            time.sleep(pause_s)
            began = time.perf_counter()
            connection.sendall(request)
            _receive(connection, answer, len(answer))
            taken.append((time.perf_counter() - began) * 1000)
            if answer[-30:-28] != b"\0\0":
                raise ConnectionError(f"the broker refused a request: {answer.hex()}")
    return taken


def _produced_bytes(topic: str) -> int:
    """Size of the answer for one partition, length included."""
    return 4 + 4 + 4 + 2 + len(topic) + 4 + (4 + 2 + 8 + 8 + 8) + 4


def _replay(
    sockets: Sequence[socket.socket],
    requests: Sequence[Sequence[bytes]],
    count: int,
    in_flight: int,
    answer_bytes: int,
) -> None:
    """Send `count` of a connection's requests, all of one size, over each, and receive the answers."""
    open_ones = {
        connection.fileno(): _Replayed(connection, own, count, in_flight, answer_bytes)
        for connection, own in zip(sockets, requests, strict=True)
    }
    poll = select.poll()
    for descriptor, one in open_ones.items():
        poll.register(descriptor, one.events())
    while open_ones:
        ready = poll.poll(TIMEOUT_S * 1000)
        if not ready:
            raise TimeoutError(f"no answer within {TIMEOUT_S} s")
        for descriptor, events in ready:
            one = open_ones[descriptor]
            one.turn(events)
            if one.answered < count:
                poll.modify(descriptor, one.events())
            else:
                poll.unregister(descriptor)
                del open_ones[descriptor]


class _Replayed:
    """One connection. All answers are of one size; only their sizes and errors are looked at."""

    def __init__(
        self,
        connection: socket.socket,
        requests: Sequence[bytes],
        count: int,
        in_flight: int,
        answer_bytes: int,
    ) -> None:
        connection.setblocking(False)
        self.answered = 0
        self._connection = connection
        self._request_bytes = size = len(requests[0])
        repeated = max(1, min(count, in_flight, CHUNK_BYTES // size) // len(requests))
        self._chunk = memoryview(b"".join(requests) * repeated)
        self._count = count
        self._in_flight = in_flight
        self._answer_bytes = answer_bytes
        self._expected = [(2, 0), (3, answer_bytes - 4), (answer_bytes - 30, 0), (answer_bytes - 29, 0)]
        self._answers = bytearray(MB)
        self._kept = b""
        self._sent = 0

    def events(self) -> int:
        """Events to wait for: answers, and room to send while the limit in flight allows it."""
        return select.POLLIN | (select.POLLOUT if self._allowed() > 0 else 0)

    def turn(self, events: int) -> None:
        """Receive what is there and send what is allowed."""
        with suppress(*_LATER):
            if events & ~select.POLLOUT:
                self._receive()
                # TLS takes a record at a time from the socket, and nobody polls for what it holds already.
                while isinstance(self._connection, ssl.SSLSocket) and self._connection.pending():
                    self._receive()
        with suppress(*_LATER):
            for _ in range(_RECORDS_A_TURN if isinstance(self._connection, ssl.SSLSocket) else 1):
                if allowed := self._allowed():
                    start = self._sent % len(self._chunk)
                    self._sent += self._connection.send(self._chunk[start : start + allowed])

    def _allowed(self) -> int:
        """Bytes that may be sent now."""
        return min(self._count, self.answered + self._in_flight) * self._request_bytes - self._sent

    def _receive(self) -> None:
        size = self._connection.recv_into(self._answers)
        if size == 0:
            raise ConnectionError(f"the broker closed the connection after {self.answered} answers")
        data, step = self._kept + self._answers[:size], self._answer_bytes
        whole = len(data) // step * step
        for index, expected in self._expected:
            if data[index:whole:step].count(expected) != whole // step:
                raise ConnectionError(f"the broker refused a request: {data[:step].hex()}")
        self.answered += whole // step
        self._kept = bytes(data[whole:])


def fetch_plan(
    address: str, topic: str, *, partition: int = 0, max_bytes: int = MB, start: int | None = None
) -> list[tuple[int, int]]:
    """(offset, whole batches' messages) of each fetch a sequential consumer would send to reach the end now.

    Reads everything once, so that the replay behind it finds it in the page cache.
    """
    plan: list[tuple[int, int]] = []
    with ClusterClient(address) as client:
        end = client.list_offsets(topic, LATEST, [partition])[partition]
        offset = client.list_offsets(topic, EARLIEST, [partition])[partition] if start is None else start
        while offset < end:
            asked, messages = offset, 0
            records = client.fetch(
                topic,
                {partition: asked},
                max_bytes=max_bytes,
                partition_max_bytes=max_bytes,
                max_wait_ms=1000,
            )[partition].records
            position = 0
            while position + HEADER_BYTES <= len(records):
                header = BatchHeader.parse(records, position)
                if header is None or position + header.size > len(records):
                    break
                messages += 0 if header.is_control else header.records_count
                offset = max(offset, header.next_offset)
                position += header.size
            if offset == asked:
                raise ConnectionError(f"{topic}-{partition} gives nothing at {asked}, its end is {end}")
            plan.append((asked, messages))
    return plan


def consume(
    address: str,
    topic: str,
    plan: Sequence[tuple[int, int]] | None = None,
    *,
    partition: int = 0,
    max_bytes: int = MB,
    in_flight: int = 2,
) -> Run:
    """Replay a plan's fetches, `in_flight` at a time, and drop the records; no plan: make one first."""
    if plan is None:
        plan = fetch_plan(address, topic, partition=partition, max_bytes=max_bytes)
    requests = [fetch_request(topic, {partition: offset}, max_bytes) for offset, _ in plan]
    head_bytes = 4 + 4 + 4 + 4 + 2 + len(topic) + 4 + (4 + 2 + 8 + 8) + 4 + 4
    head, sink = bytearray(head_bytes), bytearray(max(8 << 20, 2 * max_bytes))
    data_bytes = 0
    with connect(address) as connection:
        started, cpu = time.monotonic(), time.process_time()
        connection.sendall(b"".join(requests[:in_flight]))
        for answered in range(len(requests)):
            _receive(connection, head, head_bytes)
            error, size = struct.unpack_from(">h", head, head_bytes - 26)[0], int.from_bytes(head[-4:], "big")
            if error or not 0 < size <= len(sink):
                raise ConnectionError(f"fetch from {plan[answered][0]}: error {error}, {size} bytes")
            _receive(connection, sink, size)
            data_bytes += size
            if answered + in_flight < len(requests):
                connection.sendall(requests[answered + in_flight])
        return Run(
            requests=len(plan),
            messages=sum(messages for _, messages in plan),
            data_bytes=data_bytes,
            seconds=time.monotonic() - started,
            client_cpu_s=time.process_time() - cpu,
        )


def connect(address: str) -> socket.socket:
    """A connection to a broker, which uses TLS if the process's client file says so."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = tls_context(of_process())
    return connection if context is None else context.wrap_socket(connection, server_hostname=host)


def _receive(connection: socket.socket, buffer: bytearray, size: int) -> None:
    view, have = memoryview(buffer), 0
    while have < size:
        count = connection.recv_into(view[have:size])
        if count == 0:
            raise ConnectionError("the broker closed the connection")
        have += count


# What the machine can do


def warm_up(folder: Path, data_bytes: int) -> None:
    """Write so many bytes to a file and delete it.

    The first touch of memory costs a virtual machine three times what the copy does, and hits whichever
    test comes first.
    """
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        _write(file.fileno(), data_bytes, MB)


def page_cache_write(folder: Path, data_bytes: int, *, write_bytes: int = MB) -> Raw:
    """Write to a file, into pages that were used and freed before; not brought to the disk."""
    warm_up(folder, data_bytes)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        return _measure(data_bytes, lambda: _write(file.fileno(), data_bytes, write_bytes))


def loopback_copy(data_bytes: int, *, send_bytes: int = MB) -> Raw:
    """Send through a TCP connection of this machine into a receiver that drops it."""
    chunk = os.urandom(send_bytes)

    def send(connection: socket.socket) -> None:
        for _ in range(data_bytes // send_bytes):
            connection.sendall(chunk)

    return _to_sink(data_bytes // send_bytes * send_bytes, send)


def sendfile(folder: Path, data_bytes: int, *, send_bytes: int = MB) -> Raw:
    """Send a file that is in the page cache, a piece per call, into a receiver that drops it."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        _write(file.fileno(), data_bytes, MB)

        def send(connection: socket.socket) -> None:
            position = 0
            while position < data_bytes:
                wanted = min(send_bytes, data_bytes - position)
                position += os.sendfile(connection.fileno(), file.fileno(), position, wanted)

        return _to_sink(data_bytes, send)


def _write(fd: int, data_bytes: int, write_bytes: int) -> None:
    chunk = memoryview(os.urandom(write_bytes))
    while data_bytes > 0:
        data_bytes -= os.write(fd, chunk[:data_bytes])


def _measure(data_bytes: int, work: Callable[[], None]) -> Raw:
    started, cpu = time.monotonic(), time.process_time()
    work()
    return Raw(data_bytes=data_bytes, seconds=time.monotonic() - started, cpu_s=time.process_time() - cpu)


def _to_sink(data_bytes: int, send: Callable[[socket.socket], None]) -> Raw:
    """Send and receive in two threads; the system calls release Python's lock."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender, receiver:
        buffer = bytearray(8 * MB)

        def both() -> None:
            thread = threading.Thread(target=send, args=(sender,))
            thread.start()
            received = 0
            while received < data_bytes:
                received += receiver.recv_into(buffer)
            thread.join()

        return _measure(data_bytes, both)
