"""State of the aggregate cluster for the console: brokers, partitions and consumer groups.

Read in a thread and kept for seconds, so that no page waits for a broker.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.client.group_client import GroupClient
from millrace.errors import MillraceError
from millrace.wire.admin_messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from millrace.wire.messages import ApiKey

MOST_GROUPS = 100
NEARLY_FULL = 0.9
"""Share of a disk in use from which on the page warns of it."""
_LOOK_AGAIN_S = 5.0
_BROKERS_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A consumer group of the aggregate cluster and its lag in a topic."""

    group: str
    state: str
    members: int
    topic: str
    lag: int | None
    """Offsets over all partitions: bytes on Millrace, messages on Apache Kafka; None if unknown."""


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """A partition of the aggregate cluster, its leader and its replicas."""

    name: str
    leader: int
    """Broker id; -1 without a leader."""
    replicas: Sequence[int]
    in_sync: Sequence[int]

    @property
    def lacks(self) -> bool:
        """True without a leader, or with replicas that are not in sync."""
        return self.leader < 0 or len(self.in_sync) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class DiskSeen:
    """The volumes with a broker's log directories, in bytes."""

    total: int
    usable: int
    logs: int
    """Bytes of the partitions on the broker."""

    @property
    def used(self) -> float:
        """Return the share of the volumes that is not usable."""
        return 1 - self.usable / self.total if self.total else 0.0

    @property
    def is_nearly_full(self) -> bool:
        return self.used >= NEARLY_FULL


@dataclass(frozen=True, slots=True)
class BrokerSeen:
    """A broker of the aggregate cluster, or of its replicas, and its share of the partitions."""

    broker: int
    address: str
    """Empty for a broker that is away."""
    leads: int
    replicas: int
    out_of_sync: int
    """Number of its replicas that are not in sync."""
    disk: DiskSeen | None = None
    """None for a broker that is away or does not report its disk."""


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The aggregate cluster's groups, brokers and partitions."""

    groups: Sequence[GroupLag] = ()
    partitions: Sequence[PartitionSeen] = ()
    """By topic and number."""
    brokers: Sequence[BrokerSeen] = ()
    is_known: bool = False
    """False if the cluster was not read; `trouble` has the reason."""
    trouble: str = ""
    """Reason for which the cluster is not shown in full."""

    @property
    def lacking(self) -> Sequence[PartitionSeen]:
        return [partition for partition in self.partitions if partition.lacks]


class ClusterLook:
    """The newest state of the aggregate cluster."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._lock = threading.Lock()
        self._due = 0.0
        self._seen = ClusterSeen(trouble="the brokers are being asked: look again in a moment")

    def seen(self) -> ClusterSeen:
        """Return the last state; when it is old, start a thread that reads it again."""
        with self._lock:
            if time.monotonic() >= self._due:
                self._due = float("inf")  # until this look is over
                threading.Thread(target=self._look, name="console-cluster", daemon=True).start()
            return self._seen

    def _look(self) -> None:
        try:
            seen = self._ask()
        except (MillraceError, OSError) as error:
            seen = ClusterSeen(trouble=str(error))
        finally:
            with self._lock:
                self._due = time.monotonic() + _LOOK_AGAIN_S
        self._seen = seen

    def _ask(self) -> ClusterSeen:
        with ClusterClient(self._bootstrap, timeout_s=_BROKERS_TIMEOUT_S) as cluster:
            partitions = [
                PartitionSeen(f"{name}-{number}", topic.partitions[number], copies.replicas, copies.isr)
                for name, topic in sorted(cluster.topics().items())
                for number, copies in topic.copies.items()
            ]
            brokers = [
                replace(broker, disk=_disk(cluster, broker.broker)) if broker.address else broker
                for broker in _brokers(cluster.addresses, partitions)
            ]
            client = GroupClient(cluster)
            groups = sorted(client.groups().items())
            lags = []
            ends: dict[str, Mapping[int, int]] = {}
            for name, group in groups[:MOST_GROUPS]:
                topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
                for (topic, partition), offset in client.offsets(name).items():
                    topics[topic].append((partition, offset))
                for topic, committed in topics.items():
                    if topic not in ends:
                        ends[topic] = _ends(cluster, topic)
                    behind = [max(ends[topic].get(number, at) - at, 0) for number, at in committed]
                    lag = sum(behind) if ends[topic] else None
                    lags.append(GroupLag(name, group.state, len(group.members), topic, lag))
                if not topics:
                    lags.append(GroupLag(name, group.state, len(group.members), "", None))
        more = len(groups) - MOST_GROUPS
        trouble = f"{more} more groups: see `millrace groups list`" if more > 0 else ""
        return ClusterSeen(lags, partitions, brokers, is_known=True, trouble=trouble)


def _brokers(
    addresses: Mapping[int, tuple[str, int]], partitions: Sequence[PartitionSeen]
) -> list[BrokerSeen]:
    """Return the brokers of the cluster, and those that have replicas and are away."""
    ids = addresses.keys() | {broker for partition in partitions for broker in partition.replicas}
    return [
        BrokerSeen(
            broker,
            "{}:{}".format(*addresses[broker]) if broker in addresses else "",
            sum(partition.leader == broker for partition in partitions),
            sum(broker in partition.replicas for partition in partitions),
            sum(broker in partition.replicas and broker not in partition.in_sync for partition in partitions),
        )
        for broker in sorted(ids)
    ]


def _disk(cluster: ClusterClient, broker: int) -> DiskSeen | None:
    """Return a broker's disk, or None if its release or the auditor's rights do not allow the question."""
    request = DescribeLogDirsRequest(topics=None)
    try:
        answer = cluster.call(broker, ApiKey.DESCRIBE_LOG_DIRS, 4, request, DescribeLogDirsResponse)
    except (MillraceError, OSError):
        return None
    if answer.error_code or any(each.error_code or each.total_bytes < 0 for each in answer.results):
        return None
    return DiskSeen(
        sum(each.total_bytes for each in answer.results),
        sum(each.usable_bytes for each in answer.results),
        sum(
            part.partition_size
            for each in answer.results
            for topic in each.topics
            for part in topic.partitions
        ),
    )


def _ends(cluster: ClusterClient, topic: str) -> Mapping[int, int]:
    try:
        served = [number for number, leader in cluster.topic(topic).partitions.items() if leader >= 0]
        return cluster.list_offsets(topic, LATEST, served)
    except MillraceError:  # deleted since, or its brokers are away
        return {}
