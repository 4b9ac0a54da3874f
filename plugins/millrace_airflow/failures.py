"""The last task of the shipped DAGs, which fails a run with a failed task."""

from __future__ import annotations

from airflow.sdk import TriggerRule, task
from airflow.sdk.exceptions import AirflowFailException


@task(trigger_rule=TriggerRule.ONE_FAILED, retries=0)
def any_failure() -> None:
    """Fail the run if a task of it has failed: Airflow takes a run's state from its last tasks alone."""
    raise AirflowFailException("a task of this run has failed")
