"""Which broker is to coordinate a group that nobody coordinates: all brokers give the same answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def coordinator_of(group: str, brokers: Iterable[int]) -> int | None:
    """One of these brokers, None when there is none.

    Every broker draws a number for the group, the highest wins: when a broker comes or goes, only the groups
    that it wins or had won change hands.
    """

    def draw(broker: int) -> bytes:
        return hashlib.blake2b(f"{broker}/{group}".encode(), digest_size=8).digest()

    return max(brokers, key=draw, default=None)
