"""A topic with new partitions: the brokers that get their replicas, and the origin of each mirrored
partition.

Pure: values in, values out.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence

from millrace.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoLiveBroker,
    PolicyViolation,
)
from millrace.records.mirror_position import Origin
from millrace.zookeeper.topic_state import (
    NO_LEADER,
    REPLICATING,
    BrokerAddress,
    PartitionState,
    Replicas,
    TopicState,
)
from millrace_broker.coordination.placement import Load, place


class OriginRecreated(PolicyViolation):
    """An origin's topic was deleted and recreated: its offsets now belong to other records."""


def new_topic(
    name: str,
    partitions: int,
    settings: Mapping[str, str],
    brokers: Mapping[int, BrokerAddress],
    load: Load,
    *,
    replicas: int = 1,
    assigned: Sequence[Replicas] = (),
) -> TopicState:
    """Return a topic whose partitions are spread over the brokers in turn, beginning with the broker that
    leads the fewest partitions.

    `assigned` instead names the brokers of each partition's replicas. Raise InvalidPartitions, NoLiveBroker,
    InvalidReplicationFactor or InvalidReplicaAssignment when the topic is impossible.
    """
    if partitions < 0:
        raise InvalidPartitions(f"topic {name} cannot have {partitions} partitions")
    empty = TopicState(name, uuid.uuid4(), dict(settings), {})
    if assigned:
        return _assigned(empty, assigned, len(assigned[0]), brokers)
    return _placed(empty, [None] * partitions, replicas, brokers, load)


def with_mirrors(
    topic: TopicState,
    origins: Iterable[Origin],
    brokers: Mapping[int, BrokerAddress],
    load: Load,
    *,
    replicas: int = 1,
    recreated: bool = False,
) -> TopicState:
    """Return the topic with a new partition for each origin that has none, led by the brokers with the fewest
    partitions of the topic.

    The topic's first partitions get `replicas` replicas, and later partitions as many as the first. Raise
    OriginRecreated when an origin was mirrored under another topic id, unless `recreated` allows it. Raise
    PolicyViolation when the topic has ordinary partitions, or when a partition is mirrored already under
    another name of its cluster: a misspelt name would copy everything once more.
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
                f"{origin.cluster} {origin.topic}-{origin.partition} was deleted and recreated, or its"
                " addresses lead to another cluster: check them; to go on with the new topic: millrace mirror"
                " reset"
            )
    return _placed(topic, missing, _factor(topic) or replicas, brokers, load)


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
    load: Load,
    assigned: Sequence[Replicas] = (),
) -> TopicState:
    """Return the topic with `count` partitions in all. New partitions get as many replicas as existing
    partitions.

    New replicas go to the brokers in `assigned`, or else to the brokers with the fewest partitions of the
    topic. Raise InvalidPartitions if the topic has `count` partitions already, and PolicyViolation for a
    mirrored topic, whose partitions correspond to its origins' partitions.
    """
    if not topic.partitions or any(state.origin is not None for state in topic.partitions.values()):
        raise PolicyViolation(f"topic {topic.name} is mirrored: add the partitions at its origin")
    missing = count - len(topic.partitions)
    if missing <= 0:
        raise InvalidPartitions(f"topic {topic.name} has {len(topic.partitions)} partitions already")
    if not assigned:
        return _placed(topic, [None] * missing, _factor(topic), brokers, load)
    if len(assigned) != missing:
        raise InvalidReplicaAssignment(
            f"topic {topic.name} gets {missing} more partitions, and brokers are named for {len(assigned)}"
        )
    return _assigned(topic, assigned, _factor(topic), brokers)


def _factor(topic: TopicState) -> int:
    """Return the number of replicas of a topic's new partitions: as many as its first partition has.

    0 without partitions.
    """
    return next((len(state.target) for _, state in sorted(topic.partitions.items())), 0)


def _placed(
    topic: TopicState,
    origins: Sequence[Origin | None],
    replicas: int,
    brokers: Mapping[int, BrokerAddress],
    load: Load,
) -> TopicState:
    """Return the topic with one more partition for each of `origins`, on brokers that `place` picks."""
    if not origins:
        return topic
    if not brokers:
        raise NoLiveBroker(f"no broker is alive to hold topic {topic.name}: start one")
    if not 1 <= replicas <= len(brokers):
        raise InvalidReplicationFactor(
            f"topic {topic.name} cannot have {replicas} replicas: it has one on each broker at most, and"
            f" {len(brokers)} are alive"
        )
    here = [state.replicas for state in topic.partitions.values()]
    racks = {broker: address.rack or address.host for broker, address in brokers.items()}
    return _grown(topic, origins, place(len(origins), replicas, racks, here, load), brokers)


def _assigned(
    topic: TopicState, assigned: Sequence[Replicas], factor: int, brokers: Mapping[int, BrokerAddress]
) -> TopicState:
    """Return the topic with one more partition for each of `assigned`, on the brokers named there."""
    for replicas in assigned:
        check_assigned(topic.name, replicas, brokers)
        if len(replicas) != factor:
            raise InvalidReplicaAssignment(
                f"all partitions of topic {topic.name} have {factor} replicas, not {len(replicas)}"
            )
    return _grown(topic, [None] * len(assigned), assigned, brokers)


def check_assigned(topic: str, replicas: Replicas, brokers: Collection[int]) -> None:
    """Raise InvalidReplicaAssignment unless a partition can have its replicas on these brokers."""
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
    """Return the topic with one more partition for each of `origins`. Its other partitions stay on their
    brokers.

    All replicas of a new partition are in sync, because nothing is committed yet, and the first of them is
    elected.
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
    """Raise InvalidReplicationFactor unless every live broker supports partitions with several replicas."""
    old = sorted(broker for broker, address in brokers.items() if address.protocol < REPLICATING)
    if old:
        raise InvalidReplicationFactor(
            f"a partition has one replica while a broker runs that does not copy: upgrade broker {old[0]}"
        )
