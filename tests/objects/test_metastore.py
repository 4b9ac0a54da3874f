"""Tables in a Hive Metastore of each release: a table's life, a killed metastore, locks, refusals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import ShowLocksRequest, UnlockRequest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField

from millrace_warehouse.publish import hive
from millrace_warehouse.publish.catalog import CatalogError, connect, table_identifier
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.storage import open_storage
from tests.loaded import AVRO, load, offsets, pin
from tests.peers.maven import NoMaven
from tests.peers.metastore import Metastore
from tests.published import TOPIC
from tests.support import child
from tests.unit.warehouse.erase.scene import (
    ELEVEN,
    MEMBER,
    MEMBERS,
    OTHER,
    TEN,
    TWELVE,
    WITH_MEMBER,
    Scene,
    fill,
    holding,
)
from tests.unit.warehouse.memory_log import SCHEMA, SCHEMA_ID
from tests.unit.warehouse.publish.live_scenes import live
from tests.unit.warehouse.publish.test_live import live_offsets

TYPE_CHANGES = "hive.metastore.disallow.incompatible.col.type.changes"
CASES = [("2.3", False), ("2.3", True), ("3.1", True), ("4.0", True)]
"""Release, and whether commits take its locks. Without: 3.1 compares nothing, 4.0 cannot on Derby."""
WITHOUT_LOCKS = [("2.3", False)]
DEAD_WRITERS = {
    "metastore.txn.timeout": "30s",
    "metastore.timedout.txn.reaper.interval": "2s",
    "metastore.housekeeping.threads.on": "true",
}
"""Settings by which a metastore soon ends the locks of dead writers."""
in_metastores = pytest.mark.parametrize(("metastore", "locks"), CASES, indirect=True)


@pytest.fixture(scope="module")
def metastores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Metastore]]:
    """The running metastore of a release, started at the first request."""
    running: dict[str, Metastore] = {}

    def of(release: str) -> Metastore:
        if release not in running:
            needed = {TYPE_CHANGES: "false"} if release == "2.3" else DEAD_WRITERS
            folder = tmp_path_factory.mktemp(f"metastore-{release}")
            try:
                running[release] = Metastore(folder, needed, release)
            except NoMaven as error:
                pytest.skip(str(error))
        return running[release]

    yield of
    for metastore in running.values():
        metastore.close()


@pytest.fixture
def metastore(request: pytest.FixtureRequest, metastores: Callable[[str], Metastore]) -> Metastore:
    return metastores(request.param)


@pytest.fixture
def locks(request: pytest.FixtureRequest) -> bool:
    """True if commits take the metastore's locks."""
    return bool(request.param)


@pytest.fixture
def scene(
    metastore: Metastore, locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """A warehouse of a log in memory, with a database of its own that does not exist yet."""
    monkeypatch.setattr("millrace_warehouse.publish.catalog.NAMESPACE", f"m{uuid4().hex[:8]}")
    monkeypatch.setenv("PYICEBERG_CATALOG__HMS__URI", metastore.uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__HMS__ENGINE__HIVE__LOCK_ENABLED", str(locks).lower())
    with closing(connect(open_storage(str(tmp_path)), "hms")) as catalog:
        made = Scene(tmp_path, open_storage(str(tmp_path)), catalog)
        made.log.schemas = {SCHEMA_ID: SCHEMA, WITH_MEMBER: MEMBERS}
        yield made


@in_metastores
def test_a_table_is_published_amended_compacted_erased_and_proven(scene: Scene, metastore: Metastore) -> None:
    fill(scene)
    scene.publish(TEN)
    live(scene).follow(on=True)
    scene.send(OTHER, hour=1)
    scene.load_new()
    live(scene).follow()
    assert len(live_offsets(scene.table)) > len(offsets(scene.table))
    scene.publish(TEN, ELEVEN, TWELVE)
    before = offsets(scene.table)
    assert live_offsets(scene.table) == before
    scene.compact()
    assert offsets(scene.table) == before
    members = scene.members()
    assert scene.erase().rows == members.count(MEMBER) > 0
    assert scene.members() == [member for member in members if member != MEMBER]
    assert not [path for path in holding(scene.folder, MEMBER) if "erasures" not in path]
    assert scene.problems(rows=True) == []
    if metastore.release == "4.0":  # pyiceberg alone cannot read its tables
        return
    with closing(load_catalog("other", type="hive", uri=metastore.uri)) as other:
        assert offsets(other.load_table(table_identifier(TOPIC))) == offsets(scene.table)
        hours = other.load_table(hours_identifier(TOPIC)).scan().to_arrow()
    assert sum(hours["added"].to_pylist()) - sum(hours["removed"].to_pylist()) == len(scene.members())


@in_metastores
def test_a_new_field_inside_a_record_reaches_the_table(scene: Scene) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "b", "type": "string"}]}
    more = {**inner, "fields": [{"name": "c", "type": ["null", "long"], "default": None}, *inner["fields"]]}
    pin(scene.storage, TOPIC, {**AVRO, "fields": [{"name": "a", "type": inner}, *AVRO["fields"]]})
    scene.load({TEN: 1})
    scene.publish(TEN)
    record = pin(scene.storage, TOPIC, {**AVRO, "fields": [{"name": "a", "type": more}, *AVRO["fields"]]})
    load(scene.storage, TOPIC, {ELEVEN: 1})
    scene.publish(ELEVEN)
    assert scene.table.schema().as_struct() == record.schema.as_struct()
    assert len(offsets(scene.table)) == 2


