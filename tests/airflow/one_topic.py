"""A DAG for each topic of MILLRACE_ALONE, DAGs that read a table, and one that starts by the proof."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, PartitionedAssetTimetable, task

from millrace_airflow.operators.load import LoadTopicOperator
from millrace_airflow.operators.publish import PublishOperator, table_asset
from millrace_airflow.sensors.completeness import CompletenessSensor
from millrace_airflow.triggers.completeness import proved_hours

FIRST = "data_interval_start if data_interval_start is defined else params.start"
LAST = "data_interval_end if data_interval_end is defined else params.end"
HOURS: dict[str, Any] = {"start": f"{{{{ {FIRST} }}}}", "end": f"{{{{ {LAST} }}}}"}
CONNECTIONS = {"ElsewhereViews": "on_spark", "OnYarnViews": "on_yarn"}
"""Topics whose drivers run on a cluster. Variables with the names in capitals have the settings."""
BEGAN = datetime(2015, 5, 17, tzinfo=UTC)

for topic in os.environ["MILLRACE_ALONE"].split(","):
    with DAG(
        topic,
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC") if topic == "FilledViews" else None,
        start_date=BEGAN,
        end_date=BEGAN + timedelta(days=2),
        catchup=False,
        max_active_runs=4,
        params={"start": "2015-05-17T10:00:00Z", "end": "2015-05-18T10:00:00Z"},
        default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
    ):
        load = LoadTopicOperator(
            task_id="load",
            topics=topic,
            deferrable=topic in ("DeferredViews", "OnYarnViews"),
            conn_id=CONNECTIONS.get(topic, "millrace_default"),
            spark_conf=json.loads(os.environ[CONNECTIONS[topic].upper()]) if topic in CONNECTIONS else None,
        )
        wait = CompletenessSensor(
            task_id="wait", topic=topic, deferrable=True, poke_interval=1, timeout=600, **HOURS
        )
        load >> wait >> PublishOperator(task_id="publish", topic=topic, **HOURS)

with DAG("by_hour", schedule=PartitionedAssetTimetable(assets=table_asset("ClearedViews")), start_date=BEGAN):

    @task
    def tell(partition_key: str | None = None) -> None:
        print(partition_key)

    tell()

with DAG("by_table", schedule=[table_asset("ClearedViews")], start_date=BEGAN):
    tell()

with DAG(
    "by_proof", schedule=[proved_hours("ProvedViews", poke_interval=2)], start_date=BEGAN, max_active_runs=1
):
    load = LoadTopicOperator(task_id="load", topics="ProvedViews")
    load >> PublishOperator(task_id="publish", topic="ProvedViews", start=None, end=None, proven=True)
