"""Loads on a real HDFS, their table, and what keeps both: undisturbed."""

from __future__ import annotations

import json

from tests.hdfs.conftest import NAMESERVICE
from tests.peers.hdfs import Hdfs
from tests.remote_warehouse import CATALOG, START_MS, RemoteWarehouse
from tests.support import run_millrace
from tests.warehouses import HOUR_MS


def test_loads_the_table_late_rows_and_the_proof(warehouse: RemoteWarehouse) -> None:
    topic = warehouse.site.topic("Views", 3)
    warehouse.produce(topic, 2_000)
    first = warehouse.load(topic)
    assert (first.load, first.rows, first.rejected) == (1, 2_000, 0)
    warehouse.check_loads(topic)
    assert warehouse.publish(topic)["rows"] == 2_000
    warehouse.check_table(topic)

    warehouse.produce(topic, 40)  # of the first hour again: late
    assert warehouse.load(topic).load == 2
    assert warehouse.publish(topic, hours=[])["rows"] == 2_040
    warehouse.check_table(topic)

    brokers = warehouse.site.cluster.bootstrap
    command = ["verify", "--warehouse", warehouse.uri, "--catalog", CATALOG, "--bootstrap", brokers, "--json"]
    verified = run_millrace(*command, timeout_s=300)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["ok"]


def test_a_nameservice_and_the_default_file_system_come_from_the_configuration(
    warehouse: RemoteWarehouse, hdfs: Hdfs
) -> None:
    topic = warehouse.site.topic("ByName", 1)
    path = warehouse.uri.removeprefix(hdfs.uri)
    for turn, address in enumerate((f"hdfs://{NAMESERVICE}{path}", f"hdfs://{path}", warehouse.uri), 1):
        warehouse.produce(topic, 50)
        assert warehouse.load(topic, warehouse=address).load == turn
    warehouse.check_loads(topic)


def test_loads_read_again_compacted_and_expired_leave_every_row_in_the_table(
    warehouse: RemoteWarehouse,
) -> None:
    topic = warehouse.site.topic("Again", 2)
    for _ in range(5):
        warehouse.produce(topic, 200)
        warehouse.load(topic)
    warehouse.publish(topic)
    assert warehouse.reload(topic, 1).rows == 200
    warehouse.publish(topic, hours=[])
    warehouse.check_table(topic)
    warehouse.compact(topic)
    warehouse.check_table(topic)
    warehouse.expire(topic)
    warehouse.check_table(topic)
    warehouse.produce(topic, 40)
    assert warehouse.load(topic).load == 6
    warehouse.publish(topic, hours=[])
    warehouse.check_table(topic)


def test_more_hours_than_a_task_keeps_files_open_for(warehouse: RemoteWarehouse) -> None:
    topic = warehouse.site.topic("ManyHours", 2)
    warehouse.produce(topic, 400, apart_ms=HOUR_MS // 4, start_ms=START_MS)
    assert warehouse.load(topic).rows == 400
    warehouse.check_loads(topic)
