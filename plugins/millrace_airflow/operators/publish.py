"""PublishOperator, and the asset of a topic's published table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from millrace.errors import ConfigError
from millrace.topic_names import table_name
from millrace_airflow.command_line import INTERVAL_END, INTERVAL_START, hour_options
from millrace_airflow.hooks.millrace import DEFAULT_CONN_ID, MillraceHook
from millrace_airflow.lineage import Dataset, Lineage, rows_of
from millrace_airflow.operators.job import MillraceJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace_airflow.settings import MillraceSettings

PUBLISHED = AssetAlias("millrace.published", group="millrace")
"""Alias for every published table: an event names its table once a publication was made."""
EVENT = ("publication", "path", "sha256", "snapshot_id", "complete_until", "rows")
"""Fields of a publication in an event, besides its hours."""

HOUR = timedelta(hours=1)
UNFILED = "none"
"""The hour of rows without a time in the output of `millrace publish`. Defined here again, so that parsing a
DAG imports no warehouse.
"""
MOST_KEYS = 1_000
"""Most events with a partition key that one task sends: Airflow stores all of them in the task's last
request.
"""
WAITING_SHOWN = 24
"""Most waiting hours that the task's log lists. The rest are counted."""


def table_asset(topic: str, catalog: str = DEFAULT_CONN_ID) -> Asset:
    """Return the asset of a topic's published table, for the DAGs that read it.

    `catalog` is the connection's `catalog`, or the connection's own name if it has none: a local warehouse
    has its own catalog.
    """
    return Asset(uri=f"iceberg://{catalog}/millrace/{table_name(topic)}", group="millrace")


class PublishOperator(MillraceJobOperator):
    """Brings a topic's Iceberg table up to date with its loads, in one commit.

    Late rows of published hours, and re-loaded rows, are always part of it. The hours of [start, end) are
    published whatever the audit's verdict, so use a `CompletenessSensor` before this operator. With None for
    both, no hour is named. `proven` also publishes every waiting hour that the audit calls complete.
    `unproven_after` ("3d") also publishes hours that the audit cannot judge after that time.

    An event of the table's asset follows only when a publication was made. The event, and the task's result,
    stay below 1 kB however much was published. For DAGs with a `PartitionedAssetTimetable`, an event with the
    hour as its partition key follows for each of the newest 1,000 changed hours.
    """

    command_name = "publish"
    template_fields = ("topic", "start", "end", "unproven_after", "conn_id")

    def __init__(
        self,
        *,
        topic: str,
        start: str | None = INTERVAL_START,
        end: str | None = INTERVAL_END,
        proven: bool = False,
        unproven_after: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**kwargs, "outlets": [*kwargs.get("outlets", []), PUBLISHED]})
        self.topic = topic
        self.start = start
        self.end = end
        self.proven = proven
        self.unproven_after = unproven_after

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        if (self.start is None) != (self.end is None):
            raise ConfigError("give start and end, or None for both")
        hours = {} if self.start is None or self.end is None else hour_options(self.start, self.end)
        return {"proven": self.proven, "unproven_after": self.unproven_after, **hours}

    def finish(self, result: Any, context: Context) -> Any:
        """Send events of the publication to the DAGs that wait for the asset; return its summary."""
        (answer,) = result
        for hour in answer["waiting"][:WAITING_SHOWN]:
            self.log.info("waits: %s, %s rows", hour["hour"], hour["rows"])
        summary = _summary(answer)
        if answer["published"]:
            settings = MillraceHook(self.conn_id).get_conn()
            table = table_asset(self.topic, settings.catalog or self.conn_id)
            self.manifest = answer["path"]
            namespace, _, name = table.uri.rpartition("/millrace/")
            output = Dataset(namespace, f"millrace.{name}")
            self.lineage = Lineage([rows_of(settings.warehouse, self.topic)], [output], answer["rows"])
            context["outlet_events"][PUBLISHED].add(table, extra=summary)
            if hours := _hours(answer)[-MOST_KEYS:]:
                # An alias's event has no partition key, and a DAG without partitions does not run for an
                # event with a key: so the table itself is an outlet, too, with an event for each hour.
                self.outlets = [*self.outlets, table]
                keyed = context["outlet_events"][table]
                keyed.extra = {"publication": answer["publication"]}
                keyed.add_partitions([f"{hour}:00:00" for hour in hours])
        return {**summary, "published": answer["published"], "waiting": len(answer["waiting"])}


def _hours(answer: Mapping[str, Any]) -> list[str]:
    """Return the hours that a publication changed, without the hour of rows that have no time."""
    hours = {change["hour"] for change in answer["changes"]} - {UNFILED}
    for run in (change for change in answer["changes"] if change["last"]):  # of empty hours
        first, last = (datetime.fromisoformat(run[end]) for end in ("hour", "last"))
        hours |= {f"{first + number * HOUR:%Y-%m-%dT%H}" for number in range((last - first) // HOUR + 1)}
    return sorted(hours)


def _summary(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a publication's summary, in a bounded number of bytes."""
    hours = _hours(answer)
    return {
        **{name: answer[name] for name in EVENT},
        "hours": answer["hours"],
        "first_hour": hours[0] if hours else None,
        "last_hour": hours[-1] if hours else None,
    }
