"""One member of a group: what it told, what it was assigned, and which of its requests waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from millrace.errors import ErrorCode
from millrace.groups.timing import Deadline
from millrace.wire.group_messages import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupResponse,
)

AnswerJoin: TypeAlias = Callable[[JoinGroupResponse], None]
AnswerSync: TypeAlias = Callable[[SyncGroupResponse], None]
MEMBER_BYTES = 2_000
"""Counted for a member itself, beside what it told and was assigned: what its objects take, rounded up."""
NEW_MEMBER_S = 300.0
"""A new member's JoinGroup waits no longer: it has no id to send heartbeats with, so it may be long gone."""

MIN_REBALANCE_S = 1.0
"""A rebalance lasts at least so long if members are missing, whatever they ask for: with no time at all, none
would ever bring an assignment, and the wait for those that are away would keep the loop busy."""


@dataclass(frozen=True, slots=True)
class ClientName:
    """How a client calls itself, and from where it speaks."""

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
    protocols: Sequence[JoinGroupRequestProtocol] = ()
    assignment: bytes = b""
    is_new: bool = True
    """It has not been part of any generation yet."""
    joining: AnswerJoin | None = None
    syncing: AnswerSync | None = None
    bytes_held: int = 0
    """As counted last, for the limit of all groups together."""

    @property
    def waiting(self) -> bool:
        """True while one of its requests waits: it lives, though it sends no heartbeats."""
        return self.joining is not None or self.syncing is not None

    @property
    def size(self) -> int:
        told = sum(len(protocol.name) + len(protocol.metadata) for protocol in self.protocols)
        return MEMBER_BYTES + told + len(self.assignment) + len(self.member_id)

    def tell(self, request: JoinGroupRequest) -> None:
        """Take over what it says when it joins. The oldest clients (v0) have one timeout for both."""
        timeout = request.rebalance_timeout
        self.session_timeout_s = request.session_timeout / 1000
        timeout = request.session_timeout if timeout < 0 else timeout
        self.rebalance_timeout_s = max(MIN_REBALANCE_S, timeout / 1000)
        self.protocols = request.protocols

    def alive(self) -> None:
        """It was heard of: its session starts anew."""
        self.session.set(NEW_MEMBER_S if self.is_new else self.session_timeout_s)

    def metadata(self, protocol: str) -> bytes:
        """What it told for `protocol`; empty when it does not know it."""
        return next((one.metadata for one in self.protocols if one.name == protocol), b"")

    def vote(self, candidates: Collection[str]) -> str:
        """The candidate it likes best; it knows every one of them."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def answer_join(self, response: JoinGroupResponse) -> None:
        """Answer its JoinGroup, if it waits for that; its session starts anew."""
        answer, self.joining = self.joining, None
        if answer is not None:
            self.alive()
            answer(response)

    def answer_sync(self, response: SyncGroupResponse) -> None:
        """Answer its SyncGroup, if it waits for that; its session starts anew."""
        answer, self.syncing = self.syncing, None
        if answer is not None:
            self.alive()
            answer(response)

    def send_away(self, code: ErrorCode) -> None:
        """Answer whatever of it waits with an error, and wait for it no longer."""
        self.answer_join(JoinGroupResponse(error_code=code, member_id=self.member_id))
        self.answer_sync(SyncGroupResponse(error_code=code))
        self.session.cancel()
