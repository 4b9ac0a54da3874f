"""Moving replicas and electing leaders for operators: checks, then one compare-and-set of a topic.

Everything here blocks on ZooKeeper, so it runs in the background, never on the loop. Any broker may do it for
the whole cluster. The partitions' leaders complete what is begun here.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

from millrace.errors import (
    BrokerError,
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoLiveBroker,
    NoReassignmentInProgress,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from millrace.zookeeper.topic_state import MIN_INSYNC_REPLICAS, PartitionState, Replicas, TopicState
from millrace_broker.coordination.new_partitions import check_assigned, check_replicating
from millrace_broker.partitions.broker import Broker
from millrace_broker.replication.state import Directories, assign, prefer, unclean

logger = logging.getLogger("millrace.replication")


def reassign(
    broker: Broker, name: str, targets: Mapping[int, Replicas | None], *, may_change_factor: bool = True
) -> dict[int, BrokerError]:
    """Move partitions to these replicas (None: back to the earlier replicas); return why some do not move."""

    def move(topic: TopicState, number: int, state: PartitionState) -> PartitionState:
        target = targets[number]
        before = tuple(replica for replica in state.replicas if replica not in state.adding)
        if target is None:
            if not (state.adding or state.removing):
                raise NoReassignmentInProgress(f"{name}-{number} is not being reassigned")
            target = before
        if not may_change_factor and len(target) != len(before):
            raise InvalidReplicationFactor(f"{name}-{number} has {len(before)} replicas, not {len(target)}")
        _check_target(broker, topic, number, target)
        minimum = topic.minimum_of(min(len(before), len(target)))
        moved = assign(state, target, _live(broker), minimum)
        if moved is None:
            raise NoLiveBroker(
                f"the only replica of {name}-{number} is on broker {state.replicas[0]}, which does not serve"
                f" it: start it, or see `millrace topics describe {name}`"
            )
        return moved

    return _change_each(broker, name, targets, move)


def _check_target(broker: Broker, topic: TopicState, number: int, target: Replicas) -> None:
    """Refuse invalid replicas, or too few for the topic's own minimum; a dead one may stay."""
    brokers = broker.cluster.brokers
    check_assigned(topic.name, target, {*brokers, *topic.partitions[number].replicas})
    if target != topic.partitions[number].replicas:  # even a move of an only replica has two meanwhile
        check_replicating(brokers)
    minimum = int(topic.settings.get(MIN_INSYNC_REPLICAS, 1))
    if len(target) < minimum:
        raise InvalidReplicaAssignment(
            f"{topic.name} has {MIN_INSYNC_REPLICAS}={minimum}: lower it first, or name so many replicas"
        )


def elect_preferred(broker: Broker, name: str, numbers: Iterable[int]) -> dict[int, BrokerError]:
    """Have the leaders of partitions resign for their first replicas; return why some do not."""

    def elect(topic: TopicState, number: int, state: PartitionState) -> PartitionState:
        preferred = state.replicas[0]
        if state.leader == preferred:
            raise ElectionNotNeeded(f"broker {preferred} leads {name}-{number} already")
        elected = prefer(state, _live(broker))
        if elected is None:
            raise PreferredLeaderNotAvailable(
                f"broker {preferred} does not live, or is not in sync in {name}-{number}"
            )
        return elected

    return _change_each(broker, name, numbers, elect)


def elect_unclean(broker: Broker, name: str, number: int, replica: int, *, who: str, reason: str) -> None:
    """Have a replica lead a partition though it may lack committed messages; log who wants it, and why."""
    if not reason.strip():
        raise InvalidRequest("an unclean election needs a reason, for the log")

    def elect(topic: TopicState, number: int, state: PartitionState) -> PartitionState:
        elected = unclean(state, replica, _live(broker))
        if elected is None:
            if not state.is_replicated and state.leader in state.replicas:
                raise ElectionNotNeeded(
                    f"{name}-{number} has one replica: broker {state.leader} leads it whenever it runs, so"
                    " start it"
                )
            if replica not in state.replicas or replica not in broker.cluster.brokers:
                raise InvalidReplicaAssignment(f"broker {replica} is no live replica of {name}-{number}")
            raise ElectionNotNeeded(
                f"a replica of {name}-{number} lives that has everything committed: it leads without a loss"
            )
        return elected

    for error in _change_each(broker, name, [number], elect).values():
        raise error
    broker.mailbox.post(lambda: broker.replicas.count("unclean"))
    logger.warning(
        "unclean election: %s has broker %s lead %s-%s, which may lose committed messages. Reason: %s",
        who,
        replica,
        name,
        number,
        reason,
    )


def _live(broker: Broker) -> Directories:
    return {number: address.directory for number, address in broker.cluster.brokers.items()}


def _change_each(
    broker: Broker,
    name: str,
    numbers: Iterable[int],
    change: Callable[[TopicState, int, PartitionState], PartitionState],
) -> dict[int, BrokerError]:
    """Change partitions of a topic in one write; return the errors of the refused ones."""
    refused: dict[int, BrokerError] = {}
    wanted = list(numbers)

    def change_all(topic: TopicState) -> TopicState:
        refused.clear()
        partitions = dict(topic.partitions)
        for number in wanted:
            try:
                if number not in partitions:
                    raise UnknownTopicOrPartition(f"no partition {name}-{number}")
                partitions[number] = change(topic, number, partitions[number])
            except BrokerError as error:
                refused[number] = error
        return dataclasses.replace(topic, partitions=partitions)

    broker.cluster.change_topic(name, change_all)
    broker.mailbox.call(broker.refresh).result()
    return refused
