"""Creating, changing and deleting topics: checks, then ZooKeeper, then the logs opened here.

Everything here blocks on ZooKeeper, so it runs in the background, never on the loop. Any broker may do it for
the whole cluster; the others see it in their snapshots.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from millrace.errors import (
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from millrace.topic_names import check_topic_name
from millrace.zookeeper.topic_state import Replicas, TopicState
from millrace_broker.coordination.new_partitions import new_topic, with_partitions
from millrace_broker.partitions.broker import TOPICS_OF_A_TURN, Broker
from millrace_broker.partitions.topic_settings import check_topic_settings
from millrace_broker.replication.state import with_minimum
from millrace_broker.storage.partition_log import PartitionLog

OPENING_SECONDS = 30.0
"""Longest wait of a request for logs to open, however long its client would wait: others need the thread."""


def create_topic(
    broker: Broker,
    name: str,
    partitions: int,
    settings: Mapping[str, str],
    *,
    replicas: int = -1,
    assigned: Sequence[Replicas] = (),
    validate_only: bool = False,
) -> None:
    """Create a topic (-1: default number of partitions or replicas). Its partitions are opened meanwhile:
    `wait_until_open` waits for those led here.

    `assigned` names the brokers of each partition's replicas; both numbers then come from it.
    """
    check_topic_name(name)
    _check_collision(broker, name)
    if assigned and (partitions, replicas) != (-1, -1):
        raise InvalidRequest(
            "give the numbers of partitions and replicas, or the brokers of each partition, not both"
        )
    count = len(assigned) or (broker.config.default_partitions if partitions == -1 else partitions)
    if count < 1:
        raise InvalidPartitions(f"topic {name} cannot have {count} partitions")
    _check_limit(broker, name, count)
    cluster, factor = broker.cluster, broker.config.default_replicas if replicas == -1 else replicas
    planned = new_topic(
        name, count, settings, cluster.brokers, cluster.load, replicas=factor, assigned=assigned
    )
    check_topic_settings(broker.config, settings, planned.fewest_replicas)
    if validate_only:
        if name in cluster.topics:
            raise TopicAlreadyExists(f"topic {name} exists already")
        return
    cluster.create_topic(name, count, settings, replicas=factor, assigned=assigned)


def _check_collision(broker: Broker, name: str) -> None:
    """Raise InvalidTopic, as Kafka does, if another topic's name differs only in dots and underscores."""
    plain = name.replace(".", "_")
    for other in broker.cluster.topics if "_" in plain else ():
        if other != name and other.replace(".", "_") == plain:
            raise InvalidTopic(
                f"topic {name} is too much like {other}: `.` and `_` are one in names of tables and metrics"
            )


def add_partitions(
    broker: Broker, name: str, count: int, *, assigned: Sequence[Replicas] = (), validate_only: bool = False
) -> None:
    """Give a topic `count` partitions in all. The new ones are opened meanwhile, as in `create_topic`.

    `assigned` names the brokers of the replicas of each new one.
    """
    _check_limit(broker, name, count)

    def change(topic: TopicState) -> TopicState:
        return with_partitions(topic, count, broker.cluster.brokers, broker.cluster.load, assigned)

    if validate_only:
        change(_topic(broker, name))
    else:
        broker.cluster.change_topic(name, change)


def alter_topic(
    broker: Broker,
    name: str,
    alter: Callable[[Mapping[str, str]], Mapping[str, str]],
    *,
    validate_only: bool = False,
) -> None:
    """Replace a topic's own settings with the result of `alter`; open partitions follow soon after."""

    def change(topic: TopicState) -> TopicState:
        settings = alter(topic.settings)
        check_topic_settings(broker.config, settings, topic.fewest_replicas)
        changed = dataclasses.replace(topic, settings=settings)
        partitions = {
            number: with_minimum(state, changed.minimum(number)) for number, state in topic.partitions.items()
        }
        return dataclasses.replace(changed, partitions=partitions)

    if validate_only:
        change(_topic(broker, name))
    else:
        broker.cluster.change_topic(name, change)
        broker.mailbox.call(lambda: broker.apply(name)).result()


def delete_topic(broker: Broker, name: str) -> None:
    """Delete a topic; its logs here are gone soon after."""
    broker.cluster.delete_topic(name)
    broker.mailbox.call(lambda: broker.apply(name)).result()


def _check_limit(broker: Broker, name: str, count: int) -> None:
    limit = broker.config.max_partitions_per_topic
    if count > limit:
        raise InvalidPartitions(f"topic {name} cannot have {count} partitions: {limit} are allowed")


def _topic(broker: Broker, name: str) -> TopicState:
    topic = broker.cluster.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"no topic {name} in cluster {broker.config.cluster}")
    return topic


def wait_until_open(
    broker: Broker, names: Sequence[str], timeout_s: float = OPENING_SECONDS
) -> Mapping[str, RequestTimedOut]:
    """Wait for the partitions of these topics that are led here. Return the error of each topic that took
    longer.

    A topic exists even if one of its partitions cannot be opened.
    """
    opening: dict[str, list[concurrent.futures.Future[PartitionLog]]] = {}

    def begin(topics: Sequence[str]) -> None:
        for name in topics:
            broker.apply(name)
            opening[name] = broker.opening(name)

    for first in range(0, len(names), TOPICS_OF_A_TURN):
        broker.mailbox.call(partial(begin, names[first : first + TOPICS_OF_A_TURN])).result()
    every = [one for of_topic in opening.values() for one in of_topic]
    _, late = concurrent.futures.wait(every, min(timeout_s, OPENING_SECONDS))
    counts = {name: sum(one in late for one in of_topic) for name, of_topic in opening.items()}
    return {
        name: RequestTimedOut(f"topic {name} is there; {count} of its partitions are being opened yet")
        for name, count in counts.items()
        if count
    }
