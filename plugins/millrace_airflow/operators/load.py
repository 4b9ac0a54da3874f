"""The steps of a warehouse load that run on Spark: mirror by batch, load, publish the hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from millrace_airflow.command_line import command_line, hour_options
from millrace_airflow.hooks.millrace import DEFAULT_CONN_ID
from millrace_airflow.operators.job import MillraceJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace_airflow.settings import MillraceSettings


PUBLISHED = AssetAlias("millrace.hourly", group="millrace")
"""Stands for every hourly table; which one an event belongs to is known when something was published."""
HOURS_IN_EVENT = 24
"""Hours that an event describes one by one: a backfill publishes thousands in one task."""
BOUNDS = ("topics_matching", "max_bytes", "until", "max_rejected")
"""Parameters of a load that are options of the same name."""


def hourly_asset(topic: str, conn_id: str = DEFAULT_CONN_ID) -> Asset:
    """The asset that stands for a topic's hourly table, for the DAGs that read it.

    A connection names one warehouse: the tables of another connection's have a name and a uri of their own.
    """
    name = f"{topic}.hourly"
    if conn_id == DEFAULT_CONN_ID:
        return Asset(name=name, group="millrace")
    return Asset(name=f"{name}@{conn_id}", uri=f"x-millrace://{conn_id}/{name}", group="millrace")


class MirrorTopicOperator(MillraceJobOperator):
    """Copies an origin cluster's new batches of a topic into the aggregate cluster, each exactly once.

    With `max_bytes` (`2GiB`) about so much in one run; the next one goes on there. The brokers keep the
    position that was reached.
    """

    verb = "mirror-batch"
    template_fields = ("topic", "origin", "max_bytes", "conn_id")

    def __init__(self, *, topic: str, origin: str, max_bytes: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.origin = origin
        self.max_bytes = max_bytes

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        origin_bootstrap = settings.origin(self.origin)
        return {"origin": self.origin, "origin_bootstrap": origin_bootstrap, "max_bytes": self.max_bytes}


class LoadTopicOperator(MillraceJobOperator):
    """Loads what is new in topics into the warehouse: those named, and those whose whole name matches.

    Which offsets that are is frozen in the warehouse under the task's run id, so a retried or cleared task
    finishes the load it began; the data interval plays no part.
    """

    verb = "load"
    template_fields = ("topics", *BOUNDS, "conn_id")

    def __init__(
        self,
        *,
        topics: str | Sequence[str] = (),
        topics_matching: str = "",
        max_bytes: str = "",
        until: str = "",
        max_rejected: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        self.topics_matching = topics_matching
        self.max_bytes = max_bytes
        self.until = until
        self.max_rejected = max_rejected

    def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
        topics = [self.topics] if isinstance(self.topics, str) else self.topics
        bounds = {name: getattr(self, name) for name in BOUNDS}
        return command_line(settings, self.verb, topics, run_id, **bounds)


class HourlyTableOperator(MillraceJobOperator):
    """Publishes hours of a topic's hourly table; if any, an event of its asset says which.

    The event's `extra` has their number and rows, the first and the last hour, and revision, rows and verdict
    of the first HOURS_IN_EVENT. What the task returns has them all.
    """

    verb = "hourly"

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "outlets": [*kwargs.get("outlets", []), PUBLISHED]})
        self.topic = topic

    def finish(self, result: Any, context: Context) -> Any:
        """Hand what was published on to the DAGs that wait for the asset."""
        if published := [hour for hour in result["hours"] if hour["published"]]:
            asset = hourly_asset(self.topic, self.conn_id)
            context["outlet_events"][PUBLISHED].add(asset, extra=_event(self.topic, published))
        return result


def _event(topic: str, published: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What an event says of the hours that were published, in a bounded number of bytes."""
    names = sorted(hour["hour"] for hour in published)
    kept = ("hour", "revision", "rows", "verdict")
    return {
        "topic": topic,
        "published": len(published),
        "rows": sum(hour["rows"] for hour in published),
        "first_hour": names[0],
        "last_hour": names[-1],
        "hours": [{key: hour[key] for key in kept} for hour in published[:HOURS_IN_EVENT]],
    }


class PublishHourOperator(HourlyTableOperator):
    """Publishes the hours in [start, end) of a topic's hourly table.

    With `late` also the next revision of every hour published before that has late rows, or was read again;
    its own hours are then published even when they are empty, so that their first rows count as late. An hour
    without news since its last revision stays as it is.
    """

    template_fields = ("topic", "start", "end", "conn_id")

    def __init__(
        self,
        *,
        topic: str,
        start: str = "{{ data_interval_start }}",
        end: str = "{{ data_interval_end }}",
        late: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(topic=topic, **kwargs)
        self.start = start
        self.end = end
        self.late = late

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        return {"late": self.late, **hour_options(self.start, self.end)}


class PublishLateHoursOperator(HourlyTableOperator):
    """Publishes the next revision of every published hour with late rows, or read again; no new hour."""

    template_fields = ("topic", "conn_id")

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        return {"late": True}


class PublishUnpublishedHoursOperator(HourlyTableOperator):
    """Publishes every hour that was loaded and never published, and late rows: nothing stays invisible.

    An hour before the schedule's start, of a skipped run or of a broken clock is published once the audit has
    proved it, or cannot judge it after `unproven_after`. An incomplete one is named in the result and left.
    """

    template_fields = ("topic", "unproven_after", "conn_id")

    def __init__(self, *, topic: str, unproven_after: str = "1d", **kwargs: Any) -> None:
        super().__init__(topic=topic, **kwargs)
        self.unproven_after = unproven_after

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        return {"late": True, "unpublished": True, "unproven_after": self.unproven_after}
