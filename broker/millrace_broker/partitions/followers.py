"""The followers that copy from this broker: one connection each, parked while there is no news.

On the loop. `replication.session` makes the answers; the broker knows which partitions are led here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from millrace.errors import InvalidRequest
from millrace.wire.replica import Copied, ReplicaFetchRequest, ReplicaPartition
from millrace_broker.mailbox import Mailbox, Timer
from millrace_broker.replication.session import FindLed, ReplicaSession

MAX_WAIT_MS = 10_000
MAX_BYTES = 16 << 20
"""Most bytes that a follower gets at once, and longest wait, whatever it asks for."""

SendCopied: TypeAlias = Callable[[Sequence[Copied]], None]


class Connected(Protocol):
    """The connection of a follower."""

    closed: bool

    def abort(self, reason: str) -> None:
        """Close the connection, and log why."""


class Follower:
    """One follower's connection, and its request that waits for news."""

    def __init__(self, connection: Connected, session: ReplicaSession, mailbox: Mailbox) -> None:
        self.connection, self.session, self._mailbox = connection, session, mailbox
        self._answer: SendCopied | None = None
        self._max_bytes = 0
        self._timer: Timer | None = None
        self._woken = False

    def fetch(self, request: ReplicaFetchRequest, answer: SendCopied) -> bool:
        """Answer with the news, at once or later; True when the request's positions commit more."""
        if self._answer is not None:
            self._finish([])  # an earlier request: the follower has new positions and stopped waiting
        grown = self.session.update(request, self._mailbox.now())
        self._answer, self._max_bytes = answer, min(request.max_bytes, MAX_BYTES)
        self._look()
        if self._answer is not None:
            wait_s = min(max(0, request.max_wait_ms), MAX_WAIT_MS) / 1000
            self._timer = self._mailbox.after(wait_s, self._time_is_up)
        return grown

    def changed(self, partition: ReplicaPartition) -> None:
        """Note that this partition may have news: look at the end of the turn."""
        self.session.changed(partition)
        if self._answer is not None and not self._woken:
            self._woken = True
            self._mailbox.at_end_of_turn(self._look)

    def end(self, now: float) -> None:
        """Note that the connection has ended, or another one takes its place."""
        if self._answer is not None:
            self._finish([])
        self.session.closed(now)

    def _look(self) -> None:
        self._woken = False
        if self._answer is not None and (copied := self.session.answer(self._max_bytes)):
            self._finish(copied)

    def _time_is_up(self) -> None:
        if self._answer is not None:
            self._finish(self.session.answer(self._max_bytes, final=True))

    def _finish(self, copied: Sequence[Copied]) -> None:
        answer, self._answer = self._answer, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if answer is not None and not self.connection.closed:
            answer(copied)


class Followers:
    """Every broker that copies from this one."""

    def __init__(self, mailbox: Mailbox, find: FindLed) -> None:
        self._mailbox, self._find = mailbox, find
        self._followers: dict[int, Follower] = {}

    def fetch(self, connection: Connected, request: ReplicaFetchRequest, answer: SendCopied) -> bool:
        """Serve one request; True when its positions commit more."""
        known = self._followers.get(request.follower)
        if known is None or known.connection is not connection:
            if not request.anew:
                raise InvalidRequest("a follower's first request over a connection must name all partitions")
            if known is not None:
                known.end(self._mailbox.now())
                known.connection.abort(f"broker {request.follower} copies by another one now")
            session = ReplicaSession(request.follower, request.directory, self._find)
            known = Follower(connection, session, self._mailbox)
            self._followers[request.follower] = known
        return known.fetch(request, answer)

    def changed(self, partition: ReplicaPartition) -> None:
        """Note that the partition has grown, or is led by another broker now."""
        for follower in self._followers.values():
            follower.changed(partition)

    def end_closed(self, now: float) -> None:
        """Remove the followers whose connection has ended since the last call."""
        for broker, follower in list(self._followers.items()):
            if follower.connection.closed:
                del self._followers[broker]
                follower.end(now)

    @property
    def brokers(self) -> Iterable[int]:
        return self._followers.keys()
