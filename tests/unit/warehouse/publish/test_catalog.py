"""The catalog that a warehouse gets, and catalogs refused before anything is written."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.publish import catalog as module
from millrace_warehouse.publish import rest
from millrace_warehouse.publish.catalog import CatalogError, connect, load_table, table_identifier
from millrace_warehouse.storage import open_storage
from millrace_warehouse.storage.interface import Storage

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:44 / {nfs} rw,relatime shared:20 - nfs4 server:/export rw,vers=4.2
41 22 0:45 / {spaces} rw - fuse.sshfs host:/ rw
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    spaces = str(tmp_path / "a b").replace(" ", "\\040")
    (tmp_path / "mountinfo").write_text(MOUNTS.format(nfs=tmp_path / "nfs", spaces=spaces))
    monkeypatch.setattr(module, "MOUNTS", tmp_path / "mountinfo")
    return tmp_path


@pytest.mark.parametrize(("folder", "type_"), [("nfs/w", "nfs4"), ("a b/w", "fuse.sshfs")])
def test_sqlite_on_a_network_file_system_is_refused(mounts: Path, folder: str, type_: str) -> None:
    (mounts / folder).mkdir(parents=True)
    with pytest.raises(MillraceError, match=f"would lie on {type_}, where SQLite's locks do not hold"):
        connect(open_storage(str(mounts / folder)))
    assert not list((mounts / folder).iterdir())


def test_a_named_sqlite_catalog_on_a_network_file_system_is_refused_too(
    mounts: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mounts / "nfs").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{mounts}/nfs/catalog.db")
    with pytest.raises(MillraceError, match="would lie on nfs4"):
        connect(storage, "lake")


def test_a_local_disk_beside_a_network_file_system_is_taken(mounts: Path) -> None:
    (mounts / "nfs2").mkdir()
    with connect(open_storage(str(mounts / "nfs2"))) as catalog:
        assert catalog.list_namespaces() == []


@pytest.mark.parametrize("name", ["", "lake"])
def test_an_open_catalog_sees_the_file_that_was_put_in_place_of_its_own(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = Path(storage.root.removeprefix("file://")) / "catalog.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{file}")
    with connect(storage, name) as catalog:
        catalog.create_namespace("older")
        shutil.copy(file, tmp_path / "copy")
        catalog.create_namespace("newer")
        (tmp_path / "copy").replace(file)
        assert catalog.list_namespaces() == [("older",)]
        catalog.create_namespace("since")
    with connect(storage, name) as catalog:
        assert sorted(catalog.list_namespaces()) == [("older",), ("since",)]


def test_a_named_catalog_is_the_one_that_pyiceberg_is_told_of(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/other.db")
    with connect(storage, "lake") as catalog:
        assert catalog.name == "lake"
    assert (tmp_path / "other.db").exists()
    with pytest.raises(ConfigError, match="pyiceberg knows no catalog 'other'"):
        connect(storage, "other")


def test_a_rest_catalog_that_stands_still_is_not_waited_for_without_end(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "ANSWER_S", 0.2)
    monkeypatch.setattr(module, "TRIES", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        unstuck = threading.Timer(20, silent.shutdown, [socket.SHUT_RDWR])
        unstuck.start()
        begun = time.monotonic()
        with pytest.raises(CatalogError, match=r"does not answer \(.*Timeout"):
            connect(storage, "lake")
        assert time.monotonic() - begun < 20
        unstuck.cancel()


@pytest.mark.parametrize("settings", [{}, {"TYPE": "hive", "HIVE__KERBEROS_AUTHENTICATION": "true"}])
def test_a_missing_client_of_a_metastore_is_named_with_the_command_that_installs_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    monkeypatch.delitem(sys.modules, "millrace_warehouse.publish.hive", raising=False)
    monkeypatch.setitem(sys.modules, "thrift.transport.TSocket", None)
    for name, value in {"URI": "thrift://127.0.0.1:1", **settings}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    extra = r"hive-kerberos\]" if settings else r"hive\]"
    with pytest.raises(ConfigError, match=rf"thrift is not installed; run pip install 'pyiceberg\[{extra}'"):
        connect(storage, "lake")


def test_a_metastore_that_stands_still_is_not_waited_for_without_end(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_warehouse.publish.hive.ANSWER_S", 0.2)
    monkeypatch.setattr(module, "TRIES", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"thrift://127.0.0.1:{silent.getsockname()[1]}")
        unstuck = threading.Timer(20, silent.shutdown, [socket.SHUT_RDWR])
        unstuck.start()
        begun = time.monotonic()
        with connect(storage, "lake") as catalog, pytest.raises(CatalogError, match=r"does not answer \(T"):
            load_table(catalog, table_identifier("PageView"))
        assert time.monotonic() - begun < 20
        unstuck.cancel()


def test_a_warehouse_that_is_not_there_gets_no_catalog(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no warehouse at"):
        connect(open_storage(str(tmp_path / "nowhere")))
    assert not (tmp_path / "nowhere").exists()


def test_the_catalog_of_a_warehouse_is_made_once(storage: Storage, catalog: Catalog) -> None:
    catalog.create_namespace("seen")
    with connect(storage) as again:
        assert again.list_namespaces() == [("seen",)]


def test_a_table_has_the_topics_name_in_the_letters_that_sql_takes() -> None:
    assert table_identifier("eu.page-views") == ("millrace", "eu_page_views")
