"""Who is in a group: members by id and by instance, ids given out, who leads, what all have in common.

Keeps count of the memory they take. Decides nothing about generations: that is group.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from millrace.errors import ErrorCode
from millrace.groups.member import Member
from millrace.groups.timing import Deadline, Memory
from millrace.wire.group_messages import JoinGroupRequest

EXPECTED_BYTES = 500
"""Counted for an id that was given out: what its objects take, rounded up."""


class Members:
    """The members of one group."""

    def __init__(self, memory: Memory) -> None:
        self.leader: str | None = None
        self.protocol_type = ""
        self._memory = memory
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self._expected: dict[str, Deadline] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Over a copy: members may leave meanwhile."""
        return iter(list(self._members.values()))

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def static(self, instance_id: str | None) -> Member | None:
        """The member that holds an instance id."""
        return self._members.get(self._static.get(instance_id or "", ""))

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE when this is a member; FENCED_INSTANCE_ID when another holds its instance id."""
        if instance_id is not None and self._static.get(instance_id, member_id) != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self._members or (instance_id is not None and instance_id not in self._static):
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def enter(self, member: Member) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self.measure(member)

    def remove(self, member: Member, code: ErrorCode, *, new_leader: str | None = None) -> None:
        """Let a member go; what waits of it is answered `code`. If it led, nobody or `new_leader` does."""
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if member.member_id == self.leader:
            self.leader = new_leader
        self._memory.add(-member.bytes_held)
        member.send_away(code)

    def measure(self, member: Member) -> None:
        """Count its memory again, after what it told or was assigned has changed."""
        self._memory.add(member.size - member.bytes_held)
        member.bytes_held = member.size

    # Ids that were given out, for members that are to come back with them

    @property
    def expected(self) -> int:
        """How many ids were given out and not used yet."""
        return len(self._expected)

    def expect(self, member_id: str, deadline: Deadline) -> None:
        """Remember an id until the deadline, which its owner sets."""
        self._memory.add(EXPECTED_BYTES)
        self._expected[member_id] = deadline

    def expect_no_longer(self, member_id: str) -> bool:
        """Forget an id; False when it was not given out."""
        deadline = self._expected.pop(member_id, None)
        if deadline is None:
            return False
        deadline.cancel()
        self._memory.add(-EXPECTED_BYTES)
        return True

    # Protocols

    def agree(self, request: JoinGroupRequest) -> bool:
        """True if who asks to join knows a protocol that all others know, too."""
        names = {protocol.name for protocol in request.protocols}
        if not names or not request.protocol_type:
            return False
        itself = (request.member_id, self._static.get(request.group_instance_id or ""))
        others = [member for member in self._members.values() if member.member_id not in itself]
        if not others:
            return True
        return request.protocol_type == self.protocol_type and bool(names & _in_common(others))

    def select_protocol(self) -> str:
        """The protocol most members like best, out of those that all know."""
        candidates = _in_common(self._members.values())
        votes = Counter(member.vote(candidates) for member in self._members.values())
        return votes.most_common(1)[0][0]

    def clear(self, code: ErrorCode) -> None:
        for member_id in list(self._expected):
            self.expect_no_longer(member_id)
        for member in self:
            self.remove(member, code)


def _in_common(members: Iterable[Member]) -> set[str]:
    """The names of the protocols that all of these (at least one) know."""
    return set.intersection(*({protocol.name for protocol in member.protocols} for member in members))
