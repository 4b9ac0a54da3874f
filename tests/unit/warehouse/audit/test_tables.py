"""Reports of the warehouse's reader on a published table: the rows any reader gets now, hour by hour."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.messages import UnkeyedRows
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_warehouse.audit.loads import Loads
from millrace_warehouse.audit.read_back import read_back
from millrace_warehouse.audit.tables import PublishedTable, TableHour
from millrace_warehouse.context import Context
from millrace_warehouse.history.layout import Topic, audited_table_path, load_numbers, read_edition
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.history.schemas import pinned, with_layout
from millrace_warehouse.history.stored import sequences_of
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import reload_topic
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.publish.committer import branch_files
from millrace_warehouse.publish.compact import compact_topic
from millrace_warehouse.requests import Compact
from millrace_warehouse.storage import open_storage
from millrace_warehouse.storage.interface import Storage
from tests.loaded import compact_as_others_do
from tests.unit.warehouse.memory_log import HOUR, START, MemoryLog, event, load_run
from tests.unit.warehouse.mended import Mended, moved_event
from tests.unit.warehouse.publish.publishing import H10, H11, H12, TOPIC, publish_in


@dataclass
class Scene:
    """A warehouse of real loads, its table, and a reader that tells."""

    mended: Mended
    storage: Storage
    catalog: Catalog
    loads: Loads
    table: PublishedTable

    def load(self, *times_ms: int) -> None:
        self.mended.log.append_events(0, times_ms)
        self.mended.load()

    def tell(self) -> dict[str, int]:
        """Hour -> sequences of each that are told now, loads before tables as a reader does it."""
        return {found.hour: found.counts.total for found in self.to_report()}

    def to_report(self) -> list[TableHour]:
        for manifest in self.loads.to_report():
            found = read_back(self.storage, manifest)
            self.loads.add_report(manifest, found.counts, found.unkeyed)
        return list(self.table.to_report(self.catalog, self.loads))

    def publish(self, *hours: str, **settings: Any) -> None:
        publish_in(self.storage, self.catalog, *hours, **settings)

    @property
    def iceberg(self) -> Any:
        return self.catalog.load_table(table_identifier(TOPIC))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    storage = open_storage(str(tmp_path))
    with connect(storage) as catalog:
        mended = Mended(tmp_path)
        scene = Scene(mended, storage, catalog, Loads(mended.topic), PublishedTable(mended.topic))
        scene.load(START, START + 1, START + HOUR)
        yield scene


def test_an_hour_is_told_once_it_is_published_and_again_when_its_files_change(scene: Scene) -> None:
    assert scene.tell() == {}, "there is no table yet"
    scene.publish(H10)
    (found,) = scene.to_report()
    assert (found.hour, found.windows) == (H10, [START + n * 600_000 for n in range(6)])
    stated = sequences_of(scene.storage, read_edition(scene.mended.topic, 1, 1))
    expected = SequenceCounts()
    expected.tallies = {key: tally for key, tally in stated.tallies.items() if key.window < START + HOUR}
    assert found.counts == expected
    assert scene.tell() == {}
    scene.load(START + 5)
    scene.publish(H11)
    assert scene.tell() == {H10: 3, H11: 1}, "a late row reaches a published hour with every publication"
    context = Context(storage=scene.storage, catalog=scene.catalog)
    request = Compact(topics=[TOPIC], warehouse=scene.storage.root, quiet_s=0.0, small_files=1)
    assert compact_topic(context, request, TOPIC).hours
    assert scene.tell() == {H10: 3}, "other files, the same rows"
    reported = json.loads(scene.storage.read(audited_table_path(scene.mended.topic.name)))
    assert reported.keys() == {H10, H11}
    assert list(PublishedTable(scene.mended.topic).to_report(scene.catalog, scene.loads)) == []


def test_a_table_of_several_layouts_is_told_as_one(scene: Scene) -> None:
    scene.publish(H10, H11)
    assert scene.tell() == {H10: 2, H11: 1}
    now = pinned(scene.mended.topic)
    assert now is not None
    with_layout(scene.mended.topic, now, ["header.server", "bucket(2, header.sequence)"], ["url DESC"])
    scene.load(*(START + n for n in range(2, 8)), START + HOUR + 1)
    scene.publish()
    assert {len(file.partition) for file in branch_files(scene.iceberg)} == {1, 3}
    assert scene.tell() == {H10: 8, H11: 2}
    context = Context(storage=scene.storage, catalog=scene.catalog)
    request = Compact(topics=[TOPIC], warehouse=scene.storage.root, quiet_s=0.0, small_files=1)
    assert compact_topic(context, request, TOPIC).hours
    assert {len(file.partition) for file in branch_files(scene.iceberg)} == {3}
    assert scene.tell() == {H10: 8, H11: 2}


def test_an_hour_waits_for_the_publication_that_brings_it_what_was_loaded_late(scene: Scene) -> None:
    scene.publish(H10, H11)
    scene.load(START + 5)
    assert scene.tell() == {H11: 1}, "late rows of the other hour are loaded and not published"
    scene.publish()
    assert scene.tell() == {H10: 3}


def test_a_table_that_is_ahead_of_what_was_told_waits(scene: Scene) -> None:
    scene.publish(H10)
    assert list(scene.table.to_report(scene.catalog, scene.loads)) == []
    assert scene.tell() == {H10: 2}


def test_what_another_program_makes_of_an_hour_is_told(scene: Scene) -> None:
    scene.publish(H10, H11)
    (before, _) = scene.to_report()
    compact_as_others_do(scene.storage, scene.iceberg, TOPIC, H10)
    (same,) = scene.to_report()
    assert same.counts == before.counts
    compact_as_others_do(scene.storage, scene.iceberg, TOPIC, H10, lambda rows: rows.slice(1))
    assert scene.tell() == {H10: 1}
    double = partial(compact_as_others_do, scene.storage, scene.iceberg, TOPIC, H10)
    double(lambda rows: pa.concat_tables([rows] * 5))
    (five,) = scene.to_report()
    (tally,) = five.counts.tallies.values()
    assert (tally.total, tally.present.pairs()) == (5, [[1, 1]])
    scene.iceberg.delete(AlwaysTrue())
    assert scene.tell() == {H10: 0, H11: 0}, "an hour without files is told, too"


def test_a_table_that_another_program_has_made_without_hours_is_named(scene: Scene) -> None:
    scene.publish(H10, H11)
    scene.to_report()
    rows = scene.iceberg.scan().to_arrow()
    with scene.iceberg.update_spec() as update:
        update.remove_field("_time_hour")
    scene.iceberg.overwrite(rows)
    with pytest.raises(
        MillraceError, match=r"has a file that is not of one hour, .* publish TOPIC --rebuild"
    ):
        scene.to_report()


def test_a_re_load_is_told_of_the_table_once_it_is_published(tmp_path: Path) -> None:
    mended = Mended(tmp_path)
    mended.log.append(0, [event(0, START), event(1, START), moved_event(2, START, START + 2 * HOUR)])
    mended.load()
    storage = mended.storage()
    with connect(storage) as catalog:
        scene = Scene(mended, storage, catalog, Loads(mended.topic), PublishedTable(mended.topic))
        scene.publish(H10, H12)
        before = scene.tell()
        mended.fixed = True
        reload_topic(mended.reload_run(), TOPIC, [1])
        assert scene.tell() == {}, "the table has the rows of the edition before"
        scene.publish()
        after = scene.tell()
        assert sum(before.values()) == sum({**before, **after}.values()) == 3
        assert {H10, H12} >= after.keys() != set()


def test_a_file_of_the_table_that_is_gone_is_named_and_nothing_is_told_of_its_hour(scene: Scene) -> None:
    scene.publish(H10)
    (load,) = load_numbers(scene.mended.topic)
    manifest: LoadManifest = read_edition(scene.mended.topic, load, 1)
    for m in scene.loads.to_report():
        found = read_back(scene.storage, m)
        scene.loads.add_report(m, found.counts, found.unkeyed)
    for file in manifest.files:
        scene.storage.delete(f"{TOPIC}/{file.path}")
    with pytest.raises(MillraceError, match=r"millrace\.PageView cannot be read in 2015-05-17T10"):
        scene.tell()


def test_without_what_was_written_down_every_hour_is_told_again(scene: Scene) -> None:
    scene.publish(H10, H11)
    told = scene.tell()
    scene.storage.delete(audited_table_path(TOPIC))
    scene.table = PublishedTable(scene.mended.topic)
    assert scene.tell() == told
    scene.table = PublishedTable(scene.mended.topic)
    assert scene.tell() == {}
    scene.table = PublishedTable(scene.mended.topic, again=True)
    assert scene.tell() == told
    assert scene.tell() == {}


def test_a_table_that_is_dropped_is_told_to_be_gone(scene: Scene) -> None:
    scene.publish(H10)
    assert scene.tell() == {H10: 2}
    assert scene.table.exists
    scene.catalog.drop_table(table_identifier(TOPIC))
    assert scene.tell() == {}
    assert not scene.table.exists


def test_rows_in_the_partition_of_another_hour_are_told_with_their_own_hour(scene: Scene) -> None:
    scene.publish(H10, H11)
    assert scene.tell() == {H10: 2, H11: 1}
    (eleven,) = [t.file for t in scene.iceberg.scan().plan_files() if t.file.partition[0] % 24 == 11]
    with scene.iceberg.io.new_input(eleven.file_path).open() as content:
        more = pq.read_table(io.BytesIO(content.read()))
    both = partial(pa.concat_tables, promote_options="permissive")
    compact_as_others_do(scene.storage, scene.iceberg, TOPIC, H10, lambda rows: both([rows, more]))
    assert scene.tell() == {H10: 2, H11: 2}, "the row of the later hour is there twice"
    assert scene.tell() == {}
    scene.table = PublishedTable(scene.mended.topic)
    assert scene.tell() == {H10: 2, H11: 2}, "a reader that comes after looks again"
    compact_as_others_do(scene.storage, scene.iceberg, TOPIC, H10, lambda rows: rows.slice(0, 2))
    assert scene.tell() == {H10: 2, H11: 1}


def test_rows_without_a_header_in_an_hours_partition_are_told(scene: Scene) -> None:
    scene.publish(H10)
    (before,) = scene.to_report()
    assert before.unkeyed == {}

    def with_two_more(rows: pa.Table) -> pa.Table:
        index = rows.column_names.index("header")
        field = rows.schema.field(index)
        extra = rows.slice(0, 1).set_column(index, field, pa.nulls(1, field.type))
        return pa.concat_tables([rows, extra, extra], promote_options="permissive")

    compact_as_others_do(scene.storage, scene.iceberg, TOPIC, H10, with_two_more)
    (after,) = scene.to_report()
    assert (after.counts, after.unkeyed) == (before.counts, {START: 2})


def test_a_table_whose_rows_have_no_header_is_told_by_the_time_of_their_records(tmp_path: Path) -> None:
    log = MemoryLog(1)
    log.schemas = {5: {"type": "record", "name": "Plain", "fields": [{"name": "url", "type": "string"}]}}
    log.append(0, [Message(START + at, None, b"\0\0\0\0\5\2/") for at in (0, 1, HOUR)])
    load_topic(load_run(log, tmp_path), TOPIC)
    storage = open_storage(str(tmp_path))
    with connect(storage) as catalog:
        loads, table = Loads(Topic(storage, TOPIC)), PublishedTable(Topic(storage, TOPIC))
        for manifest in loads.to_report():
            found = read_back(storage, manifest)
            (told,) = loads.records(manifest, found.counts, found)
            assert told.unkeyed == [UnkeyedRows(START, 2), UnkeyedRows(START + HOUR, 1)]
            loads.add_report(manifest, found.counts, found.unkeyed)
        publish_in(storage, catalog, H10, H11)
        assert [(hour.hour, hour.unkeyed) for hour in table.to_report(catalog, loads)] == [
            (H10, {START: 2}),
            (H11, {START + HOUR: 1}),
        ]


@pytest.mark.parametrize("time", [-62_135_596_800_000, 1 << 62])
def test_a_row_whose_record_header_has_a_time_that_no_producer_sends_is_in_no_window(
    tmp_path: Path, time: int
) -> None:
    log = MemoryLog(1)
    log.schemas = {5: {"type": "record", "name": "Plain", "fields": [{"name": "url", "type": "string"}]}}
    headers = [encode_header(topic_tag(TOPIC), 7, number, at) for number, at in enumerate((START, time))]
    log.append(0, [Message(START, None, b"\0\0\0\0\5\2/", [(HEADER_NAME, header)]) for header in headers])
    load_topic(load_run(log, tmp_path), TOPIC)
    storage = open_storage(str(tmp_path))
    (manifest,) = Loads(Topic(storage, TOPIC)).to_report()
    found = read_back(storage, manifest)
    assert (manifest.rows, found.unkeyed, found.counts.total) == (2, {}, 1)
