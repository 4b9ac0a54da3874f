"""Loads, hours and their readers on a real HDFS, undisturbed."""

from __future__ import annotations

import json

import pytest
from millrace_spark.jobs.upkeep import expire

from millrace.errors import ConfigError, MillraceError
from millrace_spark import tables
from millrace_warehouse.commands.verbs import Expire
from tests.hdfs.conftest import NAMESERVICE
from tests.hdfs.warehouse import START_MS, HdfsWarehouse
from tests.support import run_millrace
from tests.warehouses import HOUR_MS


def test_loads_hours_a_late_revision_and_the_proof(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("Views", 3)
    warehouse.publish(topic, 2_000)
    first = warehouse.load(topic)
    assert (first.load, first.rows, first.rejected) == (1, 2_000, 0)
    warehouse.check_loads(topic)

    hours = warehouse.hours(topic)
    assert warehouse.hourly(topic, sorted(hours)) == {hour: (1, rows) for hour, rows in hours.items()}
    warehouse.check_hours(topic)

    warehouse.publish(topic, 40)  # of the first hour again: late
    assert warehouse.load(topic).load == 2
    late = min(hours)
    assert warehouse.hourly(topic, sorted(hours))[late] == (2, warehouse.hours(topic)[late])
    warehouse.check_hours(topic)

    brokers = warehouse.site.cluster.bootstrap
    verified = run_millrace("verify", warehouse.uri, "--bootstrap", brokers, "--json", timeout_s=300)
    assert verified.returncode == 0, verified.stderr
    assert [table["rows"] for table in json.loads(verified.stdout)["tables"]] == [2_040, 2_040]
    assert "step: verify: " in verified.stderr


def test_a_nameservice_and_the_default_file_system_come_from_the_configuration(
    warehouse: HdfsWarehouse,
) -> None:
    topic = warehouse.site.topic("ByName", 1)
    warehouse.publish(topic, 50)
    path = warehouse.uri.removeprefix(warehouse.hdfs.uri)
    assert warehouse.load(topic, warehouse=f"hdfs://{NAMESERVICE}{path}").load == 1
    warehouse.publish(topic, 50)
    assert warehouse.load(topic, warehouse=f"hdfs://{path}").load == 2
    warehouse.check_loads(topic)
    assert tables_missing(warehouse, topic).startswith(f"no hour of {topic}")


def test_a_command_does_not_wait_for_the_dead_namenode_of_a_nameservice(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("FailedOver", 1)
    warehouse.publish(topic, 50)
    path = warehouse.uri.removeprefix(warehouse.hdfs.uri)
    command = warehouse.command("load", topic, "--warehouse", f"hdfs://{NAMESERVICE}{path}")
    ended = run_millrace(*command, timeout_s=300)  # with retries each connection would wait for minutes
    assert ended.returncode == 0, ended.stderr
    warehouse.check_loads(topic)


def tables_missing(warehouse: HdfsWarehouse, topic: str) -> str:
    with pytest.raises(MillraceError) as error:
        tables.read(warehouse.spark, warehouse.uri, topic)
    return str(error.value)


def test_a_mount_table_leads_to_the_namenode_behind_it(warehouse: HdfsWarehouse) -> None:
    conf = warehouse.spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.all.link./data", f"{warehouse.uri}/")
    warehouse.fs.make_folder("")
    topic = warehouse.site.topic("Mounted", 1)
    warehouse.publish(topic, 50)
    assert warehouse.load(topic, warehouse="viewfs://all/data").load == 1
    warehouse.check_loads(topic)
    with pytest.raises(ConfigError, match="not in HDFS"):
        warehouse.load(topic, warehouse="viewfs://all/")


def test_readers_without_spark_are_refused_in_one_sentence(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("WithoutSpark", 1)
    warehouse.publish(topic, 5)
    assert warehouse.load(topic).rows == 5
    hour = next(iter(warehouse.hours(topic)))
    assert warehouse.hourly(topic, [hour]) == {hour: (1, 5)}
    with pytest.raises(MillraceError, match=r"tables\.read\(spark"):
        tables.dataset(warehouse.uri, topic)


def test_loads_read_again_and_expired_leave_every_row_in_the_hours(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("Again", 2)
    warehouse.publish(topic, 400)
    warehouse.load(topic)
    hours = sorted(warehouse.hours(topic))
    assert {revision for revision, _ in warehouse.hourly(topic, hours).values()} == {1}
    assert warehouse.reload(topic, 1).rows == 400
    warehouse.check_loads(topic)  # what lies in `_reloads` is not seen twice
    assert {revision for revision, _ in warehouse.hourly(topic, hours).values()} == {2}
    warehouse.check_hours(topic)

    expired = Expire(topic=topic, warehouse=warehouse.uri, older_than_s=0, reader_grace_s=0)
    expire(warehouse.spark, expired)
    assert [name for name, _ in warehouse.fs.files(topic) if name.endswith(".parquet")] == []
    warehouse.check_table(topic)
    warehouse.publish(topic, 40)
    assert warehouse.load(topic).load == 2
    assert warehouse.hourly(topic, hours)[hours[0]][0] == 3
    warehouse.check_table(topic)


def test_more_hours_than_a_task_keeps_files_open_for(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("ManyHours", 2)
    warehouse.publish(topic, 400, apart_ms=HOUR_MS // 4, start_ms=START_MS)
    assert warehouse.load(topic).rows == 400
    warehouse.check_loads(topic)
