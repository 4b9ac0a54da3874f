"""Clients that are slow, many or mad: the broker stays up and small, and serves the others meanwhile.

One broker for all of it. An honest pair produces and fetches through every test; what it waits at most is
bounded widely, because the machine may be busy, and far below what a broker that is held up would need.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millrace.client.cluster_client import LATEST
from millrace.errors import ErrorCode
from millrace.records import split_batches
from millrace.wire.messages import ApiKey
from tests.compat.brokers import RunningBroker, start_broker
from tests.integration.faults.honest import HonestPair, forget_peak, memory
from tests.integration.faults.ledger import read_all
from tests.integration.faults.requests import RECORDS, real_requests, spoiled
from tests.integration.faults.wire import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    Wire,
    batch,
    fetch_body,
    frame,
    produce_body,
)
from tests.support import Process, run_millrace, wait_until

pytestmark = pytest.mark.soak

SOAK = "MILLRACE_ROUNDS" in os.environ
CONNECTIONS = 2000
FRAMES_PER_EXAMPLE = 50
FRAMES = 100_000 if SOAK else 1_000
SLOW_S = 30 if SOAK else 2
MEMORY_BYTES = 1 << 30
WORST_S = 5.0
"""Worst delay of the honest pair, on a machine that does other things, too."""


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 3 * CONNECTIONS
    assert hard >= needed, f"this test opens {CONNECTIONS} connections: `ulimit -Hn` must be {needed} or more"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))  # the broker inherits it
    return start_broker(
        start_for_module, zookeeper, tmp_path_factory.mktemp("clients"), f"clients-{uuid4().hex[:6]}"
    )


@pytest.fixture
def honest(broker: RunningBroker) -> Iterator[HonestPair]:
    """The honest pair; afterwards the broker must be small, and its log without a traceback."""
    forget_peak(broker.process.pid)
    with HonestPair(broker.bootstrap, f"honest-{uuid4().hex[:6]}") as pair:
        yield pair
        enough = pair.sent + 5
        wait_until("the honest pair goes on", lambda: pair.sent > enough or pair.problem)
    assert broker.process.running
    assert pair.worst_s < WORST_S, f"an honest message took {pair.worst_s:.1f} s"
    assert memory(broker.process.pid)[1] < MEMORY_BYTES
    assert "Traceback" not in broker.process.output


# Slow ones


def slow_readers(bootstrap: str) -> list[socket.socket]:
    """Consumers that have asked for 20 MB ten times over, and have room for a few bytes of it."""
    host, _, port = bootstrap.partition(":")
    request = frame(ApiKey.FETCH, FETCH_VERSION, fetch_body("large", {0: 0}, max_bytes=64 << 20))
    clients = []
    for _ in range(5):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(request * 10)
        clients.append(client)
    return clients


def test_a_byte_per_second_is_served_both_ways_and_holds_up_nobody(
    broker: RunningBroker, honest: HonestPair
) -> None:
    broker.create_topic("large")
    broker.create_topic("drip")
    with Wire(broker.bootstrap) as wire:
        for _ in range(20):
            assert wire.produce("large", batch("." * 1_000_000), acks=1)[0] == 0
        assert wire.produce("large", batch("end"))[0] == 0
    request = frame(ApiKey.PRODUCE, PRODUCE_VERSION, produce_body("drip", 0, batch("drop")))
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(client) for client in slow_readers(broker.bootstrap)]
        writers = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(5)]
        before = honest.sent
        for number in range(SLOW_S):
            for reader, writer in zip(readers, writers, strict=True):
                assert len(reader.recv(1)) == 1
                writer.socket.sendall(request[number : number + 1])
            time.sleep(1)
        wait_until("the honest pair goes on", lambda: honest.sent > before + 5)
        for writer in writers:
            writer.socket.sendall(request[SLOW_S:])
            writer.receive()
    with broker.client() as client:
        end = client.list_offsets("drip", LATEST)[0]
        assert list(read_all(client, "drip", 0, end).values()) == [b"drop 0"] * 5


# Many


@pytest.mark.parametrize("doing", ["nothing", "an unfinished request", "a parked fetch"])
def test_two_thousand_connections(broker: RunningBroker, honest: HonestPair, doing: str) -> None:
    topic = broker.create_topic(f"crowd-{uuid4().hex[:6]}")
    host, _, port = broker.bootstrap.partition(":")
    parked = frame(ApiKey.FETCH, FETCH_VERSION, fetch_body(topic, {0: 0}, max_wait_ms=120_000))
    unfinished = frame(ApiKey.PRODUCE, PRODUCE_VERSION, produce_body(topic, 0, batch("." * 40_000)))
    first = {"nothing": b"", "an unfinished request": unfinished[:-1], "a parked fetch": parked}[doing]
    clients = []
    try:
        for _ in range(CONNECTIONS):
            client = socket.create_connection((host, int(port)), timeout=30)
            client.sendall(first)
            clients.append(client)
        before = honest.sent
        wait_until("the honest pair goes on", lambda: honest.sent > before + 10)
        now, _ = memory(broker.process.pid)
        if doing == "nothing":
            for client in clients:
                client.sendall(frame(ApiKey.API_VERSIONS, 0, b""))
        elif doing == "an unfinished request":
            for client in clients:
                client.sendall(unfinished[-1:])
        else:
            with Wire(broker.bootstrap) as wire:
                assert wire.produce(topic, batch("for all"))[0] == 0
        for client in clients:
            assert len(client.recv(4)) == 4, f"{doing}: every one of them is served"
    finally:
        for client in clients:
            client.close()
    assert now < MEMORY_BYTES // 2


@pytest.mark.long
def test_unfinished_requests_that_would_fill_the_memory_are_not_collected(
    broker: RunningBroker, honest: HonestPair
) -> None:
    host, _, port = broker.bootstrap.partition(":")
    clients = []
    piece = bytes(1 << 20)
    try:
        for _ in range(200):  # 200 requests of 60 MB each, 8 MB sent of each: 1.6 GB if all were kept
            client = socket.create_connection((host, int(port)), timeout=30)
            clients.append(client)
            with contextlib.suppress(OSError):  # the broker may close it at any moment
                client.sendall(struct.pack(">ihhih", 60 << 20, 0, 7, 1, -1))
                for _ in range(8):
                    client.sendall(piece)
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        (ApiKey.METADATA, 8),
        (ApiKey.PRODUCE, 7),
        pytest.param(ApiKey.FETCH, 11, marks=pytest.mark.long),
        pytest.param(ApiKey.CREATE_TOPICS, 4, marks=pytest.mark.long),
        pytest.param(ApiKey.JOIN_GROUP, 5, marks=pytest.mark.long),
    ],
)
def test_lists_without_end_are_refused_before_they_are_objects(
    broker: RunningBroker, honest: HonestPair, api_key: ApiKey, version: int
) -> None:
    zeros = bytes(40 << 20)  # as many empty entries as fit into a request of 40 MB
    head = {
        ApiKey.FETCH: struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, -1),
        ApiKey.PRODUCE: struct.pack(">hhi", -1, 1, 1000),
        ApiKey.JOIN_GROUP: struct.pack(">h", 1)
        + b"g"
        + struct.pack(">ii", 10_000, 10_000)
        + b"\0\0\xff\xff\0\0",
    }.get(api_key, b"")
    request = frame(api_key, version, head + struct.pack(">i", 6 << 20) + zeros)
    with Wire(broker.bootstrap, timeout_s=60) as wire, contextlib.suppress(ConnectionError):
        wire.socket.sendall(request)
        wire.receive()  # closed is as good as answered


# Mad ones


def drain(client: socket.socket) -> None:
    """Read what comes, until nothing does for a moment: many requests have no answer, or a late one."""
    client.settimeout(0.02)
    with contextlib.suppress(OSError):
        while client.recv(1 << 16):
            pass


def test_malformed_requests_of_every_api_change_nothing_and_hold_up_nobody(
    broker: RunningBroker, honest: HonestPair
) -> None:
    broker.create_topic("victim")
    requests = real_requests(broker.bootstrap, "victim")
    host, _, port = broker.bootstrap.partition(":")
    sent = 0

    @settings(
        max_examples=FRAMES // FRAMES_PER_EXAMPLE,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.lists(
            st.one_of(spoiled(requests), st.binary(min_size=8, max_size=200)),
            min_size=FRAMES_PER_EXAMPLE,
            max_size=FRAMES_PER_EXAMPLE,
        ),
        st.sampled_from([0, 0, 0, 0, -1, 7, 1 << 30]),
    )
    def send(frames: list[bytes], wrong_size: int) -> None:
        nonlocal sent
        sent += len(frames)
        with socket.create_connection((host, int(port)), timeout=30) as client, contextlib.suppress(OSError):
            for content in frames:
                client.sendall(struct.pack(">i", len(content)) + content)
            if wrong_size:
                client.sendall(struct.pack(">i", wrong_size) + b"\0" * 50)
            drain(client)

    send()
    assert sent >= FRAMES
    # Whatever was stored is a whole batch as its producer made it.
    log_dir = broker.config.with_suffix("")
    verified = run_millrace("log", "verify", str(log_dir))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    stored = b"".join(path.read_bytes() for path in log_dir.glob("victim-*/*.log"))
    for header, each in split_batches(stored):
        assert bytes(each[17:]) == RECORDS[17:], f"a spoiled batch at {header.base_offset}"
    with Wire(broker.bootstrap) as wire:
        assert wire.produce("victim", RECORDS)[0] == ErrorCode.NONE


def test_a_topic_name_is_never_a_path(broker: RunningBroker, honest: HonestPair) -> None:
    broker.create_topic("stays")
    with Wire(broker.bootstrap) as wire, broker.client() as client:
        before = client.topics()
        for name in (b"", b".", b"..", b"../topics", b"stays/x", b"/", b"sta\0ys", b"stays/../stays"):
            asked = struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", 5000)
            answer = wire.ask(ApiKey.DELETE_TOPICS, 1, asked)
            assert answer[-2:] == struct.pack(">h", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), name
        assert client.topics() == before


# Many partitions


@pytest.mark.long
def test_a_thousand_partitions_are_made_filled_read_and_found_again_after_a_restart(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    count = 1000
    broker = start_broker(start, zookeeper, tmp_path, f"many-{uuid4().hex[:6]}")
    begun = time.monotonic()
    with broker.client(timeout_s=90) as client:
        client.create_topic("many", count)
    created_s = time.monotonic() - begun
    with Wire(broker.bootstrap) as wire:
        for partition in range(count):
            assert wire.produce("many", batch(f"in {partition}"), partition=partition, acks=1)[0] == 0
        # All at once: every flush of all these logs goes through one thread.
        with broker.client() as client:
            wait_until(
                "all of it is visible",
                lambda: set(client.list_offsets("many", LATEST).values()) == {1},
                timeout_s=60,
            )
    for number in range(2):
        with broker.client() as client:
            fetched = client.fetch("many", dict.fromkeys(range(count), 0), max_bytes=64 << 20, max_wait_ms=0)
            found = {
                partition: [
                    bytes(part)[-len(b"in %d 0" % partition) - 1 : -1]
                    for _, part in split_batches(one.records)
                ]
                for partition, one in fetched.items()
            }
            assert found == {partition: [b"in %d 0" % partition] for partition in range(count)}
        assert memory(broker.process.pid)[0] < MEMORY_BYTES // 4
        if number == 0:
            broker.process.kill()
            begun = time.monotonic()
            broker.restart()
            restarted_s = time.monotonic() - begun
    print(f"{count} partitions: created in {created_s:.1f} s, recovered in {restarted_s:.1f} s")
    assert broker.process.stop() == 0
