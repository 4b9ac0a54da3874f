"""What the warehouse asks of HDFS, one thing at a time, and what it says when HDFS refuses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from millrace_warehouse.storage.hadoop import HadoopFilesystem

from millrace.errors import MillraceError
from millrace_warehouse.storage import hadoop
from millrace_warehouse.storage.filesystem import Filesystem, open_filesystem
from tests.hdfs.conftest import REPLICATION
from tests.hdfs.warehouse import HdfsWarehouse
from tests.support import wait_until

BLOCK = 1 << 20
MANY = 10_000


def plainly_written(fs: HadoopFilesystem, path: str, content: bytes) -> None:
    """As Spark does: closed, and on no disk yet."""
    target = fs._path(path)
    stream = fs._fs.create(target, True, 4096, fs._fs.getDefaultReplication(target), BLOCK)
    stream.write(bytearray(content))
    stream.close()


def raced(fs: Filesystem, turns: int, rivals: int = 4) -> Iterator[tuple[str, list[bool]]]:
    with ThreadPoolExecutor(rivals) as threads:
        for turn in range(turns):
            for rival in range(rivals):
                fs.make_folder(f"_staging/{turn}-{rival}/date=1")
                fs.write(f"_staging/{turn}-{rival}/date=1/file", f"{rival}".encode())
            target = f"topic/load={turn}"
            yield (
                target,
                list(
                    threads.map(
                        lambda n: fs.move(f"_staging/{n[0]}-{n[1]}", n[2]),
                        [(turn, rival, target) for rival in range(rivals)],
                    )
                ),
            )


def test_of_many_movers_to_one_target_exactly_one_wins(fs: HadoopFilesystem) -> None:
    for target, won in raced(fs, turns=20):
        assert won.count(True) == 1
        assert fs.files(target) == [("date=1/file", 1)]
        assert fs.read(f"{target}/date=1/file") == f"{won.index(True)}".encode()


def test_of_many_creators_of_one_file_exactly_one_wins(fs: HadoopFilesystem) -> None:
    with ThreadPoolExecutor(4) as threads:
        for turn in range(10):
            path = f"_plans/run {turn} 2015-05-17T10%3A00.json"
            won = list(threads.map(lambda n, path=path: fs.create(path, b"%d" % n), range(4)))
            assert won.count(True) == 1
            assert fs.read(path) == b"%d" % won.index(True)
    assert len(fs.names("_plans")) == 10


def test_an_empty_folder_in_the_way_is_taken_and_never_nested_into(fs: HadoopFilesystem) -> None:
    fs.make_folder("_staging/a")
    fs.write("_staging/a/file", b"a")
    fs.make_folder("topic/load=1")
    assert fs.move("_staging/a", "topic/load=1")
    assert fs.files("topic") == [("load=1/file", 1)]


def test_what_spark_wrote_is_on_the_disks_of_every_replica_after_a_sync(
    fs: HadoopFilesystem, warehouse: HdfsWarehouse
) -> None:
    contents = {
        "date=1/small": b"row" * 1_000,
        "date=1/one block": os.urandom(BLOCK),  # exactly: no block is left to be opened again
        "date=2/three blocks": os.urandom(2 * BLOCK + 5),
        "empty": b"",
    }
    for path, content in contents.items():
        plainly_written(fs, f"s/{path}", content)
    fs.sync("s")
    # One block of the first, one of the second, three of the third; HDFS counts with some delay.
    blocks = (1 + 1 + 3) * REPLICATION
    synced = wait_until("the fsyncs are counted", warehouse.hdfs.synced_files, timeout_s=30)
    wait_until("all of them", lambda: warehouse.hdfs.synced_files() >= blocks, timeout_s=30)
    assert synced
    assert fs.files("s") == sorted((path, len(content)) for path, content in contents.items())
    for path, content in contents.items():
        assert fs.read(f"s/{path}") == content
        with fs.local_copy(f"s/{path}") as copy:
            assert copy.read_bytes() == content
        assert not copy.exists()


def test_ten_thousand_files_are_listed_in_a_few_seconds(fs: HadoopFilesystem) -> None:
    def make(number: int) -> None:
        fs._fs.createNewFile(fs._path(f"t/date={number % 100}/{number}"))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(make, range(MANY)))
    started = time.monotonic()
    assert len(fs.files("t")) == MANY
    assert len(fs.names("t")) == 100
    seconds = time.monotonic() - started
    print(f"{MANY} files listed in {seconds:.2f} s")
    assert seconds < 5


def test_what_is_not_there_reads_as_nothing(fs: HadoopFilesystem) -> None:
    assert fs.names("nowhere") == []
    assert fs.files("nowhere") == []
    assert fs.age_s("nowhere") == 0
    fs.delete("nowhere")
    for missing in (fs.read, fs.sha256):
        with pytest.raises(FileNotFoundError):
            missing("nowhere")
    with pytest.raises(FileNotFoundError), fs.local_copy("nowhere"):
        pass
    fs.make_folder("")
    fs.write("a file", b"x")
    assert fs.names("a file") == []
    assert fs.names("") == ["a file"]


@contextmanager
def quota(fs: HadoopFilesystem, names: int, space: int) -> Iterator[None]:
    fs.make_folder("")
    fs._fs.setQuota(fs._path(""), names, space)
    try:
        yield
    finally:
        fs._fs.setQuota(fs._path(""), -1, -1)


def test_a_folder_that_is_touched_is_young_again(fs: HadoopFilesystem) -> None:
    fs.make_folder("touched")
    fs._fs.setTimes(fs._path("touched"), 1_000, -1)
    assert fs.age_s("touched") > 1e9
    fs.touch("touched")
    assert fs.age_s("touched") < 1e6
    fs.touch("nowhere")


def test_nothing_is_written_into_a_folder_that_was_swept(fs: HadoopFilesystem) -> None:
    with pytest.raises(FileNotFoundError):
        fs.write("PageView/_staging/swept/_manifest.json", b"{}")
    assert fs.names("PageView/_staging/swept") == []


def test_a_quota_exceeded_is_one_sentence_and_the_next_load_is_whole(warehouse: HdfsWarehouse) -> None:
    topic = warehouse.site.topic("Quota", 1)
    warehouse.publish(topic, 50)
    fs = warehouse.fs
    assert isinstance(fs, HadoopFilesystem)
    unlimited = (1 << 63) - 2
    for names, space, words in ((3, unlimited, "NameSpace quota"), (unlimited, BLOCK, "DiskSpace quota")):
        with quota(fs, names, space), pytest.raises(MillraceError) as error:
            warehouse.load(topic)
        assert words in str(error.value)
        assert "raise the quota" in str(error.value)
        assert "\n" not in str(error.value)
    assert warehouse.load(topic).rows == 50
    warehouse.check_loads(topic)


def test_safe_mode_is_waited_for_a_while_and_then_said(
    warehouse: HdfsWarehouse, fs: HadoopFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = warehouse.site.topic("SafeMode", 1)
    warehouse.publish(topic, 50)
    action: Any = warehouse.spark._jvm.org.apache.hadoop.fs.SafeModeAction  # type: ignore[union-attr]
    monkeypatch.setattr(hadoop, "WAIT_S", 2.0)
    fs._fs.setSafeMode(action.ENTER)
    with pytest.raises(MillraceError, match=r"the NameNode is in safe mode.*\(waited 2 s\)"):
        warehouse.load(topic)
    monkeypatch.setattr(hadoop, "WAIT_S", 60.0)
    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(warehouse.load, topic)
        time.sleep(1.5)  # it waits: nothing it could be awaited by
        fs._fs.setSafeMode(action.LEAVE)
        assert loading.result(120).rows == 50
    warehouse.check_loads(topic)


def test_a_folder_of_somebody_else_is_refused_in_one_sentence(
    warehouse: HdfsWarehouse, fs: HadoopFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.make_folder("")
    jvm: Any = warehouse.spark._jvm
    users = jvm.org.apache.hadoop.security.UserGroupInformation
    stranger = users.createRemoteUser("stranger")
    own = users.getCurrentUser()
    users.setLoginUser(stranger)
    try:
        with pytest.raises(MillraceError, match=r"Permission denied: user=stranger.*let this user write"):
            open_filesystem(warehouse.uri, warehouse.spark).create("_plans/run.json", b"x")
    finally:
        users.setLoginUser(own)


def test_an_erasure_coded_folder_is_refused_before_anything_is_read(fs: HadoopFilesystem) -> None:
    fs.make_folder("coded")
    fs._fs.enableErasureCodingPolicy("XOR-2-1-1024k")
    fs._fs.setErasureCodingPolicy(fs._path("coded"), "XOR-2-1-1024k")
    with pytest.raises(MillraceError, match="erasure coded"):
        fs.create("coded/_plans/run.json", b"x")


def test_a_host_that_is_none_is_said_at_once(warehouse: HdfsWarehouse) -> None:
    started = time.monotonic()
    with pytest.raises(MillraceError, match="neither a host nor a nameservice"):
        open_filesystem("hdfs://no-such-service/w", warehouse.spark)
    assert time.monotonic() - started < 20
