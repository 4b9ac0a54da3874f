"""Storage on a real HDFS: races, lost answers, servers killed, and what is on the disks."""

from __future__ import annotations

import io
import os
import pickle
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from millrace.errors import MillraceError
from millrace_warehouse.storage import Written, measure, open_file, open_storage, webhdfs
from millrace_warehouse.storage.file_io import PY_IO_IMPL
from millrace_warehouse.storage.hdfs import HdfsStorage
from tests.hdfs.conftest import NAMESERVICE, REPLICATION
from tests.peers.fault_proxy import FaultProxy
from tests.peers.hdfs import Hdfs
from tests.support import wait_until
from tests.unit.warehouse.storage.test_file_io import ROWS
from tests.warehouses import race_to_create

BLOCK = 1 << 20


@pytest.fixture
def storage(hdfs: Hdfs) -> Iterator[HdfsStorage]:
    """A warehouse of the test's own; afterwards everything runs again that the test has killed."""
    opened = open_storage(f"{hdfs.uri}/warehouses/{uuid4().hex[:8]}")
    assert isinstance(opened, HdfsStorage)
    yield opened
    hdfs.start()


@pytest.fixture
def proxy(hdfs: Hdfs) -> Iterator[FaultProxy]:
    """Before the NameNode's WebHDFS."""
    with FaultProxy(hdfs.namenode.web) as running:
        yield running


@pytest.fixture
def through_proxy(storage: HdfsStorage, proxy: FaultProxy) -> HdfsStorage:
    """The test's warehouse, by way of the proxy."""
    return HdfsStorage(storage.root, replace(storage.where, addresses=(proxy.address,)))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "PAUSE_S", 0.1)


def impatient(storage: HdfsStorage) -> HdfsStorage:
    return HdfsStorage(storage.root, replace(storage.where, patience_s=1.0))


def as_superuser(hdfs: Hdfs, storage: HdfsStorage, op: str, **parameters: str) -> None:
    """A request of WebHDFS about the warehouse's folder that no verb makes."""
    query = "&".join(f"{key}={quote(value)}" for key, value in parameters.items())
    folder = urlsplit(storage.root).path
    url = f"http://{hdfs.namenode.web}/webhdfs/v1{folder}?op={op}&user.name={storage.where.user}"
    with urllib.request.urlopen(urllib.request.Request(f"{url}&{query}", method="PUT"), timeout=30):
        pass


def make_folder(storage: HdfsStorage, path: str) -> None:
    """An empty folder, which no verb makes."""
    storage._client.ask("PUT", urlsplit(storage.uri(path)).path, op="MKDIRS")


def test_what_is_stored_is_listed_read_and_deleted(storage: HdfsStorage) -> None:
    assert storage.names("") == []
    written = storage.put("t/a b%=1/x", io.BytesIO(b"0123456789"))
    assert written == Written(10, sha256(b"0123456789").hexdigest())
    assert measure(storage, "t/a b%=1/x") == written
    assert storage.read("t/a b%=1/x", 3, 4) == b"3456"
    assert storage.read("t/a b%=1/x", 8) == b"89"
    assert storage.read("t/a b%=1/x", 8, 10) == b"89"
    assert [storage.read("t/a b%=1/x", at, 5) for at in (10, 12)] == [b"", b""]
    storage.put("t/empty", io.BytesIO(b""))
    assert [storage.read("t/empty"), storage.read("t/empty", 0, 5)] == [b"", b""]
    assert [(each.path, each.bytes) for each in storage.files("t")] == [("a b%=1/x", 10), ("empty", 0)]
    (itself,) = storage.files("t/a b%=1/x")
    assert (itself.path, itself.bytes) == ("", 10)
    assert abs(itself.modified - time.time()) < 60
    assert storage.names("t") == ["a b%=1", "empty"]
    with pytest.raises(FileNotFoundError):
        storage.read("nowhere")
    storage.delete("t/a b%=1/x")
    storage.delete("t/a b%=1/x")
    assert [each.path for each in storage.files("t")] == ["empty"]
    storage.delete("t")
    assert storage.names("") == []


