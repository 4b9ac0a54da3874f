"""Turns of readers in ZooKeeper. A turn states which reader counts a tier, since when, and with which secret.

    /audit/turns/CLUSTER/TIER/turn-NNNNNNNNNN
        persistent, sequence: JSON {secret, cluster_id, host, pid, began}
    /audit/holders/CLUSTER/TIER
        ephemeral: the same without the secret, of the reader that counts now

All are in the aggregate cluster's ZooKeeper. CLUSTER receives the counts: several aggregate clusters may have
tiers of the same name. A reader creates its turn before it publishes. The turn tells the auditor which reader
signed a count. Late records of an earlier reader are recognized by their turn: in a partition, a turn's
records count until the first record of a newer turn. The right to produce to an audit topic is not enough to
publish counts; the right to write these nodes is. This module only reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from kazoo.exceptions import NoNodeError

from millrace.zookeeper.session import Session
from millrace_audit.reports.messages import AUDITOR, OFFLINE, WAREHOUSE
from millrace_audit.reports.seals import is_signed, sign, signed_turn

TURN_PREFIX = "turn-"


class Seat(NamedTuple):
    """A tier and the cluster that receives its counts; one reader at a time holds it."""

    cluster: str
    tier: str

    @classmethod
    def of(cls, tier: str, aggregate: str) -> Seat:
        """Return the seat of a tier, given the aggregate cluster's name.

        An origin receives its own counts.
        """
        return cls(aggregate if tier in (OFFLINE, WAREHOUSE, AUDITOR) else tier, tier)

    @property
    def turns(self) -> str:
        """The parent node of the turns."""
        return self._node("turns")

    @property
    def holder(self) -> str:
        return self._node("holders")

    @property
    def readers(self) -> str:
        """The parent node of the readers that run."""
        return self._node("readers")

    @property
    def shares(self) -> str:
        """The node in which the holder shares the tier's partitions among the readers."""
        return self._node("shares")

    def _node(self, kind: str) -> str:
        return f"/audit/{kind}/{quote(self.cluster, safe='')}/{quote(self.tier, safe='')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The period in which one reader holds a tier, and the same readers share it."""

    number: int
    """Number of the turn, counted by ZooKeeper: larger than the number of every earlier turn."""
    secret: bytes = field(repr=False)
    cluster_id: str
    """Id of the cluster that is counted, as its brokers report it."""
    host: str
    pid: int
    began: int
    """Start of the turn, in ms since the epoch."""

    def encode(self) -> bytes:
        """Return the data of the turn's node; the number is in its name."""
        fields = {**asdict(self), "secret": self.secret.hex()}
        del fields["number"]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, name: str, data: bytes) -> Turn | None:
        """Return the turn in a node; None if the node holds no turn: then no signature with its number is
        valid.
        """
        try:
            fields = json.loads(data)
            number = int(name.removeprefix(TURN_PREFIX))
            return cls(**{**fields, "number": number, "secret": bytes.fromhex(fields["secret"])})
        except (ValueError, KeyError, TypeError):
            return None

    def key(self, value: bytes) -> bytes:
        return sign(self.number, self.secret, value)


def read_turns(session: Session, seat: Seat) -> dict[int, Turn]:
    """Return every turn of a tier by number, including a turn that has just begun.

    Raise RequestTimedOut when ZooKeeper does not answer.
    """
    path = seat.turns
    with suppress(NoNodeError):
        session.call(session.client.sync_async, path)  # otherwise a lagging server may answer
    nodes = session.read_all(f"{path}/{name}" for name in session.children(path))
    turns = (Turn.decode(at.rpartition("/")[2], data) for at, (data, _) in nodes.items())
    return {turn.number: turn for turn in turns if turn is not None}


class TurnBook:
    """The turns of all tiers around one aggregate cluster, to verify signatures. For one thread."""

    def __init__(self, session: Session, aggregate: str) -> None:
        self._session, self._aggregate = session, aggregate
        self._turns: dict[str, Mapping[int, Turn]] = {}
        self._read_for: dict[str, object] = {}

    def signed(self, tier: str, key: bytes | None, value: bytes, fetch: object) -> int | None:
        """Return the number of the tier's turn that signed the value with that key; None when no turn did.

        An unknown turn is looked up once for all messages of one `fetch` (any value), so made-up numbers cost
        no more. Raise RequestTimedOut when ZooKeeper does not answer.
        """
        number = signed_turn(key)
        if number is None or key is None:
            return None
        turn = self._turns.get(tier, {}).get(number)
        if turn is None and self._read_for.get(tier) != fetch:
            self._turns[tier] = read_turns(self._session, Seat.of(tier, self._aggregate))
            self._read_for[tier] = fetch
            turn = self._turns[tier].get(number)
        return number if turn is not None and is_signed(key, turn.secret, value) else None
