"""The readers of one tier, in ZooKeeper: which reader counts a partition, and what each has counted.

    /audit/readers/CLUSTER/TIER/SESSION-NNNNNNNNNN
        ephemeral, of each reader that runs: deflated JSON, see Member
    /audit/shares/CLUSTER/TIER
        ephemeral, of the reader that holds the tier: JSON {turn, members, published}

The reader that holds the tier shares the partitions among all readers with its own settings. The shares last
as long as its turn: when a reader comes or goes, the holder ends the turn, and the next turn has new shares.
All readers of a turn sign with its secret. A reader that stood still or was cut off therefore signs in an
older turn, and its records have no effect: no two readers ever count a partition in one turn.

Only the holder publishes heartbeats. The other readers hand theirs over in their own nodes, after their
counts are acknowledged. A reader of an earlier version writes no shares, and counts the tier alone.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError, RolledBackError

from millrace.errors import MillraceError, RequestTimedOut
from millrace.zookeeper.session import Session
from millrace_audit.reader.partition import PartitionKey
from millrace_audit.reports.messages import Heartbeat, ReaderPosition, Unreadable
from millrace_audit.reports.turns import Seat

logger = logging.getLogger("millrace.audit.reader")

LEAVE_S = 10.0
"""Longest wait of a new turn for readers that still publish counts of an older turn."""
_LOOK_S = 0.05
_MOST_BYTES = 1_000_000
"""Size of a node, just below ZooKeeper's limit: about 45,000 partitions that cannot be read."""
_SESSION_ENDED = "the session with ZooKeeper has ended, and with it the reader's share of the tier"


