"""One thread that watches one origin: which topics and partitions there are, and where they are copied to.

Gives every partition of every topic that is to be mirrored a target partition, and tells the pullers, one
for each broker of the origin, what to copy. Copies nothing itself. An origin that does not answer is asked
again; one topic that cannot be mirrored holds up no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from uuid import UUID

from millrace.client.cluster_client import ClusterClient, TopicMetadata
from millrace.client.topic_admin import settings_of_topics
from millrace.config import OriginConfig
from millrace.coordination.cluster import Cluster
from millrace.coordination.state import BrokerAddress, OriginRecreated, TopicState
from millrace.errors import MillraceError
from millrace.mirror.choice import Choice, choose, names_only
from millrace.mirror.pull import Pull
from millrace.mirror.runs import OffsetRules
from millrace.mirror.states import MirrorState, MirrorStates, State
from millrace.records.mirror_position import Origin
from millrace.wire.admin_messages import ORIGINS
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""How soon new topics, partitions and leaders are noticed."""
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0
TIMEOUT_SECONDS = 5.0
SETTLE_SECONDS = 2.0
"""Give no targets to brokers while others are just coming up: the first would get them all."""
TOPICS_AT_ONCE = 500
"""Whose settings are asked for in one request."""
_CLEANUP = "cleanup.policy"
Addresses = Mapping[int, tuple[str, int]]
Assign = Callable[[Mapping[int, tuple[str, int]], list[Pull]], None]


