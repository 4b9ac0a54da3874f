"""The groups this broker coordinates: takes them over, keeps them and gives them up.

A node in ZooKeeper names the coordinator of a group. The node disappears with the broker's session. If a
client asks a broker for a group without a coordinator, and `coordinator_of` chooses this broker, it takes the
group over and starts it without members: the members notice that and join again. A broker whose node now
belongs to another broker drops the group; until it notices, ZooKeeper refuses its offsets. Runs on the event
loop; requests to ZooKeeper run in threads.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from millrace.config import BrokerConfig
from millrace.errors import ErrorCode, NotCoordinator, UnknownGroup
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.groups import ConsumerRegistry, Fence, GroupKind
from millrace_broker.groups.commits import Commits
from millrace_broker.groups.group import Group
from millrace_broker.groups.timing import Memory
from millrace_broker.groups.work import Failed, Waiting, Work, begin, result_of
from millrace_broker.mailbox import Mailbox, outcome

logger = logging.getLogger("millrace.groups.holding")

THREADS = 4
"""Number of threads for commits and for taking over and giving up groups."""
SWEEP_S = 2.0
IDLE_S = 10.0
"""Time for which a group stays coordinated after its last member or request."""
LONG_IDLE_S = 600.0
"""The same for a group that commits without members, which each commit would otherwise take over again; and
for a take-over that took longer than its client waited: the client asks again, perhaps slowly."""
MANY = 1_000
"""Number of groups above which none stays for LONG_IDLE_S: clients choose how many groups there are."""
FIRST_TIDY_S = 60.0
TIDY_S = 3600.0
"""Pause between two searches for expired offsets and nodes of killed coordinators; shorter if offsets are
kept for less than four times this time."""
MIN_TIDY_S = 60.0
TIDIED_AT_ONCE = 100
"""Number of groups that are checked for expired offsets before administrators' requests get a turn."""
MAX_NAME = 1_000
"""Largest number of characters of a group's name, which is part of a node's name in ZooKeeper."""
CLAIMS = 5
CLOSE_S = 3.0
"""Seconds a broker that stops may take to give up its groups. The end of its session gives up the others."""


def coordinator_of(group: str, brokers: Iterable[int]) -> int | None:
    """Choose the group's coordinator among these brokers; None when there are no brokers.

    Each broker gets a pseudo-random number for the group, and the highest number wins. So when a broker comes
    or goes, only the groups that it wins or had won change their coordinator.
    """

    def draw(broker: int) -> bytes:
        return hashlib.blake2b(f"{broker}/{group}".encode(), digest_size=8).digest()

    return max(brokers, key=draw, default=None)


def is_group_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME


@dataclass(slots=True)
class CoordinatedGroup:
    """A group that this broker coordinates."""

    group: Group
    commits: Commits
    used_at: float
    unsure: bool = False
    """True if ZooKeeper was unreachable: another broker may have become the coordinator."""
    waiting: deque[Waiting[CoordinatedGroup]] = field(default_factory=deque)
    """Clients that ask while the group is doubtful, oldest first."""

    @property
    def idle(self) -> bool:
        return self.group.idle and not self.commits.busy

    @property
    def only_commits(self) -> bool:
        """True if the group has committed offsets, and has had no members here."""
        return self.group.generation == 0 and self.commits.has_written

    @property
    def doubtful(self) -> bool:
        return self.group.is_doubtful

    def doubt(self) -> None:
        """Answer no client for now. Heartbeats are not answered meanwhile, so no session ends."""
        self.group.is_doubtful = True

    def trust(self) -> None:
        """Answer the clients that wait: no other broker has coordinated the group."""
        if self.doubtful:
            self.group.trust()
        all_waiting, self.waiting = self.waiting, deque()
        for waiting in all_waiting:
            waiting.settle(self)

    def drop(self) -> None:
        """Stop coordinating the group: its members look for another coordinator."""
        for waiting in self.waiting:
            waiting.settle(ErrorCode.NOT_COORDINATOR)
        self.commits.drop(ErrorCode.NOT_COORDINATOR)
        self.group.drop(ErrorCode.NOT_COORDINATOR)


