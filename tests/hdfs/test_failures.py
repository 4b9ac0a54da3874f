"""A NameNode that is killed and comes back, DataNodes that do not: in the middle of a load, and between."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from millrace.errors import MillraceError
from millrace_warehouse.storage import hadoop_settings
from tests.hdfs.conftest import DATANODES
from tests.peers.hdfs import Hdfs
from tests.remote_warehouse import RemoteWarehouse, at_each_step
from tests.support import wait_until

ROWS = 600


@pytest.mark.parametrize("step", ["planned", "written", "prepared", "committed"])
def test_a_namenode_killed_at_a_step_and_restarted_a_load_goes_on(
    warehouse: RemoteWarehouse, hdfs: Hdfs, step: str
) -> None:
    topic = warehouse.site.topic(f"NameNode-{step}", 2)
    warehouse.produce(topic, ROWS)
    restarts: list[threading.Thread] = []

    def kill(reached: str) -> None:
        if reached == step and not restarts:
            hdfs.namenode.kill()
            restarts.append(threading.Thread(target=hdfs.start))
            restarts[0].start()

    with at_each_step(kill):
        result = warehouse.load(topic)
    restarts[0].join(90)
    assert (result.load, result.rows, result.published) == (1, ROWS, True)
    warehouse.check_loads(topic)


def test_a_namenode_killed_while_tasks_upload_and_between_load_and_publication(
    warehouse: RemoteWarehouse, hdfs: Hdfs
) -> None:
    topic = warehouse.site.topic("NameNode-uploads", 3)
    warehouse.produce(topic, 3 * ROWS)
    watched = warehouse.storage

    def bounce() -> None:
        wait_until("tasks upload", lambda: watched.files(f"{topic}/rows"), timeout_s=60)
        hdfs.namenode.kill()
        time.sleep(1)  # long enough for somebody to be refused
        hdfs.start()

    bouncing = threading.Thread(target=bounce)
    bouncing.start()
    assert warehouse.load(topic, cut_bytes=20_000).rows == 3 * ROWS
    bouncing.join(90)
    hdfs.namenode.kill()
    restart = threading.Thread(target=hdfs.start)
    restart.start()
    assert warehouse.publish(topic)["rows"] == 3 * ROWS
    restart.join(90)
    warehouse.check_table(topic)


def test_a_datanode_lost_in_the_middle_of_a_load_and_before_reading(
    warehouse: RemoteWarehouse, hdfs: Hdfs
) -> None:
    topic = warehouse.site.topic("DataNode", 3)
    warehouse.produce(topic, 3 * ROWS)

    def lose(step: str) -> None:
        if step == "planned":
            hdfs.datanodes[0].kill()  # still believed alive: it is chosen, and fails

    with at_each_step(lose):
        assert warehouse.load(topic).rows == 3 * ROWS
    warehouse.check_loads(topic)
    hdfs.datanodes[0].start()
    hdfs.wait_until_ready()
    warehouse.produce(topic, ROWS)
    assert warehouse.load(topic).load == 2
    hdfs.datanodes[1].kill()
    assert warehouse.publish(topic)["rows"] == 4 * ROWS
    warehouse.check_table(topic)


def test_without_a_namenode_the_wait_is_bounded_and_the_next_load_is_whole(
    warehouse: RemoteWarehouse, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = warehouse.site.topic("NameNode-gone", 1)
    warehouse.produce(topic, 5)
    with monkeypatch.context() as impatient:
        find = hadoop_settings.find_webhdfs
        impatient.setattr(
            "millrace_warehouse.storage.open.find_webhdfs",
            lambda address, settings: _patient_for(2.0, find(address, settings)),
        )
        hdfs.namenode.kill()
        with pytest.raises(MillraceError, match=r"WebHDFS does not answer within 2 s") as error:
            warehouse.load(topic)
        assert "\n" not in str(error.value)
    hdfs.start()
    assert warehouse.load(topic).rows == 5
    warehouse.check_loads(topic)


def _patient_for(
    patience_s: float, found: tuple[str, hadoop_settings.WebHdfs]
) -> tuple[str, hadoop_settings.WebHdfs]:
    root, where = found
    return root, replace(where, patience_s=patience_s)


def test_every_datanode_gone_is_one_sentence_and_a_load_after_it_is_whole(
    warehouse: RemoteWarehouse, hdfs: Hdfs
) -> None:
    topic = warehouse.site.topic("DataNodes-gone", 1)
    warehouse.produce(topic, 50)
    for node in hdfs.datanodes:
        node.kill()
    wait_until("they are believed dead", lambda: hdfs.live_datanodes() == 0, timeout_s=40)
    with pytest.raises(MillraceError) as error:
        warehouse.load(topic)
    assert "DataNode" in str(error.value)
    assert "\n" not in str(error.value)
    hdfs.start()
    assert hdfs.live_datanodes() == DATANODES
    assert warehouse.load(topic).load == 1
    warehouse.check_loads(topic)
