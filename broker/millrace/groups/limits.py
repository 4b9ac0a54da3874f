"""How much memory all groups of a broker may take: members choose what they tell, so there is a limit."""

from __future__ import annotations

MAX_BYTES = 64 << 20
"""Of all groups together: 10,000 members that tell and are assigned 4 KiB each."""


class Memory:
    """Counts bytes; does not allocate any."""

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._limit = limit
        self.used = 0

    def add(self, size: int) -> None:
        """So many bytes more, or fewer if negative, are held."""
        self.used += size

    def has_room(self, size: int) -> bool:
        """True if so many bytes more may be held."""
        return self.used + size <= self._limit
