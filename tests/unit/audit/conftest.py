"""Databases of the auditor, for stories."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import delete

from millrace_audit.auditor.store import AuditStore, Row


@pytest.fixture(scope="module")
def stores() -> Iterator[Callable[[str], AuditStore]]:
    """Gives the store at a URL, emptied. Each new engine would compile every statement again."""
    opened: dict[str, AuditStore] = {}

    def emptied(url: str) -> AuditStore:
        if url not in opened:
            opened[url] = AuditStore(url)
        with opened[url].writing() as session:
            for table in reversed(Row.metadata.sorted_tables):
                session.execute(delete(table))
        return opened[url]

    yield emptied
    for store in opened.values():
        store.close()