class GroupOwnership:
    """The groups that this broker coordinates, by name. Must be called on the event loop only."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster: Cluster,
        registry: ConsumerRegistry,
        mailbox: Mailbox,
        standstills: Callable[[], int],
        administration: Work,
        wall_clock: Callable[[], float],
    ) -> None:
        self.work = Work(mailbox, THREADS)
        self._config, self._cluster, self._registry = config, cluster, registry
        self._mailbox, self._memory = mailbox, Memory()
        self._administration, self._wall_clock = administration, wall_clock
        self._held: dict[str, CoordinatedGroup] = {}
        self._taking: dict[str, deque[Waiting[CoordinatedGroup]]] = {}
        self._leaving: set[str] = set()
        self._count_standstills, self._standstills = standstills, standstills()
        mailbox.every(SWEEP_S, self._sweep)
        retention = config.offsets_retention_minutes
        self._retention_ms = math.inf if retention is None else retention * 60_000
        tidy_s = max(MIN_TIDY_S, min(TIDY_S, self._retention_ms / 4_000))
        # Not at once: members may not be back yet.
        mailbox.after(FIRST_TIDY_S, lambda: mailbox.begin(self._tidy(math.inf)))
        mailbox.every(tidy_s, lambda: mailbox.begin(self._tidy(self._retention_ms)))

    def get(self, name: str) -> CoordinatedGroup | None:
        return self._held.get(name)

    def groups(self) -> list[Group]:
        """Return every group that is coordinated here. May be called from any thread."""
        return [held.group for held in list(self._held.values())]

    @property
    def size(self) -> int:
        """Number of groups that are coordinated here, plus the number of their members."""
        return len(self._held) + self._memory.members

    def is_ours(self, name: str) -> bool:
        """Return True if this broker would be chosen as coordinator of a group that has no coordinator."""
        return coordinator_of(name, self._cluster.brokers) == self._config.broker_id

    def use(self, name: str, use: Callable[[CoordinatedGroup], None], failed: Failed) -> None:
        """Call `use` with the group, at once if it is coordinated here; `failed` if that is impossible."""
        self._notice_standstill()
        held = self._held.get(name)
        if held is not None and not held.doubtful:  # the hot path: no coroutine
            held.used_at = self._mailbox.now()
            use(held)
        else:
            begin(self._mailbox, self.available(name), use, failed)

    async def available(self, name: str) -> CoordinatedGroup | ErrorCode:
        """Return the group, after taking it over if need be, once no other broker can be its coordinator."""
        self._notice_standstill()
        held = self._held.get(name)
        if not is_group_name(name):
            return ErrorCode.INVALID_GROUP_ID
        if held is None and (name in self._leaving or not self._memory.has_room(0)):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if held is None or held.doubtful:
            found = await self._wait_for(name, held)
            if isinstance(found, ErrorCode):
                return found
            held = found
            if self._held.get(name) is not held or held.doubtful:  # since it was settled
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        held.used_at = self._mailbox.now()
        return held

    async def _wait_for(self, name: str, held: CoordinatedGroup | None) -> CoordinatedGroup | ErrorCode:
        """Wait in line for the group: until it is taken over, or until it is no longer doubtful."""
        is_first = held is None and name not in self._taking
        line = held.waiting if held is not None else self._taking.setdefault(name, deque())
        while line and line[0].done():  # waited too long: ZooKeeper may be away for hours
            line.popleft()
        waiting: Waiting[CoordinatedGroup] = Waiting(self._mailbox)
        line.append(waiting)
        if is_first:
            self._mailbox.begin(self._take_over(name))
        return await outcome(waiting)

    async def _take_over(self, name: str) -> None:
        taken = await result_of(self._taken(name))
        line = self._taking.pop(name)
        if isinstance(taken, CoordinatedGroup) and all(waiting.done() for waiting in line):
            taken.used_at += self._long_idle_s - IDLE_S
        for waiting in line:
            waiting.settle(taken)

    @property
    def _long_idle_s(self) -> float:
        return LONG_IDLE_S if len(self._held) <= MANY else IDLE_S

    async def _taken(self, name: str) -> CoordinatedGroup | ErrorCode:
        fence = await self.work.run(partial(self._take_ours, name))
        if isinstance(fence, ErrorCode):
            return fence
        logger.info("coordinating group %r", name)
        held = self._held[name] = self._coordinate(name, fence)
        return held

    def _take_ours(self, name: str) -> Fence:
        """In a thread: become the coordinator if this broker is chosen or its old node still exists."""
        if self.is_ours(name) or self._registry.coordinator(name) == self._config.broker_id:
            return self._take(name)
        raise NotCoordinator(f"group {name!r} is another broker's")

    def _take(self, name: str) -> Fence:
        """In a thread: become the coordinator unless there is another coordinator."""
        for _ in range(CLAIMS):
            self._registry.claim(name, GroupKind.CLASSIC)
            with suppress(UnknownGroup):  # deleted in between, as one that had nothing
                return self._registry.coordinate(name, self._config.broker_id)
        raise NotCoordinator(f"group {name!r} is deleted again and again")

    def _coordinate(self, name: str, fence: Fence) -> CoordinatedGroup:
        group = Group(name, self._config, self._mailbox, self._memory, self._notice_standstill)
        fenced = partial(self._fenced, name, group)
        commits = Commits(
            name, self._cluster, self._registry, fence, self.work, self._mailbox, self._memory, fenced
        )
        return CoordinatedGroup(group, commits, self._mailbox.now())

    def _fenced(self, name: str, group: Group) -> None:
        held = self._held.get(name)
        if held is not None and held.group is group:
            logger.warning("group %r has another coordinator now", name)
            self._held.pop(name).drop()

    async def give_up(self, name: str, work: Callable[[Fence], None]) -> ErrorCode:
        """Drop the group and run `work` in a thread, under its fence. Until then no broker coordinates it."""
        held = self._held.pop(name)
        held.drop()
        self._leaving.add(name)
        code = await self.work.run(partial(work, held.commits.fence)) or ErrorCode.NONE
        self._leaving.discard(name)
        return code

    def check(self) -> None:
        """After ZooKeeper was unreachable: drop the groups that other brokers have taken over."""
        for held in self._held.values():
            held.unsure = True
        self._make_sure()

    def _notice_standstill(self) -> None:
        """After a standstill, answer for no group before its coordinator is known."""
        if (count := self._count_standstills()) == self._standstills:
            return
        self._standstills = count
        for held in self._held.values():
            held.doubt()
        self.check()

    def _make_sure(self) -> None:
        for name, held in self._held.items():
            if held.unsure:
                self._mailbox.begin(self._ask_who_coordinates(name, held))

    async def _ask_who_coordinates(self, name: str, held: CoordinatedGroup) -> None:
        held.unsure, standstills = False, self._standstills
        fence = await self.work.run(partial(self._take, name))
        if fence is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            held.unsure = True  # until the next sweep
        elif isinstance(fence, ErrorCode) or not fence.follows(held.commits.fence):
            self._fenced(name, held.group)
        else:
            held.commits.fence = fence
            if standstills == self._standstills:  # else it was asked once more
                held.trust()

    def _sweep(self) -> None:
        self._notice_standstill()
        self._make_sure()
        now, long_idle_s = self._mailbox.now(), self._long_idle_s
        idle = [
            name
            for name, held in self._held.items()
            if held.idle and now - held.used_at > (long_idle_s if held.only_commits else IDLE_S)
        ]
        for name in idle[: self.work.room]:
            self._mailbox.begin(self._resign(name))

    async def _resign(self, name: str) -> None:
        """Give the group up. If it has never committed an offset, delete all its nodes."""
        had_members = self._held[name].group.generation > 0

        def tidy(fence: Fence) -> None:
            if had_members:
                self._registry.keep_offsets([name])
            if self._registry.offsets(name):
                self._registry.resign(name, fence)
            else:
                self._registry.delete_group(name, fence=fence)

        await self.give_up(name, tidy)

    async def _tidy(self, retention_ms: float) -> None:
        """Delete offsets that were unused for the retention time, and groups without offsets.

        Considers this broker's share of the groups. The retention time must have passed by ZooKeeper's clock
        and by this broker's. Offsets of groups with members count as used. A group that only commits is given
        up first, and taken over with its next commit.
        """
        for name, idle in list(self._held.items()):
            may_expire = retention_ms < math.inf and idle.only_commits and idle.idle
            if may_expire and self._held.get(name) is idle:
                await self._resign(name)
        held = frozenset(self._held)
        with_members = {name for name, group in self._held.items() if not group.idle}
        found = await self._administration.run(partial(self._to_tidy, held))
        if isinstance(found, ErrorCode):
            return
        unheld, now_ms = found
        names = sorted([*unheld, *with_members])
        for start in range(0, len(names), TIDIED_AT_ONCE):
            some = set(names[start : start + TIDIED_AT_ONCE])
            expired = await self._administration.run(
                partial(self._expire, some & with_members, some - with_members, now_ms - retention_ms)
            )
            if isinstance(expired, ErrorCode):
                return
            for name, count in expired.items():
                logger.info("group %r: %d offsets have expired", name, count)

    def _to_tidy(self, held: Collection[str]) -> tuple[list[str], float]:
        """In a thread: return this broker's share of the groups not held, and the earlier clock's time."""
        now_ms = 1000 * min(self._cluster.zookeeper_time(), self._wall_clock())
        return [name for name in self._registry.names() if name not in held and self.is_ours(name)], now_ms

    def _expire(self, used: Collection[str], unused: Collection[str], before_ms: float) -> dict[str, int]:
        """In a thread: mark the offsets of used groups as used now; delete old offsets of other groups."""
        self._registry.keep_offsets(used)
        return self._registry.expire_offsets(unused, before_ms)

    def close(self) -> None:
        """Give up every group, so that other brokers take over at once."""
        for name in list(self._held):
            self._mailbox.begin(self._resign(name))
        self.work.close(CLOSE_S)
