"""The entry of a topic in ZooKeeper, as values and as bytes.

Pure: values in, values out. The brokers' `Cluster` reads, writes and watches it.

    /<cluster>/topics/<topic> :=
    {"version": 1, "topic_id": "<32 hex digits>", "settings": {"<key>": "<text>", ...},
     "partitions": {"<number>": {"leader": 1, "replicas": [1], "isr": [1], "leader_epoch": 0,
                                 "origin": null | {"cluster": "dc1", "topic": "PageView",
                                                   "topic_id": "<32 hex digits>", "partition": 0}}, ...}}

Version 2 is written for a topic with a partition of several replicas. Brokers that know version 1 only can
read all other topics:

    {"version": 2, "topic_id": ..., "settings": ...,
     "partitions": {"<number>": {"leader": 1 | -1, "replicas": [1, 2, 3],
                                 "isr": {"<broker>": "<id of its log directory>", ...},
                                 "eligible": {"<broker>": "<id of its log directory>", ...},
                                 "adding": [3], "removing": [], "leader_epoch": 7, "origin": ...}, ...}}

A partition has "reports" only after ZooKeeper came back from an older copy. They describe each replica's log:
{"<broker>": ["<id of its log directory>", <last epoch>, <end>], ...}.

Partition numbers start at 0 and are never reused, so a mirrored partition keeps its number for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from millrace.errors import InvalidPartitions, MillraceError
from millrace.records.mirror_position import Origin

Replicas: TypeAlias = tuple[int, ...]
"""The brokers of a partition's replicas; the first is the preferred leader."""
_NONE: Mapping[int, Any] = MappingProxyType({})
"""Shared by all partitions: an empty dictionary of its own would take memory in each."""
FORMAT_VERSION, REPLICATED_VERSION = 1, 2
NO_LEADER = -1
REPLICATING = 2
"""Protocol number of brokers that copy each other's partitions."""
MIN_INSYNC_REPLICAS = "min.insync.replicas"
MAX_ENTRY_BYTES = 1_000_000
"""Largest entry: ZooKeeper's requests are limited to 1 MiB. A partition needs about 90 bytes, a mirrored one
220, and with three replicas 90 more."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A live broker: its addresses for clients, and the facts that decide which replicas it may have."""

    host: str
    port: int
    listeners: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """(host, port) by the listener's name; empty for a broker of a version without listener names."""
    rack: str = ""
    """Name shared by brokers that fail together, such as a power supply; empty for that of their host."""
    directory: str = ""
    """The id of its log directory."""
    protocol: int = 1
    """Number of the protocol between brokers. From REPLICATING on, the broker copies partitions."""

    def at(self, listener: str) -> tuple[str, int] | None:
        """Return the broker's address for clients of the named listener.

        None when it has no such listener.
        """
        return self.listeners.get(listener) if self.listeners else (self.host, self.port)


class Report(NamedTuple):
    """Contents of one replica's log on its disk: end and epoch of the last batch."""

    directory: str
    last_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The leader and the replicas of one partition; `origin` is set when it mirrors another partition."""

    leader: int
    """Id of the leading broker; NO_LEADER while there is none."""
    replicas: tuple[int, ...]
    isr: Mapping[int, str]
    """The in-sync replicas: broker -> id of the log directory that holds its copy, "" if none is recorded.
    A broker that comes back with an empty disk keeps its number, but has another directory."""
    leader_epoch: int
    origin: Origin | None = None
    eligible: Mapping[int, str] = field(default_factory=lambda: _NONE)
    """Brokers that left the in-sync replicas when these became too few -> id of the log directory. They still
    have all committed messages, as nothing is committed until then."""

    adding: Replicas = ()
    """Replicas that a reassignment adds; the leader ends the reassignment when all of them are in sync."""
    removing: Replicas = ()
    """Replicas that are removed when the reassignment ends."""
    reports: Mapping[int, Report] = field(default_factory=lambda: _NONE)
    """Broker -> report of its log. Empty unless ZooKeeper came back from an older copy. Then `isr` may name
    the wrong replicas, and the partition waits until all replicas have reported."""

    @property
    def is_replicated(self) -> bool:
        return len(self.replicas) > 1

    @property
    def target(self) -> Replicas:
        """The replicas that remain after the reassignment; all of them when there is none."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def factor(self) -> int:
        """The replication factor; during a reassignment the smaller of the old and the new one."""
        return min(len(self.target), len(self.replicas) - len(self.adding))


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic. `settings` are Kafka's topic settings, as text."""

    name: str
    topic_id: UUID
    settings: Mapping[str, str]
    partitions: Mapping[int, PartitionState]
    version: int = field(default=-1, compare=False)
    """Version of the ZooKeeper node that was read; states with equal content are equal."""
    czxid: int = field(default=-1, compare=False)
    """Transaction that created the ZooKeeper node; a recreated topic of the same name has another."""

    def minimum(self, number: int) -> int:
        """Return the partition's `min.insync.replicas`: the number of in-sync replicas needed to commit."""
        return self.minimum_of(self.partitions[number].factor)

    def minimum_of(self, replicas: int) -> int:
        """Return `min.insync.replicas` of a partition with the given number of replicas."""
        own = self.settings.get(MIN_INSYNC_REPLICAS)
        return default_minimum(replicas) if own is None else int(own)

    @property
    def fewest_replicas(self) -> int:
        """The smallest replication factor of its partitions; 1 while it has no partitions."""
        return min((state.factor for state in self.partitions.values()), default=1)

    def targets(self) -> dict[Origin, int]:
        """Return the number of the mirroring partition of each origin."""
        return {state.origin: number for number, state in self.partitions.items() if state.origin is not None}

    def target_of(self, origin: Origin) -> int | None:
        """Return the partition that mirrors `origin` (the topic id counts too), or None."""
        numbers = (number for number, state in self.partitions.items() if state.origin == origin)
        return next(numbers, None)

    def former_origin(self, origin: Origin) -> Origin | None:
        """Return the newest mirrored origin that differs from `origin` in the topic id only.

        Return None if there is none.
        """
        same = (origin.cluster, origin.topic, origin.partition)
        for _, partition in sorted(self.partitions.items(), reverse=True):
            other = partition.origin
            if other in (None, origin):
                continue
            if (other.cluster, other.topic, other.partition) == same:
                return other
        return None


