"""Links from a task to its results: the audit's page on its hours, its manifest, and Spark's own pages.

Airflow requests them in the worker when a task has ended, and stores them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

from millrace.errors import ConfigError
from millrace_airflow.command_line import interval
from millrace_airflow.hooks.millrace import MillraceHook

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class AuditLink(BaseOperatorLink):
    """Link to the console's page of the task's hour, or of the first day of its topic."""

    name = "Audit"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        topic, start = getattr(operator, "topic", ""), getattr(operator, "start", None)
        if not topic or not start:
            return _page(operator.conn_id, "console")
        try:
            first, last = interval(start, operator.end)
        except ConfigError:
            return _page(operator.conn_id, "console")
        if last - first == timedelta(hours=1):
            return _page(operator.conn_id, "hour", topic=topic, at=first.strftime("%Y-%m-%dT%H"))
        until = min(last, first + timedelta(days=1))
        return _page(operator.conn_id, "topic", topic=topic, until=until.strftime("%Y-%m-%dT%H:%MZ"))


class ManifestLink(BaseOperatorLink):
    """Link to the manifest that the task has written in the warehouse. Empty without a manifest."""

    name = "Manifest"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        return _page(operator.conn_id, "manifest", path=operator.manifest) if operator.manifest else ""


class SparkLink(BaseOperatorLink):
    """Link to the pages of the cluster that ran the job: the connection's `spark_ui`."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        return MillraceHook(operator.conn_id).get_conn().spark_ui


def _page(conn_id: str, page: str, **query: str) -> str:
    """Return the address of a page of `console.py`, from the root of Airflow's own address."""
    prefix = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{prefix}/millrace/{quote(conn_id, safe='')}/{page}" + (f"?{urlencode(query)}" if query else "")