@pytest.mark.parametrize(("metastore", "locks"), WITHOUT_LOCKS, indirect=True)
@pytest.mark.parametrize("lands", [True, False])
def test_a_metastore_killed_in_the_middle_of_a_commit_gets_each_row_once(
    scene: Scene, metastore: Metastore, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    scene.load({TEN: 3})
    scene.publish(TEN)
    scene.load({TEN: 2})
    monkeypatch.setattr("millrace_warehouse.publish.catalog.TRIES", 2)
    client = hive._Requests
    real, killed = client.alter_table_with_environment_context, list[bool]()

    def alter(*arguments: Any, **options: Any) -> None:
        if not killed and lands:
            real(*arguments, **options)
        if not killed:
            killed.append(True)
            metastore.kill()
        real(*arguments, **options)

    monkeypatch.setattr(client, "alter_table_with_environment_context", alter)
    with pytest.raises(CatalogError, match=r"whether .* took a commit is not known"):
        scene.publish()
    metastore.start()
    assert scene.publish().published or lands
    assert offsets(scene.table) == list(range(5))
    assert scene.problems(rows=True) == []


def end_locks(metastore: Metastore) -> None:
    """End every lock that a writer holds, as Hive ends those of dead writers."""
    with hive._Client(metastore.uri) as client:
        for lock in client.show_locks(ShowLocksRequest()).locks:
            if lock.acquiredat:
                client.unlock(UnlockRequest(lock.lockid))


def before_the_change(monkeypatch: pytest.MonkeyPatch, catalog: Any, work: Callable[[], object]) -> None:
    """Do some work once, between the look of a commit and its change."""
    real, done = catalog._write_metadata, list[bool]()

    def write_metadata(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        if not done:
            done.append(True)
            work()

    monkeypatch.setattr(catalog, "_write_metadata", write_metadata)


@in_metastores
def test_of_two_commits_between_look_and_change_one_is_made_even_if_the_lock_has_ended(
    scene: Scene, metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.load({TEN: 3})
    scene.publish(TEN)
    scene.load({TEN: 2})

    def publish_another() -> None:
        end_locks(metastore)
        with connect(scene.storage, "hms") as other:
            assert Scene(scene.folder, scene.storage, other).publish().published

    before_the_change(monkeypatch, scene.catalog, publish_another)
    assert not scene.publish().published
    assert offsets(scene.table) == list(range(5))
    assert scene.problems(rows=True) == []


@in_metastores
def test_a_lost_race_is_a_conflict_and_no_refusal_also_of_a_table_named_permissions(
    scene: Scene, metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = (table_identifier(TOPIC)[0], "permissions")
    scene.catalog.create_namespace(name[0])
    schema = Schema(NestedField(1, "a", LongType()))
    table = scene.catalog.create_table(name, schema, f"{scene.folder}/{name[1]}")

    def change_another() -> None:
        end_locks(metastore)
        with connect(scene.storage, "hms") as other:
            other.load_table(name).transaction().set_properties(by="another").commit_transaction()

    before_the_change(monkeypatch, scene.catalog, change_another)
    with pytest.raises(CommitFailedException):
        scene.catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"by": "this one"}),))
    assert scene.catalog.load_table(name).properties["by"] == "another"


@pytest.mark.parametrize(("metastore", "locks"), [("2.3", True), ("2.3", False)], indirect=True)
def test_the_metastore_gets_the_configured_user_with_locks_and_without(
    metastore: Metastore, locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, ...]] = []
    real = Client.set_ugi

    def set_ugi(client: Any, *user: str) -> Any:
        sent.append(user)
        return real(client, *user)

    monkeypatch.setattr(Client, "set_ugi", set_ugi)
    settings = {"uri": metastore.uri, "ugi": "loader:events", "engine.hive.lock-enabled": str(locks)}
    with closing(hive.HiveCatalog("hms", **settings)) as catalog:
        assert ("default",) in catalog.list_namespaces()
    assert sent == [("loader", "events")]


@pytest.mark.parametrize(("metastore", "locks"), [("2.3", True)], indirect=True)
def test_a_refused_change_of_a_type_names_the_setting_at_once(
    scene: Scene, metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(scene)
    monkeypatch.setattr("millrace_warehouse.races.LONGEST_PAUSE_S", 60.0)
    metastore.kill()
    metastore.settings[TYPE_CHANGES] = "true"
    metastore.start()
    with pytest.raises(CatalogError, match=rf"refuses .*set {TYPE_CHANGES}=false in the metastore"):
        scene.publish(TEN)
    metastore.kill()
    metastore.settings[TYPE_CHANGES] = "false"
    metastore.start()
    scene.publish(TEN)
    assert scene.problems(rows=True) == []


@pytest.mark.parametrize(("metastore", "locks"), [("3.1", True), ("4.0", True)], indirect=True)
def test_a_publish_waits_for_the_lock_of_a_killed_one_for_a_bounded_time_and_goes_on_once_the_lock_has_ended(
    scene: Scene, metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.load({TEN: 3})
    scene.publish(TEN)
    scene.load({TEN: 2})

    def killed_with_its_lock() -> None:
        with connect(scene.storage, "hms") as catalog:
            monkeypatch.setattr(catalog, "_write_metadata", lambda **_: os.kill(os.getpid(), signal.SIGKILL))
            Scene(scene.folder, scene.storage, catalog).publish()

    assert child(killed_with_its_lock) == -signal.SIGKILL
    with monkeypatch.context() as impatient:
        impatient.setattr(scene.catalog, "_lock_check_retries", 2)
        with pytest.raises(CatalogError, match="keeps the metastore's lock: wait for its end"):
            scene.publish()
    if metastore.release == "3.1":  # without the rest of Hive it ends no lock by itself
        threading.Timer(5, end_locks, [metastore]).start()
    assert scene.publish().published
    assert offsets(scene.table) == list(range(5))
    assert scene.problems(rows=True) == []
