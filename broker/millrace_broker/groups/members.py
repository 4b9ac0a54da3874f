"""The members of a group: their ids and those given out, the leader, the protocols that all have in common.

Counts the memory they take, and the topics they read, so that OffsetDelete decodes nothing. Decides nothing
about generations: group.py does.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from millrace.errors import ErrorCode
from millrace.wire.consumer_protocol import decode_subscriptions
from millrace.wire.group_messages import JoinGroupRequest, JoinGroupResponse, SyncGroupResponse
from millrace_broker.groups.timing import Deadline, Memory

T = TypeVar("T")
AnswerJoin: TypeAlias = Callable[[JoinGroupResponse], None]
AnswerSync: TypeAlias = Callable[[SyncGroupResponse], None]
MEMBER_BYTES = 2_000
"""Bytes counted for a member itself, beside its metadata and its assignment: its objects, rounded up."""
EXPECTED_BYTES = 500
"""Bytes counted for an id that was given out, beside the id: the size of its objects, rounded up."""
PROTOCOL_BYTES = 120
"""Bytes counted for a protocol of a member, beside its name and its metadata."""
TOPIC_BYTES = 120
"""Bytes counted for a topic that a member reads, beside its name."""
NEW_MEMBER_S = 300.0
"""Longest wait of a new member's JoinGroup: it has no id to send heartbeats with, so it may be long gone."""
MIN_REBALANCE_S = 1.0
"""Least time of a rebalance if members are missing, whatever they ask for. With no time at all, no member
would ever bring an assignment, and the wait for missing members would keep the loop busy."""


@dataclass(frozen=True, slots=True)
class ClientName:
    """The `client.id` of a client, and its host."""

    client_id: str
    host: str


