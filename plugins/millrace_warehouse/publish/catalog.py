"""The catalog of a warehouse's tables: its own SQLite file, or one that pyiceberg's configuration names."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from millrace_warehouse.storage.verbs import Storage

NAMESPACE = "millrace"


def connect(storage: Storage, name: str = "") -> Catalog:
    """The catalog of that name, its files read and written through the storage; close it after use.

    Without a name it is `catalog.db` in a local warehouse. MillraceError when there is none, or when SQLite
    would lie on a network file system.
    """
    raise NotImplementedError


def table_identifier(topic: str) -> tuple[str, str]:
    """Namespace and name of a topic's table: `.` and `-` become `_`."""
    return NAMESPACE, topic.replace(".", "_").replace("-", "_")
