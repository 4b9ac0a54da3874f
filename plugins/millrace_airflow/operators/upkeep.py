"""The upkeep of a warehouse: past hours read again after a fix, old data files deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.errors import ConfigError
from millrace_airflow.command_line import hour_options
from millrace_airflow.operators.job import MillraceJobOperator

if TYPE_CHECKING:
    from millrace_airflow.settings import MillraceSettings


class ReloadHoursOperator(MillraceJobOperator):
    """Reads the loads of the hours in [start, end) again from the log, after a decoder or schema was mended.

    A retried task does not read again what it has read already. `PublishLateHoursOperator` publishes the
    hours afterwards.
    """

    verb = "reload"
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


class ExpireLoadsOperator(MillraceJobOperator):
    """Deletes data files of loads older than `older_than` whose rows are all in published hours.

    Also superseded revisions and plans of that age; manifests and rejected records stay. A run that was cut
    off is finished by the next one.
    """

    verb = "expire"
    template_fields = ("topic", "older_than", "conn_id")

    def __init__(self, *, topic: str, older_than: str = "30d", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.older_than = older_than

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        return {"older_than": self.older_than}
