"""The groups this broker coordinates: how it takes them over, keeps them and gives them up.

Who coordinates a group is written in ZooKeeper, by a node that goes with the broker's session. A broker that
is asked for a group nobody coordinates takes it over if the choice falls on it, and starts it without
members: they find out and join anew. One whose node has become another's drops the group; until it notices,
ZooKeeper refuses its offsets. Runs on the loop; ZooKeeper is asked in threads.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from millrace.config import BrokerConfig
from millrace.coordination.groups import ConsumerRegistry, Fence, GroupKind
from millrace.coordination.state import BrokerAddress, TopicState
from millrace.errors import ErrorCode, GroupNotEmpty, NotCoordinator, UnknownGroup
from millrace.groups.commits import Commits
from millrace.groups.group import Group
from millrace.groups.timing import Clock, Memory
from millrace.groups.work import Failed, Waiting, Work
from millrace.mailbox import Mailbox

log = logging.getLogger(__name__)

SWEEP_S = 2.0
IDLE_S = 10.0
"""A group without members is coordinated this much longer: one that only commits offsets would otherwise be
taken over and given up again with every commit."""
FIRST_TIDY_S = 60.0
TIDY_S = 3600.0
"""When to look for what killed coordinators have left; it is little, and reading all groups is not."""
MAX_NAME = 1_000
"""Characters of a group's name: it is part of a node's name in ZooKeeper."""
CLAIMS = 5
CLOSE_S = 3.0
"""How long a broker that stops may take to give up its groups; what it does not, ends with its session."""


def coordinator_of(group: str, brokers: Iterable[int]) -> int | None:
    """One of these brokers, None when there is none.

    Every broker draws a number for the group, the highest wins: when a broker comes or goes, only the groups
    that it wins or had won change hands.
    """

    def draw(broker: int) -> bytes:
        return hashlib.blake2b(f"{broker}/{group}".encode(), digest_size=8).digest()

    return max(brokers, key=draw, default=None)


def is_group_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME


class Snapshots(Protocol):
    """Of the cluster: `millrace.coordination.cluster.Cluster`."""

    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicState]


@dataclass(slots=True)
class CoordinatedGroup:
    """A group that is coordinated here."""

    group: Group
    commits: Commits
    used_at: float
    unsure: bool = False
    """ZooKeeper was away: somebody else may have become the coordinator."""
    doubtful: bool = False
    """This broker stood still: nobody is answered before it is known who the coordinator is."""
    waiting: list[Waiting[CoordinatedGroup]] = field(default_factory=list)
    """Who asks while that is doubtful."""

    def trust(self) -> None:
        """Nobody else has coordinated it: answer who waits."""
        self.doubtful = False
        all_waiting, self.waiting = self.waiting, []
        for waiting in all_waiting:
            waiting.succeed(self)


class GroupOwnership:
    """CoordinatedGroup groups by name. On the loop only."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster: Snapshots,
        registry: ConsumerRegistry,
        mailbox: Mailbox,
        clock: Clock,
        standstills: Callable[[], int],
    ) -> None:
        self.work = Work(mailbox)
        self._config, self._cluster, self._registry = config, cluster, registry
        self._mailbox, self._clock, self._memory = mailbox, clock, Memory()
        self._held: dict[str, CoordinatedGroup] = {}
        self._taking: dict[str, list[Waiting[CoordinatedGroup]]] = {}
        self._leaving: set[str] = set()
        self._count_standstills, self._standstills = standstills, standstills()
        clock.after(SWEEP_S, self._sweep)
        clock.after(FIRST_TIDY_S, self._tidy)

    def get(self, name: str) -> CoordinatedGroup | None:
        return self._held.get(name)

    def names(self) -> list[str]:
        return list(self._held)

    def is_ours(self, name: str) -> bool:
        """True if the choice for a group that nobody coordinates falls on this broker."""
        return coordinator_of(name, self._cluster.brokers) == self._config.broker_id

    def use(self, name: str, use: Callable[[CoordinatedGroup], None], failed: Failed) -> None:
        """`use` the group here, after taking it over if need be; `failed` when that cannot be."""
        self._notice_standstill()
        held = self._held.get(name)
        if not is_group_name(name):
            failed(ErrorCode.INVALID_GROUP_ID)
        elif held is not None and held.doubtful:
            held.waiting.append(Waiting(self._mailbox, use, failed))
        elif held is not None:
            held.used_at = self._clock.now()
            use(held)
        elif name in self._leaving or not self._memory.has_room(0):
            failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self._wait_for(name, Waiting(self._mailbox, use, failed))

    def _wait_for(self, name: str, waiting: Waiting[CoordinatedGroup]) -> None:
        if name in self._taking:
            self._taking[name].append(waiting)
            return
        self._taking[name] = [waiting]

        def done(holder: Fence | int) -> None:
            if isinstance(holder, int):
                failed(ErrorCode.NOT_COORDINATOR)
                return
            log.info("coordinating group %r", name)
            held = self._held[name] = self._hold(name, holder)
            for waiting in self._taking.pop(name):
                waiting.succeed(held)

        def failed(code: ErrorCode) -> None:
            for waiting in self._taking.pop(name):
                waiting.fail(code)

        self.work.run(functools.partial(self._take_ours, name), done, failed)

    def _take_ours(self, name: str) -> Fence | int:
        """In a thread: become the coordinator if the choice is on us or the node is ours, left over."""
        if self.is_ours(name) or self._registry.coordinator(name) == self._config.broker_id:
            return self._take(name)
        raise NotCoordinator(f"group {name!r} is another broker's")

    def _take(self, name: str) -> Fence | int:
        """In a thread: become the coordinator, or say who is it."""
        for _ in range(CLAIMS):
            self._registry.claim(name, GroupKind.CLASSIC)
            with contextlib.suppress(UnknownGroup):  # deleted in between, as one that had nothing
                return self._registry.coordinate(name, self._config.broker_id)
        raise NotCoordinator(f"group {name!r} is deleted again and again")

    def _hold(self, name: str, fence: Fence) -> CoordinatedGroup:
        group = Group(name, self._config, self._clock, self._memory)
        write = functools.partial(self._registry.commit, name)
        commits = Commits(
            write, fence, self.work, self._mailbox, self._memory, lambda: self._fenced(name, group)
        )
        return CoordinatedGroup(group, commits, self._clock.now())

    def _fenced(self, name: str, group: Group) -> None:
        held = self._held.get(name)
        if held is not None and held.group is group:
            log.warning("group %r has another coordinator now", name)
            self.drop(name)

    def drop(self, name: str) -> None:
        """Coordinate the group no longer: its members look for another coordinator."""
        held = self._held.pop(name)
        for waiting in held.waiting:
            waiting.fail(ErrorCode.NOT_COORDINATOR)
        held.group.drop(ErrorCode.NOT_COORDINATOR)
        held.commits.drop(ErrorCode.NOT_COORDINATOR)

    def give_up(self, name: str, work: Callable[[Fence], None], done: Callable[[ErrorCode], None]) -> None:
        """Drop the group, then have `work` tidy up in a thread, under its fence; meanwhile it is nobody's."""
        fence = self._held[name].commits.fence
        self.drop(name)
        self._leaving.add(name)

        def left(code: ErrorCode) -> None:
            self._leaving.discard(name)
            done(code)

        self.work.run(lambda: work(fence), lambda _: left(ErrorCode.NONE), left)

    def check(self) -> None:
        """After ZooKeeper was away: keep the groups that nobody else has taken, drop the others."""
        for held in self._held.values():
            held.unsure = True
        self._make_sure()

    def _notice_standstill(self) -> None:
        """After a standstill, answer for no group before it is known who coordinates it."""
        if (count := self._count_standstills()) == self._standstills:
            return
        self._standstills = count
        for held in self._held.values():
            held.doubtful = True
        self.check()

    def _make_sure(self) -> None:
        for name, held in self._held.items():
            if held.unsure:
                held.unsure = False
                self._ask_who_coordinates(name, held)

    def _ask_who_coordinates(self, name: str, held: CoordinatedGroup) -> None:
        standstills = self._standstills

        def done(holder: Fence | int) -> None:
            if isinstance(holder, Fence) and holder.follows(held.commits.fence):
                held.commits.fence = holder
                if standstills == self._standstills:  # else it was asked once more
                    held.trust()
            else:
                self._fenced(name, held.group)

        def failed(code: ErrorCode) -> None:
            if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                held.unsure = True  # until the next sweep
            else:
                self._fenced(name, held.group)

        self.work.run(functools.partial(self._take, name), done, failed)

    def _sweep(self) -> None:
        self._make_sure()
        idle = [name for name, held in self._held.items() if self._is_idle(held)]
        for name in idle[: self.work.room]:
            self.give_up(name, functools.partial(self._resign, name), lambda _: None)
        self._clock.after(SWEEP_S, self._sweep)

    def _is_idle(self, held: CoordinatedGroup) -> bool:
        idle = held.group.idle and not held.commits.busy
        return idle and self._clock.now() - held.used_at > IDLE_S

    def _resign(self, name: str, fence: Fence) -> None:
        """In a thread: leave nothing behind of a group that has never committed anything."""
        if self._registry.offsets(name):
            self._registry.resign(name, fence)
        else:
            self._registry.delete_group(name, fence=fence)

    def _tidy(self) -> None:
        """Have those of our share deleted that were left behind, without offsets, by a killed coordinator."""
        held = set(self._held)

        def work() -> None:
            for name, kind in self._registry.groups().items():
                if kind is not GroupKind.CLASSIC or name in held or not self.is_ours(name):
                    continue
                if self._registry.coordinator(name) is None and not self._registry.offsets(name):
                    with contextlib.suppress(UnknownGroup, GroupNotEmpty, NotCoordinator):
                        self._registry.delete_group(name)

        self.work.run(work, lambda _: None, lambda _: None)
        self._clock.after(TIDY_S, self._tidy)

    def close(self) -> None:
        """Give up every group, so that others take over at once."""
        for name in list(self._held):
            self.give_up(name, functools.partial(self._resign, name), lambda _: None)
        self.work.close(CLOSE_S)
