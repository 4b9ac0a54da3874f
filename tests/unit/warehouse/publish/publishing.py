"""One publication as the tests ask for it, and how they look at the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from millrace_warehouse import requests
from millrace_warehouse.context import Context
from millrace_warehouse.history.manifest import UNASKED, HourVerdict
from millrace_warehouse.publish.catalog import table_identifier
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.publish.publisher import PublishResult, publish_topic
from millrace_warehouse.storage.interface import Storage
from tests.counted import Counted

TOPIC = "PageView"
H9, H10, H11, H12 = (f"2015-05-17T{hour:02d}" for hour in (9, 10, 11, 12))
Publish = Callable[..., PublishResult]


def publish_in(
    storage: Storage,
    catalog: Catalog,
    *hours: str,
    topic: str = TOPIC,
    verdicts: Mapping[str, str] | None = None,
    **settings: Any,
) -> PublishResult:
    """Publish these hours; the auditor says what `verdicts` says, `unknown` of the others."""

    def verdict_of(topic: str, hour: str) -> HourVerdict:
        return HourVerdict(verdict=UNASKED if verdicts is None else verdicts.get(hour, "unknown"))

    places = {name: settings.pop(name) for name in Context.__slots__ if name in settings}
    request = requests.Publish(topics=[topic], warehouse=storage.root, run_id="run", hours=hours, **settings)
    auditor = Counted(storage, verdict_of)
    return publish_topic(Context(storage=storage, catalog=catalog, **places), request, topic, auditor)


def table_of(catalog: Catalog, topic: str = TOPIC) -> Table:
    return catalog.load_table(table_identifier(topic))


def hours_of(catalog: Catalog, topic: str = TOPIC) -> list[tuple[int, str, int, int]]:
    """(publication, kind, added, removed) of every row of the table of hours, sorted."""
    rows = catalog.load_table(hours_identifier(topic)).scan().to_arrow().to_pylist()
    return sorted((row["publication"], row["kind"], row["added"], row["removed"]) for row in rows)
