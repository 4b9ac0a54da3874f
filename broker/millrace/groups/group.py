"""One group of Kafka's classic protocol: the generations its members agree on.

A state machine on the loop: requests and the passing of time in, answers out. Members are remembered in
memory only; a coordinator that takes a group over starts with none. Knows no sockets, no ZooKeeper and no
offsets, and does not look into what members tell and leaders assign.

    Empty                no members
    PreparingRebalance   members are asked, by the answers to their heartbeats, to join the next generation;
                         it begins when all have, or when time is up, without those that have not
    CompletingRebalance  every member knows the generation; the leader is to bring the assignments
    Stable               every member may ask what it was assigned
    Dead                 not coordinated here any more
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from millrace.config import BrokerConfig
from millrace.errors import ErrorCode
from millrace.groups.member import AnswerJoin, AnswerSync, ClientName, Member
from millrace.groups.members import Members
from millrace.groups.timing import Clock, Deadline, Memory
from millrace.wire.group_messages import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

GROUP_BYTES = 2_000
"""Counted for a group itself, beside its members."""


class State(StrEnum):
    """Where a group is, as Kafka's tools call it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """One member; metadata and assignment only while the group is stable."""

    member_id: str
    instance_id: str | None = None
    client: ClientName
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group; `protocol` is empty unless it is stable, `generation` 0 until it has had members."""

    name: str
    state: State
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    members: tuple[MemberSnapshot, ...] = ()


class Group:
    """The state machine. Requests are answered through callbacks, at once or when the group is ready."""

    def __init__(self, name: str, config: BrokerConfig, clock: Clock, memory: Memory) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        self._config, self._clock, self._memory = config, clock, memory
        self._members = Members(memory)
        self._protocol = ""
        self._phase = Deadline(clock, self._phase_over)
        self._gathering_until: float | None = None  # set while an empty group waits for more members
        self._newcomers = False  # since the gathering was last prolonged
        self._unsynced: set[str] = set()  # members that have not asked for this generation's assignment yet
        memory.add(GROUP_BYTES)

    @property
    def idle(self) -> bool:
        """True while it has no members and expects none."""
        return self.state is State.EMPTY and not self._members.expected

    def snapshot(self) -> GroupSnapshot:
        stable = self.state is State.STABLE
        members = tuple(
            MemberSnapshot(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client=member.client,
                metadata=member.metadata(self._protocol) if stable else b"",
                assignment=member.assignment if stable else b"",
            )
            for member in self._members
        )
        return GroupSnapshot(
            name=self.name,
            state=self.state,
            protocol_type=self._members.protocol_type,
            protocol=self._protocol if stable else "",
            generation=self.generation,
            members=members,
        )

    def drop(self, code: ErrorCode) -> None:
        """Coordinate it no longer: whoever waits is answered `code`. Final."""
        self.state = State.DEAD
        self._phase.cancel()
        self._members.clear(code)
        self._memory.add(-GROUP_BYTES)

    # Requests of members

    def join(
        self, request: JoinGroupRequest, client: ClientName, answer: AnswerJoin, *, needs_id: bool = False
    ) -> None:
        """Take a member into the next generation; `answer` may have to wait for the others.

        With `needs_id` a member without an id is only given one, to come back with: retries of a request
        whose answer got lost would otherwise leave members behind that nobody is.
        """
        code = self._refuse(request)
        if code:
            answer(JoinGroupResponse(error_code=code, member_id=request.member_id))
        elif not request.member_id:
            self._join_unknown(request, client, answer, needs_id and request.group_instance_id is None)
        elif request.group_instance_id is None and self._members.expect_no_longer(request.member_id):
            self._add(request.member_id, request, client, answer)
        else:
            self._join_known(request, answer)

    def sync(self, request: SyncGroupRequest, answer: AnswerSync) -> None:
        """Answer with the member's assignment, once the leader has brought it."""
        code = self._check(request.member_id, request.group_instance_id, request.generation_id)
        if not code and self.state is State.PREPARING:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if code:
            answer(SyncGroupResponse(error_code=code))
            return
        member = self._members[request.member_id]
        member.alive()
        self._unsynced.discard(member.member_id)
        if self.state is State.STABLE:
            answer(SyncGroupResponse(error_code=ErrorCode.NONE, assignment=member.assignment))
            return
        member.answer_sync(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))  # asked before
        member.syncing = answer
        if member.member_id == self._members.leader:
            self._assign({one.member_id: one.assignment for one in request.assignments})

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Note that the member lives; REBALANCE_IN_PROGRESS asks it to join the next generation."""
        code = self._check(member_id, instance_id, generation)
        if code:
            return code
        self._members[member_id].alive()
        # A member that has joined may heartbeat before it syncs: its generation is the current one.
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else ErrorCode.NONE

    def leave(self, identity: MemberIdentity) -> ErrorCode:
        """Go on without a member, named by its id, its instance id or both."""
        if self.state is State.DEAD:
            return ErrorCode.NOT_COORDINATOR
        if self._members.expect_no_longer(identity.member_id):
            self._expected_gone()
            return ErrorCode.NONE
        if identity.group_instance_id is None:
            member = self._members.get(identity.member_id)
        else:
            member = self._members.static(identity.group_instance_id)
            if member is not None and identity.member_id not in ("", member.member_id):
                return ErrorCode.FENCED_INSTANCE_ID
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._remove(member)
        return ErrorCode.NONE

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether this member may commit offsets now; who is no member may while there are none."""
        if generation < 0 and self.state is State.EMPTY:  # whatever ids it has: clients send former ones
            return ErrorCode.NONE
        code = self._check(member_id, instance_id, generation)
        if code:
            return code
        if self.state is State.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        # While the next generation gathers, members may still commit what they have done in this one.
        self._members[member_id].alive()
        return ErrorCode.NONE

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """NONE when this is a member of the current generation, else what it is told."""
        if self.state is State.DEAD:
            return ErrorCode.NOT_COORDINATOR
        code = self._members.check(member_id, instance_id)
        if not code and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def abandon(self, answer: AnswerJoin | AnswerSync) -> None:
        """The client that waited for this answer has gone: do not count on it before it comes back."""
        for member in self._members:
            if member.syncing is answer:
                member.syncing = None
                member.alive()
            elif member.joining is answer:
                member.joining = None
                if member.is_new and member.instance_id is None:
                    self._remove(member)  # nobody can come back as it
                else:
                    member.is_new = False
                    member.alive()

    # Joining

    def _refuse(self, request: JoinGroupRequest) -> ErrorCode:
        """Why the request cannot be taken whoever sent it, or NONE."""
        if self.state is State.DEAD:
            return ErrorCode.NOT_COORDINATOR
        shortest = self._config.group_min_session_timeout_ms
        if not shortest <= request.session_timeout <= self._config.group_max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not self._members.agree(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        told = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
        return ErrorCode.NONE if self._memory.has_room(told) else ErrorCode.GROUP_MAX_SIZE_REACHED

    def _join_unknown(
        self, request: JoinGroupRequest, client: ClientName, answer: AnswerJoin, needs_id: bool
    ) -> None:
        old = self._members.static(request.group_instance_id)
        member_id = f"{request.group_instance_id or client.client_id}-{uuid.uuid4()}"
        if old is not None:
            self._replace(old, self._new_member(member_id, request, client), request, answer)
        elif len(self._members) + self._members.expected >= self._config.group_max_size:
            answer(JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif needs_id:
            deadline = Deadline(self._clock, lambda: self._expected_over(member_id))
            deadline.set(request.session_timeout / 1000)
            self._members.expect(member_id, deadline)
            answer(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(member_id, request, client, answer)

    def _join_known(self, request: JoinGroupRequest, answer: AnswerJoin) -> None:
        code = self._members.check(request.member_id, request.group_instance_id)
        if code:
            answer(JoinGroupResponse(error_code=code, member_id=request.member_id))
            return
        member = self._members[request.member_id]
        # A leader that joins again has seen something change, for example a topic's partitions; any other
        # member that tells nothing new has only missed the answer.
        leads_stable = self.state is State.STABLE and member.member_id == self._members.leader
        told_before = tuple(member.protocols) == request.protocols
        if self.state is State.PREPARING or leads_stable or not told_before:
            self._rejoin(member, request, answer)
        else:
            member.alive()
            answer(self._generation_for(member))

    def _add(self, member_id: str, request: JoinGroupRequest, client: ClientName, answer: AnswerJoin) -> None:
        """A new member, and with it a rebalance."""
        member = self._new_member(member_id, request, client)
        member.alive()
        self._members.enter(member)
        self._newcomers = True
        self._rejoin(member, request, answer)

    def _new_member(self, member_id: str, request: JoinGroupRequest, client: ClientName) -> Member:
        session = Deadline(self._clock, lambda: self._session_over(member_id))
        member = Member(
            member_id=member_id, instance_id=request.group_instance_id, client=client, session=session
        )
        member.tell(request)
        return member

    def _replace(self, old: Member, member: Member, request: JoinGroupRequest, answer: AnswerJoin) -> None:
        """A static member came back without its id: it goes on in the old one's place, which is fenced."""
        leader = self._members.leader
        self._unsynced.discard(old.member_id)
        self._members.remove(old, ErrorCode.FENCED_INSTANCE_ID, new_leader=member.member_id)
        member.assignment, member.is_new = old.assignment, old.is_new
        self._members.enter(member)
        member.alive()
        if self.state is State.STABLE and self._members.select_protocol() == self._protocol:
            # Not told that it leads, if it does: it would assign anew, and no other member would hear of it.
            answer(self._generation_for(member, leader=leader))
        else:
            self._rejoin(member, request, answer)

    def _rejoin(self, member: Member, request: JoinGroupRequest, answer: AnswerJoin) -> None:
        """Let a member wait for the next generation, which begins when all do."""
        self._members.protocol_type = request.protocol_type
        member.tell(request)
        self._members.measure(member)
        asked_before = ErrorCode.REBALANCE_IN_PROGRESS
        member.answer_join(JoinGroupResponse(error_code=asked_before, member_id=member.member_id))
        member.joining = answer
        self._rebalance()

    # Generations

    def _rebalance(self) -> None:
        """Begin to gather the next generation, or see whether that is done."""
        if self.state in (State.STABLE, State.COMPLETING):
            for member in self._members:
                member.answer_sync(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
            self._phase.set(self._rebalance_timeout_s)
        elif self.state is State.EMPTY:
            self._gathering_until = self._clock.now() + self._rebalance_timeout_s
            self._prolong_gathering(self._gathering_until)
        self.state = State.PREPARING
        everybody = all(member.joining for member in self._members)
        if self._gathering_until is None and everybody and not self._members.expected:
            self._begin_generation()

    def _prolong_gathering(self, until: float) -> None:
        self._newcomers = False
        delay = self._config.group_initial_rebalance_delay_ms / 1000
        self._phase.set(max(0.0, min(delay, until - self._clock.now())))

    @property
    def _rebalance_timeout_s(self) -> float:
        return max((member.rebalance_timeout_s for member in self._members), default=0.0)

    def _phase_over(self) -> None:
        """Time is up for members to join, or to ask for what they were assigned."""
        if self.state is not State.PREPARING:
            for member_id in list(self._unsynced):
                self._remove(self._members[member_id])
        elif self._gathering_until is not None and self._newcomers:
            self._prolong_gathering(self._gathering_until)
        else:
            self._begin_generation()

    def _begin_generation(self) -> None:
        """Everybody who joined is in; static members that did not stay until their sessions end."""
        self._gathering_until = None
        for member in self._members:
            if member.joining is None and member.instance_id is None:
                self._members.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        joined = [member for member in self._members if member.joining]
        if not len(self._members):
            self._empty()
            return
        if not joined:
            self._phase.set(self._rebalance_timeout_s)
            return
        if self._members.leader not in [member.member_id for member in joined]:
            self._members.leader = joined[0].member_id
        self.generation += 1
        self._protocol = self._members.select_protocol()
        self.state = State.COMPLETING
        self._unsynced = {member.member_id for member in joined}
        self._phase.set(self._rebalance_timeout_s)
        for member in joined:
            member.is_new = False
            member.answer_join(self._generation_for(member))

    def _generation_for(self, member: Member, *, leader: str | None = None) -> JoinGroupResponse:
        """What a member is told of the generation; the leader, before it has assigned, of all members."""
        members: tuple[JoinGroupResponseMember, ...] = ()
        if self.state is State.COMPLETING and member.member_id == self._members.leader:
            members = tuple(
                JoinGroupResponseMember(
                    member_id=one.member_id,
                    group_instance_id=one.instance_id,
                    metadata=one.metadata(self._protocol),
                )
                for one in self._members
            )
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=self.generation,
            protocol_name=self._protocol,
            leader=leader or self._members.leader or "",
            member_id=member.member_id,
            members=members,
        )

    def _assign(self, assignments: Mapping[str, bytes]) -> None:
        """The leader has assigned: the generation is complete. Whom it left out gets nothing."""
        if not self._memory.has_room(sum(map(len, assignments.values()))):
            leader = self._members[self._members.leader or ""]
            leader.answer_sync(SyncGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
            return
        self.state = State.STABLE
        for member in self._members:
            member.assignment = assignments.get(member.member_id, b"")
            self._members.measure(member)
            member.answer_sync(SyncGroupResponse(error_code=ErrorCode.NONE, assignment=member.assignment))

    # Members that go

    def _session_over(self, member_id: str) -> None:
        member = self._members[member_id]
        if member.is_new or not member.waiting:
            self._remove(member)

    def _remove(self, member: Member) -> None:
        """Go on without a member: the others share what it had."""
        self._members.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if len(self._members):
            self._rebalance()
        else:
            self._empty()

    def _empty(self) -> None:
        self.state, self._protocol, self._gathering_until = State.EMPTY, "", None
        self._phase.cancel()

    def _expected_over(self, member_id: str) -> None:
        self._members.expect_no_longer(member_id)
        self._expected_gone()

    def _expected_gone(self) -> None:
        if self.state is State.PREPARING:
            self._rebalance()
