"""Whatever clients do, in whatever order: generations are agreed on, every request is answered once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import ErrorCode
from millrace.wire.group_messages import JoinGroupResponse, SyncGroupResponse
from millrace_broker.groups.group import GROUP_BYTES, State
from tests.unit.groups.driving import NEVER_S, SESSION_S, Driven, Joiner, new_group

STEPS = (
    "join",
    "join",
    "sync",
    "sync",
    "heartbeat",
    "leave",
    "dies",
    "restarts",
    "changes",
    "commits",
    "time",
)


@dataclass
class Witness:
    """All that the group has told its members."""

    told: dict[int, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    """Generation -> (protocol, leader)."""
    led: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Generation -> who was told all members."""
    assigned: dict[tuple[int, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    """(generation, member) -> assignments."""
    newest: int = 0
    asked: int = 0
    answered: int = 0

    def joined(self, response: JoinGroupResponse) -> None:
        self.answered += 1
        if response.error_code:
            return
        assert response.generation_id >= self.newest, "generations only rise"
        self.newest = response.generation_id
        self.told[response.generation_id].add((response.protocol_name or "", ""))
        if response.members:
            assert response.leader == response.member_id
            assert response.member_id in [one.member_id for one in response.members]
            self.led[response.generation_id].add(response.member_id)

    def synced(self, member: Witnessed, generation: int, response: SyncGroupResponse) -> None:
        self.answered += 1
        if not response.error_code:
            # A static member that restarts gets what its former self was assigned.
            self.assigned[generation, member.instance or member.member_id].add(response.assignment)

    def check(self) -> None:
        for generation, told in self.told.items():
            assert len(told) == 1, f"one protocol in generation {generation}"
        for generation, leaders in self.led.items():
            assert len(leaders) == 1, f"one leader in generation {generation}"
        for (generation, name), assignments in self.assigned.items():
            assert len(assignments) == 1, f"one assignment for {name} in {generation}"
            (assignment,) = assignments
            if assignment:
                leader, number = assignment.decode().rsplit(" ", 1)
                assert leader in self.led[generation]
                assert int(number) == generation


class Witnessed(Joiner):
    """A client whose answers are noted."""

    witness: Witness

    def __post_init__(self) -> None:
        self.on_join = self._note_join

    def _note_join(self, response: JoinGroupResponse) -> None:
        self.witness.joined(response)
        self._joined(response)

    def step(self, action: str) -> None:
        if action == "join":
            self.witness.asked += 1
            if self.join(needs_id=True) in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                self.member_id = ""
        elif action == "sync" and self.generation > 0:
            self.witness.asked += 1
            generation = self.generation
            self.on_sync: Callable[[SyncGroupResponse], None] = lambda response: self.witness.synced(
                self, generation, response
            )
            self.sync(self._assignments())
        elif action == "changes":
            self.metadata += b"x"
        elif action == "restarts":
            self.member_id, self.generation = "", -1
        elif action == "leave":
            self.leave()
        elif action == "commits":
            self.commits()
        elif action == "heartbeat":
            self.heartbeat()

    def _assignments(self) -> dict[str, bytes]:
        told = [one for one in self.joins if one.generation_id == self.generation and one.members]
        text = f"{self.member_id} {self.generation}".encode()
        return {one.member_id: text for one in told[-1].members} if told else {}


def play(driven: Driven, plan: list[tuple[int, str]]) -> tuple[list[Witnessed], Witness]:
    witness = Witness()
    members = [
        Witnessed(driven, f"c{n}", instance=f"i{n}" if n >= 3 else None, rebalance_s=20.0) for n in range(5)
    ]
    for member in members:
        member.witness = witness
    for number, action in plan:
        if action == "time":
            driven.time.passes((0.1, 0.6, 3.0, 9.0, 21.0)[number])
        else:
            members[number].step(action)
    return members, witness


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(STEPS)), max_size=60))
def test_members_never_disagree_and_no_request_is_forgotten(plan: list[tuple[int, str]]) -> None:
    for driven in new_group():
        members, witness = play(driven, plan)
        witness.check()
        driven.time.passes(NEVER_S)
        witness.check()
        assert witness.answered == witness.asked, "each request is answered, once"
        assert driven.group.idle, "who is silent is gone"
        assert driven.memory.used == GROUP_BYTES
        assert members


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(STEPS)), max_size=40))
def test_members_that_behave_from_now_on_become_stable(plan: list[tuple[int, str]]) -> None:
    for driven in new_group():
        members, witness = play(driven, plan)
        for member in members:
            member.member_id = ""
        for _ in range(200):
            driven.time.passes(SESSION_S / 4)
            for member in members:
                behave(member)
        assert driven.state is State.STABLE
        assert len(driven.group.members) == len(members)
        assert len({member.generation for member in members}) == 1
        witness.check()


def behave(member: Witnessed) -> None:
    """Do what a client does that is called now and then."""
    group = member.driven.group
    waits = any(m.member_id == member.member_id for m in group.members) and _waits(member)
    if waits:
        return
    code = member.heartbeat() if member.member_id and member.generation > 0 else ErrorCode.UNKNOWN_MEMBER_ID
    if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
        member.member_id, member.generation = "", -1
        member.step("join")
        if member.member_id and not _waits(member):
            member.step("join")
    elif code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
        member.step("join")
    elif group.state is State.COMPLETING:
        member.step("sync")


def _waits(member: Witnessed) -> bool:
    found = member.driven.group.members.get(member.member_id)
    return found is not None and found.waiting
