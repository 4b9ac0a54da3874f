"""Memory of partitions that nobody uses: thousands of them fit into a broker."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Iterator

import pytest

from tests.unit.broker.running import Running, Start, topic

PARTITIONS = 300
MAX_BYTES = 6_000
"""Most bytes of Python objects of one partition; the process takes a little more."""


def _open_more(running: Running, name: str) -> None:
    more = [topic(f"{name}-{number}", 1) for number in range(PARTITIONS)]
    wanted = len(running.broker.partitions) + PARTITIONS
    running.cluster.set(*running.cluster.topics.values(), *more)
    running.until("all are open", lambda: len(running.broker.partitions) == wanted)
    running.turn()
    gc.collect()


@pytest.fixture
def no_log() -> Iterator[None]:
    """Keep lines of the log from pytest, which holds them all."""
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("no_log")
def test_an_idle_partition_takes_few_kilobytes(start: Start) -> None:
    running = start()
    _open_more(running, "first")
    tracemalloc.start()
    try:
        _open_more(running, "second")
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / PARTITIONS < MAX_BYTES, used