@dataclass(slots=True, kw_only=True)
class Member:
    """One member. `joining` or `syncing` is set while its request waits for the group."""

    member_id: str
    instance_id: str | None
    client: ClientName
    session: Deadline
    session_timeout_s: float = 0.0
    rebalance_timeout_s: float = 0.0
    protocols: Sequence[JoinGroupRequest.Protocol] = ()
    topics: frozenset[str] | None = frozenset()
    """Topics that it reads, by any of its protocols; None when they are unknown."""
    said_bytes: int = 0
    """Bytes of protocols and topics, measured once: every assignment has all members counted again."""
    assignment: bytes = b""
    is_new: bool = True
    """True until it has been part of a generation."""
    joining: AnswerJoin | None = None
    syncing: AnswerSync | None = None
    bytes_held: int = 0
    """Bytes as counted last, for the limit of all groups together."""

    @property
    def waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    @property
    def size(self) -> int:
        names = (self.member_id, self.instance_id or "", self.client.client_id)
        return MEMBER_BYTES + self.said_bytes + len(self.assignment) + sum(map(sys.getsizeof, names))

    def update(self, request: JoinGroupRequest) -> None:
        """Take over the values of its JoinGroup. The oldest clients (v0) have one timeout for both."""
        timeout = request.rebalance_timeout
        self.session_timeout_s = request.session_timeout / 1000
        timeout = request.session_timeout if timeout < 0 else timeout
        self.rebalance_timeout_s = max(MIN_REBALANCE_S, timeout / 1000)
        if request.protocols is not self.protocols:  # a new member is updated twice
            self.topics = decode_subscriptions({protocol.metadata for protocol in request.protocols})
        self.protocols = request.protocols
        topics = sum(TOPIC_BYTES + sys.getsizeof(topic) for topic in self.topics or ())
        self.said_bytes = size_of(self.protocols) + topics

    def alive(self) -> None:
        """Begin its session again: it sent a request."""
        self.session.set(NEW_MEMBER_S if self.is_new else self.session_timeout_s)

    def metadata(self, protocol: str) -> bytes:
        """Return its metadata for `protocol`; empty when it does not support it."""
        return next((one.metadata for one in self.protocols if one.name == protocol), b"")

    def vote(self, candidates: Collection[str]) -> str:
        """Return its first choice among the candidates, all of which it supports."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def answer_join(self, response: JoinGroupResponse) -> None:
        """Answer its JoinGroup, if one waits, and begin its session again."""
        answer, self.joining = self.joining, None
        if answer is not None:
            self.alive()
            answer(response)

    def answer_sync(self, response: SyncGroupResponse) -> None:
        """Answer its SyncGroup, if one waits, and begin its session again."""
        answer, self.syncing = self.syncing, None
        if answer is not None:
            self.alive()
            answer(response)

    def refuse_sync(self, code: ErrorCode) -> None:
        self.answer_sync(SyncGroupResponse(error_code=code))


class Members:
    """The members of one group, by id and by instance id."""

    def __init__(self, memory: Memory) -> None:
        self.leader: str | None = None
        self.protocol_type = ""
        self._memory = memory
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self._expected: dict[str, Deadline] = {}
        self._names: Counter[str] = Counter()  # of protocols: how many members support each
        self._topics: Counter[str | None] = Counter()  # how many read each; None: members of unknown topics

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over a copy: members may leave meanwhile."""
        return iter(list(self._members.values()))

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def static(self, instance_id: str | None) -> Member | None:
        return None if instance_id is None else self._members.get(self._static.get(instance_id, ""))

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE for a member; FENCED_INSTANCE_ID when another member holds its instance id."""
        if instance_id is not None and self._static.get(instance_id, member_id) != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self._members or (instance_id is not None and instance_id not in self._static):
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def enter(self, member: Member) -> None:
        self._members[member.member_id] = member
        self._memory.members += 1
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._count(member)
        self.measure(member)

    def update(self, member: Member, request: JoinGroupRequest) -> None:
        """Take over the values of a member that joins again."""
        self._uncount(member)
        member.update(request)
        self._count(member)
        self.measure(member)

    def remove(self, member: Member, code: ErrorCode, *, new_leader: str | None = None) -> None:
        """Remove a member and answer its waiting requests with `code`. If it led, `new_leader` does now."""
        del self._members[member.member_id]
        self._memory.members -= 1
        self._uncount(member)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if member.member_id == self.leader:
            self.leader = new_leader
        self._memory.add(-member.bytes_held)
        member.answer_join(JoinGroupResponse(error_code=code, member_id=member.member_id))
        member.refuse_sync(code)
        member.session.cancel()

    def reads(self, topic: str) -> bool:
        """Return True if a member reads the topic, or may read it."""
        return topic in self._topics or None in self._topics

    def _count(self, member: Member) -> None:
        self._names.update(_names(member.protocols))
        self._topics.update((None,) if member.topics is None else member.topics)

    def _uncount(self, member: Member) -> None:
        _subtract(self._names, _names(member.protocols))
        _subtract(self._topics, (None,) if member.topics is None else member.topics)

    def measure(self, member: Member) -> None:
        """Count the member's memory again, after its metadata or its assignment has changed."""
        self._memory.add(member.size - member.bytes_held)
        member.bytes_held = member.size

    def clear(self, code: ErrorCode) -> None:
        for member_id in list(self._expected):
            self.expect_no_longer(member_id)
        for member in self:
            self.remove(member, code)

    def restart_times(self) -> None:
        """Begin the members' sessions, and the times of the expected ids, again."""
        for member in self:
            member.alive()
        for deadline in self._expected.values():
            deadline.restart()

    # Ids that were given out, with which members must come back

    @property
    def expected(self) -> int:
        return len(self._expected)

    def expect(self, member_id: str, deadline: Deadline) -> None:
        """Remember an id until the deadline, which the caller has set."""
        self._memory.add(EXPECTED_BYTES + sys.getsizeof(member_id))
        self._expected[member_id] = deadline

    def expect_no_longer(self, member_id: str) -> bool:
        """Forget an id; False when it was not given out."""
        deadline = self._expected.pop(member_id, None)
        if deadline is None:
            return False
        deadline.cancel()
        self._memory.add(-EXPECTED_BYTES - sys.getsizeof(member_id))
        return True

    # Protocols

    def agree(self, request: JoinGroupRequest) -> bool:
        """Return True if the joining client supports a protocol that all other members support, too."""
        if not request.protocols or not request.protocol_type:
            return False
        known = self.get(request.member_id), self.static(request.group_instance_id)
        itself = {member.member_id: _names(member.protocols) for member in known if member is not None}
        others = len(self) - len(itself)
        if not others:
            return True
        return request.protocol_type == self.protocol_type and any(
            self._names[name] - sum(name in names for names in itself.values()) == others
            for name in _names(request.protocols)
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes, among the protocols that all members support."""
        candidates = {name for name, supporters in self._names.items() if supporters == len(self)}
        votes = Counter(member.vote(candidates) for member in self._members.values())
        return votes.most_common(1)[0][0]


def size_of(protocols: Iterable[JoinGroupRequest.Protocol]) -> int:
    """Return the bytes that protocols take in memory; one byte of a name may take four."""
    return sum(
        PROTOCOL_BYTES + sys.getsizeof(protocol.name) + sys.getsizeof(protocol.metadata)
        for protocol in protocols
    )


def _subtract(counts: Counter[T], counted: Iterable[T]) -> None:
    """Subtract, and forget what is counted no more: `Counter.subtract` would keep it."""
    for one in counted:
        counts[one] -= 1
        if not counts[one]:
            del counts[one]


def _names(protocols: Iterable[JoinGroupRequest.Protocol]) -> set[str]:
    """Return the protocols' names, once each: a member may name a protocol twice."""
    return {protocol.name for protocol in protocols}
