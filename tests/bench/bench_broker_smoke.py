"""How much CPU one broker spends on a million messages: replayed produce requests and fetches.

The client sends requests that were encoded beforehand and looks only at lengths, so that the broker is what
is measured. Real clients need 0.3 to 1.5 s of CPU per million themselves.

    python -m tests.bench.bench_broker_smoke [--messages 1000000]
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from millrace.records import BatchHeader, Message, build_batch
from millrace.wire.client import LATEST, ClusterClient
from tests.support import Process

VALUE_BYTES = 200
_TICKS = os.sysconf("SC_CLK_TCK")


def produce_request(topic: str, partition: int, per_request: int, acks: int) -> bytes:
    """One whole Produce v7 frame."""
    messages = [Message(1_700_000_000_000 + i, None, os.urandom(VALUE_BYTES)) for i in range(per_request)]
    records = build_batch(messages)
    name = topic.encode()
    body = struct.pack(">hhih", 0, 7, 1, 5) + b"bench"
    body += struct.pack(">hhii", -1, acks, 30_000, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iii", 1, partition, len(records)) + records
    return struct.pack(">i", len(body)) + body


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """One whole Fetch v4 frame."""
    name = topic.encode()
    body = struct.pack(">hhih", 1, 4, 1, 5) + b"bench"
    body += struct.pack(">iiiibi", -1, 100, 1, max_bytes, 0, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iiqi", 1, partition, offset, max_bytes)
    return struct.pack(">i", len(body)) + body


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def frames(connection: socket.socket) -> Iterator[int]:
    """The size of each response, its content read and forgotten."""
    buffer = memoryview(bytearray(4 << 20))
    have = 0
    while True:
        count = connection.recv_into(buffer[have:])
        if count == 0:
            return
        have += count
        start = 0
        while have - start >= 4:
            (size,) = struct.unpack_from(">i", buffer, start)
            if have - start < 4 + size:
                break
            start += 4 + size
            yield size
        buffer[: have - start] = bytes(buffer[start:have])
        have -= start


def replay(address: tuple[str, int], request: bytes, count: int) -> float:
    """Send a request `count` times without waiting in between; seconds until the last answer."""
    with socket.create_connection(address) as connection:
        block = max(1, (1 << 20) // len(request))

        def send() -> None:
            chunk = request * block
            for _ in range(count // block):
                connection.sendall(chunk)
            connection.sendall(request * (count % block))

        started = time.monotonic()
        sender = threading.Thread(target=send)
        sender.start()
        answers = frames(connection)
        for _ in range(count):
            next(answers)
        sender.join()
        return time.monotonic() - started


def fetch_all(address: tuple[str, int], topic: str, client: ClusterClient) -> float:
    """Read partition 0 to its end in 1 MiB fetches; seconds."""
    end = client.list_offsets(topic, LATEST, [0])[0]
    offset, started = 0, time.monotonic()
    while offset < end:
        records = client.fetch(topic, {0: offset}, max_bytes=1 << 20, max_wait_ms=100)[0].records
        position = 0
        while (header := BatchHeader.parse(records, position)) is not None:
            if position + header.size > len(records):
                break
            offset = header.next_offset
            position += header.size
    return time.monotonic() - started


def main() -> None:
    """Start a broker, replay, print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        zookeeper = Process(["zookeeper", "--port", "0", "--data-dir", f"{folder}/zookeeper"])
        config = Path(folder) / "broker.toml"
        try:
            config.write_text(
                f'broker_id = 1\ncluster = "bench"\nlisten = "127.0.0.1:0"\n'
                f'zookeeper = "{zookeeper.ready()}"\nlog_dir = "{folder}/logs"\n'
            )
            broker = Process(["broker", str(config)])
            try:
                host, _, port = broker.ready().partition(":")
                run((host, int(port)), broker.pid, options.messages)
            finally:
                broker.kill()
        finally:
            zookeeper.kill()


def run(address: tuple[str, int], pid: int, messages: int) -> None:
    """Every case once, a warm-up before."""
    client = ClusterClient(f"{address[0]}:{address[1]}")
    replay_case(client, address, pid, "warmup", 4500, 500_000, 1)
    print(f"{'case':34} {'msgs/s':>12} {'MB/s':>8} {'broker CPU s/M':>15}")
    for per_request, acks in ((4500, 1), (50, 1), (1, 1), (1, -1)):
        count = messages if per_request > 1 else messages // 5
        topic = f"bench-{per_request}-{acks % 3}"
        wall, cpu, done = replay_case(client, address, pid, topic, per_request, count, acks)
        report(f"produce {per_request}/request acks={'all' if acks < 0 else acks}", done, wall, cpu)
    for per_request in (4500, 50, 1):
        before = cpu_seconds(pid)
        wall = fetch_all(address, f"bench-{per_request}-1", client)
        count = messages if per_request > 1 else messages // 5
        report(f"fetch what came {per_request}/request", count, wall, cpu_seconds(pid) - before)


def report(label: str, count: int, wall: float, cpu: float) -> None:
    """One line of the table."""
    rate, megabytes = count / wall, count * VALUE_BYTES / wall / 1e6
    print(f"{label:34} {rate:12,.0f} {megabytes:8.0f} {cpu / count * 1e6:15.3f}")


def replay_case(
    client: ClusterClient,
    address: tuple[str, int],
    pid: int,
    topic: str,
    per_request: int,
    messages: int,
    acks: int,
) -> tuple[float, float, int]:
    """(seconds, broker CPU seconds, messages) of one case."""
    client.create_topic(topic, 1)
    count = max(1, messages // per_request)
    request = produce_request(topic, 0, per_request, acks)
    before = cpu_seconds(pid)
    wall = replay(address, request, count)
    cpu = cpu_seconds(pid) - before
    time.sleep(0.5)  # the last flush
    return wall, cpu, count * per_request


if __name__ == "__main__":
    main()
