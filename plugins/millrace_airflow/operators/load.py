"""The steps of a warehouse load that run on Spark: batch mirror, load, and re-load of past hours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millrace.errors import ConfigError
from millrace_airflow.command_line import hour_options
from millrace_airflow.hooks.millrace import MillraceHook
from millrace_airflow.lineage import Lineage, log_of, rows_of
from millrace_airflow.operators.job import SparkJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace_airflow.settings import MillraceSettings


LOAD_OPTIONS = ("topics_matching", "max_bytes", "until", "max_rejected")
"""Parameters of a load that become options of the same name."""
LOAD_FLAGS = ("accept_rejected", "live")
"""Parameters of a load that become options without a value."""


class MirrorTopicOperator(SparkJobOperator):
    """Copies an origin cluster's new batches of a topic into the aggregate cluster, each exactly once.

    `max_bytes` (`2GiB`) limits the size of one run approximately; the next run continues where it ended. The
    brokers keep the position. `origin_client` is a client file on the workers, for an origin that needs other
    settings than the aggregate cluster.
    """

    command_name = "mirror-batch"
    template_fields = ("topic", "origin", "max_bytes", "origin_client", "conn_id")

    def __init__(
        self, *, topic: str, origin: str, max_bytes: str = "", origin_client: str = "", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.origin = origin
        self.max_bytes = max_bytes
        self.origin_client = origin_client

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        return {
            "origin": self.origin,
            "origin_bootstrap": settings.origin(self.origin),
            "max_bytes": self.max_bytes,
            "origin_client": self.origin_client,
        }


class LoadTopicOperator(SparkJobOperator):
    """Loads new messages of topics into the warehouse: named topics, and topics whose whole name matches.

    The warehouse stores the load's end under the task's run id, so a retried or cleared task finishes the
    load that it began. The data interval has no effect. A load that has set records aside exists, but it
    fails the task without a retry, unless `accept_rejected` is set. `live` shows the rows in branch `live` of
    the topic's table before their hours are proven.
    """

    command_name = "load"
    template_fields = ("topics", *LOAD_OPTIONS, *LOAD_FLAGS, "conn_id")

    def __init__(
        self,
        *,
        topics: str | Sequence[str] = (),
        topics_matching: str = "",
        max_bytes: str = "",
        until: str = "",
        max_rejected: str = "",
        accept_rejected: bool | str = False,
        live: bool | str | None = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        self.topics_matching = topics_matching
        self.max_bytes = max_bytes
        self.until = until
        self.max_rejected = max_rejected
        self.accept_rejected = accept_rejected
        self.live = live

    def named_topics(self) -> Sequence[str]:
        return [self.topics] if isinstance(self.topics, str) else self.topics

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        values = {name: getattr(self, name) for name in LOAD_OPTIONS}
        return {**values, **{name: self._flag(name) for name in LOAD_FLAGS}}

    def _flag(self, name: str) -> bool:
        value = getattr(self, name) or False
        word = str(value).lower()  # a template turns it into text
        if word not in ("true", "false"):
            raise ConfigError(f"{name} {value!r} is neither true nor false")
        return word == "true"

    def is_final(self, printed: Any) -> bool:
        """Return True when records set aside are the only failure: their load exists, and a retry would find
        it again.
        """
        if self._flag("accept_rejected") or not isinstance(printed, list):
            return False
        return any(one.get("rejected") for one in printed) and not any("error" in one for one in printed)

    def finish(self, result: Any, context: Context) -> Any:
        """Set the datasets, and the path of the manifest if only one topic was loaded."""
        settings = MillraceHook(self.conn_id).get_conn()
        loads = [one for one in result if one.get("load")]
        if len(loads) == 1:
            self.manifest = f"{loads[0]['topic']}/loads/{loads[0]['load']:010d}.json"
        self.lineage = Lineage(
            [log_of(settings.bootstrap, one["topic"]) for one in loads],
            [rows_of(settings.warehouse, one["topic"]) for one in loads],
            loads[0]["rows"] if len(loads) == 1 else None,
        )
        return result


class ReloadHoursOperator(SparkJobOperator):
    """Re-loads the hours in [start, end) from the log, after a decoder or schema was corrected.

    A retried task does not read again the loads that it has already read. `PublishOperator` then updates the
    table.
    """

    command_name = "reload"
    template_fields = ("topic", "start", "end", "reason", "conn_id")

    def __init__(self, *, topic: str, start: str, end: str, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.start = start
        self.end = end
        self.reason = reason

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        if not self.reason.strip():
            raise ConfigError("reason is empty: say why these hours are read again")
        return {"reason": self.reason, **hour_options(self.start, self.end)}
