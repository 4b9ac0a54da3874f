"""A NameNode that is killed and comes back, DataNodes that do not: in the middle of a load, and between."""

from __future__ import annotations

import threading
import time

import pytest

from millrace.errors import MillraceError
from millrace_warehouse.storage import hadoop
from tests.hdfs.conftest import DATANODES
from tests.hdfs.warehouse import HdfsWarehouse, at_each_step
from tests.support import wait_until

ROWS = 600


@pytest.mark.parametrize("step", ["planned", "written", "verified", "described", "synced", "published"])
def test_a_namenode_killed_at_a_step_and_restarted_a_load_goes_on(
    warehouse: HdfsWarehouse, step: str
) -> None:
    topic = warehouse.site.topic(f"NameNode-{step}", 2)
    warehouse.publish(topic, ROWS)
    restarts: list[threading.Thread] = []

    def kill(reached: str) -> None:
        if reached == step and not restarts:
            warehouse.hdfs.namenode.kill()
            restarts.append(threading.Thread(target=warehouse.hdfs.start))
            restarts[0].start()

    with at_each_step(kill):
        result = warehouse.load(topic)
    restarts[0].join(90)
    assert (result.load, result.rows, result.published) == (1, ROWS, True)
    warehouse.check_loads(topic)


def test_a_namenode_killed_while_spark_writes_and_between_two_loads(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("NameNode-writing", 3)
    warehouse.publish(topic, 3 * ROWS)

    def bounce() -> None:
        wait_until("Spark writes", lambda: any(_unfinished(warehouse, topic)), timeout_s=60)
        warehouse.hdfs.namenode.kill()
        time.sleep(1)  # long enough for somebody to be refused
        warehouse.hdfs.start()

    bouncing = threading.Thread(target=bounce)
    bouncing.start()
    assert warehouse.load(topic).rows == 3 * ROWS
    bouncing.join(90)
    warehouse.hdfs.namenode.kill()
    warehouse.hdfs.start()
    warehouse.publish(topic, ROWS)
    assert warehouse.load(topic).load == 2
    warehouse.check_loads(topic)


def _unfinished(warehouse: HdfsWarehouse, topic: str) -> list[str]:
    staging = f"{topic}/_staging"
    return [path for path, _ in warehouse.fs.files(staging) if path.endswith(".parquet")]


def test_a_datanode_lost_in_the_middle_of_a_load_and_before_reading(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("DataNode", 3)
    warehouse.publish(topic, 3 * ROWS)

    def lose(step: str) -> None:
        if step == "planned":
            warehouse.hdfs.datanodes[0].kill()  # still believed alive: it is chosen, and fails

    with at_each_step(lose):
        assert warehouse.load(topic).rows == 3 * ROWS
    warehouse.check_loads(topic)
    warehouse.hdfs.datanodes[0].start()
    warehouse.hdfs.wait_until_ready()

    warehouse.publish(topic, ROWS)
    assert warehouse.load(topic).load == 2
    warehouse.hdfs.datanodes[1].kill()
    warehouse.check_loads(topic)
    hours = sorted(warehouse.hours(topic))
    assert {revision for revision, _ in warehouse.hourly(topic, hours).values()} == {1}
    warehouse.check_hours(topic)


def test_a_datanode_lost_while_files_are_put_on_disk(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("DataNode-sync", 2)
    warehouse.publish(topic, ROWS)

    def lose(step: str) -> None:
        if step == "described":
            warehouse.hdfs.datanodes[2].kill()

    with at_each_step(lose):
        assert warehouse.load(topic).rows == ROWS
    warehouse.check_loads(topic)


def test_without_a_namenode_the_wait_is_bounded_and_the_sentence_clear(
    warehouse: HdfsWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = warehouse.site.topic("NameNode-gone", 1)
    warehouse.publish(topic, 5)
    monkeypatch.setattr(hadoop, "WAIT_S", 2.0)
    warehouse.hdfs.namenode.kill()
    with pytest.raises(MillraceError, match=r"the NameNode does not answer.*\(waited 2 s\)"):
        warehouse.load(topic)
    warehouse.hdfs.start()
    assert warehouse.load(topic).rows == 5


def test_every_datanode_gone_is_one_sentence_and_a_load_after_it_is_whole(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("DataNodes-gone", 1)
    warehouse.publish(topic, 50)
    assert warehouse.load(topic).load == 1
    warehouse.publish(topic, 50)
    for node in warehouse.hdfs.datanodes:
        node.kill()
    wait_until("they are believed dead", lambda: warehouse.hdfs.live_datanodes() == 0, timeout_s=40)
    with pytest.raises(MillraceError) as error:
        warehouse.load(topic)
    assert "DataNode" in str(error.value)
    assert "\n" not in str(error.value)
    warehouse.hdfs.start()
    assert warehouse.hdfs.live_datanodes() == DATANODES
    assert warehouse.load(topic).load == 2
    warehouse.check_loads(topic)
