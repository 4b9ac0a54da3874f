"""OpenLineage events of a task."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millrace_airflow.lineage import Dataset, Lineage, rows_of
from millrace_airflow.operators.load import LoadTopicOperator
from millrace_airflow.operators.publish import PublishOperator


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "registry": "http://r",
        "auditor": "http://a",
        "warehouse": "hdfs://nn:8020/w",
        "catalog": "lake",
    }
    value = {"conn_type": "millrace", "host": "b1:9092,b2:9092", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", json.dumps(value))


def test_a_load_is_a_way_from_topics_to_files() -> None:
    load = LoadTopicOperator(task_id="l", topics=["A", "B", "C"])
    result: list[dict[str, Any]] = [{"topic": name, "load": 7, "rows": 3} for name in ("A", "B")]
    load.finish([*result, {"topic": "C", "load": None, "rows": 0}], {})
    assert load.lineage == Lineage(
        [Dataset("kafka://b1:9092", "A"), Dataset("kafka://b1:9092", "B")],
        [Dataset("hdfs://nn:8020", "w/A/rows"), Dataset("hdfs://nn:8020", "w/B/rows")],
    )
    load.finish(result[:1], {})
    assert load.lineage.rows == 3


def test_files_lie_where_openlineage_looks_for_them() -> None:
    assert rows_of("/data/w", "T") == rows_of("file:///data/w/", "T") == Dataset("file", "/data/w/T/rows")
    assert rows_of("s3://bucket/some/w", "T") == Dataset("s3://bucket", "some/w/T/rows")


def test_a_task_that_has_written_nothing_says_nothing() -> None:
    assert PublishOperator(task_id="p", topic="T").lineage == Lineage()


def test_the_provider_takes_what_it_is_told() -> None:
    pytest.importorskip("airflow.providers.openlineage", reason="apache-airflow-providers-openlineage")
    load = LoadTopicOperator(task_id="l", topics="A")
    load.finish([{"topic": "A", "load": 7, "rows": 3}], {})
    told = load.get_openlineage_facets_on_complete(None)
    assert [(one.namespace, one.name) for one in told.inputs] == [("kafka://b1:9092", "A")]
    [output] = told.outputs
    assert (output.namespace, output.name) == ("hdfs://nn:8020", "w/A/rows")
    assert output.outputFacets["outputStatistics"].rowCount == 3
