"""Loads each topic into the warehouse every hour, waits for the proof, and publishes the hour.

The topics are in the file that MILLRACE_TOPICS_FILE names, or in topics.toml beside this file. A topic with
`mirror` is mirrored here in batches; the brokers mirror the other topics continuously. The data interval
names the hour to wait for and to publish. It selects no offsets: a load takes all new messages, and messages
that arrive later come with the next run's load. So runs overlap: while one run waits for a slow datacenter,
the next runs continue to load.

Each topic has an Iceberg table. Publishing an hour also publishes the late rows of earlier hours, in the same
commit. A topic that cannot be loaded, or whose hour is not complete, delays only its own table. Each load is
a separate Spark application; in the group `table`, MILLRACE_LOADS (4) run at a time, over all runs.

Trigger the DAG with `start` and `end` to publish any past hours in one run. Addresses come from the
connection `millrace_default`. MILLRACE_SCHEMAS names another folder of schemas. MILLRACE_WAIT_MINUTES is the
time within which an hour must become complete. After half of it, an hour whose producers do not report is
published as unknown.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import DAG, CronDataIntervalTimetable, Param, TriggerRule, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from millrace.errors import ConfigError
from millrace_airflow.command_line import WHOLE_HOUR
from millrace_airflow.failures import any_failure
from millrace_airflow.hooks.millrace import MillraceHook
from millrace_airflow.operators.load import LoadTopicOperator, MirrorTopicOperator
from millrace_airflow.operators.publish import PublishOperator
from millrace_airflow.operators.schemas import RegisterSchemasOperator
from millrace_airflow.sensors.completeness import CompletenessSensor
from millrace_airflow.topics import topics_of_environment

TOPICS = topics_of_environment(Path(__file__).with_name("topics.toml"))
SCHEMAS = os.environ.get("MILLRACE_SCHEMAS", str(Path(__file__).resolve().parent.parent / "schemas"))
LOADS = int(os.environ.get("MILLRACE_LOADS", "4"))
WAIT = timedelta(minutes=float(os.environ.get("MILLRACE_WAIT_MINUTES", "720")))

HOUR: dict[str, Any] = {"format": "date-time", "pattern": WHOLE_HOUR}

# A run that the command line triggers has no data interval: it is for the hour before.
NOW = "dag_run.run_after.replace(minute=0, second=0, microsecond=0)"
LAST = f"(data_interval_end if data_interval_end is defined else {NOW})"
FIRST = f"(data_interval_start if data_interval_start is defined else {NOW} - macros.timedelta(hours=1))"
START = f"{{{{ params.start or {FIRST} }}}}"
END = f"{{{{ params.end or {LAST} }}}}"
TOPIC = "{{ task.topic }}"
OF_A_LOAD = ("max_bytes", "max_rejected", "accept_rejected", "live")
# Events take a moment to arrive: a load at the stroke of the hour would leave the last seconds to the next
# run.
SETTLED = f"{{{{ params.end or {LAST} + macros.timedelta(minutes=5) }}}}"


@task
def origins(conn_id: str) -> list[str]:
    """Return the datacenters to mirror from."""
    try:
        return sorted(MillraceHook(conn_id).get_conn().origins)
    except ConfigError as error:  # a mistake in the connection, which no retry corrects
        raise AirflowFailException(str(error)) from None


@task_group
def table(
    topic: str, conn_id: str, max_bytes: str, max_rejected: str, accept_rejected: bool, live: bool | None
) -> None:
    """Define one topic's tasks: load, wait for the proof, publish."""
    # An unreachable datacenter holds up only its own hours: without its messages they are not complete, and
    # the load takes the messages that are there. A load that hangs is ended in time.
    load = LoadTopicOperator(
        task_id="load",
        topics=topic,
        conn_id=conn_id,
        max_bytes=max_bytes,
        max_rejected=max_rejected,
        accept_rejected=accept_rejected,
        live=live,
        max_active_tis_per_dag=LOADS,
        execution_timeout=WAIT,
        trigger_rule=TriggerRule.ALL_DONE,
        map_index_template="{{ task.topics }}",
    )
    wait = CompletenessSensor(
        task_id="wait",
        topic=topic,
        conn_id=conn_id,
        start=START,
        end=END,
        timeout=WAIT,
        accept_unknown_after=WAIT / 2,
        deferrable=True,
        map_index_template=TOPIC,
    )
    publish = PublishOperator(
        task_id="publish", topic=topic, conn_id=conn_id, start=START, end=END, map_index_template=TOPIC
    )
    load >> wait >> publish


with DAG(
    dag_id="warehouse_load",
    # "@hourly" has no data interval in Airflow 3; the hour itself is needed here.
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=24,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    params={
        "start": Param(None, type=["null", "string"], **HOUR, description="First hour to publish, ISO 8601."),
        "end": Param(None, type=["null", "string"], **HOUR, description="End of the last hour to publish."),
    },
    tags=["millrace"],
    doc_md=__doc__,
) as dag:
    settled = DateTimeSensorAsync(task_id="wait_for_last_events", target_time=SETTLED)
    schemas = RegisterSchemasOperator(task_id="register_schemas", schemas_dir=SCHEMAS)
    settled >> schemas
    settings = {
        one.name: {"topic": one.name, "conn_id": one.conn_id}
        | {name: getattr(one.policy, name) for name in OF_A_LOAD}
        for one in TOPICS
    }
    if streamed := [settings[one.name] for one in TOPICS if not (one.policy.mirror or one.policy.owner)]:
        schemas >> table.expand_kwargs(streamed)
    for one in TOPICS:
        name, arguments = one.group_id, one.default_args
        own = table.override(group_id=name, default_args=arguments)
        if one.policy.mirror:
            found = origins.override(task_id=f"origins_{name}", **arguments)(one.conn_id)
            mirror = MirrorTopicOperator.partial(
                task_id=f"mirror_{name}", topic=one.name, conn_id=one.conn_id, **arguments
            ).expand(origin=found)
            schemas >> mirror >> own(**settings[one.name])
        elif one.policy.owner:
            schemas >> own(**settings[one.name])
    [*dag.tasks] >> any_failure()
