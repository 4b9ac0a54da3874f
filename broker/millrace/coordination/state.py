"""What ZooKeeper holds of a topic, as values and as bytes, and how partitions find their leaders.

Pure: values in, values out. Reading, writing and watching is cluster.py's.

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

import dataclasses
import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from millrace.coordination.placement import Replicas, place
from millrace.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    MillraceError,
    NoLiveBroker,
    PolicyViolation,
)
from millrace.records.mirror_position import Origin

FORMAT_VERSION, REPLICATED_VERSION = 1, 2
NO_LEADER = -1
REPLICATING = 2
"""The protocol of brokers that copy partitions of each other."""
MIN_INSYNC_REPLICAS = "min.insync.replicas"
MAX_ENTRY_BYTES = 1_000_000
"""ZooKeeper takes requests of 1 MiB at most; a partition needs about 90 bytes, a mirrored one 220. With three
replicas each needs 90 more."""


class OriginRecreated(PolicyViolation):
    """An origin's topic was deleted and created anew: its offsets mean other records now."""


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


def new_topic(
    name: str,
    partitions: int,
    settings: Mapping[str, str],
    brokers: Mapping[int, BrokerAddress],
    topics: Mapping[str, TopicState],
    *,
    replicas: int = 1,
    assigned: Sequence[Replicas] = (),
) -> TopicState:
    """A topic whose partitions go round the brokers, beginning with the one that leads the fewest.

    `assigned` instead says itself which brokers have the replicas of each partition. InvalidPartitions,
    NoLiveBroker, InvalidReplicationFactor or InvalidReplicaAssignment say why there is none.
    """
    if partitions < 0:
        raise InvalidPartitions(f"topic {name} cannot have {partitions} partitions")
    empty = TopicState(name, uuid.uuid4(), dict(settings), {})
    if assigned:
        return _assigned(empty, assigned, len(assigned[0]), brokers)
    return _placed(empty, [None] * partitions, replicas, brokers, topics)


def with_mirrors(
    topic: TopicState,
    origins: Iterable[Origin],
    brokers: Mapping[int, BrokerAddress],
    topics: Mapping[str, TopicState],
    *,
    replicas: int = 1,
    recreated: bool = False,
) -> TopicState:
    """The topic with a partition for each origin that has none, led by brokers that lead the fewest of it.

    The first ones have that many `replicas`, later ones as many as the first. OriginRecreated when one was
    mirrored under another topic id, unless `recreated` says so. PolicyViolation when the topic has ordinary
    partitions, or when a partition is mirrored already under another name of its cluster: a misspelt name
    would copy everything once more.
    """
    if any(partition.origin is None for partition in topic.partitions.values()):
        raise PolicyViolation(
            f"topic {topic.name} has partitions of its own here: delete it, or leave it out of the mirror"
        )
    targets = topic.targets()
    missing = [origin for origin in origins if origin not in targets]
    for origin in missing:
        _check_only_name(origin, targets)
        if not recreated and topic.former_origin(origin) is not None:
            raise OriginRecreated(
                f"{origin.cluster} {origin.topic}-{origin.partition} was deleted and created anew, or its"
                " addresses lead to another cluster: check them; to go on with the new topic: millrace mirror"
                " reset"
            )
    return _placed(topic, missing, _factor(topic) or replicas, brokers, topics)


def _check_only_name(origin: Origin, mirrored: Iterable[Origin]) -> None:
    for other in mirrored:
        if (other.topic_id, other.partition) == (origin.topic_id, origin.partition):
            raise PolicyViolation(
                f"{origin.topic}-{origin.partition} of {origin.cluster!r} is mirrored already, as one of"
                f" {other.cluster!r}: a cluster is mirrored under one name only"
            )


