"""A broker killed at any moment under traffic: every promise holds afterwards.

Promised is what a delivery report of an acks=all producer or a consumer was told. Each round kills while
producers and consumers go on, sometimes also during the recovery or a clean stop, and compares the whole log
with every promise ever made. `make soak` runs 50 rounds, or ROUNDS if that is more.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.brokers import RunningBroker, start_broker
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traffic import (
    LZ4,
    PLAIN,
    REPEATING,
    NumberedProducer,
    Reader,
    run,
    run_until_stored,
)
from tests.support import ROUNDS, Process

pytestmark = pytest.mark.soak

KILLS = max(50, ROUNDS) if "MILLRACE_ROUNDS" in os.environ else ROUNDS
PARTITIONS = 2
TRAFFIC_S = 0.4
"""Uninterrupted traffic before a kill, at most."""
START_S = 1.0
"""A start and its recovery take about this long: a kill during them comes within it."""


def kill_at_random(broker: RunningBroker, chance: random.Random) -> None:
    """End the broker without warning, at once, while it stops, or once more while it recovers."""
    way = chance.choice(["at once", "at once", "while it stops", "while it recovers"])
    if way == "while it stops":
        broker.process.signal(signal.SIGTERM)
        time.sleep(chance.uniform(0, 0.05))
    broker.process.kill()
    if way == "while it recovers":
        broker.process = broker.start("broker", str(broker.config), "--set", f"listen={broker.bootstrap}")
        time.sleep(chance.uniform(0.2, START_S))
        broker.process.kill()


def test_what_was_acknowledged_or_shown_survives_every_kill_once_in_order_and_in_its_place(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    broker = start_broker(start, zookeeper, tmp_path, f"kill-{tmp_path.name}")
    ledger = Ledger(broker.create_topic("traffic", PARTITIONS, segment_bytes=200_000, flush_ms=20))
    producers = [
        NumberedProducer(broker.bootstrap, ledger, kind, PARTITIONS) for kind in (PLAIN, LZ4, REPEATING)
    ]
    with Reader(broker.bootstrap, ledger, PARTITIONS) as reader:
        for number in range(KILLS):
            where = f"seed {seed}, round {number}"
            run_until_stored(producers, 50)
            run(producers, chance.uniform(0, TRAFFIC_S))
            kill_at_random(broker, chance)
            run(producers, 0.05)  # sent while nobody is there: retried after the restart
            broker.restart()
            with broker.client() as client:
                ledger.check(client, range(PARTITIONS), where)
            assert not reader.problems, f"{where}: {reader.problems[0]}"
        for producer in producers:
            producer.finish()
        with broker.client() as client:
            found = ledger.check(client, range(PARTITIONS), f"seed {seed}, at the end")
        for partition in range(PARTITIONS):
            for producer in producers:
                producer.check(partition, found[partition])
            reader.wait_for(partition, found[partition])
    assert ledger.count > 100 * KILLS
