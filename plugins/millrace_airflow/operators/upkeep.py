"""The upkeep of a warehouse: past hours read again after a fix, old data files deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace_airflow.command_line import expire_command, interval, reload_command
from millrace_airflow.operators.job import MillraceJobOperator

if TYPE_CHECKING:
    from millrace_airflow.settings import MillraceSettings


class ReloadHoursOperator(MillraceJobOperator):
    """Reads the loads of the hours in [start, end) again from the log, after a decoder or schema was mended.

    A retried task does not read again what it has read already. `PublishLateHoursOperator` publishes the
    hours afterwards.
    """

    template_fields = ("topic", "start", "end", "reason", "conn_id")

    def __init__(self, *, topic: str, start: str, end: str, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.start = start
        self.end = end
        self.reason = reason

    def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
        """`millrace reload`, under the task's run id."""
        hours = interval(self.start, self.end)
        return reload_command(settings, self.topic, *hours, self.reason, run_id)


class ExpireLoadsOperator(MillraceJobOperator):
    """Deletes data files of loads older than `older_than` whose rows are all in published hours.

    Also superseded revisions and plans of that age; manifests and rejected records stay.
    """

    template_fields = ("topic", "older_than", "conn_id")

    def __init__(self, *, topic: str, older_than: str = "30d", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.older_than = older_than

    def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
        """`millrace expire`; a run that was cut off is finished by the next one."""
        return expire_command(settings, self.topic, self.older_than)
