"""The quotas of one cluster's users: one node in ZooKeeper, and a snapshot of it in memory.

    /<cluster>/security/quotas  persistent  {"version": 1, "quotas": [[user or null, {KEY: NUMBER}], ...]}

null stands for every user without the quota of its own. While ZooKeeper is away, and while the node is gone
or unreadable, the last snapshot holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from millrace.errors import MillraceError, PolicyViolation
from millrace.zookeeper.session import Session
from millrace_broker.coordination.watching import WatchedNode
from millrace_broker.security.quotas import KEYS, Limits

MAX_BYTES = 900_000
"""Largest size of the node, about 10,000 users: ZooKeeper takes 1 MB."""
FORMAT = 1
Quotas = Mapping[str | None, Limits]


class QuotaStore(WatchedNode[Quotas]):
    """The registry of quotas; `limits` is for any thread; methods that wait for ZooKeeper say so."""

    def __init__(self, session: Session, cluster: str) -> None:
        """Wait for ZooKeeper; MillraceError when the quotas cannot be read."""
        super().__init__(session, f"/{cluster}/security/quotas", "quotas", _encoded({}), _decoded)

    @property
    def limits(self) -> Quotas:
        return self.value

    def change(self, change: Callable[[Quotas], Quotas]) -> None:
        """Write the quotas that `change` returns; it may be called again. They hold here on return.

        Waits for ZooKeeper. PolicyViolation when they become too many.
        """

        def changed(quotas: Quotas) -> bytes:
            encoded = _encoded(change(quotas))
            if len(encoded) > MAX_BYTES:
                raise PolicyViolation("too many users have quotas: set the default quotas instead")
            return encoded

        self.write(changed)


def _encoded(quotas: Quotas) -> bytes:
    kept = [[user, dict(limits)] for user, limits in quotas.items() if limits]
    return json.dumps({"version": FORMAT, "quotas": kept}).encode()


def _decoded(data: bytes) -> Quotas:
    """Return the quotas; MillraceError when any cannot be read."""
    try:
        kept = json.loads(data)
        if kept["version"] != FORMAT:
            raise ValueError(f"version {kept['version']} is not {FORMAT}")
        return {
            user: {key: float(value) for key, value in limits.items() if key in KEYS}
            for user, limits in kept["quotas"]
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MillraceError(f"cannot read the quotas in ZooKeeper: {error}") from None