def test_names_begin_behind_a_name_in_a_folder_of_any_size(storage: HdfsStorage) -> None:
    def fill(number: int) -> None:
        make_folder(storage, f"loads/{number:010d}.json")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(fill, range(1, 2_101)))  # the NameNode lists 1,000 at a time
    assert len(storage.names("loads")) == 2_100
    assert storage.names("loads", after=f"{2_099:010d}.json") == [f"{2_100:010d}.json"]
    assert len(storage.names("loads", after=f"{1_000:010d}.json")) == 1_100


def test_a_file_of_many_blocks_is_whole(storage: HdfsStorage) -> None:
    where = replace(storage.where, new_files={**storage.where.new_files, "blocksize": str(BLOCK)})
    small_blocks, content = HdfsStorage(storage.root, where), os.urandom(20 * BLOCK + 1)
    assert small_blocks.put("big", io.BytesIO(content)).sha256 == sha256(content).hexdigest()
    with open_file(storage, "big") as file:
        assert file.seek(-7, io.SEEK_END) == len(content) - 7
        assert file.read() == content[-7:]
    assert storage.read("big") == content


def test_of_many_creators_exactly_one_wins(storage: HdfsStorage) -> None:
    race_to_create(storage, turns=10)
    assert len(storage.files("loads")) == 10  # and no draft


def test_a_name_that_is_an_empty_folder_is_not_nested_into(storage: HdfsStorage) -> None:
    make_folder(storage, "loads/1")
    with pytest.raises(MillraceError, match="loads"):
        impatient(storage).create("loads/1", b"mine")
    assert storage.names("loads") == ["1"]
    assert storage.files("loads/1") == []


def test_whatever_is_stored_is_on_the_disks_of_every_replica(storage: HdfsStorage, hdfs: Hdfs) -> None:
    before = hdfs.synced_files()
    for number in range(5):
        storage.put(f"rows/{number}", io.BytesIO(b"1" * 1000))
        assert storage.create(f"loads/{number}", b"1")
    # A DataNode counts the data's file, and what belongs to it, each second or so.
    wait_until("they are counted", lambda: hdfs.synced_files() - before >= 10 * REPLICATION, timeout_s=30)


@pytest.mark.parametrize(
    ("fault", "op"),
    [
        *((fault, op) for fault in ("refuse", "busy", "lose", "fail") for op in ("CREATE", "RENAME")),
        ("cut", "CREATE"),  # the answer to a rename has no body
    ],
)
def test_a_create_whose_answer_is_lost_or_wrong_says_what_is_true(
    fault: str, op: str, storage: HdfsStorage, through_proxy: HdfsStorage, proxy: FaultProxy
) -> None:
    proxy.times(1, fault, "PUT", f"op={op}")
    assert through_proxy.create("loads/1", b"mine")
    proxy.times(1, fault, "PUT", f"op={op}")
    assert not through_proxy.create("loads/1", b"another's")
    assert proxy.met == [fault, fault]
    assert storage.read("loads/1") == b"mine"
    assert [each.path for each in storage.files("loads")] == ["1"]


@pytest.mark.parametrize("fault", ["refuse", "busy", "lose", "fail", "cut"])
def test_what_is_read_or_listed_does_not_depend_on_one_answer(
    fault: str, storage: HdfsStorage, through_proxy: HdfsStorage, proxy: FaultProxy
) -> None:
    content = os.urandom(100_000)
    storage.put("t/a", io.BytesIO(content))
    reads: list[Callable[[], bool]] = [
        lambda: through_proxy.read("t/a") == content,
        lambda: through_proxy.read("t/a", 7, 50_000) == content[7:50_007],
        lambda: through_proxy.names("t") == ["a"],
        lambda: [each.bytes for each in through_proxy.files("t")] == [100_000],
    ]
    for read in reads:
        proxy.times(1, fault, "GET")
        assert read()
    assert proxy.met == [fault] * 4


def test_a_namenode_that_is_killed_and_comes_back_is_waited_for(storage: HdfsStorage, hdfs: Hdfs) -> None:
    storage.put("before", io.BytesIO(b"1"))
    hdfs.namenode.kill()
    restart = threading.Thread(target=hdfs.start)
    restart.start()
    assert storage.create("loads/1", b"mine")
    restart.join(90)
    assert storage.read("before") == b"1"
    assert not storage.create("loads/1", b"another's")


