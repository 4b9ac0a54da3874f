"""Compaction, expiry and verification of a table in an object store, through a REST catalog."""

from __future__ import annotations

import time

from millrace_warehouse.context import Context
from millrace_warehouse.publish.compact import compact_topic
from millrace_warehouse.publish.expire import expire_topic
from millrace_warehouse.requests import Compact, Expire
from millrace_warehouse.storage import Storage
from millrace_warehouse.verify import VerifyRun, verify
from tests.loaded import load, offsets, read_again
from tests.objects.test_publish import TOPIC, Lake, lake, publish_in, table_of
from tests.unit.warehouse.publish.publishing import H10, H11

__all__ = ["lake"]


def problems(storage: Storage, lake: Lake) -> list[str]:
    (report,) = verify(VerifyRun(storage=storage, catalog=lake.catalog, rows=True), TOPIC)
    return report.problems


def test_a_table_is_compacted_expired_and_proven_in_an_object_store(lake: Lake) -> None:
    storage, catalog = lake.storage, lake.catalog
    for _ in range(3):
        load(storage, TOPIC, {H10: 2, H11: 1})
    publish_in(storage, catalog, H10, H11)
    read_again(storage, TOPIC, 2, {H10: 3})
    publish_in(storage, catalog)
    rows = offsets(table_of(catalog))
    assert problems(storage, lake) == []
    context = Context(storage=storage, catalog=catalog, clock=lambda: time.time() + 10 * 24 * 3600)
    request = Compact(topics=[TOPIC], warehouse=storage.root, quiet_s=0.0, small_files=1)
    assert [hour.files_after for hour in compact_topic(context, request, TOPIC).hours] == [1, 1]
    table = table_of(catalog)
    head = table.current_snapshot()
    old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot != head]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    before = len(storage.files(f"{TOPIC}/rows"))
    expired = expire_topic(
        context, Expire(topic=TOPIC, warehouse=storage.root, older_than_s=0.0, reader_grace_s=0.0)
    )
    assert expired.data_files == 7
    assert len(storage.files(f"{TOPIC}/rows")) == before - 7
    assert offsets(table_of(catalog)) == rows
    assert problems(storage, lake) == []


def test_a_file_of_the_table_that_is_deleted_from_the_store_is_named(lake: Lake) -> None:
    manifest = load(lake.storage, TOPIC, {H10: 2})
    publish_in(lake.storage, lake.catalog, H10)
    lake.storage.delete(f"{TOPIC}/{manifest.files[0].path}")
    assert any("is missing: 2 rows are gone" in problem for problem in problems(lake.storage, lake))
