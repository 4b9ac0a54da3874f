"""One run of the replay client as a process of its own, so that its CPU is not the broker's.

    python -m tests.bench.broker.replay_client produce HOST:PORT TOPIC MESSAGES PER_REQUEST
    python -m tests.bench.broker.replay_client consume HOST:PORT TOPIC MESSAGES

`consume` also follows a log that still grows. It looks at batch headers only, into one buffer, and asks for
what comes next as soon as it has seen the last header of an answer, while the rest of that is on its way.
MILLRACE_CLIENT in the environment has it use TLS.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import sys
import time
from collections.abc import Callable

from millrace.client.cluster_client import EARLIEST, ClusterClient
from millrace.records import HEADER_BYTES, BatchHeader
from tests.bench import replay

FETCH_BYTES = 3_850_000
"""Four of our large batches and little more: what is cut short at the end is sent for nothing."""
RECEIVE_BYTES = 256 << 10
IDLE_TIMEOUT_S = 30
Timed = tuple[int, float, float]


def produce(address: str, topic: str, messages: int, per_request: int) -> Timed:
    """(messages sent and acknowledged, seconds, CPU seconds)."""
    run = replay.produce(address, topic, per_request=per_request, requests=math.ceil(messages / per_request))
    return run.messages, run.seconds, run.client_cpu_s


def consume(address: str, topic: str, messages: int) -> Timed:
    """(messages, seconds, CPU seconds) until at least so many were read from the start of partition 0."""
    with ClusterClient(address) as client:
        offset = client.list_offsets(topic, EARLIEST, [0])[0]
    with replay.connect(address) as connection:
        connection.settimeout(IDLE_TIMEOUT_S)
        follower = Follower(connection, topic, offset)
        started = heard = time.monotonic()
        cpu = time.process_time()
        follower.ask()
        while follower.messages < messages:
            if follower.receive():
                heard = time.monotonic()
            elif time.monotonic() - heard > IDLE_TIMEOUT_S:
                raise TimeoutError(f"only {follower.messages} of {messages} messages came")
        return follower.messages, time.monotonic() - started, time.process_time() - cpu


class Follower:
    """Reads partition 0 from an offset on, one fetch after the other."""

    def __init__(self, connection: socket.socket, topic: str, offset: int) -> None:
        self.messages = 0
        self._connection = connection
        self._topic = topic
        self._next = offset
        self._head = memoryview(bytearray(4 + 4 + 4 + 4 + 2 + len(topic) + 4 + (4 + 2 + 8 + 8) + 4 + 4))
        self._buffer = memoryview(bytearray(16 << 20))

    def ask(self) -> None:
        """Send a fetch for what comes next."""
        request = replay.fetch_request(self._topic, {0: self._next}, FETCH_BYTES)
        self._connection.sendall(request)

    def receive(self) -> bool:
        """Read one answer to its end and ask for the next; False when nothing was in it."""
        self._fill(self._head, 0, len(self._head))
        (error,) = struct.unpack_from(">h", self._head, len(self._head) - 26)
        size = int.from_bytes(self._head[-4:], "big", signed=True)
        if error or size > len(self._buffer):
            raise ConnectionError(f"fetch from {self._next}: error {error}, {size} bytes")
        position, have, before = 0, 0, self.messages
        while position + HEADER_BYTES <= size:
            have = self._fill(self._buffer, have, position + HEADER_BYTES, size)
            header = BatchHeader.parse(self._buffer, position)
            assert header is not None
            if position + header.size > size:
                break  # cut short by the limit: it comes again, whole
            self.messages += 0 if header.is_control else header.records_count
            self._next = header.next_offset
            position += header.size
        self.ask()
        self._fill(self._buffer, have, size)
        return self.messages > before

    def _fill(self, buffer: memoryview, have: int, wanted: int, most: int | None = None) -> int:
        """Receive until `wanted` bytes are there, taking what comes up to `most`; the bytes there now."""
        most = wanted if most is None else most
        while have < wanted:
            count = self._connection.recv_into(buffer[have : min(most, have + RECEIVE_BYTES)])
            if count == 0:
                raise ConnectionError("the broker closed the connection")
            have += count
        return have


def main() -> None:
    """Run what the command line names; print a line of JSON."""
    what, address, topic, *numbers = sys.argv[1:]
    work: dict[str, Callable[..., Timed]] = {"produce": produce, "consume": consume}
    done, seconds, cpu = work[what](address, topic, *map(int, numbers))
    print(json.dumps({"messages": done, "seconds": seconds, "cpu_s": cpu}))


if __name__ == "__main__":
    main()
