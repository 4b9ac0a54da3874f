"""Taking turns in ZooKeeper: a reader takes its turn when the tier is free, and loses it with its session.

Holder and turn are created in one transaction: a reader that was stalled while it began cannot create a turn
newer than its successor's.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import NodeExistsError, NoNodeError

from millrace.errors import MillraceError
from millrace.zookeeper.session import Session
from millrace_audit.reports.messages import now_ms
from millrace_audit.reports.turns import TURN_PREFIX, Seat, Turn, read_turns

logger = logging.getLogger("millrace.audit.reader")

KEPT_MS = 60 * 24 * 3600 * 1000
"""Age of the next turn at which a turn is deleted: no audit topic is kept for longer."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The reader that counts a tier at the moment."""

    host: str
    pid: int


class TurnTaker:
    """Takes turns at one tier; `lost` is set when the session that held the last turn has ended."""

    def __init__(self, session: Session, seat: Seat, cluster_id: str) -> None:
        self._session, self._seat, self._cluster_id = session, seat, cluster_id
        self._tier, self._turns, self._holder = seat.tier, seat.turns, seat.holder
        self.lost = threading.Event()
        session.client.add_listener(lambda state: self.lost.set() if state == KazooState.LOST else None)

    def counted_elsewhere(self) -> Turn | None:
        """Return the tier's newest turn if it counted another cluster than this reader would; else None."""
        turns = read_turns(self._session, self._seat)
        newest = turns[max(turns)] if turns else None
        return None if newest is None or newest.cluster_id == self._cluster_id else newest

    def take(self) -> Turn | Holder:
        """Return a new turn, or the reader that holds the tier."""
        for folder in (self._turns, self._holder.rpartition("/")[0]):
            self._session.call(self._session.client.ensure_path_async, folder)
        self.lost.clear()
        turn = Turn(
            number=-1,
            secret=secrets.token_bytes(32),
            cluster_id=self._cluster_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            began=now_ms(),
        )
        contents = {name: value for name, value in asdict(turn).items() if name not in ("number", "secret")}

        def begin() -> Any:
            transaction = self._session.client.transaction()
            transaction.create(self._holder, json.dumps(contents).encode(), ephemeral=True)
            transaction.create(f"{self._turns}/{TURN_PREFIX}", turn.encode(), sequence=True)
            return transaction.commit_async()

        made, path = self._session.call(begin)
        if isinstance(made, NodeExistsError):
            found = self._session.get(self._holder)
            if found is None:
                return self.take()  # it has just ended
            data, stat = found
            if stat.ephemeralOwner != self._session.id:
                holder = json.loads(data)
                return Holder(holder["host"], holder["pid"])
            # This session holds it: the answer to an earlier try was lost, or that turn was not begun.
            if (own := self._made_with(stat.czxid)) is not None:
                return own
            raise MillraceError(f"the turn of tier {self._tier} is gone from ZooKeeper: start again")
        if isinstance(made, Exception):
            raise MillraceError(f"ZooKeeper at {self._session.zookeeper} refuses a turn: {made!r}")
        name = path.rpartition("/")[2]
        self._forget_old()
        return replace(turn, number=int(name.removeprefix(TURN_PREFIX)))

    def _made_with(self, transaction: int) -> Turn | None:
        """Return the turn that was created in that transaction of ZooKeeper's."""
        for path, (data, stat) in self._nodes().items():
            if stat.czxid == transaction:
                return Turn.decode(path.rpartition("/")[2], data)
        return None

    def _nodes(self) -> dict[str, tuple[bytes, Any]]:
        return self._session.read_all(f"{self._turns}/{name}" for name in self._session.children(self._turns))

    def wait_until_free(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when the tier is free, when `stop` is set, or after `timeout_s`."""
        gone = threading.Event()
        if self._session.call(self._session.client.exists_async, self._holder, lambda _: gone.set()) is None:
            return
        for _ in range(int(timeout_s * 10)):
            if stop.wait(0.1) or gone.is_set():
                return

    def release(self) -> None:
        """End the turn at once, so that the next reader need not wait for the session to expire."""
        with suppress(NoNodeError):
            self._session.call(self._session.client.delete_async, self._holder)

    def _forget_old(self) -> None:
        nodes = self._nodes()
        now = max((stat.ctime for _, stat in nodes.values()), default=0)  # by ZooKeeper's clock, not ours
        # A turn ends when the next turn begins: until then it may have signed records.
        for path, behind in pairwise(sorted(nodes)):
            if nodes[behind][1].ctime < now - KEPT_MS:
                with suppress(NoNodeError):
                    self._session.call(self._session.client.delete_async, path)
