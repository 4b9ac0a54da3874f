"""The upkeep of a table: merging small files and deleting old data files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace_airflow.operators.job import MillraceJobOperator

if TYPE_CHECKING:
    from millrace_airflow.settings import MillraceSettings


class CompactOperator(MillraceJobOperator):
    """Merges the small files of quiet, published hours. The rows stay the same."""

    command_name = "compact"
    template_fields = ("topic", "conn_id")

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic


class ExpireOperator(MillraceJobOperator):
    """Deletes files older than `older_than` that the table no longer needs.

    It deletes data files of published loads that no snapshot names, strays, plans and old metadata. Manifests
    and rejected records stay. The next run finishes an interrupted run.
    """

    command_name = "expire"
    template_fields = ("topic", "older_than", "conn_id")

    def __init__(self, *, topic: str, older_than: str = "30d", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.older_than = older_than

    def options(self, settings: MillraceSettings) -> dict[str, str | bool]:
        return {"older_than": self.older_than}
