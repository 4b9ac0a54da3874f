"""Events with the audit header as a record header, in a table that also has events with it in the value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millrace.records import Message
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_warehouse.audit.read_back import read_back
from millrace_warehouse.history import layout, schemas
from millrace_warehouse.history.stored import sequences_of
from tests.unit.warehouse.erase import scene as scenes
from tests.unit.warehouse.erase.scene import MEMBER, MEMBERS, OTHER, TEN, WITH_MEMBER, Scene
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, event
from tests.unit.warehouse.record_headers import INSTANCE, earlier_version, with_header

LATER_MS = WINDOW_MS
"""Difference between a record header's time and the time in the event's value."""


def send(scene: Scene, *members: int, first: int = 0, topic: str = TOPIC) -> None:
    """Send an event for each member in one batch, numbered from `first` on by its record header."""
    sent = []
    for n, member in enumerate(members, first):
        message = event(scene.log.sequence, START, schema=(WITH_MEMBER, MEMBERS), memberId=member)
        sent.append(with_header(message, topic, n, START + LATER_MS))
        scene.log.sequence += 1
    scene.log.append(0, sent)


def of_header(first: int, last: int) -> SequenceCounts:
    counts = SequenceCounts()
    counts.add("", "", INSTANCE, START + LATER_MS, first, last)
    return counts


def counted(scene: Scene, load: int, edition: int = 1) -> SequenceCounts:
    """Return the counts of a load's manifest, which are those of its files."""
    manifest = layout.read_edition(scene.stored, load, edition)
    stated = sequences_of(scene.storage, manifest)
    found = read_back(scene.storage, manifest)
    assert (found.counts, found.bad) == (stated, [])
    return stated


def table_rows(scene: Scene) -> list[dict[str, Any]]:
    """Return the rows with a record header that a reader of the table gets."""
    rows = scene.table.scan().to_arrow().to_pylist()
    return sorted((row for row in rows if row["_instance"] is not None), key=lambda row: row["_sequence"])


def load_as_earlier(scene: Scene) -> None:
    """Make the first load as an earlier version does: without the columns of record headers."""
    with earlier_version():
        scene.load_new()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Scene]:
    """A scene without a load."""
    yield from scenes.scene(tmp_path / "w")


def test_a_record_header_counts_before_the_header_in_the_value(empty: Scene) -> None:
    send(empty, OTHER, MEMBER)
    send(empty, OTHER, first=2, topic="Another")
    empty.send(OTHER)
    empty.load_new()
    counts = of_header(0, 1)
    counts.add("web1", "web", 1, START, 2, 3)
    assert counted(empty, 1) == counts
    empty.publish(proven=True)
    assert [(row["_sequence"], row["_instance"], row["_offset"] >= 0) for row in table_rows(empty)] == [
        (0, INSTANCE, True),
        (1, INSTANCE, True),
    ]
    assert {row["_time"].timestamp() * 1000 for row in table_rows(empty)} == {START + LATER_MS}
    assert empty.problems(rows=True) == []


def test_a_table_of_an_earlier_version_gets_the_columns_of_record_headers(empty: Scene) -> None:
    empty.send(OTHER, times=3)
    empty.send(MEMBER)
    load_as_earlier(empty)
    (old,) = schemas.all_schemas(empty.stored)
    assert schemas.check_follows(old, None) == []
    assert schemas.avro_schema(old, empty.log.schemas.get) == MEMBERS
    old_names = old.arrow_schema.names
    assert not {"_instance", "_sequence"} & {*old_names}
    assert set(_names(empty, 1)) == set(old_names)
    empty.publish(proven=True)
    assert [field.name for field in empty.table.schema().fields] == old_names

    send(empty, OTHER, MEMBER, OTHER)
    empty.load_new()
    first, second = schemas.all_schemas(empty.stored)
    assert (second.schema_id, second.previous_schema_id) == (WITH_MEMBER, WITH_MEMBER)
    assert schemas.check_follows(second, first) == []
    last = first.last_column_id
    assert [second.schema.find_field(name).field_id for name in ("_instance", "_sequence")] == [
        last + 1,
        last + 2,
    ]
    assert counted(empty, 2) == of_header(0, 2)

    empty.publish(proven=True)
    assert [row["_sequence"] for row in table_rows(empty)] == [0, 1, 2]
    table = empty.table.schema()
    assert [table.find_field(field.name).field_id for field in second.schema.fields] == [
        field.field_id for field in second.schema.fields
    ]
    assert empty.problems(rows=True) == []
    compacted = empty.compact()
    assert [hour.rows for hour in compacted.hours] == [7], compacted
    assert [row["_sequence"] for row in table_rows(empty)] == [0, 1, 2]
    assert empty.problems(rows=True) == []

    empty.erase()
    assert counted(empty, 2, 2) == of_header(0, 2).without(of_header(1, 1))
    empty.publish(proven=True)
    assert [row["_sequence"] for row in table_rows(empty)] == [0, 2]
    assert empty.problems(rows=True) == []

    empty.reload(1, 2)
    assert set(_names(empty, 1)) >= {"_instance", "_sequence"}
    empty.publish(proven=True)
    assert [row["_sequence"] for row in table_rows(empty)] == [0, 2]
    assert empty.problems(rows=True) == []
    assert len(schemas.all_schemas(empty.stored)) == 2


def test_a_tombstone_that_is_a_row_is_counted_by_its_record_header(empty: Scene) -> None:
    header = (HEADER_NAME, encode_header(topic_tag(TOPIC), INSTANCE, 0, START + LATER_MS))
    empty.log.append(0, [Message(START, b"key", None, (header,))])
    empty.load_new(tombstones_as_rows=True)
    assert counted(empty, 1) == of_header(0, 0)
    assert layout.read_load(empty.stored, 1).files[0].hour == TEN


def test_a_time_of_any_record_header_is_loaded(empty: Scene) -> None:
    times = [-(1 << 62), START + HOUR, (1 << 63) - 1]
    headers = [encode_header(topic_tag(TOPIC), INSTANCE, n, time) for n, time in enumerate(times)]
    message = event(0, START, schema=(WITH_MEMBER, MEMBERS), memberId=OTHER)
    empty.log.append(0, [dataclasses.replace(message, headers=((HEADER_NAME, each),)) for each in headers])
    empty.load_new()
    expected = SequenceCounts()
    expected.add("", "", INSTANCE, START + HOUR, 1, 1)
    assert counted(empty, 1) == expected
    assert layout.read_load(empty.stored, 1).rows == 3


def _names(scene: Scene, load: int) -> list[str]:
    newest = layout.editions_of(scene.stored).get(load, [1])[-1]
    (file, *_) = layout.read_edition(scene.stored, load, newest).files
    with pq.ParquetFile(scene.topic / file.path) as opened:
        return list(opened.schema_arrow.names)
