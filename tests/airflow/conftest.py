"""One Airflow on a PostgreSQL, one audited datacenter and its warehouse for the whole run; and its last line.

AIRFLOW OK: ran=N skipped=0        nothing for a run that failed: pytest's own words and exit code stand
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace_audit.reports.messages import schema_file
from millrace_registry.client import SchemaRegistryClient
from tests import postgres
from tests.airflow.deployment import Airflow
from tests.audit_world import audit_of_one_origin
from tests.conftest import Start
from tests.integration.test_audit import World
from tests.last_line import LastLine
from tests.page_view import EVENT
from tests.peers import maven
from tests.peers.spark_cluster import CONF, SparkCluster
from tests.peers.yarn import Yarn
from tests.support import REPOSITORY

_last_line = LastLine("AIRFLOW")
pytest_runtest_logreport = _last_line.pytest_runtest_logreport
pytest_sessionfinish = _last_line.pytest_sessionfinish
pytest_unconfigure = _last_line.pytest_unconfigure

TEN = [f"Views{number}" for number in range(10)]
MISSING = "Nowhere"
"""A topic that no cluster has: its load fails."""
ALONE = [
    f"{name}Views"
    for name in ("Killed", "Elsewhere", "OnYarn", "Deferred", "Cleared", "Twice", "Filled", "Proved")
]
"""The topics of DAGs with one topic each, from `one_topic.py`."""


@dataclass
class Place:
    """Airflow for a test, and the world that its tasks load from."""

    airflow: Airflow
    world: World
    spark: SparkCluster
    yarn: Yarn | None
    """None without Maven."""

    def produce(self, topic: str, times_ms: list[int]) -> int:
        """One acknowledged event of dc1 at each time, by a producer that says that it has ended."""
        with self.world.producer("dc1") as producer:
            for time_ms in times_ms:
                producer.send(topic, topic, EVENT, time_ms=time_ms)
        return len(times_ms)


@pytest.fixture(scope="module")
def place(
    zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    if not postgres.installed():
        pytest.skip("there is no PostgreSQL: apt-get install postgresql, pip install psycopg")
    folder = tmp_path_factory.mktemp("live")
    topics = [*TEN, *ALONE]
    world = audit_of_one_origin(World, start_for_module, zookeeper, folder, topics)
    with SchemaRegistryClient(world.registry) as registry:
        for topic in topics:
            registry.register(topic, schema_file("PageView"))
    (folder / "topics.toml").write_text("".join(f"[{topic}]\n" for topic in (*TEN, MISSING)))
    dags = folder / "dags"
    dags.mkdir()
    (dags / "one_topic.py").write_text((Path(__file__).parent / "one_topic.py").read_text())
    shipped, hourly = (
        (REPOSITORY / "dags" / "warehouse_load.py").read_text(),
        'CronDataIntervalTimetable("0 * * * *"',
    )
    assert hourly in shipped
    # Triggered by the test alone; each run of it starts eleven Spark applications.
    (dags / "warehouse_load.py").write_text(shipped.replace(hourly, 'CronDataIntervalTimetable("0 0 29 2 *"'))
    extra = {"registry": world.registry, "auditor": world.url, "warehouse": str(world.warehouse)}
    connection = {"conn_type": "millrace", "host": world.clusters["offline"].bootstrap, "extra": extra}
    spark = SparkCluster(folder / "spark")
    yarn = Yarn(folder / "yarn", f"file://{folder}/staged") if maven.available() else None
    on_spark, on_yarn = (
        {**connection, "extra": {**extra, "spark_master": master}} for master in (spark.master, "yarn")
    )
    environment = {
        "AIRFLOW_CONN_MILLRACE_DEFAULT": json.dumps(connection),
        "AIRFLOW_CONN_ON_SPARK": json.dumps(on_spark),
        "AIRFLOW_CONN_ON_YARN": json.dumps(on_yarn),
        "ON_YARN": json.dumps(yarn.cluster_conf if yarn else {}),
        "HADOOP_CONF_DIR": str(yarn.conf if yarn else folder),
        "ON_SPARK": json.dumps({**CONF, **spark.cluster_mode}),
        "MILLRACE_TOPICS_FILE": str(folder / "topics.toml"),
        "MILLRACE_ALONE": ",".join(ALONE),
        "MILLRACE_LOADS": "2",
        "MILLRACE_SCHEMAS": str(REPOSITORY / "schemas"),
        "MILLRACE_WAIT_MINUTES": "10",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    with spark, yarn or nullcontext(), postgres.postgresql() as database:
        airflow = Airflow(folder, database, dags, environment)
        try:
            yield Place(airflow, world, spark, yarn)
        finally:
            airflow.stop()
