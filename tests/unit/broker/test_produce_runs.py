"""A run of produce requests is served at one go, and nobody can tell: not the client, not the log."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import struct
import tempfile
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.config import LogConfig
from millrace.records import Message, batch_crc, build_batch
from millrace.wire.framing import FrameBuffers, FrameRefused, RequestFramer
from millrace_broker.handlers.produce import PRODUCE
from millrace_broker.server.request import Part, Request
from tests.unit.broker.asking import AskingClient, handlers_of
from tests.unit.broker.running import NEVER_MS, FakeCluster, Running, topic

MAX_FRAME_BYTES = 600
MAX_BATCH_BYTES = 400


class Client(AskingClient):
    """Sends bytes as a connection brings them, to a broker that serves runs or only single requests."""

    def __init__(self, running: Running, *, runs: bool, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        super().__init__()
        self._running = running
        apis = None if runs else [dataclasses.replace(PRODUCE, serve_run=None)]
        self._handlers = handlers_of(running.broker, apis)
        self._framer = RequestFramer(max_frame_bytes, FrameBuffers())
        self.requests: list[Request] = []

    def send(self, data: bytes) -> None:
        """One turn."""
        buffer = bytearray(data)
        self._framer.receive_data(memoryview(buffer))
        try:
            while not self.closed and (request := self._handlers.serve_next(self, self._framer)) is not None:
                self.requests.append(request)
        except FrameRefused:
            self.closed = True
        self._framer.release()
        self._running.turn()
        buffer[:] = bytes(len(buffer))  # what was received is gone at the end of the turn

    def received(self) -> bytes:
        """Every byte sent back, once all requests are answered."""
        self._running.until(
            "all answers", lambda: all(request.parts is not None for request in self.requests)
        )
        parts: list[Part] = [part for request in self.requests for part in request.parts or ()]
        assert all(isinstance(part, bytes) for part in parts)
        return b"".join(part for part in parts if isinstance(part, bytes))


@dataclass(frozen=True)
class Sent:
    """One produce request; `damage` changes one byte of its batch, before the CRC is made or after it."""

    name: str = "t"
    partition: int = 0
    acks: int = 1
    version: int = 7
    client_id: str = "c"
    records: int = 1
    sequence: int = -1
    damage: tuple[int, int, bool] | None = None
    trailing: bytes = b""
    batches: int = 1
    producer: int = 7

    def frame(self, correlation_id: int) -> bytes:
        idempotent = self.sequence >= 0
        batch = bytearray(
            build_batch(
                [Message(1000 + i, None, b"some value %d" % correlation_id) for i in range(self.records)],
                producer_id=self.producer if idempotent else -1,
                producer_epoch=0 if idempotent else -1,
                base_sequence=self.sequence,
            )
        )
        if self.damage is not None:
            place, bits, sealed = self.damage
            batch[place % len(batch)] ^= bits
            if sealed:
                batch[17:21] = batch_crc(batch).to_bytes(4, "big")
        header = struct.pack(">hhi", 0, self.version, correlation_id) + string(self.client_id)
        body = struct.pack(">hhii", -1, self.acks, 1000, 1) + string(self.name)
        body += struct.pack(">i", self.batches)
        body += (struct.pack(">ii", self.partition, len(batch)) + batch) * self.batches + self.trailing
        return struct.pack(">i", len(header) + len(body)) + header + body


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def rarely(usual: object, *others: object) -> st.SearchStrategy[object]:
    """Mostly the same, so that there are runs."""
    return st.sampled_from([usual] * 6 + list(others))


REQUESTS = st.builds(
    Sent,
    name=rarely("t", "u", "missing"),
    partition=rarely(0, 1, 9),
    acks=rarely(1, 0, -1, 5),
    version=rarely(7, 3, 8, 2),
    client_id=rarely("c", "", "client"),
    records=rarely(1, 3, 30),
    sequence=st.sampled_from([-1, -1, -1, 0, 1, 2, 3]),
    damage=st.none() | st.none() | st.tuples(st.integers(0, 80), st.integers(1, 255), st.booleans()),
    trailing=rarely(b"", b"more"),
    batches=rarely(1, 2, 0),
)
STREAMS = st.lists(st.tuples(REQUESTS, st.integers(1, 5)), min_size=1, max_size=12)


def outcome(folder: Path, turns: list[bytes], *, runs: bool = True) -> tuple[object, ...]:
    """All that a client and an operator can see of it, and how many places the requests took."""
    log = LogConfig(flush_ms=NEVER_MS, max_message_bytes=MAX_BATCH_BYTES)
    running = Running(folder, FakeCluster(topic("t", 1, 1), topic("u", 1)), log)
    try:
        client = Client(running, runs=runs)
        for data in turns:
            if not client.closed:
                client.send(data)
        answers = b"" if client.closed else client.received()
        served = sum(request.count for request in client.requests)
    finally:
        running.stop()
    files = {path.parent.name[:3]: path.read_bytes() for path in sorted(folder.glob("*/*.log"))}
    return answers, client.closed, served, client.errors, files, len(client.requests)


@settings(max_examples=25, deadline=None)
@given(STREAMS, st.lists(st.integers(0, 10_000), max_size=3))
def test_what_is_served_at_one_go_is_what_is_served_one_by_one(
    stream: list[tuple[Sent, int]], cuts: list[int]
) -> None:
    requests = [sent for sent, times in stream for _ in range(times)]
    data = b"".join(sent.frame(number) for number, sent in enumerate(requests))
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    turns = [data[start:end] for start, end in itertools.pairwise(edges)]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        together = outcome(Path(one), turns)
        alone = outcome(Path(other), turns, runs=False)
    assert together[:-1] == alone[:-1]


def test_a_hundred_requests_for_one_partition_take_one_place(tmp_path: Path) -> None:
    data = b"".join(Sent().frame(number) for number in range(100))
    found = outcome(tmp_path, [data])
    assert (found[2], found[-1]) == (100, 1)


def test_requests_for_several_partitions_in_turn_take_a_place_each_and_are_served_alike(
    tmp_path: Path,
) -> None:
    data = b"".join(Sent(partition=number % 2).frame(number) for number in range(100))
    found = outcome(tmp_path / "one", [data])
    assert (found[2], found[-1]) == (100, 100)
    assert found[:-1] == outcome(tmp_path / "other", [data], runs=False)[:-1]


def test_requests_of_different_lengths_in_turn_are_recognised_all(tmp_path: Path) -> None:
    kinds = [Sent(), Sent(client_id="client"), *[Sent(), Sent(client_id="client")] * 3]
    counts = [1, 1, *[10] * 6]
    data = b"".join(kind.frame(0) * count for kind, count in zip(kinds, counts, strict=True))
    found = outcome(tmp_path, [data])
    assert (found[2], found[-1]) == (62, len(kinds)), "a place for each run"


@pytest.mark.slow
@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("length", [10, 200, 20_000])
def test_what_is_remembered_of_all_clients_requests_is_little(
    tmp_path: Path, is_missing: bool, length: int
) -> None:
    running = Running(tmp_path, FakeCluster(topic("t", 1)), LogConfig(flush_ms=NEVER_MS))
    try:
        clients = [Client(running, runs=True, max_frame_bytes=50_000) for _ in range(10)]
        tracemalloc.start()
        for number in range(3000):
            name, client = f"{number}".ljust(length, "x"), clients[number % 10]
            client.send(Sent(name=name if is_missing else "t", client_id=name).frame(1))
            client.requests.clear()
        assert sum(client.answers for client in clients) == 3000
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        running.stop()
    assert held < 4_000_000
