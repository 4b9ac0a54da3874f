"""Log directories in ZooKeeper: the generation of each directory, and partitions whose only replica is in one
directory.

    /<cluster>/directories/<directory id>   persistent  {"generation": 7}

A node outlives the directory's broker and disk. All calls block on ZooKeeper: for a thread.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from millrace.zookeeper.topic_state import NO_LEADER, PartitionState, TopicState
from millrace_broker.coordination.cluster import Cluster


class DirectoryNode:
    """One directory's node, changed by compare-and-set."""

    def __init__(self, cluster: Cluster, directory: str) -> None:
        self._session = cluster.session
        self._path = f"/{cluster.name}/directories/{directory}"
        self._version: int | None = None

    def read(self) -> int:
        """Return the generation; 0 if ZooKeeper has no node."""
        self._session.call(self._session.client.sync_async, self._path)  # a server may lag
        node = self._session.get(self._path)
        self._version = None if node is None else node[1].version
        return 0 if node is None else int(json.loads(node[0])["generation"])

    def write(self, generation: int) -> bool:
        """Replace the number that was read or written last. Return False when the node has changed since.

        The change may be this write itself, repeated after its answer was lost.
        """
        data, client = json.dumps({"generation": generation}).encode(), self._session.client
        try:
            if self._version is None:
                self._session.call(client.create_async, self._path, data, makepath=True)
                self._version = 0
            else:
                stat = self._session.call(client.set_async, self._path, data, self._version)
                self._version = stat.version
        except (NodeExistsError, BadVersionError, NoNodeError):
            return False
        return True


def withdraw(cluster: Cluster, broker: int) -> None:
    """Remove the leader of each partition whose only replica is on this broker.

    The partition then waits for an operator.
    """
    for topic in list(cluster.topics.values()):
        if any(_leads_alone(state, broker) for state in topic.partitions.values()):
            cluster.change_topic(topic.name, partial(_withdrawn, broker=broker))


def waiting(cluster: Cluster, broker: int) -> list[str]:
    """Return the partitions that have their only replica on this broker and wait for an operator."""
    return [
        f"{topic.name}-{number}"
        for topic in cluster.topics.values()
        for number, state in topic.partitions.items()
        if state.replicas == (broker,) and state.leader == NO_LEADER
    ]


def _leads_alone(state: PartitionState, broker: int) -> bool:
    return not state.is_replicated and state.leader == broker


def _withdrawn(topic: TopicState, broker: int) -> TopicState:
    partitions = {
        number: replace(state, leader=NO_LEADER) if _leads_alone(state, broker) else state
        for number, state in topic.partitions.items()
    }
    return replace(topic, partitions=partitions)