class OriginWatch:
    """Watches one origin; `run` is the thread's function and returns after `stop`."""

    def __init__(
        self, name: str, config: OriginConfig, broker_id: int, cluster: Cluster, states: MirrorStates,
        assign: Assign,
    ) -> None:  # fmt: skip
        self.name = name
        self._config, self._broker_id, self._cluster = config, broker_id, cluster
        self._states, self._assign = states, assign
        self._client = ClusterClient(
            config.bootstrap, client_id=f"millrace-mirror-{broker_id}", timeout_s=TIMEOUT_SECONDS
        )
        self._settings: dict[tuple[str, UUID], Mapping[str, str]] = {}
        self._targets: dict[str, tuple[TopicState, Mapping[Origin, int]]] = {}
        self._shown: dict[tuple[str, int], str] = {}
        """(topic, target) -> what was said of a partition that nobody pulls."""
        self._told: dict[str, str] = {}
        """Topic, or "" for the origin -> what was logged of it last."""
        self._brokers: tuple[Mapping[int, BrokerAddress], float] = ({}, 0.0)
        self._wake, self._stopping = threading.Event(), threading.Event()

    def wake(self) -> None:
        """Something has changed: look again now. From any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Let `run` return soon. From any thread."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Watch until `stop`."""
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            try:
                self.look()
                self._told.pop("", None)
                pause = FIRST_PAUSE_SECONDS
                self._sleep(REFRESH_SECONDS)
            except MillraceError as error:
                self._tell("", str(error))
                self._sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
            except Exception as error:  # a mistake of ours must stop neither the broker nor other origins
                self._tell("", f"unexpected {type(error).__name__}: {error}", error)
                self._sleep(MAX_PAUSE_SECONDS)
        self._client.close()

    def _sleep(self, seconds: float) -> None:
        self._wake.wait(seconds)
        if not self._stopping.is_set():
            self._wake.clear()

    def look(self) -> None:
        """Find what there is, give it targets, hand out what this broker copies."""
        found = self._client.topics(names_only(self._config))
        if self._client.cluster_id == self._cluster.cluster_id:
            raise MillraceError("bootstrap leads to this very cluster: a cluster cannot mirror itself")
        chosen = {topic: choose(self._config, topic) for topic in found}
        wanted = [topic for topic, (choice, _) in chosen.items() if choice is not None]
        self._learn_settings(found, wanted)
        settled = self._brokers_have_settled()
        pulls: list[Pull] = []
        shown: dict[tuple[str, int], str] = {}
        for topic in wanted:
            choice, by_name = chosen[topic]
            try:
                self._check_source(found[topic], by_name)
                targets = self._allocated(found[topic], settled, shown)
                self._told.pop(topic, None)
            except MillraceError as error:
                if by_name or not isinstance(error, _LeftOut):
                    self._tell(topic, str(error))
                continue
            if choice is Choice.PULLED:
                pulls += self._led_here(found[topic], targets)
        self._show_missing(found, shown)
        self._assign(self._client.addresses, pulls)

    # What there is

    def _learn_settings(self, found: Mapping[str, TopicMetadata], wanted: list[str]) -> None:
        """Ask once about each topic: whether it is compacted, and whether it is itself a copy."""
        present = {(topic, found[topic].topic_id): topic for topic in wanted if found[topic].partitions}
        self._settings = {key: known for key, known in self._settings.items() if key in present}
        unknown = [topic for key, topic in present.items() if key not in self._settings]
        for first in range(0, len(unknown), TOPICS_AT_ONCE):
            part = unknown[first : first + TOPICS_AT_ONCE]
            answers = settings_of_topics(self._client, part, (_CLEANUP, ORIGINS))
            for topic in part:
                settings = {one.name: one.value or "" for one in answers.get(topic, ())}
                self._settings[topic, found[topic].topic_id] = settings

    def _check_source(self, topic: TopicMetadata, by_name: bool) -> None:
        """Raise unless the topic may be mirrored: nothing may come back to where it came from."""
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

    def _rules(self, topic: TopicMetadata) -> OffsetRules:
        if self._client.cluster_id.startswith(BYTE_OFFSETS_PREFIX):
            return OffsetRules(byte_positions=True)
        policy = self._settings[topic.name, topic.topic_id].get(_CLEANUP, "")
        return OffsetRules(byte_positions=False, compacted="compact" in policy)

    # Where it goes

    def _allocated(
        self, topic: TopicMetadata, settled: bool, shown: dict[tuple[str, int], str]
    ) -> Mapping[Origin, int]:
        origins = [Origin(self.name, topic.name, topic.topic_id, number) for number in topic.partitions]
        known = self._known_targets(topic.name)
        missing = [origin for origin in origins if origin not in known]
        state = self._cluster.topics.get(topic.name)
        recreated = [origin for origin in missing if state is not None and state.former_origin(origin)]
        for origin in recreated:
            self._show_recreated(origin, shown)
        new = [origin for origin in missing if origin not in recreated]
        if new and not settled:
            self._wake.set()
        elif new:
            try:
                known = {**known, **self._cluster.allocate_mirrors(topic.name, new)}
            except OriginRecreated:  # known to ZooKeeper and not to the snapshot yet: the next look says so
                self._wake.set()
        return {origin: known[origin] for origin in origins if origin in known}

    def _known_targets(self, topic: str) -> Mapping[Origin, int]:
        state = self._cluster.topics.get(topic)
        if state is None:
            self._targets.pop(topic, None)
            return {}
        cached = self._targets.get(topic)
        if cached is None or cached[0] is not state:
            cached = self._targets[topic] = (state, state.targets())
        return cached[1]

    def _led_here(self, topic: TopicMetadata, targets: Mapping[Origin, int]) -> list[Pull]:
        return [
            Pull(origin, target, self._rules(topic), topic.partitions[origin.partition])
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

    # What people see of partitions that nobody pulls

    def _show_recreated(self, origin: Origin, shown: dict[tuple[str, int], str]) -> None:
        state = self._cluster.topics[origin.topic]
        former = state.former_origin(origin)
        target = state.target_of(former) if former is not None else None
        if former is None or target is None or not self._leads(origin.topic, target):
            return
        detail = (
            f"{origin.cluster} {origin.topic}-{origin.partition} was deleted and created anew: to go on with "
            "the new one: millrace mirror reset"
        )
        shown[origin.topic, target] = detail
        self._states.put(origin.topic, target, MirrorState(former, State.STOPPED, detail))

    def _show_missing(self, found: Mapping[str, TopicMetadata], shown: dict[tuple[str, int], str]) -> None:
        """Say of partitions led here that the origin has no such topic; forget what was said before."""
        for name in self._cluster.topics:
            if name in found or choose(self._config, name)[0] is not Choice.PULLED:
                continue
            for origin, target in self._known_targets(name).items():
                if origin.cluster == self.name and origin.topic == name and self._leads(name, target):
                    detail = f"{self.name} has no topic {name} now"
                    shown[name, target] = detail
                    self._states.put(name, target, MirrorState(origin, State.WAITING, detail))
        for place in self._shown.keys() - shown.keys():
            self._states.forget(*place)
        self._shown = shown

    def _tell(self, topic: str, reason: str, error: Exception | None = None) -> None:
        if self._told.get(topic) != reason:
            self._told[topic] = reason
            what = f"mirror of {self.name} {topic}".rstrip()
            log.warning("%s waits: %s", what, reason, exc_info=error)


class _LeftOut(MillraceError):
    """A topic is not mirrored, as it should be."""
