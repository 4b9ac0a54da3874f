"""A watch of all nodes below a path: ZooKeeper then names each node that changes.

Kazoo lacks it. A watch of a node's children only states that they changed, so that its reader lists all of
them, and pays for each at every change. ZooKeeper has had the watch since 3.6. It lasts as long as the
connection.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Watch, int_struct, write_string
from kazoo.protocol.states import Callback

_PERSISTENT_RECURSIVE = 1


class AddWatch(namedtuple("AddWatch", "path")):  # as kazoo's own requests
    """The request for the watch; its answer is empty."""

    __slots__ = ()
    type = 106

    def serialize(self) -> bytes:
        """Return the request as bytes: the path and the kind of watch."""
        return bytes(write_string(self.path)) + bytes(int_struct.pack(_PERSISTENT_RECURSIVE))

    @classmethod
    def deserialize(cls, _buffer: bytes, _offset: int) -> None:
        """Read nothing: the answer has no content."""


class TreeWatchingConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """Kazoo's connection, which passes events also to the watchers in `trees`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.trees: dict[str, Callable[[Any], None]] = {}
        """Watchers by the path that ends before the names of their nodes."""

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        super()._read_watch_event(buffer, offset)
        event, _ = Watch.deserialize(buffer, offset)
        for path, watcher in list(self.trees.items()):
            if event.path.startswith(f"{path}/"):
                self.client.handler.dispatch_callback(Callback("watch", watcher, (event,)))