def with_partitions(
    topic: TopicState,
    count: int,
    brokers: Mapping[int, BrokerAddress],
    topics: Mapping[str, TopicState],
    assigned: Sequence[Replicas] = (),
) -> TopicState:
    """The topic with `count` partitions in all, new ones with as many replicas as those it has.

    They go to the brokers that have the fewest of it, or where `assigned` says. Raises InvalidPartitions when
    it has as many already, and PolicyViolation for a mirrored topic: its partitions stand for those of its
    origins.
    """
    if not topic.partitions or any(state.origin is not None for state in topic.partitions.values()):
        raise PolicyViolation(f"topic {topic.name} is mirrored: give its origin more partitions")
    missing = count - len(topic.partitions)
    if missing <= 0:
        raise InvalidPartitions(f"topic {topic.name} has {len(topic.partitions)} partitions already")
    if not assigned:
        return _placed(topic, [None] * missing, _factor(topic), brokers, topics)
    if len(assigned) != missing:
        raise InvalidReplicaAssignment(
            f"topic {topic.name} gets {missing} more partitions, and brokers are named for {len(assigned)}"
        )
    return _assigned(topic, assigned, _factor(topic), brokers)


def _factor(topic: TopicState) -> int:
    """How many replicas new partitions of a topic get: as many as its first; 0 while it has none."""
    return next((len(state.target) for _, state in sorted(topic.partitions.items())), 0)


def _placed(
    topic: TopicState,
    origins: Sequence[Origin | None],
    replicas: int,
    brokers: Mapping[int, BrokerAddress],
    topics: Mapping[str, TopicState],
) -> TopicState:
    """The topic with one more partition for each of `origins`, on brokers that `place` picks."""
    if not origins:
        return topic
    if not brokers:
        raise NoLiveBroker(f"no broker is alive to hold topic {topic.name}: start one")
    if not 1 <= replicas <= len(brokers):
        raise InvalidReplicationFactor(
            f"topic {topic.name} cannot have {replicas} replicas: it has one on each broker at most, and"
            f" {len(brokers)} are alive"
        )
    here, everywhere = _replicas([topic]), _replicas(topics.values())
    racks = {broker: address.rack for broker, address in brokers.items()}
    return _grown(topic, origins, place(len(origins), replicas, racks, here, everywhere), brokers)


def _replicas(topics: Iterable[TopicState]) -> list[Replicas]:
    return [state.replicas for topic in topics for state in topic.partitions.values()]


def _assigned(
    topic: TopicState, assigned: Sequence[Replicas], factor: int, brokers: Mapping[int, BrokerAddress]
) -> TopicState:
    """The topic with one more partition for each of `assigned`, on the brokers it names."""
    for replicas in assigned:
        check_assigned(topic.name, replicas, brokers)
        if len(replicas) != factor:
            raise InvalidReplicaAssignment(
                f"all partitions of topic {topic.name} have {factor} replicas, not {len(replicas)}"
            )
    return _grown(topic, [None] * len(assigned), assigned, brokers)


def check_assigned(topic: str, replicas: Replicas, brokers: Collection[int]) -> None:
    """InvalidReplicaAssignment unless a partition can have its replicas on these brokers."""
    if not replicas or len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(
            f"a partition of topic {topic} has replicas on one or more brokers, none twice; not on"
            f" {list(replicas)}"
        )
    if away := sorted(set(replicas) - set(brokers)):
        raise InvalidReplicaAssignment(
            f"no broker {away[0]} is alive to hold topic {topic}; alive: {sorted(brokers)}"
        )


def _grown(
    topic: TopicState,
    origins: Sequence[Origin | None],
    placed: Sequence[Replicas],
    brokers: Mapping[int, BrokerAddress],
) -> TopicState:
    """The topic with one more partition for each of `origins`; those it has stay where they are.

    Several replicas are all in sync, as nothing is committed yet, and elect the first of them to lead.
    """
    partitions = dict(topic.partitions)
    first = max(partitions, default=-1) + 1
    for number, (origin, replicas) in enumerate(zip(origins, placed, strict=True), first):
        if len(replicas) == 1:
            partitions[number] = PartitionState(replicas[0], replicas, {replicas[0]: ""}, 0, origin)
            continue
        check_replicating(brokers)
        directories = {broker: brokers[broker].directory for broker in replicas}
        partitions[number] = PartitionState(NO_LEADER, replicas, directories, 0, origin)
    return dataclasses.replace(topic, partitions=partitions)


def check_replicating(brokers: Mapping[int, BrokerAddress]) -> None:
    """InvalidReplicationFactor unless every live broker knows partitions with several replicas."""
    old = sorted(broker for broker, address in brokers.items() if address.protocol < REPLICATING)
    if old:
        raise InvalidReplicationFactor(
            f"a partition has one replica while a broker runs that does not copy: upgrade broker {old[0]}"
        )


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
