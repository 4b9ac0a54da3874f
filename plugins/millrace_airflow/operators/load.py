"""The steps of a warehouse load that run on Spark: mirror by batch, load, publish the hours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from millrace_airflow.command_line import (
    hourly_command,
    interval,
    late_hours_command,
    load_command,
    mirror_command,
)
from millrace_airflow.operators.job import MillraceJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace_airflow.settings import MillraceSettings


def hourly_asset(topic: str) -> Asset:
    """The asset that stands for a topic's hourly table, for the DAGs that read it."""
    return Asset(name=f"{topic}.hourly", group="millrace")


class MirrorTopicOperator(MillraceJobOperator):
    """Copies an origin cluster's new batches of a topic into the aggregate cluster, each exactly once.

    With `max_bytes` (`2GiB`) about so much in one run; the next one goes on there.
    """

    template_fields = ("topic", "origin", "max_bytes", "conn_id")

    def __init__(self, *, topic: str, origin: str, max_bytes: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.origin = origin
        self.max_bytes = max_bytes

    def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
        """`millrace mirror-batch`; the position it has reached is kept by the brokers."""
        return mirror_command(settings, self.topic, self.origin, max_bytes=self.max_bytes)


class LoadTopicOperator(MillraceJobOperator):
    """Loads what is new in topics into the warehouse: those named, and those whose whole name matches.

    Which offsets that are is frozen in the warehouse under the task's run id, so a retried or cleared task
    finishes the load it began; the data interval plays no part.
    """

    template_fields = ("topics", "topics_matching", "max_bytes", "until", "max_rejected", "conn_id")

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
        """`millrace load`, its plan kept under `run_id`."""
        topics = [self.topics] if isinstance(self.topics, str) else list(self.topics)
        return load_command(
            settings,
            topics,
            run_id,
            topics_matching=self.topics_matching,
            max_bytes=self.max_bytes,
            until=self.until,
            max_rejected=self.max_rejected,
        )


class HourlyTableOperator(MillraceJobOperator):
    """Publishes hours of a topic's hourly table, and the asset `<topic>.hourly`.

    The asset's event says in its `extra` which hours have which revision, rows and verdict. `topic` is not
    a template: the asset must be known when the DAG is parsed.
    """

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        self.asset = hourly_asset(topic)
        super().__init__(**{**kwargs, "outlets": [*kwargs.get("outlets", []), self.asset]})
        self.topic = topic

    def finish(self, result: Any, context: Context) -> Any:
        """Hand what was published on to the DAGs that wait for the asset."""
        context["outlet_events"][self.asset].extra = {"topic": self.topic, **result}
        return result


class PublishHourOperator(HourlyTableOperator):
    """Publishes the hours in [start, end) of a topic's hourly table.

    With `late` also the next revision of every hour published before that has late rows, or was read again;
    its own hours are then published even when they are empty, so that their first rows count as late.
    """

    template_fields = ("start", "end", "conn_id")

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

    def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
        """`millrace hourly`; what has no news since its last revision is left as it is."""
        hours = interval(self.start, self.end)
        return hourly_command(settings, self.topic, *hours, run_id, late=self.late)


class PublishLateHoursOperator(HourlyTableOperator):
    """Publishes the next revision of every published hour with late rows, or read again; no new hour."""

    template_fields = ("conn_id",)

    def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
        """`millrace hourly --late`."""
        return late_hours_command(settings, self.topic, run_id)
