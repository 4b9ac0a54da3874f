"""A leader is stopped, its topic deleted and created anew; it wakes to the requests of meanwhile."""

from __future__ import annotations

import signal
import struct
import time
from pathlib import Path

import pytest

from millrace.client.cluster_client import LATEST
from millrace.wire.messages import ApiKey
from millrace_broker.partitions.standstill import STANDSTILL_S
from tests.brokers import TestBroker, TestCluster
from tests.conftest import Start
from tests.integration.faults.wire import PRODUCE_VERSION, Wire, batch, frame, produce_body
from tests.support import wait_until

CYCLES = 3


@pytest.mark.slow
def test_a_leader_that_stood_still_acknowledges_nothing_that_goes_with_the_old_topic(
    start: Start, zookeeper: str, tmp_path: Path
) -> None:
    cluster = TestCluster(start, "standstill", tmp_path, zookeeper).start_brokers(1, 2)
    with cluster.client() as client:
        client.create_topic("t", 2)
    for _ in range(CYCLES):
        recreate_while_stopped(cluster, cluster.brokers[2])
    assert cluster.brokers[2].process.output.count("reading the topics again") >= CYCLES


def recreate_while_stopped(cluster: TestCluster, stopped: TestBroker) -> None:
    with cluster.client() as client, Wire(stopped.address) as wire:
        led = next(number for number, leader in client.topic("t").partitions.items() if leader == 2)
        wait_until("it is open", lambda: wire.produce("t", batch("before"), partition=led)[0] == 0)
        stopped.process.signal(signal.SIGSTOP)
        standing_still = time.monotonic()
        client.delete_topic("t")
        client.create_topic("t", 2)
        wire.socket.sendall(frame(ApiKey.PRODUCE, PRODUCE_VERSION, produce_body("t", led, batch("new"))))
        # The standstill is what this is about: longer than the broker takes for none.
        time.sleep(max(0.0, standing_still + 1.5 * STANDSTILL_S - time.monotonic()))
        stopped.process.signal(signal.SIGCONT)
        error, offset = struct.unpack_from(">hq", wire.receive(), 4 + 2 + 1 + 4 + 4)
        wait_until("both lead again", lambda: set(client.topic("t").partitions.values()) == {1, 2})
        if not error:  # it knew the new topic already
            ends = client.list_offsets("t", LATEST)
            assert ends[led] > offset, "what was acknowledged is there"
