"""One group of Kafka's classic protocol: the generations its members agree on.

A state machine on the loop: requests and the passing of time in, answers out. Members are remembered in
memory only; a coordinator that takes a group over starts with none. Knows no sockets, no ZooKeeper and no
offsets, and does not look into what members send and leaders assign.

    Empty                no members
    PreparingRebalance   the answers to heartbeats ask members to join the next generation; it begins when all
                         have joined, or when time is up, without the missing members
    CompletingRebalance  every member has the generation; the leader must bring the assignments
    Stable               every member may ask for its assignment
    Dead                 not coordinated here any more
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from enum import StrEnum

from millrace.config import BrokerConfig
from millrace.errors import ErrorCode
from millrace.wire import group_messages as messages
from millrace.wire.fields import replace
from millrace_broker.groups.members import AnswerJoin, AnswerSync, ClientName, Member, Members, size_of
from millrace_broker.groups.timing import Deadline, Memory
from millrace_broker.mailbox import Mailbox

GROUP_BYTES = 2_000
"""Bytes counted for a group itself, beside its members."""


class State(StrEnum):
    """The state of a group, by the names of Kafka's tools."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Group:
    """The state machine of one group. Callbacks answer requests, at once or when the group is ready."""

    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        mailbox: Mailbox,
        memory: Memory,
        notice_standstill: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `notice_standstill` before the end of a time changes anything: it may set `is_doubtful`."""
        self.name = name
        self.state = State.EMPTY
        self.generation = 0  # until it has had members
        self.members = Members(memory)
        self.is_doubtful = False
        """True after the broker stood still, until it knows whether another broker coordinates the group."""
        self._notice_standstill = notice_standstill
        self._config, self._mailbox, self._memory = config, mailbox, memory
        self._protocol = ""
        self._phase = Deadline(mailbox, self._phase_over, self._stands_still)
        self._gathering_until: float | None = None  # set while an empty group waits for more members
        self._newcomers = False  # since the gathering was last prolonged
        self._unsynced: set[str] = set()  # members that have not asked for this generation's assignment yet
        memory.add(GROUP_BYTES)

    @property
    def idle(self) -> bool:
        return self.state is State.EMPTY and not self.members.expected

    def describe(self) -> messages.DescribedGroup:
        """Return the group as it is now; its protocol, metadata and assignments only while it is stable."""
        stable = self.state is State.STABLE
        members = tuple(
            messages.DescribedGroup.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client.client_id,
                client_host=member.client.host,
                member_metadata=member.metadata(self._protocol) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in self.members
        )
        return messages.DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=self.name,
            group_state=self.state,
            protocol_type=self.members.protocol_type,
            protocol_data=self._protocol if stable else "",
            members=members,
        )

    def drop(self, code: ErrorCode) -> None:
        """Stop coordinating it: every waiting request is answered with `code`. Final."""
        self.state = State.DEAD
        self._phase.cancel()
        self.members.clear(code)
        self._memory.add(-GROUP_BYTES)

    def _stands_still(self) -> bool:
        """Return True while no member may be removed, and none answered, because the group is doubtful."""
        self._notice_standstill()
        return self.is_doubtful

    def trust(self) -> None:
        """Go on after a standstill: every session, and every other time that was set, begins again."""
        self.is_doubtful = False
        self._phase.restart()
        self.members.restart_times()

    # Requests of members

    def join(
        self,
        request: messages.JoinGroupRequest,
        client: ClientName,
        answer: AnswerJoin,
        *,
        needs_id: bool = False,
        may_skip: bool = False,
    ) -> None:
        """Take a member into the next generation; `answer` may have to wait for the others.

        With `needs_id` a member without an id only gets one, with which it must join again: else a retry of a
        request whose answer got lost would leave a member behind that belongs to no client. With `may_skip` a
        leader that comes back may get the answer that it leads and has nothing to assign.
        """
        code = self._refuse(request)
        if code:
            answer(messages.JoinGroupResponse(error_code=code, member_id=request.member_id))
        elif not request.member_id:
            needs_id &= request.group_instance_id is None
            self._join_without_id(request, client, answer, needs_id=needs_id, may_skip=may_skip)
        elif request.group_instance_id is None and self.members.expect_no_longer(request.member_id):
            self._add(self._new_member(request.member_id, request, client), request, answer)
        else:
            self._join_with_id(request, answer)

    def sync(self, request: messages.SyncGroupRequest, answer: AnswerSync) -> None:
        """Answer with the member's assignment, once the leader has brought it."""
        code = self._check(request.member_id, request.group_instance_id, request.generation_id)
        if not code and self.state is State.PREPARING:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if not code and not self._means_this_generation(request):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if code:
            answer(messages.SyncGroupResponse(error_code=code))
            return
        member = self.members[request.member_id]
        self._unsynced.discard(member.member_id)
        member.refuse_sync(ErrorCode.REBALANCE_IN_PROGRESS)  # an earlier request
        member.syncing = answer
        if self.state is State.STABLE:
            member.answer_sync(self._assigned_to(member))
            return
        member.alive()
        if member.member_id == self.members.leader:
            self._assign({one.member_id: one.assignment for one in request.assignments})

    def _means_this_generation(self, request: messages.SyncGroupRequest) -> bool:
        """Return False where a member of v5 names another protocol than the chosen one (KIP-559)."""
        type_, name = request.protocol_type, request.protocol_name
        return type_ in (None, self.members.protocol_type) and name in (None, self._protocol)

    def _assigned_to(self, member: Member) -> messages.SyncGroupResponse:
        return messages.SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=self.members.protocol_type,
            protocol_name=self._protocol,
            assignment=member.assignment,
        )

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Note that the member lives; REBALANCE_IN_PROGRESS asks it to join the next generation."""
        code = self._check(member_id, instance_id, generation)
        if code:
            return code
        self.members[member_id].alive()
        # A member that has joined may heartbeat before it syncs: its generation is the current one.
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else ErrorCode.NONE

    def leave(self, identity: messages.LeaveGroupRequest.Member) -> ErrorCode:
        """Go on without a member, named by its id, its instance id or both."""
        if self.state is State.DEAD:
            return ErrorCode.NOT_COORDINATOR
        if self._expect_no_longer(identity.member_id):
            return ErrorCode.NONE
        if identity.group_instance_id is None:
            member = self.members.get(identity.member_id)
        else:
            member = self.members.static(identity.group_instance_id)
            if member is not None and identity.member_id not in ("", member.member_id):
                return ErrorCode.FENCED_INSTANCE_ID
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._remove(member)
        return ErrorCode.NONE

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Return NONE if this member may commit offsets now. Without any members, other clients may."""
        if generation < 0 and self.state is State.EMPTY:  # any ids: clients send former ones
            return ErrorCode.NONE
        code = self._check(member_id, instance_id, generation)
        if code:
            return code
        if self.state is State.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        # While the next generation gathers, members may still commit the offsets of this one.
        self.members[member_id].alive()
        return ErrorCode.NONE

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.NOT_COORDINATOR
        code = self.members.check(member_id, instance_id)
        if not code and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def abandon(self, answer: AnswerJoin | AnswerSync) -> None:
        """Do not count on the member until it returns: the client that waited for this answer has gone."""
        for member in self.members:
            if member.syncing is answer:
                member.syncing = None
                member.alive()
            elif member.joining is answer:
                member.joining = None
                if member.is_new and member.instance_id is None:
                    self._remove(member)  # no client knows its id
                else:
                    member.is_new = False
                    member.alive()

    # Joining

    def _refuse(self, request: messages.JoinGroupRequest) -> ErrorCode:
        """Return why the request must be refused whichever member sent it, or NONE."""
        if self.state is State.DEAD:
            return ErrorCode.NOT_COORDINATOR
        shortest = self._config.group_min_session_timeout_ms
        if not shortest <= request.session_timeout <= self._config.group_max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not self.members.agree(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        known = self.members.get(request.member_id) or self.members.static(request.group_instance_id)
        growth = size_of(request.protocols) - (0 if known is None else size_of(known.protocols))
        return ErrorCode.NONE if self._may_grow(growth) else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _may_grow(self, size: int) -> bool:
        """Return True if the group may take `size` more bytes; a group that does not grow always may."""
        return size <= 0 or self._memory.has_room(size)

    def _join_without_id(
        self,
        request: messages.JoinGroupRequest,
        client: ClientName,
        answer: AnswerJoin,
        *,
        needs_id: bool,
        may_skip: bool,
    ) -> None:
        old = self.members.static(request.group_instance_id)
        member_id = f"{request.group_instance_id or client.client_id}-{uuid.uuid4()}"
        if old is not None:
            member = self._new_member(member_id, request, client)
            self._replace(old, member, request, answer, may_skip=may_skip)
        elif len(self.members) + self.members.expected >= self._config.group_max_size:
            answer(messages.JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif needs_id:
            deadline = Deadline(self._mailbox, lambda: self._expect_no_longer(member_id), self._stands_still)
            deadline.set(request.session_timeout / 1000)
            self.members.expect(member_id, deadline)
            code = ErrorCode.MEMBER_ID_REQUIRED
            answer(messages.JoinGroupResponse(error_code=code, member_id=member_id))
        else:
            self._add(self._new_member(member_id, request, client), request, answer)

    def _join_with_id(self, request: messages.JoinGroupRequest, answer: AnswerJoin) -> None:
        code = self.members.check(request.member_id, request.group_instance_id)
        if code:
            answer(messages.JoinGroupResponse(error_code=code, member_id=request.member_id))
            return
        member = self.members[request.member_id]
        # A leader that joins again has seen something change, for example a topic's partitions; any other
        # member whose protocols are as before has only missed the answer.
        leads_stable = self.state is State.STABLE and member.member_id == self.members.leader
        unchanged = tuple(member.protocols) == request.protocols
        if self.state is State.PREPARING or leads_stable or not unchanged:
            self._rejoin(member, request, answer)
        else:
            member.alive()
            answer(self._generation_for(member))

    def _add(self, member: Member, request: messages.JoinGroupRequest, answer: AnswerJoin) -> None:
        member.alive()
        self.members.enter(member)
        self._newcomers = True
        self._rejoin(member, request, answer)

    def _new_member(self, member_id: str, request: messages.JoinGroupRequest, client: ClientName) -> Member:
        session = Deadline(self._mailbox, lambda: self._session_over(member_id), self._stands_still)
        instance_id = request.group_instance_id
        member = Member(member_id=member_id, instance_id=instance_id, client=client, session=session)
        member.update(request)
        return member

    def _replace(
        self,
        old: Member,
        member: Member,
        request: messages.JoinGroupRequest,
        answer: AnswerJoin,
        *,
        may_skip: bool,
    ) -> None:
        """Put a static member that came back without its id in the place of the old one, which is fenced."""
        leader = self.members.leader
        self._unsynced.discard(old.member_id)
        self.members.remove(old, ErrorCode.FENCED_INSTANCE_ID, new_leader=member.member_id)
        member.assignment, member.is_new = old.assignment, old.is_new
        self.members.enter(member)
        member.alive()
        if self.state is State.STABLE and self.members.select_protocol() == self._protocol:
            # If it leads it must not assign again: no other member would get the assignments. A client from
            # before KIP-814 does not learn that it leads, and sees no new partitions.
            if may_skip and self.members.leader == member.member_id:
                response = self._generation_for(member)
                answer(replace(response, skip_assignment=True, members=self._said_to_leader()))
            else:
                answer(self._generation_for(member, leader=leader))
        else:
            self._rejoin(member, request, answer)

    def _rejoin(self, member: Member, request: messages.JoinGroupRequest, answer: AnswerJoin) -> None:
        """Let a member wait for the next generation, which begins when all members wait for it."""
        self.members.protocol_type = request.protocol_type
        self.members.update(member, request)
        before = ErrorCode.REBALANCE_IN_PROGRESS  # to an earlier request
        member.answer_join(messages.JoinGroupResponse(error_code=before, member_id=member.member_id))
        member.joining = answer
        self._rebalance()

    # Generations

    def _rebalance(self) -> None:
        """Begin to gather the next generation, or check whether all have joined."""
        if self.state in (State.STABLE, State.COMPLETING):
            for member in self.members:
                member.refuse_sync(ErrorCode.REBALANCE_IN_PROGRESS)
            self._phase.set(self._rebalance_timeout_s)
        elif self.state is State.EMPTY:
            self._gathering_until = self._mailbox.now() + self._rebalance_timeout_s
            self._prolong_gathering(self._gathering_until)
        self.state = State.PREPARING
        everybody = all(member.joining for member in self.members)
        if self._gathering_until is None and everybody and not self.members.expected:
            self._begin_generation()

    def _prolong_gathering(self, until: float) -> None:
        self._newcomers = False
        delay = self._config.group_initial_rebalance_delay_ms / 1000
        self._phase.set(max(0.0, min(delay, until - self._mailbox.now())))

    @property
    def _rebalance_timeout_s(self) -> float:
        return max((member.rebalance_timeout_s for member in self.members), default=0.0)

    def _phase_over(self) -> None:
        """End the phase: time is up for members to join, or to ask for their assignments."""
        if self.state is not State.PREPARING:
            for member_id in list(self._unsynced):
                self._remove(self.members[member_id])
        elif self._gathering_until is not None and self._newcomers:
            self._prolong_gathering(self._gathering_until)
        else:
            self._begin_generation()

    def _begin_generation(self) -> None:
        """Begin a generation with every member that joined; static members stay until their sessions end."""
        self._gathering_until = None
        for member in self.members:
            if member.joining is None and member.instance_id is None:
                self.members.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        joined = [member for member in self.members if member.joining]
        if not len(self.members):
            self._empty()
            return
        self._phase.set(self._rebalance_timeout_s)
        if not joined:
            return
        if self.members.leader not in [member.member_id for member in joined]:
            self.members.leader = joined[0].member_id
        self.generation += 1
        self._protocol = self.members.select_protocol()
        self.state = State.COMPLETING
        self._unsynced = {member.member_id for member in joined}
        for member in joined:
            member.is_new = False
            member.answer_join(self._generation_for(member))

    def _generation_for(self, member: Member, *, leader: str | None = None) -> messages.JoinGroupResponse:
        """Return the generation as one member sees it; the leader sees all members until it has assigned."""
        members: tuple[messages.JoinGroupResponse.Member, ...] = ()
        if self.state is State.COMPLETING and member.member_id == self.members.leader:
            members = self._said_to_leader()
        return messages.JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=self.generation,
            protocol_type=self.members.protocol_type,
            protocol_name=self._protocol,
            leader=leader or self.members.leader or "",
            member_id=member.member_id,
            members=members,
        )

    def _said_to_leader(self) -> tuple[messages.JoinGroupResponse.Member, ...]:
        return tuple(
            messages.JoinGroupResponse.Member(
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                metadata=one.metadata(self._protocol),
            )
            for one in self.members
        )

    def _assign(self, assignments: Mapping[str, bytes]) -> None:
        """Complete the generation with the leader's assignments; a member without one gets nothing."""
        growth = sum(map(len, assignments.values())) - sum(len(member.assignment) for member in self.members)
        if not self._may_grow(growth):
            self.members[self.members.leader or ""].refuse_sync(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        self.state = State.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            self.members.measure(member)
            member.answer_sync(self._assigned_to(member))

    # Members that go

    def _session_over(self, member_id: str) -> None:
        member = self.members[member_id]
        if member.is_new or not member.waiting:
            self._remove(member)

    def _remove(self, member: Member) -> None:
        self.members.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if len(self.members):
            self._rebalance()
        else:
            self._empty()

    def _empty(self) -> None:
        self.state, self._protocol, self._gathering_until = State.EMPTY, "", None
        self._phase.cancel()

    def _expect_no_longer(self, member_id: str) -> bool:
        was_expected = self.members.expect_no_longer(member_id)
        if was_expected and self.state is State.PREPARING:
            self._rebalance()
        return was_expected
