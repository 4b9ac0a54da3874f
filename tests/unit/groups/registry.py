"""ZooKeeper's part for tests of the coordinator: in memory, shared by brokers, and it can be held up.

The real one is tested against ZooKeeper in tests/integration/test_consumer_registry.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.errors import (
    GroupNotEmpty,
    InconsistentGroupKind,
    NotCoordinator,
    RequestTimedOut,
    UnknownGroup,
)
from millrace.records.topic_partition import TopicPartition
from millrace_broker.coordination.groups import CommittedOffset, Fence, GroupKind, StreamsMember
from tests.support import WAIT_S


@dataclass
class Entry:
    """One group."""

    kind: GroupKind
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    members: dict[str, StreamsMember] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    coordinator: int | None = None
    version: int = 0
    kept: int = 0
    """The number of times that its offsets were kept."""


class MemoryRegistry:
    """As `ConsumerRegistry`, for any number of brokers."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.commits: list[dict[TopicPartition, CommittedOffset]] = []
        self.away = False
        self.asked = self.refused = 0
        self.places: list[set[TopicPartition] | None] = []
        """Partitions that each look at offsets asked for, None for all."""
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.blocked = threading.Semaphore(0)

    def _ask(self) -> None:
        self.asked += 1
        if not self.may_go_on.is_set():
            self.blocked.release()
            assert self.may_go_on.wait(WAIT_S)
        if self.away:
            self.refused += 1
            raise RequestTimedOut("ZooKeeper at test does not answer")

    def names(self) -> set[str]:
        """Every group's name."""
        self._ask()
        return set(self.entries)

    def groups(self) -> dict[str, GroupKind]:
        self._ask()
        return {name: entry.kind for name, entry in self.entries.items()}

    def count(self) -> int:
        return len(self.entries)

    def kinds(self, groups: Iterable[str]) -> dict[str, GroupKind]:
        self._ask()
        return {name: self.entries[name].kind for name in groups if name in self.entries}

    def kind(self, group: str) -> GroupKind | None:
        self._ask()
        return self.entries[group].kind if group in self.entries else None

    def claim(self, group: str, kind: GroupKind) -> None:
        self._ask()
        if self.entries.setdefault(group, Entry(kind)).kind != kind:
            raise InconsistentGroupKind("other kind")

    def coordinate(self, group: str, broker_id: int) -> Fence:
        self._ask()
        if group not in self.entries:
            raise UnknownGroup("none")
        entry = self.entries[group]
        if entry.coordinator not in (None, broker_id):
            raise NotCoordinator(f"group {group!r} is coordinated by broker {entry.coordinator}")
        if entry.coordinator is None:
            entry.coordinator = broker_id
            entry.version += 1
        return Fence(checks=((group, entry.version),), broken=NotCoordinator)

    def _holds(self, group: str, fence: Fence | None) -> bool:
        entry = self.entries.get(group)
        return (
            entry is not None
            and entry.coordinator is not None
            and fence is not None
            and (fence.checks == ((group, entry.version),))
        )

    def coordinator(self, group: str) -> int | None:
        self._ask()
        return self.entries[group].coordinator if group in self.entries else None

    def coordinators(self, groups: Iterable[str]) -> dict[str, int]:
        found = {group: self.coordinator(group) for group in groups}
        return {group: broker for group, broker in found.items() if broker is not None}

    def resign(self, group: str, fence: Fence) -> None:
        self._ask()
        if self._holds(group, fence):
            self.entries[group].coordinator = None

    def offsets(
        self, group: str, places: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        asked = None if places is None else set(places)
        if asked != set():
            self._ask()
        self.places.append(asked)
        found = self.entries[group].offsets if group in self.entries else {}
        return {place: found[place] for place in (found if asked is None else asked) if place in found}

    def offsets_of(
        self, groups: Mapping[str, Iterable[TopicPartition] | None]
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        return {
            group: self.offsets(group, places) for group, places in groups.items() if group in self.entries
        }

    def committed(self, groups: Mapping[str, Iterable[str]]) -> dict[str, set[TopicPartition]]:
        self._ask()
        return {
            group: {place for place in self.entries[group].offsets if place[0] in topics}
            for group, topics in groups.items()
            if group in self.entries
        }

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], *, fence: Fence | None = None
    ) -> None:
        self._ask()
        if not self._holds(group, fence):
            raise NotCoordinator("fenced")
        self.entries[group].offsets |= offsets
        self.commits.append(dict(offsets))

    def keep_offsets(self, groups: Iterable[str]) -> None:
        self._ask()
        for group in groups:
            self.entries[group].kept += 1

    def expire_offsets(self, groups: Iterable[str], before_ms: float) -> dict[str, int]:
        self._ask()
        expired: dict[str, int] = {}
        for group in groups:
            entry = self.entries.get(group)
            if entry is not None and entry.coordinator is None and not entry.members:
                over = [place for place, offset in entry.offsets.items() if offset.time_ms < before_ms]
                for place in over:
                    del entry.offsets[place]
                if over:
                    expired[group] = len(over)
                if not entry.offsets and entry.kind is GroupKind.CLASSIC:
                    del self.entries[group]
        return expired

    def delete_group(self, group: str, *, fence: Fence | None = None) -> None:
        self._ask()
        entry = self.entries.get(group)
        if entry is None:
            raise UnknownGroup("none")
        if entry.members:
            raise GroupNotEmpty("members")
        if entry.coordinator is not None and not self._holds(group, fence):
            raise NotCoordinator("held")
        del self.entries[group]

    def delete_offsets(
        self, group: str, places: Iterable[TopicPartition], *, fence: Fence | None = None
    ) -> None:
        self._ask()
        entry = self.entries.get(group)
        if entry is None:
            raise UnknownGroup("none")
        if entry.members:
            raise GroupNotEmpty("members")
        if entry.coordinator is not None and not self._holds(group, fence):
            raise NotCoordinator("held")
        for place in places:
            entry.offsets.pop(place, None)

    def members(self, group: str) -> dict[str, StreamsMember]:
        self._ask()
        return self.entries[group].members

    def owners(self, group: str) -> dict[TopicPartition, str]:
        self._ask()
        return self.entries[group].owners

    def rewind(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._ask()
        if self.entries[group].members:
            raise GroupNotEmpty("members")
        self.entries[group].offsets |= offsets

    def session_ends(self, broker_id: int) -> None:
        """The broker's ephemeral nodes go."""
        for entry in self.entries.values():
            if entry.coordinator == broker_id:
                entry.coordinator = None