@dataclass(frozen=True, slots=True)
class Shares:
    """The readers that count a tier in one turn."""

    turn: int
    members: Sequence[str]
    published: Mapping[str, int] = field(default_factory=dict)
    """Member -> number of its newest heartbeat with positions that the holder has published."""

    def owner(self, key: PartitionKey) -> str:
        """Return the member that counts the partition."""
        return self.members[(zlib.crc32(key.topic_id.encode()) + key.partition) % len(self.members)]

    def encode(self) -> bytes:
        fields = {"turn": self.turn, "members": self.members, "published": self.published}
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> Shares:
        """Return the shares in a node. A later version may have written more fields."""
        fields = json.loads(data)
        return cls(fields["turn"], fields["members"], fields["published"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One reader that runs."""

    settings: Sequence[Any]
    """Settings that decide what is counted; only readers with equal settings share a tier."""
    host: str
    pid: int
    turn: int | None = None
    """Turn in which the reader counts; None while it stands by."""
    heartbeat: Heartbeat | None = None
    """Newest heartbeat of the turn, of this reader's partitions; its number rises with its news."""

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in ("settings", "host", "pid", "turn", "heartbeat")}
        if (beat := self.heartbeat) is not None:
            fields["heartbeat"] = {
                "time": beat.time,
                "tier": beat.tier,
                "number": beat.number,
                "reported_through": beat.reported_through,
                "positions": [astuple(position) for position in beat.positions],
                "unreadable": [astuple(bad) for bad in beat.unreadable],
            }
        return zlib.compress(json.dumps(fields).encode())

    @classmethod
    def decode(cls, data: bytes) -> Member | None:
        """Return the member in a node; None if the node holds none that this version can read."""
        try:
            fields = json.loads(zlib.decompress(data))
            if (beat := fields["heartbeat"]) is not None:
                beat["positions"] = [ReaderPosition(*each) for each in beat["positions"]]
                beat["unreadable"] = [Unreadable(*each) for each in beat["unreadable"]]
                fields["heartbeat"] = Heartbeat(**beat)
            return cls(**fields)
        except (zlib.error, ValueError, KeyError, TypeError):
            return None


def joined(own: Heartbeat, others: Mapping[str, Heartbeat], published: Mapping[str, int]) -> Heartbeat:
    """Return the heartbeat of the whole tier, from the holder's own heartbeat and the other members'.

    It holds at the earliest of their times. `published` has the numbers of the members' heartbeats whose
    positions were published before.
    """
    beats = [own, *others.values()]
    new = [own, *(beat for name, beat in others.items() if beat.number > published.get(name, 0))]
    through = [beat.reported_through for beat in beats if beat.reported_through is not None]
    return replace(
        own,
        time=min(beat.time for beat in beats),
        reported_through=min(through) if through else None,
        positions=[position for beat in new for position in beat.positions],
        unreadable=[bad for beat in beats for bad in beat.unreadable],
    )


class Membership:
    """One reader among the readers of its tier. For one thread."""

    def __init__(self, session: Session, seat: Seat, settings: Sequence[Any]) -> None:
        self._session, self._seat = session, seat
        self._own = Member(settings=[*settings], host=socket.gethostname(), pid=os.getpid())
        self.name = ""
        """Name of this reader's node; empty until it has one."""
        self.shares: Shares | None = None
        """Shares of the present turn; None outside of a turn."""
        self.holds = False
        """True if this reader holds the tier, and publishes its heartbeats."""
        self.ended = -1
        """Newest turn that this reader has left. It must not count in that turn again."""
        self._is_over = False
        self._positions_in = 0
        """Number of the newest heartbeat with positions that was handed over."""
        self._changed = threading.Event()

    # The same in every role.

    @property
    def is_shared(self) -> bool:
        """True if other readers count a part of the tier."""
        return self.shares is not None and len(self.shares.members) > 1

    @property
    def hands_over(self) -> bool:
        """True if another reader publishes this reader's heartbeats."""
        return self.shares is not None and not self.holds

    def is_mine(self, key: PartitionKey) -> bool:
        return self.shares is None or self.shares.owner(key) == self.name

    def enter(self) -> None:
        """Appear among the readers of the tier, unless the present session has done that."""
        if not self.name.startswith(self._prefix):
            self._appear()

    def _appear(self) -> None:
        client, folder = self._session.client, self._seat.readers
        self._session.call(client.ensure_path_async, folder)
        self._own = replace(self._own, turn=None, heartbeat=None)
        path = self._session.call(
            client.create_async, f"{folder}/{self._prefix}", self._own.encode(), ephemeral=True, sequence=True
        )
        self.name = path.rpartition("/")[2]
        # Another name, or a node of a creation whose answer was lost: no reader would count its share.
        nodes = self._session.read_all(f"{folder}/{name}" for name in self._session.children(folder))
        for other, (_, stat) in nodes.items():
            if stat.ephemeralOwner == self._session.id and other != path:
                with suppress(NoNodeError):
                    self._session.call(client.delete_async, other)

    @property
    def _prefix(self) -> str:
        return f"{self._session.id:016x}-"

    def note(self, turn: int | None, heartbeat: Heartbeat | None = None) -> None:
        """Write the turn in which this reader counts, and its newest heartbeat in it."""
        self._own = replace(self._own, turn=turn, heartbeat=heartbeat)
        if len(data := self._own.encode()) > _MOST_BYTES:
            raise MillraceError(
                f"this reader's share of tier {self._seat.tier} has more partitions than fit into a node of"
                " ZooKeeper: start more readers"
            )
        try:
            path = f"{self._seat.readers}/{self.name}"
            self._session.call(self._session.client.set_async, path, data)
        except NoNodeError:
            raise MillraceError(_SESSION_ENDED) from None

    def is_over(self, *, look: bool = True) -> bool:
        """Return True if the shares have ended: readers came or went, or the holder has withdrawn them.

        Without `look`, ZooKeeper is asked only after a change.
        """
        if self.shares is None or self._is_over or not (look or self._changed.is_set()):
            return self._is_over
        try:
            if self.holds:
                self._is_over = self._members().keys() != set(self.shares.members)
            else:
                now = self._look()
                self._is_over = now is None or now.turn != self.shares.turn
                self.shares = self.shares if now is None or self._is_over else now
        except RequestTimedOut:
            return False  # counting needs no ZooKeeper; a session that has ended is noticed by itself
        return self._is_over

    def check(self) -> None:
        """Raise MillraceError if another reader has ended the shares."""
        if self.hands_over and self.is_over():
            raise MillraceError(f"the readers of tier {self._seat.tier} have changed")

    def leave(self) -> None:
        """Leave the turn; a holder withdraws the shares."""
        if self.shares is None:
            return  # the turn had not begun
        self.ended = max(self.ended, self.shares.turn)
        if self.holds:
            self._withdraw()
        self.note(None)
        self.shares, self.holds, self._is_over = None, False, False

    def disappear(self) -> None:
        """Be no reader of the tier until `enter` is called."""
        with suppress(NoNodeError):
            path = f"{self._seat.readers}/{self.name}"
            self._session.call(self._session.client.delete_async, path)
        self.name = ""

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when the tier may be free or shared anew, when `stop` is set, or after `timeout_s`."""
        if self._session.call(self._session.client.exists_async, self._seat.holder, self._on_change) is None:
            return
        for _ in range(int(timeout_s * 10)):
            if stop.wait(0.1) or self._changed.is_set():
                return

    def _on_change(self, _: object) -> None:
        self._changed.set()

    # A member that does not hold the tier.

    def assigned(self) -> Shares | None:
        """Return the present shares; None if the reader that holds the tier has none for this one."""
        shares = self._look()
        if shares is None or self.name not in shares.members:
            return None
        if shares.turn <= self.ended:
            self._appear()  # the holder finds another member, and begins another turn
            return None
        self.shares, self.holds, self._is_over, self._positions_in = shares, False, False, 0
        return shares

    def _look(self) -> Shares | None:
        """Return the shares that the reader which holds the tier has written."""
        self._changed.clear()
        path, holder = self._seat.shares, self._seat.holder
        self._session.call(self._session.client.exists_async, path, self._on_change)
        found = self._session.read_all([path, holder])
        owners = {stat.ephemeralOwner for _, stat in found.values()}
        if len(found) < 2 or len(owners) > 1 or self._session.id in owners:
            return None
        return Shares.decode(found[path][0])

    def join(self, turn: int) -> None:
        """Take part in the turn. Raise MillraceError if it has ended."""
        self.note(turn)
        self.check()  # a holder that ends the turn from here on finds the note, and waits for this reader

    def hand_over(self, heartbeat: Heartbeat) -> None:
        """Give a heartbeat to the reader that holds the tier, which publishes it."""
        assert self.shares is not None
        self.note(self.shares.turn, heartbeat)
        if heartbeat.positions:
            self._positions_in = heartbeat.number

    @property
    def must_wait(self) -> bool:
        """True while positions that were handed over are not published: counts after them must come later."""
        if self.shares is None or self.holds:
            return False
        return self.shares.published.get(self.name, 0) < self._positions_in

    # The reader that holds the tier.

    def share(self, turn: int, stop: threading.Event) -> None:
        """Share the tier for a turn of this reader, and wait until no member counts in an older turn.

        A turn that is begun again keeps its shares.
        """
        self.holds = True
        if self.shares is None or self.shares.turn != turn:
            self._withdraw()  # an older turn, which was left while ZooKeeper did not answer
            self.shares, self._is_over = Shares(turn, sorted(self._members())), False
        if self.name not in self.shares.members:
            self.ended = turn  # the turn is of a newer session than the name
            raise MillraceError(_SESSION_ENDED)
        self.note(turn)
        give_up_at = time.monotonic() + LEAVE_S
        while any(each.turn not in (None, turn) for each in self._members().values()):
            # Records that they publish from now on would be rejected.
            if time.monotonic() >= give_up_at or stop.wait(_LOOK_S):
                return

    def publish(self, heartbeats: Mapping[str, Heartbeat] = {}) -> None:
        """Write the shares; `heartbeats` of other members have been published, with their positions."""
        assert self.shares is not None
        news = {name: beat.number for name, beat in heartbeats.items() if beat.positions}
        self.shares = replace(self.shares, published={**self.shares.published, **news})
        data, path = self.shares.encode(), self._seat.shares
        self._session.call(self._session.client.ensure_path_async, path.rpartition("/")[0])
        failed = self._change(lambda transaction: transaction.set_data(path, data))
        if isinstance(failed, NoNodeError):
            failed = self._change(lambda transaction: transaction.create(path, data, ephemeral=True))
        if isinstance(failed, NoNodeError):
            raise MillraceError(_SESSION_ENDED)
        if failed is not None and not isinstance(failed, NodeExistsError):
            raise MillraceError(f"ZooKeeper refuses the shares of tier {self._seat.tier}: {failed!r}")

    def heartbeats(self) -> dict[str, Heartbeat] | None:
        """Return the newest heartbeats of the other members; None while a member has none in this turn."""
        if self.shares is None or not self.is_shared:
            return {}
        members, found = self._members(), dict[str, Heartbeat]()
        for name in self.shares.members:
            member = members.get(name)
            if name == self.name:
                continue
            if member is None or member.heartbeat is None or member.turn != self.shares.turn:
                return None
            found[name] = member.heartbeat
        return found

    def _members(self) -> dict[str, Member]:
        """Return the readers with the settings of this one, by name."""
        self._changed.clear()
        folder = self._seat.readers
        names = self._session.children(folder, self._on_change)
        nodes = self._session.read_all(f"{folder}/{name}" for name in names)
        members = {path.rpartition("/")[2]: Member.decode(data) for path, (data, _) in nodes.items()}
        return {
            name: member
            for name, member in members.items()
            if member is not None and member.settings == self._own.settings
        }

    def _withdraw(self) -> None:
        self._change(lambda transaction: transaction.delete(self._seat.shares))

    def _change(self, operation: Callable[[Any], object]) -> Exception | None:
        """Change the shares if this reader's session lasts; return the failure, if any.

        Its node is of that session alone: a reader that stood still cannot change its successor's shares.
        """

        def begin() -> Any:
            transaction = self._session.client.transaction()
            transaction.check(f"{self._seat.readers}/{self.name}", -1)
            operation(transaction)
            return transaction.commit_async()

        failures = (each for each in self._session.call(begin) if isinstance(each, Exception))
        return next((each for each in failures if not isinstance(each, RolledBackError)), None)
