"""Starts brokers whose loop is turned by hand, on disks that can be slow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.config import LogConfig
from millrace.zookeeper.topic_state import TopicState
from millrace_broker.storage import file_system
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.producer_state import ProducerLimit
from tests.unit.broker.running import NEVER_MS, Disk, FakeCluster, Running, Start, topic


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def run(*topics: TopicState, **log: int) -> Running:
        settings = dataclasses.replace(LogConfig(flush_ms=NEVER_MS), **log)  # type: ignore[arg-type]  # numbers only
        started.append(Running(tmp_path / "logs", FakeCluster(*topics or (topic("t", 1),)), settings))
        return started[-1]

    yield run
    for running in started:
        running.stop()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Every log opened after this flushes through it."""
    slow = Disk()
    opened = PartitionLog

    def open_slow(
        directory: Path,
        config: LogConfig,
        clock: Callable[[], float],
        *,
        producer_limit: ProducerLimit,
        is_replica: bool,
    ) -> PartitionLog:
        return opened(directory, config, clock, slow.fdatasync, producer_limit, is_replica=is_replica)

    monkeypatch.setattr("millrace_broker.storage.log_directory.PartitionLog", open_slow)
    monkeypatch.setattr(file_system, "syncfs", slow.fdatasync)
    yield slow
    slow.free.set()
