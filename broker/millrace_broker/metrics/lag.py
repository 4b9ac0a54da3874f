"""Committed offsets of each consumer group, for the partitions led here, from ZooKeeper and slightly stale.

A thread of its own reads them, and only while metrics are scraped, so that no scrape waits for ZooKeeper.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from millrace.errors import MillraceError
from millrace.records.topic_partition import TopicPartition
from millrace_broker.coordination.groups import ConsumerRegistry, committed_positions
from millrace_broker.partitions.broker import Broker

logger = logging.getLogger("millrace.metrics.lag")

REFRESH_S = 10.0
MAX_SERIES = 10_000
"""Most pairs of group and partition that are kept: clients may create any number of groups."""


class GroupOffsets:
    """Committed offsets as of the last reading. A request for them causes the next reading."""

    def __init__(self, registry: ConsumerRegistry, broker: Broker) -> None:
        self._registry, self._broker = registry, broker
        self._committed: Mapping[tuple[str, TopicPartition], int] = {}
        self._wanted, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="group offsets", daemon=True)

    def start(self) -> None:
        """Start the thread, which reads on request, at most every 10 s."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading. A reading in progress ends with the session."""
        self._stopped.set()
        self._wanted.set()

    def committed(self) -> Mapping[tuple[str, TopicPartition], int]:
        """Return the last read offset of each (group, partition led here), without waiting."""
        self._wanted.set()
        return self._committed

    def refresh(self) -> None:
        partitions = self._broker.partitions
        ids = {topic: led.topic_id for (topic, _), led in partitions.items()}
        offsets: dict[tuple[str, TopicPartition], int] = {}
        for group in sorted(self._registry.groups()):
            committed = self._registry.offsets(group)
            for partition, offset in committed_positions(committed, ids).items():
                if partition in partitions and len(offsets) < MAX_SERIES:
                    offsets[group, partition] = offset
        self._committed = offsets

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wanted.wait()
            self._wanted.clear()
            if self._stopped.is_set():
                return
            try:
                self.refresh()
            except MillraceError as error:
                logger.warning("cannot read the groups' offsets for metrics: %s", error)
            except Exception:
                logger.exception("reading the groups' offsets failed")
            self._stopped.wait(REFRESH_S)
