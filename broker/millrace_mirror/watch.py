"""One thread that watches one origin: its topics and partitions, and the target partitions of their copies.

The thread allocates a target partition for every partition of every mirrored topic, and assigns partitions to
the pullers, one puller for each broker of the origin. It copies nothing itself. It retries an origin that
does not answer; a topic that cannot be mirrored does not delay other topics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from millrace.client.cluster_client import ClusterClient, TopicMetadata
from millrace.client.fetcher import Rounds
from millrace.client.runs import CLEANUP_POLICY, OffsetRules
from millrace.client.topic_admin import settings_of_topics
from millrace.config import OriginConfig
from millrace.errors import BrokerError, MillraceError
from millrace.records.mirror_position import Origin
from millrace.records.topic_partition import TopicPartition
from millrace.wire.admin_messages import ORIGINS
from millrace.zookeeper.topic_state import BrokerAddress, TopicState
from millrace_broker.coordination.new_partitions import OriginRecreated
from millrace_mirror.choice import Choice, choose, names_only
from millrace_mirror.puller import Pull
from millrace_mirror.states import MirrorState, MirrorStates, State

logger = logging.getLogger("millrace.mirror.watch")

REFRESH_SECONDS = 1.0
"""Interval at which the thread looks for new topics, partitions and leaders."""
TIMEOUT_SECONDS = 5.0
SETTLE_SECONDS = 2.0
"""Time for which the list of brokers must be unchanged before targets are allocated: otherwise the first
broker to start would get all targets."""
TOPICS_AT_ONCE = 500
"""Most topics in one request for settings."""
Assign = Callable[[Mapping[int, tuple[str, int]], list[Pull]], None]


class CopyRegistry(Protocol):
    """The registry of the target cluster: its partitions, and the origin partition of each copy."""

    @property
    def name(self) -> str: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def brokers(self) -> Mapping[int, BrokerAddress]: ...
    @property
    def topics(self) -> Mapping[str, TopicState]: ...
    def allocate_mirrors(self, topic: str, origins: Sequence[Origin], /) -> dict[Origin, int]: ...


class OriginWatch(Rounds):
    """Watches one origin until `stop`."""

    def __init__(
        self,
        name: str,
        config: OriginConfig,
        broker_id: int,
        cluster: CopyRegistry,
        states: MirrorStates,
        assign: Assign,
    ) -> None:
        super().__init__(f"mirror {name}", logger, f"mirror of {name} waits")
        self._origin_name = name
        self._config, self._broker_id, self._cluster = config, broker_id, cluster
        self._states, self._assign = states, assign
        self._client = ClusterClient(
            config.bootstrap,
            client_id=f"millrace-mirror-{broker_id}",
            timeout_s=TIMEOUT_SECONDS,
            security=config.security,
        )
        self._settings: dict[tuple[str, UUID], Mapping[str, str]] = {}
        self._targets: dict[str, tuple[TopicState, Mapping[Origin, int]]] = {}
        self._shown: set[TopicPartition] = set()
        """Target partitions that are not pulled; their state gives the reason."""
        self._logged: dict[str, str] = {}
        """Topic -> last logged reason."""
        self._brokers: tuple[Mapping[int, BrokerAddress], float] = ({}, 0.0)

    def round(self) -> None:
        self._look()
        self.sleep(REFRESH_SECONDS)

    def disconnect(self) -> None:
        self._client.close()

    def _look(self) -> None:
        """Read the origin's partitions, allocate their targets, and assign the partitions of this broker."""
        topics = self._client.topics(names_only(self._config))
        if self._client.cluster_id == self._cluster.cluster_id:
            raise MillraceError("bootstrap names this cluster itself: set it to the origin's brokers")
        chosen = {topic: choose(self._config, topic) for topic in topics}
        wanted = [topic for topic, (choice, _) in chosen.items() if choice is not None]
        refused = self._learn_settings(topics, wanted)
        settled = self._brokers_have_settled()
        pulls: list[Pull] = []
        idle = self._of_missing_topics(topics)
        for topic in wanted:
            choice, by_name = chosen[topic]
            try:
                if topic in refused:
                    raise refused[topic]
                self._check_source(topics[topic], by_name)
                targets = self._allocated(topics[topic], settled, idle)
            except MillraceError as error:
                if by_name or not isinstance(error, _LeftOut):
                    self._log_once(topic, str(error))
                continue
            if choice is Choice.PULLED:
                pulls += self._led_here(topics[topic], targets)
        self._show(idle)
        self._assign(self._client.addresses, pulls)

    # Topics of the origin

    def _learn_settings(
        self, topics: Mapping[str, TopicMetadata], wanted: list[str]
    ) -> dict[str, BrokerError]:
        """Find out, once for each topic, whether it is compacted and whether it is itself a copy.

        Return the topics whose settings the origin refuses to return, with the error. Their settings will be
        requested again.
        """
        present = {(topic, topics[topic].topic_id): topic for topic in wanted if topics[topic].partitions}
        self._settings = {key: settings for key, settings in self._settings.items() if key in present}
        new = [topic for key, topic in present.items() if key not in self._settings]
        refused: dict[str, BrokerError] = {}
        for first in range(0, len(new), TOPICS_AT_ONCE):
            part = new[first : first + TOPICS_AT_ONCE]
            answers = settings_of_topics(self._client, part, (CLEANUP_POLICY, ORIGINS))
            for topic in part:
                answer = answers.get(topic, ())
                if isinstance(answer, BrokerError):
                    refused[topic] = answer
                    continue
                settings = {setting.name: setting.value or "" for setting in answer}
                self._settings[topic, topics[topic].topic_id] = settings
        return refused

    def _check_source(self, topic: TopicMetadata, by_name: bool) -> None:
        """Raise an error unless the topic may be mirrored: a cluster's own messages must not
        come back to it.
        """
        if not topic.partitions:
            raise _LeftOut("it has no partitions yet")
        origins = self._settings[topic.name, topic.topic_id].get(ORIGINS, "")
        if not origins:
            return
        clusters = {entry.partition("=")[2].partition("/")[0] for entry in origins.split(",")}
        if self._cluster.name in clusters:
            raise _LeftOut(f"it is a copy of this cluster's own topic there ({origins}): leave it out")
        if not by_name:
            raise _LeftOut("it is a copy there, and patterns leave copies out")

    # Target partitions

    def _allocated(
        self, topic: TopicMetadata, settled: bool, idle: dict[TopicPartition, MirrorState]
    ) -> Mapping[Origin, int]:
        """Return the targets of the topic's partitions.

        Allocate missing ones, unless the topic was recreated.
        """
        origins = [Origin(self._origin_name, topic.name, topic.topic_id, n) for n in topic.partitions]
        targets = self._targets_of(topic.name)
        state = self._cluster.topics.get(topic.name)
        new: list[Origin] = []
        problem = ""
        for origin in origins:
            former = state.former_origin(origin) if state is not None and origin not in targets else None
            if former is not None:
                idle |= self._of_recreated_topic(former)
            elif origin not in targets:
                new.append(origin)
        if new and not settled:
            self.wake()
        elif new:
            try:
                targets = {**targets, **self._cluster.allocate_mirrors(topic.name, new)}
            except OriginRecreated:  # the snapshot is stale: the next round reports it
                self.wake()
            except MillraceError as error:  # such as ZooKeeper's absence: partitions with a target continue
                problem = str(error)
        if problem:
            self._log_once(topic.name, problem)
        else:
            self._logged.pop(topic.name, None)
        return {origin: targets[origin] for origin in origins if origin in targets}

    def _targets_of(self, topic: str) -> Mapping[Origin, int]:
        state = self._cluster.topics.get(topic)
        if state is None:
            self._targets.pop(topic, None)
            return {}
        cached = self._targets.get(topic)
        if cached is None or cached[0] is not state:
            cached = self._targets[topic] = (state, state.targets())
        return cached[1]

    def _led_here(self, topic: TopicMetadata, targets: Mapping[Origin, int]) -> list[Pull]:
        settings = self._settings[topic.name, topic.topic_id]
        rules = OffsetRules.of_cluster(self._client.cluster_id, settings.get(CLEANUP_POLICY))
        return [
            Pull(origin, target, rules, topic.partitions[origin.partition], topic.epoch_of(origin.partition))
            for origin, target in targets.items()
            if self._leads(topic.name, target)
        ]

    def _leads(self, topic: str, target: int) -> bool:
        state = self._cluster.topics.get(topic)
        partition = state.partitions.get(target) if state is not None else None
        return partition is not None and partition.leader == self._broker_id

    def _brokers_have_settled(self) -> bool:
        now = time.monotonic()
        if self._cluster.brokers != self._brokers[0]:
            self._brokers = (self._cluster.brokers, now)
        return now - self._brokers[1] >= SETTLE_SECONDS

    # States of partitions that are not pulled

    def _of_recreated_topic(self, former: Origin) -> dict[TopicPartition, MirrorState]:
        target = self._targets_of(former.topic).get(former)
        if target is None or not self._leads(former.topic, target):
            return {}
        detail = (
            f"{former.cluster} {former.topic}-{former.partition} was deleted and recreated: to copy the"
            " new one, run millrace mirror reset"
        )
        return {(former.topic, target): MirrorState(former, State.STOPPED, detail)}

    def _of_missing_topics(self, topics: Mapping[str, TopicMetadata]) -> dict[TopicPartition, MirrorState]:
        """Return the partitions led here whose topic the origin does not have."""
        return {
            (name, target): MirrorState(origin, State.WAITING, f"{self._origin_name} has no topic {name} now")
            for name in self._cluster.topics
            if name not in topics and choose(self._config, name)[0] is Choice.PULLED
            for origin, target in self._targets_of(name).items()
            if origin.cluster == self._origin_name and origin.topic == name and self._leads(name, target)
        }

    def _show(self, idle: Mapping[TopicPartition, MirrorState]) -> None:
        for (topic, target), state in idle.items():
            self._states.put(topic, target, state)
        for topic, target in self._shown - idle.keys():
            self._states.forget(topic, target)
        self._shown = set(idle)

    def _log_once(self, topic: str, reason: str) -> None:
        if self._logged.get(topic) != reason:
            self._logged[topic] = reason
            logger.warning("mirror of %s %s waits: %s", self._origin_name, topic, reason)


class _LeftOut(MillraceError):
    """A topic is not mirrored, and should not be."""
