"""Offsets of consumers on their way from a datacenter's cluster to the aggregate cluster and back.

Asks the brokers that lead the copies; they alone know. Decides which offsets of a group belong to an origin,
and whether all of them can be moved. Reads and commits through the brokers, like any client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.client.cluster_client import ClusterClient
from millrace.client.group_client import GroupClient
from millrace.config import OriginConfig
from millrace.coordination.cluster import Cluster
from millrace.errors import MillraceError, UnknownGroup
from millrace.mirror.offset_search import Outcome, Translated
from millrace.mirror.translate_offsets import translate
from millrace.records.mirror_position import Origin

TIMEOUT_SECONDS = 10.0
ACTIVE = ("Stable", "PreparingRebalance", "CompletingRebalance")
EXPLAINED = {
    Outcome.TRANSLATED: "translated",
    Outcome.NOT_COPIED: "not copied yet: wait for the mirror",
    Outcome.NOT_RETAINED: "not retained: the copy of it has expired",
    Outcome.BEFORE_START: "not copied: the mirror began later",
    Outcome.BEFORE_RESET: "not known: copied before a reset of the mirror",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """One offset on both sides; `found` is the answer for the side that was asked about."""

    topic: str
    origin_partition: int
    partition: int
    """Of the copy."""
    offset: int
    found: Translated


class Translator:
    """Translates between one origin and this cluster; every method raises MillraceError."""

    def __init__(self, cluster: Cluster, name: str, config: OriginConfig, *, to_origin: bool) -> None:
        brokers = ",".join(f"{b.host}:{b.port}" for b in cluster.brokers.values())
        if not brokers:
            raise MillraceError(f"no broker of cluster {cluster.name} is alive: start one")
        self._cluster, self._name, self._to_origin = cluster, name, to_origin
        self._copy = ClusterClient(brokers, timeout_s=TIMEOUT_SECONDS)
        self._origin = ClusterClient(config.bootstrap, timeout_s=TIMEOUT_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        self._copy.close()
        self._origin.close()

    def one(self, topic: str, partition: int, offset: int) -> Translation:
        """One offset; the partition is the origin's, or the copy's when it is translated to the origin."""
        places = self._places(topic, partition)
        if not places:
            raise MillraceError(
                f"{topic}-{partition} is no copy of a partition that {self._name} has now"
                if self._to_origin
                else f"{self._name} {topic}-{partition} is not mirrored here"
            )
        return self._translated(topic, *places[0], offset)

    def group(self, group: str) -> list[Translation]:
        """Every offset that a group has committed on one side and that exists on the other."""
        committed = GroupClient(self._source(), timeout_s=TIMEOUT_SECONDS).offsets(group)
        if not committed:
            raise MillraceError(f"group {group!r} has committed nothing on {self._source().bootstrap}")
        return [
            self._translated(topic, origin, target, offset)
            for (topic, number), offset in sorted(committed.items())
            for origin, target in self._places(topic, number)
        ]

    def apply(self, group: str, translations: Sequence[Translation]) -> None:
        """Commit what was found on the other side, all of it or nothing; the group must have no members."""
        for each in translations:
            if each.found.outcome is not Outcome.TRANSLATED:
                reason = EXPLAINED[each.found.outcome]
                raise MillraceError(f"{each.topic}: offset {each.offset} is {reason}; nothing was committed")
        client = self._origin if self._to_origin else self._copy
        groups = GroupClient(client, timeout_s=TIMEOUT_SECONDS)
        try:
            if (described := groups.describe(group)).state in ACTIVE:
                count = len(described.members)
                raise MillraceError(
                    f"group {group!r} has {count} members on {client.bootstrap}: stop them first"
                )
        except UnknownGroup:
            pass  # it comes into being with its offsets
        numbers = {
            (each.topic, each.origin_partition if self._to_origin else each.partition): each.found.offset
            for each in translations
        }
        groups.commit(group, numbers)

    def _translated(self, topic: str, origin: int, target: int, offset: int) -> Translation:
        (found,) = translate(self._copy, topic, target, [offset], to_origin=self._to_origin)
        return Translation(
            topic=topic, origin_partition=origin, partition=target, offset=offset, found=found
        )  # fmt: skip

    def _source(self) -> ClusterClient:
        return self._copy if self._to_origin else self._origin

    def _copies(self, topic: str) -> Mapping[Origin, int]:
        """The origin's partitions that are copied here, those of a topic that is gone there included."""
        state = self._cluster.topics.get(topic)
        found = state.targets() if state is not None else {}
        return {
            origin: n for origin, n in found.items() if (origin.cluster, origin.topic) == (self._name, topic)
        }

    def _places(self, topic: str, number: int) -> list[tuple[int, int]]:
        """(origin partition, copy) of a partition the group reads; none if it is not of this origin.

        An origin's partition that was created anew has several copies: only the last is of what is there now.
        """
        copies = sorted((target, origin.partition) for origin, target in self._copies(topic).items())
        current = {origin: target for target, origin in copies}
        if self._to_origin:
            return [(origin, target) for origin, target in current.items() if target == number]
        return [(number, current[number])] if number in current else []
