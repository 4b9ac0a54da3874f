"""A group with a clock that tests turn by hand, and members whose answers are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from millrace.config import BrokerConfig
from millrace.errors import ErrorCode
from millrace.wire.group_messages import (
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from millrace_broker.groups.group import Group, State
from millrace_broker.groups.members import ClientName
from millrace_broker.groups.timing import Memory
from millrace_broker.mailbox import Mailbox

SESSION_S = 10.0
REBALANCE_S = 60.0
NEVER_S = 10_000.0
DELAY_S = 0.5


class Time:
    """A clock for a mailbox; `passes` runs what is due, each at its time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.mailbox = Mailbox(lambda: self.now)

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (left := self.mailbox.seconds_to_next()) is not None and self.now + left <= end:
            self.now += left
            self.mailbox.run()
        self.now = end


@dataclass
class Driven:
    """A group, its clock and the memory it counts in."""

    time: Time
    memory: Memory
    group: Group

    @property
    def state(self) -> State:
        return self.group.state

    def gathers(self) -> None:
        """Long enough for an empty group to begin its first generation."""
        self.time.passes(2 * DELAY_S)

    def member(self, name: str = "client", **told: object) -> Joiner:
        return Joiner(self, name, **told)  # type: ignore[arg-type]

    def joined(self, count: int, **told: object) -> list[Joiner]:
        """Return `count` members of one generation, none of which has asked for its assignment."""
        members = [self.member(f"client{number}", **told) for number in range(count)]
        for member in members:
            member.join()
        self.gathers()
        return members

    def stable(self, count: int, **told: object) -> list[Joiner]:
        """Return `count` members that have their assignments; the first one leads."""
        members = self.joined(count, **told)
        sync_all(members)
        assert self.state is State.STABLE
        return members


@dataclass
class Joiner:
    """A client of the group: what it sends, and every answer it has got."""

    driven: Driven
    name: str
    protocols: Sequence[str] = ("range",)
    metadata: bytes = b"topics"
    instance: str | None = None
    session_s: float = SESSION_S
    rebalance_s: float = REBALANCE_S
    protocol_type: str = "consumer"
    member_id: str = ""
    generation: int = -1
    joins: list[JoinGroupResponse] = field(default_factory=list)
    syncs: list[SyncGroupResponse] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.on_join, self.on_sync = self._joined, self.syncs.append  # what a request is known by

    def request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.driven.group.name,
            session_timeout=int(self.session_s * 1000),
            rebalance_timeout=int(self.rebalance_s * 1000),
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=tuple(
                JoinGroupRequest.Protocol(name=p, metadata=self.metadata) for p in self.protocols
            ),
        )

    def join(self, *, needs_id: bool = False, may_skip: bool = False) -> ErrorCode | None:
        """Join; the error at once, or None while it waits or has been told the generation."""
        before = len(self.joins)
        name = ClientName(self.name, "/h")
        self.driven.group.join(self.request(), name, self.on_join, needs_id=needs_id, may_skip=may_skip)
        told = self.joins[before:]
        return ErrorCode(told[-1].error_code) if told and told[-1].error_code else None

    def _joined(self, response: JoinGroupResponse) -> None:
        self.joins.append(response)
        if response.member_id:
            self.member_id = response.member_id
        if not response.error_code:
            self.generation = response.generation_id

    @property
    def leads(self) -> bool:
        return self.joins[-1].leader == self.member_id

    def sync(self, assignments: dict[str, bytes] | None = None) -> ErrorCode | None:
        """Ask for the assignment; the error at once, or None."""
        before = len(self.syncs)
        assigned = tuple(
            SyncGroupRequest.Assignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in (assignments or {}).items()
        )
        request = SyncGroupRequest(
            group_id=self.driven.group.name,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=assigned,
        )
        self.driven.group.sync(request, self.on_sync)
        told = self.syncs[before:]
        return ErrorCode(told[-1].error_code) if told and told[-1].error_code else None

    def heartbeat(self) -> ErrorCode:
        return self.driven.group.heartbeat(self.member_id, self.instance, self.generation)

    def commits(self) -> ErrorCode:
        return self.driven.group.check_commit(self.member_id, self.instance, self.generation)

    def leave(self) -> ErrorCode:
        return self.driven.group.leave(
            LeaveGroupRequest.Member(member_id=self.member_id, group_instance_id=self.instance)
        )

    def goes_away(self) -> None:
        """Its connection closes."""
        self.driven.group.abandon(self.on_join)
        self.driven.group.abandon(self.on_sync)


def sync_all(members: Sequence[Joiner]) -> None:
    """Every member asks; the leader last, with an assignment for each that names its generation."""
    leader = next(member for member in members if member.leads)
    for member in members:
        if member is not leader:
            member.sync()
    leader.sync({m.member_id: f"{m.member_id} {leader.generation}".encode() for m in members})


def new_group(config: BrokerConfig | None = None, memory: Memory | None = None) -> Iterator[Driven]:
    """A group that is closed with what it needs."""
    time = Time()
    memory = memory or Memory()
    group = Group("g", config or BrokerConfig(broker_id=1, cluster="test"), time.mailbox, memory)
    yield Driven(time, memory, group)
    time.mailbox.close()
