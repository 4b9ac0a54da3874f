"""What a warehouse needs besides its loads: old data files deleted, past hours read again after a fix.

`warehouse_upkeep` deletes, every day, the files of loads older than MILLRACE_KEEP (30d) whose rows are all in
published hours. `warehouse_reload` is triggered with `topic`, `start`, `end` and `reason` after a decoder or
a schema was mended: the loads of these hours are read again from the log, while it has them, and the hours
that are published get their next revision. Addresses come from the connection `millrace_default`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from millrace_airflow.operators.load import PublishLateHoursOperator
from millrace_airflow.operators.upkeep import ExpireLoadsOperator, ReloadHoursOperator

TOPICS = os.environ.get("MILLRACE_TOPICS", "PageView,SearchQuery").split(",")
KEEP = os.environ.get("MILLRACE_KEEP", "30d")
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
        ExpireLoadsOperator(task_id=f"expire_{topic}", topic=topic, older_than=KEEP)

with DAG(
    dag_id="warehouse_reload",
    schedule=None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    default_args=DEFAULTS,
    params={
        "topic": Param(TOPICS[0], enum=TOPICS, description="Whose hours are read again."),
        "start": Param(None, type=["null", "string"], description="First hour, ISO 8601."),
        "end": Param(None, type=["null", "string"], description="End of the last hour."),
        "reason": Param("", type="string", description="Why; it is kept with the loads."),
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
    for topic in TOPICS:
        # The other topics have no news by this, and an asset cannot be chosen when the DAG runs.
        reload >> PublishLateHoursOperator(task_id=f"publish_{topic}", topic=topic)
