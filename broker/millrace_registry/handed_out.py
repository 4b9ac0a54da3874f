"""Largest ids that a registry has assigned, kept in ZooKeeper, which outlives the registry's database.

    /audit/registry   persistent   {"drawn": 13, "stored": 12}

An id is noted as drawn before the transaction that stores its schema commits, and as stored after the commit.
Therefore a database that lacks a stored id is recognized as an older copy, and no id is drawn twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from kazoo.exceptions import BadVersionError, NodeExistsError

from millrace.errors import MillraceError
from millrace.zookeeper.session import Session
from millrace_registry.errors import ErrorCode, RegistryError

logger = logging.getLogger("millrace.registry")
_PATH = "/audit/registry"


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest ids that were drawn and stored."""

    drawn: int = 0
    stored: int = 0


class HandedOut:
    """The record of the largest ids, over all registries of one ZooKeeper. For any thread."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def check(self, largest_here: Callable[[], int]) -> None:
        """Compare with a database. Log an ERROR when it lacks ids.

        Adopt its largest id when that is larger.
        """
        largest = self._read()[0]  # before the database: another registry may store an id in between
        here = largest_here()
        self._complain(largest, here)
        if here > largest.stored:
            self.draw(here)
            self.note(here)

    def last(self, here: int) -> int:
        """Return the largest id ever drawn.

        `here` is the largest id in the database, whose writers are locked out.
        """
        with _in_words():
            largest = self._read()[0]
        self._complain(largest, here)
        return max(here, largest.drawn)

    def draw(self, schema_id: int) -> None:
        """Note that an id is about to be stored."""
        with _in_words():
            self._raise(lambda largest: replace(largest, drawn=max(largest.drawn, schema_id)))

    def note(self, schema_id: int) -> None:
        """Note that an id is stored."""
        try:
            self._raise(lambda largest: replace(largest, stored=max(largest.stored, schema_id)))
        except MillraceError as error:  # it is drawn, so it is not handed out again in any case
            logger.warning("id %d could not be noted as stored: %s", schema_id, error)

    def _complain(self, largest: Largest, here: int) -> None:
        if largest.stored > here:
            logger.error(
                "ids from %d to %d were assigned, but their schemas are not in this database: it is an older"
                " copy. New schemas get ids above %d. Restore a newer copy, or bring the schemas back with"
                " `millrace schemas import`.",
                *(here + 1, largest.stored, largest.drawn),
            )

    def _read(self) -> tuple[Largest, int | None]:
        """Return the ids and the node's version; None for the version while there is no node."""
        node = self._session.get(_PATH)
        return (Largest(), None) if node is None else (Largest(**json.loads(node[0])), node[1].version)

    def _raise(self, change: Callable[[Largest], Largest]) -> None:
        while True:
            before, version = self._read()
            if (after := change(before)) == before:
                return
            data, client = json.dumps(asdict(after)).encode(), self._session.client
            try:
                if version is None:
                    self._session.call(client.create_async, _PATH, data, makepath=True)
                else:
                    self._session.call(client.set_async, _PATH, data, version)
                return
            except (BadVersionError, NodeExistsError):
                continue  # another registry was faster, or an earlier try of this call had succeeded


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except MillraceError as error:
        message = f"no id is handed out while the largest one is not known: {error}"
        raise RegistryError(ErrorCode.STORE_FAILED, message) from error
