"""Loads and hours that tasks write themselves, through WebHDFS: undisturbed, killed, refused."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from millrace_warehouse.storage.hadoop import HadoopFilesystem

from millrace.errors import MillraceError
from millrace_warehouse.storage.filesystem import open_filesystem
from tests.hdfs.conftest import NAMESERVICE
from tests.hdfs.warehouse import HdfsWarehouse, at_each_step
from tests.jobs import kill_at_a_step
from tests.support import Process, wait_until

ROWS = 600
PATIENCE_S = 300


def test_loads_hours_and_late_revisions_are_what_the_log_holds(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("Direct", 3)
    warehouse.publish(topic, 2_000)
    first = warehouse.load(topic, sink="direct")
    assert (first.load, first.rows, first.rejected) == (1, 2_000, 0)
    warehouse.check_loads(topic)
    hours = warehouse.hours(topic)
    assert warehouse.hourly(topic, sorted(hours), sink="direct") == {h: (1, n) for h, n in hours.items()}
    warehouse.check_hours(topic)

    warehouse.publish(topic, 40)  # of the first hour again: late
    assert warehouse.load(topic, sink="direct").load == 2
    late = min(hours)
    after = warehouse.hourly(topic, sorted(hours), sink="direct")
    assert after[late] == (2, warehouse.hours(topic)[late])
    assert warehouse.reload(topic, 2, sink="direct").rows == 40
    assert warehouse.hourly(topic, [late], sink="direct")[late][0] == 3
    warehouse.check_hours(topic)


def test_the_active_namenode_of_a_nameservice_is_found(warehouse: HdfsWarehouse) -> None:
    path = warehouse.uri.removeprefix(warehouse.hdfs.uri)
    fs = open_filesystem(f"hdfs://{NAMESERVICE}{path}", warehouse.spark)
    storage = fs.for_tasks()
    with storage.writing(fs.uri("written")) as folder:
        (folder / "date=1").mkdir()
        (folder / "date=1" / "a file").write_bytes(b"by a task")
    with storage.local_copy(fs.uri("written/date=1/a file")) as copy:
        assert copy.read_bytes() == b"by a task"
    assert not copy.exists()
    assert warehouse.fs.read("written/date=1/a file") == b"by a task"


def test_files_are_as_the_other_client_would_have_made_them(
    warehouse: HdfsWarehouse, fs: HadoopFilesystem
) -> None:
    topic = warehouse.site.topic("DirectFiles", 1)
    warehouse.publish(topic, ROWS)
    made = {}
    for sink in ("spark", "direct"):
        load = warehouse.load(topic, sink=sink).load
        folder = f"{topic}/load={load:010d}"
        path = next(path for path, _ in fs.files(folder) if path.endswith(".parquet"))
        status: Any = fs._fs.getFileStatus(fs._path(f"{folder}/{path}"))
        mode, owner = str(status.getPermission().toString()), str(status.getOwner())
        made[sink] = mode, owner, int(status.getReplication()), int(status.getBlockSize())
        warehouse.publish(topic, ROWS)
    assert made["direct"] == made["spark"]


@pytest.mark.parametrize("steps", [2, 4], ids=["planned", "verified"])
def test_a_driver_killed_and_run_again_loads_every_message_once(warehouse: HdfsWarehouse, steps: int) -> None:
    topic = warehouse.site.topic(f"DirectKilled-{steps}", 2)
    warehouse.publish(topic, ROWS)
    command = warehouse.command("load", topic, "--run-id", "killed", "--sink", "direct")
    # Of the plan's step a moment later: tasks are at work.
    kill_at_a_step(Process(command), steps=steps, pause_s=0.5 if steps == 2 else 0, timeout_s=PATIENCE_S)
    again = warehouse.load(topic, run_id="killed", sink="direct")
    assert (again.load, again.rows) == (1, ROWS)
    warehouse.check_loads(topic)


@pytest.mark.parametrize("moment", ["before tasks begin", "while they upload"])
def test_a_namenode_that_restarts_is_waited_for(warehouse: HdfsWarehouse, moment: str) -> None:
    topic = warehouse.site.topic(f"DirectNameNode-{moment.replace(' ', '-')}", 3)
    warehouse.publish(topic, 3 * ROWS)
    restarts: list[threading.Thread] = []
    watched = warehouse.fs  # opened while there is a NameNode

    def bounce() -> None:
        if moment == "while they upload":
            wait_until("tasks upload", lambda: any(_uploaded(watched, topic)), timeout_s=60)
        warehouse.hdfs.namenode.kill()
        time.sleep(1)  # long enough for somebody to be refused
        warehouse.hdfs.start()

    def begin(step: str) -> None:
        if step == "planned" and not restarts:
            restarts.append(threading.Thread(target=bounce))
            restarts[0].start()

    with at_each_step(begin):
        result = warehouse.load(topic, sink="direct", cut_bytes=20_000)
    restarts[0].join(90)
    assert (result.load, result.rows) == (1, 3 * ROWS)
    warehouse.check_loads(topic)


def _uploaded(fs: Any, topic: str) -> list[str]:
    return [path for path, _ in fs.files(f"{topic}/_staging") if path.endswith(".parquet")]


def test_a_namenode_that_restarts_while_hours_are_merged(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("DirectMerged", 2)
    warehouse.publish(topic, ROWS)
    warehouse.load(topic, sink="direct")
    hours = sorted(warehouse.hours(topic))
    assert {revision for revision, _ in warehouse.hourly(topic, hours, sink="direct").values()} == {1}
    warehouse.publish(topic, ROWS)
    warehouse.load(topic, sink="direct")

    def bounce() -> None:
        fs = warehouse.fs
        wait_until("hours are staged", lambda: fs.names(f"{topic}.hourly/_staging"), timeout_s=60)
        warehouse.hdfs.namenode.kill()
        warehouse.hdfs.start()

    bouncing = threading.Thread(target=bounce)
    bouncing.start()
    assert {revision for revision, _ in warehouse.hourly(topic, hours, sink="direct").values()} == {2}
    bouncing.join(90)
    warehouse.check_hours(topic)


def test_a_datanode_that_is_believed_alive_is_gone_round(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("DirectDataNode", 3)
    warehouse.publish(topic, 3 * ROWS)

    def lose(step: str) -> None:
        if step == "planned":
            warehouse.hdfs.datanodes[0].kill()

    with at_each_step(lose):
        assert warehouse.load(topic, sink="direct").rows == 3 * ROWS
    warehouse.check_loads(topic)


def test_a_quota_exceeded_is_one_sentence_and_the_next_load_is_whole(
    warehouse: HdfsWarehouse, fs: HadoopFilesystem
) -> None:
    topic = warehouse.site.topic("DirectQuota", 1)
    warehouse.publish(topic, 50)
    fs.make_folder("")
    unlimited = (1 << 63) - 2
    for names, space, words in ((8, unlimited, "NameSpace quota"), (unlimited, 1 << 20, "DiskSpace quota")):
        fs._fs.setQuota(fs._path(""), names, space)
        try:
            with pytest.raises(MillraceError) as error:
                warehouse.load(topic, sink="direct")
        finally:
            fs._fs.setQuota(fs._path(""), -1, -1)
        assert words in str(error.value)
        assert "raise the quota" in str(error.value)
        assert "\n" not in str(error.value)
    assert warehouse.load(topic, sink="direct").rows == 50
    warehouse.check_loads(topic)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hadoop.security.authentication", "kerberos", "Kerberos"),
        (f"dfs.namenode.http-address.{NAMESERVICE}.running", "127.0.0.1:9", "Connection refused"),
    ],
)
def test_where_webhdfs_cannot_be_used_one_sentence_names_the_other_sink(
    fs: HadoopFilesystem, monkeypatch: pytest.MonkeyPatch, key: str, value: str, words: str
) -> None:
    monkeypatch.setattr("millrace_warehouse.storage.hadoop.CHECK_S", 1.0)
    before = fs._conf.get(key)
    fs._conf.set(key, value)
    try:
        with pytest.raises(MillraceError) as error:
            fs.for_tasks()
    finally:
        fs._conf.unset(key) if before is None else fs._conf.set(key, before)
    assert words in str(error.value)
    assert str(error.value).endswith("use --sink spark")
    assert "\n" not in str(error.value)
