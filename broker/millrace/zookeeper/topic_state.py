"""The entry of a topic in ZooKeeper, as values and as bytes.

Pure: values in, values out. The brokers' `Cluster` reads, writes and watches it.

    /<cluster>/topics/<topic> :=
    {"version": 1, "topic_id": "<32 hex digits>", "settings": {"<key>": "<text>", ...},
     "partitions": {"<number>": {"leader": 1, "replicas": [1], "isr": [1], "leader_epoch": 0,
                                 "origin": null | {"cluster": "dc1", "topic": "PageView",
                                                   "topic_id": "<32 hex digits>", "partition": 0}}, ...}}

Version 2 is written for a topic of which a partition has several replicas. Brokers that know version 1 only
can read all others:

    {"version": 2, "topic_id": ..., "settings": ...,
     "partitions": {"<number>": {"leader": 1 | -1, "replicas": [1, 2, 3],
                                 "isr": {"<broker>": "<id of its log directory>", ...},
                                 "eligible": {"<broker>": "<id of its log directory>", ...},
                                 "adding": [3], "removing": [], "leader_epoch": 7, "origin": ...}, ...}}

A partition has "reports" only after ZooKeeper came back from an older copy. They say what each replica's log
holds: {"<broker>": ["<id of its log directory>", <last epoch>, <end>], ...}.

Partition numbers start at 0 and are never given again, so a mirrored partition keeps its number for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from millrace.errors import InvalidPartitions, MillraceError
from millrace.records.mirror_position import Origin

Replicas: TypeAlias = tuple[int, ...]
"""The brokers of a partition's replicas; the first is the preferred leader."""
FORMAT_VERSION, REPLICATED_VERSION = 1, 2
NO_LEADER = -1
REPLICATING = 2
"""The protocol of brokers that copy partitions of each other."""
MIN_INSYNC_REPLICAS = "min.insync.replicas"
MAX_ENTRY_BYTES = 1_000_000
"""ZooKeeper takes requests of 1 MiB at most; a partition needs about 90 bytes, a mirrored one 220. With three
replicas each needs 90 more."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A live broker: where clients reach it, and what says which replicas it may have."""

    host: str
    port: int
    listeners: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """(host, port) by the listener's name; empty for a broker of a version without names."""
    rack: str = ""
    """What it shares with the brokers that fail together with it; empty where nobody has said so."""
    directory: str = ""
    """The id of its log directory."""
    protocol: int = 1
    """What it speaks with other brokers; REPLICATING and above copies partitions."""

    def at(self, listener: str) -> tuple[str, int] | None:
        """Where clients of the listener of that name reach it; None when it has none."""
        return self.listeners.get(listener) if self.listeners else (self.host, self.port)


class Report(NamedTuple):
    """Contents of one replica's log on its disk: end and epoch of the last batch."""

    directory: str
    last_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who leads and stores one partition; `origin` is set when it is the mirror of another."""

    leader: int
    """NO_LEADER while nobody leads."""
    replicas: tuple[int, ...]
    isr: Mapping[int, str]
    """The in-sync replicas: broker -> id of the log directory that holds its copy, "" where none is recorded.
    A broker that comes back with an empty disk keeps its number, but has another directory."""
    leader_epoch: int
    origin: Origin | None = None
    eligible: Mapping[int, str] = field(default_factory=dict)
    """Who left the in-sync replicas when they became too few: still has everything committed, as nothing is
    committed meanwhile. Directory by broker."""

    adding: Replicas = ()
    """Those of the replicas that a reassignment adds; the leader ends it when all of them are in sync."""
    removing: Replicas = ()
    """Those of the replicas that go when it ends."""
    reports: Mapping[int, Report] = field(default_factory=dict)
    """Broker -> report of its log. Empty unless ZooKeeper came back from an older copy. Then `isr` may name
    the wrong replicas, and the partition waits until all replicas have reported."""

    @property
    def is_replicated(self) -> bool:
        return len(self.replicas) > 1

    @property
    def target(self) -> Replicas:
        """The replicas that there are when nothing is reassigned any more."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def factor(self) -> int:
        """How many replicas count on it: while it is reassigned the fewer of those before and after."""
        return min(len(self.target), len(self.replicas) - len(self.adding))


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic. `settings` are Kafka's topic settings, as text."""

    name: str
    topic_id: UUID
    settings: Mapping[str, str]
    partitions: Mapping[int, PartitionState]
    version: int = field(default=-1, compare=False)
    """Of the node that this was read from: two that say the same are equal."""
    czxid: int = field(default=-1, compare=False)
    """The transaction that created that node: a topic of the same name that is made anew has another."""

    def minimum(self, number: int) -> int:
        """How many in-sync replicas the partition needs to commit anything: its `min.insync.replicas`."""
        return self.minimum_of(self.partitions[number].factor)

    def minimum_of(self, replicas: int) -> int:
        """`min.insync.replicas` of a partition with so many replicas."""
        own = self.settings.get(MIN_INSYNC_REPLICAS)
        return default_minimum(replicas) if own is None else int(own)

    @property
    def fewest_replicas(self) -> int:
        """The fewest that one of its partitions has; 1 while it has no partitions."""
        return min((state.factor for state in self.partitions.values()), default=1)

    def targets(self) -> dict[Origin, int]:
        """Every mirrored origin partition and the partition that mirrors it."""
        return {state.origin: number for number, state in self.partitions.items() if state.origin is not None}

    def target_of(self, origin: Origin) -> int | None:
        """The partition that mirrors `origin` (the topic id counts too), or None."""
        numbers = (number for number, state in self.partitions.items() if state.origin == origin)
        return next(numbers, None)

    def former_origin(self, origin: Origin) -> Origin | None:
        """The same partition of the same cluster, mirrored under another topic id; the latest one."""
        same = (origin.cluster, origin.topic, origin.partition)
        for _, partition in sorted(self.partitions.items(), reverse=True):
            other = partition.origin
            if other in (None, origin):
                continue
            if (other.cluster, other.topic, other.partition) == same:
                return other
        return None


def default_minimum(replicas: int) -> int:
    """`min.insync.replicas` of a topic that does not say it."""
    return 1 if replicas <= 2 else 2


def encode_topic(topic: TopicState) -> bytes:
    """The JSON drawn above; InvalidPartitions when ZooKeeper would not take it."""
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
    """The topic in the JSON drawn above; MillraceError when it is none."""
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
    replicas, isr = tuple(value["replicas"]), value["isr"]
    # Version 1 has no directories, and nobody eligible: there is one replica.
    directories = dict.fromkeys(isr, "") if isinstance(isr, list) else _directories(isr)
    eligible = _directories(value.get("eligible", {}))
    moving = tuple(value.get("adding", ())), tuple(value.get("removing", ()))
    reports = {int(broker): Report(*report) for broker, report in value.get("reports", {}).items()}
    return PartitionState(
        value["leader"], replicas, directories, value["leader_epoch"], origin, eligible, *moving, reports
    )


def _directories(value: Mapping[str, str]) -> dict[int, str]:
    return {int(broker): directory for broker, directory in value.items()}
