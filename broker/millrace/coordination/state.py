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
                                 "leader_epoch": 7, "origin": ...}, ...}}

Partition numbers start at 0 and are never given again, so a mirrored partition keeps its number for ever.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from millrace.errors import InvalidPartitions, InvalidTopic, MillraceError, NoLiveBroker, PolicyViolation
from millrace.records.mirror_position import Origin

FORMAT_VERSION, REPLICATED_VERSION = 1, 2
NO_LEADER = -1
MAX_ENTRY_BYTES = 1_000_000
"""ZooKeeper takes requests of 1 MiB at most; a partition needs about 90 bytes, a mirrored one 220. With three
replicas each needs 90 more."""


class OriginRecreated(PolicyViolation):
    """An origin's topic was deleted and created anew: its offsets mean other records now."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where clients reach a broker: those that do not care for its listeners, and those of each."""

    host: str
    port: int
    listeners: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """(host, port) by the listener's name; empty for a broker of a version without names."""

    def at(self, listener: str) -> tuple[str, int] | None:
        """Where clients of the listener of that name reach it; None when it has none."""
        return self.listeners.get(listener) if self.listeners else (self.host, self.port)


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

    @property
    def is_replicated(self) -> bool:
        return len(self.replicas) > 1


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic. `settings` are Kafka's topic settings, as text."""

    name: str
    topic_id: UUID
    settings: Mapping[str, str]
    partitions: Mapping[int, PartitionState]

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


def check_topic_name(name: str) -> None:
    """InvalidTopic unless Kafka, too, would take the name."""
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", ".."):
        raise InvalidTopic(
            f"{name!r} is no topic name: 1 to 249 letters, digits, dots, underscores or hyphens"
        )


def new_topic(
    name: str,
    partitions: int,
    settings: Mapping[str, str],
    brokers: Sequence[int],
    topics: Mapping[str, TopicState],
) -> TopicState:
    """A topic whose partitions go round the brokers, beginning with the one that leads the fewest."""
    if partitions < 0:
        raise InvalidPartitions(f"topic {name} cannot have {partitions} partitions")
    empty = TopicState(name, uuid.uuid4(), dict(settings), {})
    return _grown(empty, [None] * partitions, brokers, topics)


def with_mirrors(
    topic: TopicState,
    origins: Iterable[Origin],
    brokers: Sequence[int],
    topics: Mapping[str, TopicState],
    *,
    recreated: bool = False,
) -> TopicState:
    """The topic with a partition for each origin that has none, led by brokers that lead the fewest of it.

    OriginRecreated when one was mirrored under another topic id, unless `recreated` says so. PolicyViolation
    when the topic has ordinary partitions, or when a partition is mirrored already under another name of its
    cluster: a misspelt name would copy everything once more.
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
    return _grown(topic, missing, brokers, topics)


def _check_only_name(origin: Origin, mirrored: Iterable[Origin]) -> None:
    for other in mirrored:
        if (other.topic_id, other.partition) == (origin.topic_id, origin.partition):
            raise PolicyViolation(
                f"{origin.topic}-{origin.partition} of {origin.cluster!r} is mirrored already, as one of"
                f" {other.cluster!r}: a cluster is mirrored under one name only"
            )


def with_partitions(
    topic: TopicState, count: int, brokers: Sequence[int], topics: Mapping[str, TopicState]
) -> TopicState:
    """The topic with `count` partitions in all; each new one goes to the broker that leads the fewest of it.

    Raises InvalidPartitions when it has as many already, and PolicyViolation for a mirrored topic: its
    partitions stand for those of its origins.
    """
    if not topic.partitions or any(state.origin is not None for state in topic.partitions.values()):
        raise PolicyViolation(f"topic {topic.name} is mirrored: give its origin more partitions")
    if count <= len(topic.partitions):
        raise InvalidPartitions(f"topic {topic.name} has {len(topic.partitions)} partitions already")
    return _grown(topic, [None] * (count - len(topic.partitions)), brokers, topics)


def _grown(
    topic: TopicState,
    origins: Sequence[Origin | None],
    brokers: Sequence[int],
    topics: Mapping[str, TopicState],
) -> TopicState:
    """The topic with one more partition for each of `origins`; leaders of those it has do not move.

    A new partition goes to the live broker that leads the fewest of the topic; of several such brokers, to
    one that leads the fewest in all, so that a broker which joined lately comes first.
    """
    if origins and not brokers:
        raise NoLiveBroker(f"no broker is alive to hold topic {topic.name}: start one")
    here, everywhere = _leaders([topic]), _leaders(topics.values())
    partitions = dict(topic.partitions)
    for number, origin in enumerate(origins, max(partitions, default=-1) + 1):
        leader = min(brokers, key=lambda broker: (here[broker], everywhere[broker], broker))
        partitions[number] = PartitionState(leader, (leader,), {leader: ""}, 0, origin)
        here[leader] += 1
        everywhere[leader] += 1
    return dataclasses.replace(topic, partitions=partitions)


def _leaders(topics: Iterable[TopicState]) -> Counter[int]:
    return Counter(partition.leader for topic in topics for partition in topic.partitions.values())


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
    return {**_fields(state), "isr": dict(state.isr), "eligible": dict(state.eligible)}


def decode_topic(name: str, data: bytes) -> TopicState:
    """The topic in the JSON drawn above; MillraceError when it is none."""
    try:
        value = json.loads(data)
        if value["version"] not in (FORMAT_VERSION, REPLICATED_VERSION):
            raise ValueError(f"version {value['version']}, this broker knows {REPLICATED_VERSION}")
        partitions = {int(number): _partition(state) for number, state in value["partitions"].items()}
        return TopicState(name, UUID(value["topic_id"]), value["settings"], partitions)
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
    return PartitionState(value["leader"], replicas, directories, value["leader_epoch"], origin, eligible)


def _directories(value: Mapping[str, str]) -> dict[int, str]:
    return {int(broker): directory for broker, directory in value.items()}