def test_a_name_taken_before_the_namenode_is_killed_is_taken_after_it(
    storage: HdfsStorage, hdfs: Hdfs
) -> None:
    for turn in range(3):
        assert storage.create(f"loads/{turn}", b"mine")
        hdfs.namenode.kill()
        hdfs.start()
        assert not storage.create(f"loads/{turn}", b"another's")
        assert storage.read(f"loads/{turn}") == b"mine"


def test_a_datanode_that_is_believed_alive_is_gone_round(storage: HdfsStorage, hdfs: Hdfs) -> None:
    content = os.urandom(BLOCK)
    storage.put("before", io.BytesIO(content))
    hdfs.datanodes[0].kill()
    for number in range(6):
        assert storage.put(f"rows/{number}", io.BytesIO(content)).bytes == BLOCK
        assert storage.create(f"loads/{number}", b"%d" % number)
    assert storage.read("before") == content
    assert all(storage.read(f"rows/{number}") == content for number in range(6))


def test_the_active_namenode_of_a_nameservice_is_found(storage: HdfsStorage, hdfs: Hdfs) -> None:
    path = storage.root.removeprefix(hdfs.uri)
    by_name = open_storage(f"hdfs://{NAMESERVICE}{path}")
    assert by_name.root == f"hdfs://{NAMESERVICE}{path}"
    assert by_name.create("loads/1", b"mine")
    assert pickle.loads(pickle.dumps(by_name)).names("loads") == ["1"]
    assert open_storage(f"hdfs://{path}").root == storage.root  # the default file system
    assert storage.read("loads/1") == b"mine"


@pytest.mark.parametrize(
    ("quota", "words"), [("namespacequota", "NameSpace quota"), ("storagespacequota", "DiskSpace quota")]
)
def test_a_quota_exceeded_is_one_sentence(quota: str, words: str, storage: HdfsStorage, hdfs: Hdfs) -> None:
    storage.put("a", io.BytesIO(b"1"))
    as_superuser(hdfs, storage, "SETQUOTA", **{quota: "2"})
    with pytest.raises(MillraceError, match=rf"{words} .*: raise the quota") as error:
        storage.put("b", io.BytesIO(b"1"))
    assert "\n" not in str(error.value)


def test_a_folder_of_somebody_else_is_one_sentence(storage: HdfsStorage, hdfs: Hdfs) -> None:
    storage.put("a", io.BytesIO(b"1"))
    as_superuser(hdfs, storage, "SETPERMISSION", permission="755")
    stranger = HdfsStorage(storage.root, replace(storage.where, user="stranger"))
    for verb in (
        lambda: stranger.put("b", io.BytesIO(b"1")),
        lambda: stranger.create("b", b"1"),
        lambda: stranger.delete("a"),
    ):
        with pytest.raises(
            MillraceError, match=r"Permission denied: user=stranger.*: let this user"
        ) as error:
            verb()
        assert "\n" not in str(error.value)
    assert stranger.read("a") == b"1"


def test_without_a_namenode_the_wait_is_bounded(storage: HdfsStorage, hdfs: Hdfs) -> None:
    hdfs.namenode.kill()
    with pytest.raises(MillraceError, match=r"WebHDFS does not answer within 1 s .*: check the NameNode"):
        impatient(storage).create("loads/1", b"mine")


def test_without_datanodes_one_sentence_says_so(storage: HdfsStorage, hdfs: Hdfs) -> None:
    storage.put("a", io.BytesIO(b"1"))
    for node in hdfs.datanodes:
        node.kill()
    wait_until("they are believed dead", lambda: hdfs.live_datanodes() == 0, timeout_s=40)
    with pytest.raises(MillraceError, match=r"DataNode") as error:
        impatient(storage).put("b", io.BytesIO(b"1"))
    assert "\n" not in str(error.value)
    with pytest.raises(MillraceError, match="/a: "):
        impatient(storage).read("a")


def test_a_table_of_iceberg_needs_no_libhdfs(storage: HdfsStorage, tmp_path: Path) -> None:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", **{"py-io-impl": PY_IO_IMPL})
    with catalog:
        catalog.create_namespace("lake")
        table = catalog.create_table("lake.t", ROWS.schema, location=storage.uri("t/table"))
        table.append(ROWS)
        table.append(ROWS)
        assert catalog.load_table("lake.t").scan(row_filter="number >= 990").to_arrow().num_rows == 20
