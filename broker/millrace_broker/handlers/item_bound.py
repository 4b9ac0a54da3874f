"""The bound on the items of a request: the number of things in the cluster, times a small factor.

A client that names each topic, partition and group once, and some deleted ones, stays below the bound.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.wire.primitives import MIN_ITEM_LIMIT
from millrace.zookeeper.topic_state import TopicState
from millrace_broker.groups import Groups
from millrace_broker.partitions.broker import Broker

FACTOR = 2


class ItemBound:
    """Counts topics and partitions when a large request comes, once for each snapshot; on the loop."""

    def __init__(self, broker: Broker, groups: Groups) -> None:
        self._broker, self._groups = broker, groups
        self._topics: Mapping[str, TopicState] = {}
        self._places = 0

    def item_limit(self) -> int:
        """Return the largest number of items that all lists of a request may have together."""
        topics = self._broker.cluster.topics
        if topics is not self._topics:
            self._topics = topics
            self._places = len(topics) + sum(len(topic.partitions) for topic in topics.values())
        return max(MIN_ITEM_LIMIT, FACTOR * (self._places + self._groups.size))
