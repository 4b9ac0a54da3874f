"""The quotas of one cluster's users: one node in ZooKeeper, and a snapshot of it in memory.

    /<cluster>/security/quotas  persistent  {"version": 1, "quotas": [[user or null, {KEY: NUMBER}], ...]}

null means every user without a quota of its own. While ZooKeeper does not answer, and while the node is
missing or unreadable, the last snapshot stays in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millrace.zookeeper.session import Session
from millrace_broker.coordination.watching import WatchedList
from millrace_broker.security.quotas import KEYS, Limits

Quotas = Mapping[str | None, Limits]


class QuotaStore(WatchedList[Quotas]):
    """The registry of quotas; `limits` is for any thread.

    Docstrings state which methods wait for ZooKeeper.
    """

    def __init__(self, session: Session, cluster: str) -> None:
        """Wait for ZooKeeper. Raise MillraceError when the quotas cannot be read."""
        super().__init__(session, f"/{cluster}/security/quotas", "quotas", "quotas", _quotas)

    @property
    def limits(self) -> Quotas:
        return self.value

    def change(self, change: Callable[[Quotas], Quotas]) -> None:
        """Write the quotas that `change` returns; `change` may be called again. On return the quotas are in
        force on this broker.

        Waits for ZooKeeper. Raise PolicyViolation when they become too many.
        """

        def changed(quotas: Quotas) -> list[Any]:
            return [[user, dict(limits)] for user, limits in change(quotas).items() if limits]

        self.write(changed, "set the default quotas instead")


def _quotas(entries: Any) -> Quotas:
    return {
        user: {key: float(value) for key, value in limits.items() if key in KEYS} for user, limits in entries
    }
