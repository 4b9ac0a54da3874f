"""A warehouse besides its loads: forgotten hours published, old files deleted, past hours read again.

`warehouse_upkeep` publishes, every day, the hours that were loaded and that no run of `warehouse_load` has
published: those the audit has proved, and those it cannot judge after MILLRACE_UNPROVEN_AFTER (1d; make it
longer than MILLRACE_WAIT_MINUTES). Then it deletes the files of loads older than MILLRACE_KEEP (30d) whose
rows are all in published hours. `warehouse_reload` is triggered with `topic`, `start`, `end` and `reason`
after a decoder or a schema was mended: the loads of these hours are read again from the log, while it has
them, and the hours that are published get their next revision. Addresses come from the connection
`millrace_default`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule

from millrace_airflow.command_line import WHOLE_HOUR
from millrace_airflow.operators.load import PublishLateHoursOperator, PublishUnpublishedHoursOperator
from millrace_airflow.operators.upkeep import ExpireLoadsOperator, ReloadHoursOperator

TOPICS = os.environ.get("MILLRACE_TOPICS", "PageView,SearchQuery").split(",")
KEEP = os.environ.get("MILLRACE_KEEP", "30d")
UNPROVEN_AFTER = os.environ.get("MILLRACE_UNPROVEN_AFTER", "1d")
HOUR: dict[str, Any] = {"format": "date-time", "pattern": WHOLE_HOUR}
DEFAULTS = {"retries": 2, "retry_delay": timedelta(minutes=5)}

with DAG(
    dag_id="warehouse_upkeep",
    schedule="30 3 * * *",
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["millrace"],
    doc_md=__doc__,
):
    for topic in TOPICS:
        publish = PublishUnpublishedHoursOperator(
            task_id=f"publish_{topic}", topic=topic, unproven_after=UNPROVEN_AFTER
        )
        # Whatever could not be published is kept by it.
        expire = ExpireLoadsOperator(
            task_id=f"expire_{topic}", topic=topic, older_than=KEEP, trigger_rule=TriggerRule.ALL_DONE
        )
        publish >> expire

with DAG(
    dag_id="warehouse_reload",
    schedule=None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    default_args=DEFAULTS,
    params={
        "topic": Param(TOPICS[0], enum=TOPICS, description="Whose hours are read again."),
        "start": Param(type="string", **HOUR, description="First hour, ISO 8601."),
        "end": Param(type="string", **HOUR, description="End of the last hour."),
        "reason": Param(type="string", minLength=1, description="Why; it is kept with the loads."),
    },
    tags=["millrace"],
    doc_md=__doc__,
):
    reload = ReloadHoursOperator(
        task_id="reload",
        topic="{{ params.topic }}",
        start="{{ params.start }}",
        end="{{ params.end }}",
        reason="{{ params.reason }}",
    )
    reload >> PublishLateHoursOperator(task_id="publish", topic="{{ params.topic }}")
