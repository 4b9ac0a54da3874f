"""Names of topics by their ids, from the cluster's snapshot (KIP-516)."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.zookeeper.topic_state import TopicState
from millrace_broker.coordination.cluster import Cluster


class TopicIds:
    """Names of topics by id, rebuilt at the first look-up in each new snapshot. For one thread."""

    def __init__(self) -> None:
        self._topics: Mapping[str, TopicState] | None = None
        self._names: Mapping[bytes, str] = {}

    def name(self, cluster: Cluster, topic_id: bytes) -> str | None:
        topics = cluster.topics
        if topics is not self._topics:
            self._names = {topic.topic_id.bytes: topic.name for topic in topics.values()}
            self._topics = topics
        return self._names.get(topic_id)
