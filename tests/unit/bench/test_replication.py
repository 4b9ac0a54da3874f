"""The benchmark of replication: a real cell of three small brokers, and what the page says of figures."""

from __future__ import annotations

import os
from pathlib import Path

from tests.bench.replication import bare, cells, report
from tests.bench.replication.cells import FIFTY, LARGE, Latency, Run
from tests.bench.replication.clusters import MillraceCluster
from tests.bench.replication.report import Measured


def test_a_cell_counts_the_cpu_of_leader_and_followers_apart(tmp_path: Path) -> None:
    system = MillraceCluster()
    try:
        system.start(tmp_path)
        assert sorted(system.pids) == [1, 2, 3]
        run = cells.load(system, LARGE, 3, share=0.05)
        assert run.rate > 0
        assert run.leader > 0
        assert run.followers > 0
        tick = 1 / os.sysconf("SC_CLK_TCK") / run.units  # what both are counted in, each by itself
        assert 0 < run.leader_thread <= run.leader + 1.5 * tick
        late = cells.latency(system, 2, share=0.02)
        assert 0 < late.p50 <= late.p99
    finally:
        system.stop()


def test_a_bare_relay_ends_by_itself_and_leaves_nothing(tmp_path: Path) -> None:
    run = bare.relay(3, tmp_path, share=0.05)
    assert run.units == 0.04
    assert min(run.rate, run.leader, run.followers, run.client) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_missed_level_says_who_used_the_cores_or_what_the_disk_takes() -> None:
    slow = Run(rate=150, leader=2, followers=4, client=0.2, seconds=4, units=1, leader_thread=1.6)
    other = Run(rate=100, leader=1, followers=1.5, client=0.2, seconds=8, units=1, leader_thread=0.5)
    quick = Run(rate=2e6, leader=0.2, followers=0.4, client=0.1, seconds=1, units=2, leader_thread=0.2)
    measured = Measured(
        loads={
            (LARGE, 3, report.OURS): [slow],
            (LARGE, 3, report.PEER): [other],
            (LARGE, 3, bare.TITLE): [other],
            (FIFTY, 3, report.OURS): [quick],
        },
        latencies={
            (1, report.OURS): [Latency(p50=2.5, p99=5, brokers=1)],
            (3, report.OURS): [Latency(p50=5, p99=7.2, brokers=1)],
        },
        flushes_ms=[2.0] * 99 + [12.0],
    )
    page = report.text(measured)
    assert "| 3 replicas, large batches | ≥ 300 MB/s | 150 MB/s | **no** |" in page
    assert (
        "50% below its level. Cores used meanwhile: 0.50 by the leader (0.40 by its busiest thread)" in page
    )
    assert "by the client. A bare relay takes 100 MB/s and 2.5 s of CPU for a gigabyte." in page
    assert "messages for a second of the brokers' CPU | ≥ 1 times Apache Kafka's | 0.417" in page
    assert "| 3 replicas, 50 per request | ≥ 1,200,000 msgs/s | 2,000,000 msgs/s | yes |" in page
    assert "| 1 replica, one request at a time, p50: a flush and 1 ms | ≤ 3 ms | 2.5 ms | yes |" in page
    assert "20% above its level. An answer waits for the slowest of 3 flushes" in page
    assert "one alone takes 2.0 ms (p50) and 12.0 ms (p99)" in page
    assert "2 replicas" not in page  # was not measured
