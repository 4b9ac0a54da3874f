"""Trino on a published table and its branch `live`, through a Hive Metastore and through a REST catalog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.storage import open_storage
from tests.loaded import load, offsets
from tests.objects.test_publish import TOPIC as LAKE_TOPIC
from tests.objects.test_publish import describe_catalog, publish_in
from tests.peers.maven import NoMaven
from tests.peers.metastore import Metastore
from tests.peers.seaweedfs import BUCKET, KEY, REGION, SECRET, SeaweedFS
from tests.peers.trino import JAVA_HOMES, MIN_JAVA, Trino, find_java
from tests.unit.warehouse.erase.scene import ELEVEN, MEMBERS, TEN, WITH_MEMBER, Scene, fill
from tests.unit.warehouse.memory_log import SCHEMA, SCHEMA_ID
from tests.unit.warehouse.publish.live_scenes import live
from tests.unit.warehouse.publish.publishing import H10, H11

TABLE = "metastore.millrace.pageview"
TEN_AS_SQL = "TIMESTAMP '2015-05-17 10:00:00 UTC'"
TYPE_CHANGES = {"hive.metastore.disallow.incompatible.col.type.changes": "false"}


@dataclass(frozen=True)
class Site:
    """Trino, and what it reads."""

    trino: Trino
    metastore: Metastore
    seaweedfs: SeaweedFS


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if find_java() is None:
        pytest.skip(f"no Java {MIN_JAVA} below {JAVA_HOMES}")
    folder = tmp_path_factory.mktemp
    try:
        with Metastore(folder("metastore"), TYPE_CHANGES) as metastore, SeaweedFS(folder("s3")) as seaweedfs:
            catalogs = {"metastore": of_metastore(metastore), "lake": of_rest(seaweedfs)}
            with Trino(folder("trino"), catalogs) as trino:
                yield Site(trino, metastore, seaweedfs)
    except NoMaven as error:
        pytest.skip(str(error))


def of_metastore(metastore: Metastore) -> dict[str, str]:
    return {
        "iceberg.catalog.type": "hive_metastore",
        "hive.metastore.uri": metastore.uri,
        "fs.hadoop.enabled": "true",
    }


def of_rest(seaweedfs: SeaweedFS) -> dict[str, str]:
    settings = seaweedfs.catalog_properties()
    rest = {name: settings[name] for name in ("uri", "warehouse", "prefix")}
    return {
        "iceberg.catalog.type": "rest",
        **{f"iceberg.rest-catalog.{name}": value for name, value in rest.items()},
        "iceberg.rest-catalog.security": "OAUTH2",
        "iceberg.rest-catalog.oauth2.credential": settings["credential"],
        "iceberg.rest-catalog.oauth2.server-uri": settings["oauth2-server-uri"],
        "fs.native-s3.enabled": "true",
        "s3.endpoint": seaweedfs.s3,
        "s3.region": REGION,
        "s3.path-style-access": "true",
        "s3.aws-access-key": KEY,
        "s3.aws-secret-key": SECRET,
    }


@pytest.fixture(scope="module")
def scene(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Ten o'clock published, then eleven; twelve waits, in branch `live`."""
    folder = tmp_path_factory.mktemp("warehouse")
    storage = open_storage(str(folder))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYICEBERG_CATALOG__HMS__URI", site.metastore.uri)
        catalog = connect(storage, "hms")
    with closing(catalog):
        made = Scene(folder, storage, catalog)
        made.log.schemas = {SCHEMA_ID: SCHEMA, WITH_MEMBER: MEMBERS}
        fill(made)
        made.publish(TEN)
        live(made).follow(on=True)
        made.publish(ELEVEN)
        yield made


def test_trino_reads_a_table_of_a_metastore_as_it_is_and_as_it_was(scene: Scene, site: Site) -> None:
    trino, rows = site.trino, offsets(scene.table)
    columns = scene.table.scan(selected_fields=("header", "_time", "memberId")).to_arrow().to_pylist()
    (answer,) = trino(f"SELECT count(*), min(_offset), max(_offset), count(memberId) FROM {TABLE}")
    members = sum(row["memberId"] is not None for row in columns)
    assert answer == [len(rows), rows[0], rows[-1], members]
    (answer,) = trino(f"SELECT to_unixtime(min(header.time)), to_unixtime(max(_time)) FROM {TABLE}")
    times = min(row["header"]["time"] for row in columns), max(row["_time"] for row in columns)
    assert answer == pytest.approx([time.timestamp() for time in times])
    of_ten = trino(f"SELECT count(*) FROM {TABLE} WHERE date_trunc('hour', _time) = {TEN_AS_SQL}")
    first, *_ = sorted(scene.table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    assert of_ten == trino(f"SELECT count(*) FROM {TABLE} FOR VERSION AS OF {first.snapshot_id}")
    when = f"from_unixtime_nanos({first.timestamp_ms + 1}000000)"
    assert of_ten == trino(f"SELECT count(*) FROM {TABLE} FOR TIMESTAMP AS OF {when}")
    assert 0 < of_ten[0][0] < len(rows)


def test_trino_reads_the_hours_and_the_branch_live(scene: Scene, site: Site) -> None:
    trino, rows = site.trino, len(offsets(scene.table))
    hours = trino(f"SELECT publication, kind, added - removed FROM {TABLE.replace('view', 'view_hours')}")
    assert sum(change for *_, change in hours) == rows
    shown = scene.table.scan().use_ref(LIVE).to_arrow().num_rows
    assert trino(f"SELECT count(*) FROM {TABLE} FOR VERSION AS OF '{LIVE}'") == [[shown]]
    assert shown > rows


def test_trino_reads_a_table_of_a_rest_catalog_in_an_object_store(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in site.seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    describe_catalog(site.seaweedfs, monkeypatch)
    storage = open_storage(f"s3://{BUCKET}/warehouse")
    load(storage, LAKE_TOPIC, {H10: 3, H11: 2})
    with closing(connect(storage, "lake")) as catalog:
        publish_in(storage, catalog, H10, H11)
    table = f"lake.millrace.{LAKE_TOPIC}"
    assert site.trino(f"SELECT count(*), min(_offset), max(_offset) FROM {table}") == [[5, 0, 4]]
    assert site.trino(f"SELECT sum(added) FROM {table}_hours") == [[5]]
