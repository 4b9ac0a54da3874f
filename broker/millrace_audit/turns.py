"""Who may count a tier: a turn for each start of a reader, in ZooKeeper, and the key that signs its records.

    /audit/turns/<tier>/turn-<10 digits>   persistent, sequence   {"secret": 64 hex digits, "cluster_id",
                                                                   "host", "pid", "began": ms}
    /audit/holders/<tier>                  ephemeral              the same without the secret: who counts now

    key of a count or a heartbeat := turn (8 bytes, big endian), HMAC-SHA256(secret, value)

Holder and turn are made in one transaction, so a newer turn begins only behind the end of the older one. What
an older reader left in the network is told by its turn: in the order of a partition, records of a turn count
until one of a newer turn is there. Who may produce to an audit topic cannot count; who may write here can.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import NodeExistsError, NoNodeError

from millrace.coordination.session import Session
from millrace.errors import MillraceError
from millrace_audit.reports.messages import now_ms

KEPT_MS = 60 * 24 * 3600 * 1000
"""A turn goes this long after it began, unless it is its tier's newest: no audit topic is kept for longer."""
_TURNS, _HOLDERS = "/audit/turns", "/audit/holders"
_NUMBER_BYTES, _MAC_BYTES, _DIGITS = 8, 32, 10


@dataclass(frozen=True, slots=True)
class Turn:
    """One start of a tier's reader; of two turns of a tier the larger number began later."""

    tier: str
    number: int
    cluster_id: str
    """Of the cluster that it counts."""
    host: str
    pid: int
    began: int
    secret: bytes = field(repr=False)

    def key(self, value: bytes) -> bytes:
        """The key of a message with that value."""
        return self.number.to_bytes(_NUMBER_BYTES, "big") + hmac.digest(self.secret, value, "sha256")

    def signed(self, key: bytes, value: bytes) -> bool:
        """True if that key was made for that value in this turn."""
        return hmac.compare_digest(key, self.key(value))


def number_in(key: bytes | None) -> int | None:
    """The turn that a message's key names; None when it is no such key."""
    if key is None or len(key) != _NUMBER_BYTES + _MAC_BYTES:
        return None
    return int.from_bytes(key[:_NUMBER_BYTES], "big")


def read_turns(session: Session, tier: str) -> dict[int, Turn]:
    """Every turn of a tier by its number, also one that began just now."""
    folder = f"{_TURNS}/{tier}"
    with suppress(NoNodeError):
        session.call(session.client.sync_async, folder)  # else a server that lags behind may answer
    nodes = session.read_all(f"{folder}/{name}" for name in session.children(folder))
    turns = (_turn(tier, path, data) for path, (data, _) in nodes.items())
    return {turn.number: turn for turn in turns if turn is not None}


def _turn(tier: str, path: str, data: bytes) -> Turn | None:
    """The turn in a node; None when it is unreadable, and then nobody is believed for it."""
    try:
        fields: dict[str, Any] = json.loads(data)
        secret = bytes.fromhex(fields.pop("secret"))
        return Turn(tier=tier, number=int(path[-_DIGITS:]), secret=secret, **fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class Holder:
    """The reader that counts a tier just now."""

    host: str
    pid: int


class TurnTaker:
    """A reader's way to its turns; `lost` is set when the session that holds one has ended."""

    def __init__(self, session: Session, tier: str, cluster_id: str) -> None:
        self._session, self._tier, self._cluster_id = session, tier, cluster_id
        self._turns, self._holder = f"{_TURNS}/{tier}", f"{_HOLDERS}/{tier}"
        self._who = {"cluster_id": cluster_id, "host": socket.gethostname(), "pid": os.getpid()}
        self.lost = threading.Event()
        session.client.add_listener(lambda state: self.lost.set() if state == KazooState.LOST else None)

    def check_cluster(self) -> None:
        """MillraceError if the tier's newest turn counted another cluster than this one."""
        turns = read_turns(self._session, self._tier)
        if turns and (newest := turns[max(turns)]).cluster_id != self._cluster_id:
            raise MillraceError(
                f"tier {self._tier} is another cluster: {newest.host} counted {newest.cluster_id} for it, and"
                f" this is {self._cluster_id}: give the right --cluster and --bootstrap, or --new-cluster"
                " if the tier's cluster was replaced"
            )

    def take(self) -> Turn | Holder:
        """A new turn, or who has it."""
        for folder in (self._turns, _HOLDERS):
            self._session.call(self._session.client.ensure_path_async, folder)
        self.lost.clear()
        secret = secrets.token_bytes(32)
        fields = {**self._who, "began": now_ms()}
        turn = json.dumps({**fields, "secret": secret.hex()}).encode()

        def begin() -> Any:
            transaction = self._session.client.transaction()
            transaction.create(self._holder, json.dumps(fields).encode(), ephemeral=True)
            transaction.create(f"{self._turns}/turn-", turn, sequence=True)
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
            path = self._made_with(stat.czxid)  # by our own first try, whose answer was lost
        elif isinstance(made, Exception):
            raise MillraceError(f"ZooKeeper at {self._session.zookeeper} refuses a turn: {made!r}")
        taken = _turn(self._tier, path, turn)
        assert taken is not None
        self._forget_old(taken.number)
        return taken

    def _made_with(self, transaction: int) -> str:
        """The path of the turn that was made in that transaction of ZooKeeper's."""
        names = (f"{self._turns}/{name}" for name in self._session.children(self._turns))
        nodes = self._session.read_all(names)
        return next(path for path, (_, stat) in nodes.items() if stat.czxid == transaction)

    def wait_until_free(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when nobody holds the turn any more, or `stop` is set, or after that time."""
        gone = threading.Event()
        with suppress(NoNodeError):
            exists = self._session.client.exists_async
            if self._session.call(exists, self._holder, lambda _: gone.set()) is None:
                return
        for _ in range(int(timeout_s * 10)):
            if stop.wait(0.1) or gone.is_set():
                return

    def release(self) -> None:
        """End the turn at once; the next one need not wait for the session to expire."""
        with suppress(NoNodeError):
            self._session.call(self._session.client.delete_async, self._holder)

    def _forget_old(self, newest: int) -> None:
        nodes = self._session.read_all(
            f"{self._turns}/{name}" for name in self._session.children(self._turns)
        )
        now = max((stat.ctime for _, stat in nodes.values()), default=0)  # by ZooKeeper's clock, not ours
        for path, (_, stat) in nodes.items():
            if stat.ctime < now - KEPT_MS and int(path[-_DIGITS:]) != newest:
                with suppress(NoNodeError):
                    self._session.call(self._session.client.delete_async, path)


class TurnBook:
    """The turns of all tiers, for who verifies. For one thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turns: dict[str, Mapping[int, Turn]] = {}
        self._read_for: dict[str, object] = {}

    def signed(self, tier: str, key: bytes | None, value: bytes, fetch: object) -> int | None:
        """The turn of that tier that signed the value with that key; None when none did.

        A turn that is not known is looked up, for all messages of one `fetch` (any value) once: numbers that
        somebody has made up cost no more. RequestTimedOut when ZooKeeper is away.
        """
        number = number_in(key)
        if number is None or key is None:
            return None
        turn = self._turns.get(tier, {}).get(number)
        if turn is None and self._read_for.get(tier) is not fetch:
            self._turns[tier] = read_turns(self._session, tier)
            self._read_for[tier] = fetch
            turn = self._turns[tier].get(number)
        return number if turn is not None and turn.signed(key, value) else None
