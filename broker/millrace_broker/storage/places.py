"""Limited places for producer ids, shared among principals, and the choice of the id that yields its place to
a new id.

    places = Places(1000)
    if (oldest := places.in_the_way("User:web")) is not None: ...   # forget it, or refuse the new id
    places.put(producer_id, "User:web", seen_at)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeAlias, TypeVar

Key = TypeVar("Key", bound=Hashable)
Principal: TypeAlias = str | None
"""The authenticated name of a connection. None for an id that was copied or recovered with the log."""


class Places(Generic[Key]):
    """A fixed number of places for producer ids. The ids of one principal take at most half of the places."""

    __slots__ = ("_all", "_count", "_of")

    def __init__(self, count: int) -> None:
        self._count = count
        self._all: OrderedDict[Key, float] = OrderedDict()
        """Time at which each id was last seen; the longest silent id first."""
        self._of: dict[Principal, OrderedDict[Key, float]] = {}
        """Time at which each id of a principal was last seen; the longest silent id first."""

    def __len__(self) -> int:
        return len(self._all)

    def put(self, key: Key, principal: Principal, seen_at: float) -> None:
        """Give an id a place, or note that the id was seen again."""
        own = self._of.get(principal)
        if own is None:
            own = self._of[principal] = OrderedDict()
        for ids in (own, self._all):
            ids[key] = seen_at
            ids.move_to_end(key)

    def seen_at(self, key: Key) -> float:
        """Return the time at which an id with a place was last seen."""
        return self._all[key]

    def drop(self, key: Key, principal: Principal) -> None:
        """Free the place of an id, if it has one."""
        if self._all.pop(key, None) is not None:
            own = self._of[principal]
            del own[key]
            if not own:
                del self._of[principal]

    def in_the_way(self, principal: str) -> tuple[Key, float] | None:
        """Return the id to remove before the principal takes a place, and the time at which it was last seen;
        None if no id must be removed.

        A principal that holds half of the places loses its own longest silent id. Otherwise, when all places
        are taken, the longest silent id of all is removed.
        """
        own = self._of.get(principal)
        if own is not None and len(own) >= self._count // 2:
            return next(iter(own.items()))
        return next(iter(self._all.items())) if len(self._all) >= self._count else None

    @property
    def surplus(self) -> Key | None:
        """Return the longest silent id while there are more ids than places, else None."""
        return next(iter(self._all)) if len(self._all) > self._count else None
