"""Places for producer ids, shared out by principal: which id gives its place up for a new one.

    places = Places(1000)
    while (oldest := places.in_the_way("User:web")) is not None: ...   # forget it, or refuse the new id
    places.put(producer_id, "User:web", seen_at)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeAlias, TypeVar

Key = TypeVar("Key", bound=Hashable)
Principal: TypeAlias = str | None
"""The authenticated name of a connection. None for an id that came with the log: copied or recovered."""


class Places(Generic[Key]):
    """A number of places. One principal takes at most half; ids that came with the log have as many of their own."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._of: dict[Principal, OrderedDict[Key, float]] = {}
        """When each id of a principal was last seen, the longest silent first."""
        self._clients: OrderedDict[Key, float] = OrderedDict()
        """The same of all principals together, without ids that came with the log."""

    def __len__(self) -> int:
        return len(self._clients) + len(self._of.get(None, ()))

    def put(self, key: Key, principal: Principal, seen_at: float) -> None:
        """Give an id a place, or note that it was seen again."""
        own = self._of.setdefault(principal, OrderedDict())
        for ids in (own,) if principal is None else (own, self._clients):
            ids[key] = seen_at
            ids.move_to_end(key)

    def drop(self, key: Key, principal: Principal) -> None:
        """Free the place of an id, if it has one."""
        own = self._of.get(principal)
        if own is None or own.pop(key, None) is None:
            return
        if principal is not None:
            del self._clients[key]
        if not own:
            del self._of[principal]

    def in_the_way(self, principal: str) -> tuple[Key, float] | None:
        """Return the id that must go before the principal takes a place, and when it was seen; None: none must.

        A principal that holds half of the places gives up its own longest silent id. Else, when all places
        are taken, the longest silent id of all principals goes.
        """
        own = self._of.get(principal, ())
        if len(own) >= self._count // 2:
            ids = self._of[principal]
        elif len(self._clients) >= self._count:
            ids = self._clients
        else:
            return None
        return next(iter(ids.items()))

    @property
    def surplus(self) -> Key | None:
        """The longest silent id that came with the log, while there are too many of them."""
        own = self._of.get(None, ())
        return next(iter(own)) if len(own) > self._count else None
