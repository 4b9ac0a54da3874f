"""Upkeep of a warehouse: publishes forgotten hours, merges small files, and deletes old files.

`warehouse_upkeep` publishes, every day, the hours that were loaded and that no run of `warehouse_load` has
published: hours that the audit has proved, and hours that it cannot judge after MILLRACE_UNPROVEN_AFTER (1d;
it must be longer than MILLRACE_WAIT_MINUTES). Then it merges the small files of quiet hours, and deletes
files of loads older than MILLRACE_KEEP (30d) that the table no longer needs. Trigger `warehouse_reload` with
`topic`, `start`, `end` and `reason` after a decoder or a schema was corrected. It reads the loads of these
hours again from the log, while the log has them, and their new rows replace the old ones in the table.
Addresses come from the connection `millrace_default`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, task_group

from millrace_airflow.command_line import WHOLE_HOUR
from millrace_airflow.failures import any_failure
from millrace_airflow.operators.load import ReloadHoursOperator
from millrace_airflow.operators.publish import PublishOperator
from millrace_airflow.operators.upkeep import CompactOperator, ExpireOperator
from millrace_airflow.topics import topics_of_environment

TOPICS = topics_of_environment(Path(__file__).with_name("topics.toml"))
NAMES = [one.name for one in TOPICS]
WITH_OWNER = {one.name: f"{one.name} (owner: {one.policy.owner})" for one in TOPICS if one.policy.owner}
CONN_ID = f"{{{{ { ({one.name: one.conn_id for one in TOPICS}) }[params.topic] }}}}"
KEEP = os.environ.get("MILLRACE_KEEP", "30d")
UNPROVEN_AFTER = os.environ.get("MILLRACE_UNPROVEN_AFTER", "1d")
HOUR: dict[str, Any] = {"format": "date-time", "pattern": WHOLE_HOUR}
DEFAULTS = {"retries": 2, "retry_delay": timedelta(minutes=5)}
TOPIC = "{{ task.topic }}"


@task_group
def table(topic: str, conn_id: str) -> None:
    """Define one topic's tasks: publish, compact, expire."""
    publish = PublishOperator(
        task_id="publish",
        topic=topic,
        conn_id=conn_id,
        start=None,
        end=None,
        proven=True,
        unproven_after=UNPROVEN_AFTER,
        map_index_template=TOPIC,
    )
    # The following steps keep the files that could not be published or compacted.
    compact = CompactOperator(
        task_id="compact",
        topic=topic,
        conn_id=conn_id,
        trigger_rule=TriggerRule.ALL_DONE,
        map_index_template=TOPIC,
    )
    expire = ExpireOperator(
        task_id="expire",
        topic=topic,
        conn_id=conn_id,
        older_than=KEEP,
        trigger_rule=TriggerRule.ALL_DONE,
        map_index_template=TOPIC,
    )
    publish >> compact >> expire


with DAG(
    dag_id="warehouse_upkeep",
    schedule="30 3 * * *",
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["millrace"],
    doc_md=__doc__,
) as upkeep:
    if shared := [one for one in TOPICS if not one.policy.owner]:
        table.expand_kwargs([{"topic": one.name, "conn_id": one.conn_id} for one in shared])
    for one in TOPICS:
        if one.policy.owner:
            own = table.override(group_id=one.group_id, default_args=one.default_args)
            own(one.name, one.conn_id)
    [*upkeep.tasks] >> any_failure()

with DAG(
    dag_id="warehouse_reload",
    schedule=None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    default_args=DEFAULTS,
    params={
        "topic": Param(
            NAMES[0], enum=NAMES, values_display=WITH_OWNER, description="Topic whose hours are read again."
        ),
        "start": Param(type="string", **HOUR, description="First hour, ISO 8601."),
        "end": Param(type="string", **HOUR, description="End of the last hour."),
        "reason": Param(type="string", minLength=1, description="Reason; it is kept with the loads."),
    },
    tags=["millrace"],
    doc_md=__doc__,
):
    reload = ReloadHoursOperator(
        task_id="reload",
        topic="{{ params.topic }}",
        conn_id=CONN_ID,
        start="{{ params.start }}",
        end="{{ params.end }}",
        reason="{{ params.reason }}",
    )
    topic = "{{ params.topic }}"
    reload >> PublishOperator(task_id="publish", topic=topic, conn_id=CONN_ID, start=None, end=None)
