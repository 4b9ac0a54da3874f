"""The turns of readers in ZooKeeper: who may count a tier, since when, with which secret.

    /audit/turns/TIER/turn-NNNNNNNNNN   persistent, sequence: JSON {secret, cluster_id, host, pid, began}
    /audit/holders/TIER                 ephemeral: the reader that counts now

All in the aggregate cluster's ZooKeeper. A reader makes its turn before it publishes, the auditor knows
by it whose word a count is. Reads only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from urllib.parse import quote

from millrace.coordination.session import Session

TURN_PREFIX = "turn-"


def turns_path(tier: str) -> str:
    return f"/audit/turns/{quote(tier, safe='')}"


def holder_path(tier: str) -> str:
    return f"/audit/holders/{quote(tier, safe='')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One reader's time at a tier."""

    number: int
    """Larger than that of every turn before, as ZooKeeper counts them."""
    secret: bytes
    cluster_id: str
    """Of the cluster that it counts, as its brokers tell it."""
    host: str
    pid: int
    began: int
    """ms since the epoch."""

    def encode(self) -> bytes:
        """The data of the turn's node; the number is in its name."""
        fields = {**asdict(self), "secret": self.secret.hex()}
        del fields["number"]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, name: str, data: bytes) -> Turn:
        fields = json.loads(data)
        number = int(name.removeprefix(TURN_PREFIX))
        return cls(**{**fields, "number": number, "secret": bytes.fromhex(fields["secret"])})


def read_turns(session: Session, tier: str) -> dict[int, Turn]:
    """Every turn of a tier by number; RequestTimedOut when ZooKeeper does not answer."""
    path = turns_path(tier)
    nodes = session.read_all(f"{path}/{name}" for name in session.children(path))
    turns = (Turn.decode(at.rpartition("/")[2], data) for at, (data, _) in nodes.items())
    return {turn.number: turn for turn in turns}