def default_minimum(replicas: int) -> int:
    """Return the default of `min.insync.replicas` for a number of replicas."""
    return 1 if replicas <= 2 else 2


def encode_topic(topic: TopicState) -> bytes:
    """Return the topic as the JSON shown above.

    Raise InvalidPartitions when it is too large for ZooKeeper.
    """
    is_replicated = any(state.is_replicated for state in topic.partitions.values())
    fields = _replicated_fields if is_replicated else _fields
    partitions = {number: fields(state) for number, state in sorted(topic.partitions.items())}
    value = {
        "version": REPLICATED_VERSION if is_replicated else FORMAT_VERSION,
        "topic_id": topic.topic_id,
        "settings": dict(topic.settings),
        "partitions": partitions,
    }
    data = json.dumps(value, default=lambda topic_id: topic_id.hex).encode()
    if len(data) > MAX_ENTRY_BYTES:
        raise InvalidPartitions(
            f"topic {topic.name} with {len(partitions)} partitions does not fit into a ZooKeeper node"
        )
    return data


def _fields(state: PartitionState) -> dict[str, Any]:
    return {
        "leader": state.leader,
        "replicas": state.replicas,
        "isr": list(state.isr),
        "leader_epoch": state.leader_epoch,
        "origin": None if state.origin is None else asdict(state.origin),
    }


def _replicated_fields(state: PartitionState) -> dict[str, Any]:
    fields = {
        **_fields(state),
        "isr": dict(state.isr),
        "eligible": dict(state.eligible),
        "adding": state.adding,
        "removing": state.removing,
    }
    return {**fields, "reports": dict(state.reports)} if state.reports else fields


def decode_topic(name: str, data: bytes, version: int = -1, czxid: int = -1) -> TopicState:
    """Read a topic from the JSON shown above. Raise MillraceError when it is malformed."""
    try:
        value = json.loads(data)
        if value["version"] not in (FORMAT_VERSION, REPLICATED_VERSION):
            raise ValueError(f"version {value['version']}, this broker knows {REPLICATED_VERSION}")
        partitions = {int(number): _partition(state) for number, state in value["partitions"].items()}
        return TopicState(name, UUID(value["topic_id"]), value["settings"], partitions, version, czxid)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MillraceError(f"ZooKeeper's entry for topic {name} is unreadable: {error}") from error


def _partition(value: Mapping[str, Any]) -> PartitionState:
    origin = value["origin"]
    if origin is not None:
        topic_id = UUID(origin["topic_id"])
        origin = Origin(origin["cluster"], origin["topic"], topic_id, int(origin["partition"]))
    isr = value["isr"]
    if not value["replicas"]:
        raise ValueError("a partition without replicas")
    if isinstance(isr, list):  # version 1 has one replica, no directories and no eligible replicas
        replicas, directories = _placed(tuple(value["replicas"]), tuple(isr))
        return PartitionState(value["leader"], replicas, directories, value["leader_epoch"], origin)
    replicas, directories = tuple(value["replicas"]), _directories(isr)
    eligible = _directories(value.get("eligible", {}))
    moving = tuple(value.get("adding", ())), tuple(value.get("removing", ()))
    reports = {int(broker): Report(*report) for broker, report in value.get("reports", {}).items()}
    return PartitionState(
        value["leader"], replicas, directories, value["leader_epoch"], origin, eligible, *moving, reports
    )


@lru_cache
def _placed(replicas: Replicas, isr: Replicas) -> tuple[Replicas, Mapping[int, str]]:
    """Return the replicas and the in-sync replicas of a version 1 partition; partitions share them."""
    return replicas, dict.fromkeys(isr, "")


def _directories(value: Mapping[str, str]) -> dict[int, str]:
    return {int(broker): directory for broker, directory in value.items()}
