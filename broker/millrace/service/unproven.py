"""Connections whose clients are not authenticated yet, and the limits on their number. It uses no sockets."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class Unproven(Generic[C]):
    """Connections whose clients are not authenticated yet, oldest first."""

    def __init__(self, most: int, most_of_address: int, is_proven: Callable[[C], bool]) -> None:
        self._most, self._most_of_address, self._is_proven = most, most_of_address, is_proven
        self._addresses: dict[C, str] = {}

    def enter(self, connection: C, address: str) -> C | None:
        """Count a new connection; return the oldest connection, to be closed, if a limit is exceeded."""
        self._addresses[connection] = address
        if self._too_many(address):
            for known in [known for known in self._addresses if self._is_proven(known)]:
                self.leave(known)
        return next(iter(self._too_many(address)), None)

    def oldest(self) -> C | None:
        return next(iter(self._addresses), None)

    def leave(self, connection: C) -> None:
        """Forget a connection that has ended or whose client is authenticated."""
        self._addresses.pop(connection, None)

    def _too_many(self, address: str) -> list[C]:
        same = [known for known, of in self._addresses.items() if of == address]
        if len(same) > self._most_of_address:
            return same
        return list(self._addresses) if len(self._addresses) > self._most else []
