"""Publications of loads: each row once, hours whole, late rows and editions by themselves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from millrace.errors import MillraceError
from millrace_warehouse import requests
from millrace_warehouse.context import Context
from millrace_warehouse.history.hours import UNFILED, number_of
from millrace_warehouse.history.layout import ledger_path, load_path
from millrace_warehouse.history.manifest import HourVerdict
from millrace_warehouse.publish.catalog import table_identifier
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.publish.publisher import publish_topic
from millrace_warehouse.publish.state import TableState
from millrace_warehouse.storage.interface import Storage
from tests.counted import Counted
from tests.loaded import AVRO, compact_as_others_do, load, offsets, pin, read_again, rows_by_load_and_hour
from tests.unit.warehouse.publish.publishing import (
    H9,
    H10,
    H11,
    H12,
    TOPIC,
    Publish,
    hours_of,
    publish_in,
    table_of,
)


def test_a_named_hour_is_published_and_the_others_wait(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H10: 3, H11: 2})
    result = publish(H10)
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 3}
    assert [(waiting.hour, waiting.rows) for waiting in result.waiting] == [(H11, 2)]
    assert result.published
    assert result.table == "millrace.PageView"


def test_nothing_to_change_is_no_commit(storage: Storage, catalog: Catalog, publish: Publish) -> None:
    load(storage, TOPIC, {H10: 3})
    first = publish(H10)
    before = table_of(catalog).metadata_location
    load(storage, TOPIC, {H11: 1})  # waits, so the table stays
    again = publish()
    assert not again.published
    assert table_of(catalog).metadata_location == before
    assert again.publication is not None
    assert first.publication is not None
    assert again.publication.sha256 == first.publication.sha256
    assert [waiting.hour for waiting in again.waiting] == [H11]


def test_late_rows_are_appended_by_every_publish(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H10: 3})
    publish(H10)
    load(storage, TOPIC, {H10: 2, H11: 1})
    [change] = publish().changes
    assert (change.kind, change.hour, change.added, change.removed) == ("late", H10, 2, 0)
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 3, (2, H10): 2}


def test_nothing_is_copied_and_every_file_lies_where_its_load_wrote_it(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    manifest = load(storage, TOPIC, {H10: 3, H11: 2}, files_per_hour=2)
    publish(H10, H11)
    planned = {task.file.file_path for task in table_of(catalog).scan().plan_files()}
    assert planned == {storage.uri(f"{TOPIC}/{file.path}") for file in manifest.files}


def test_an_edition_takes_the_place_of_the_rows_of_the_one_before(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H10: 3, H11: 2})
    load(storage, TOPIC, {H10: 4})
    publish(H10, H11)
    read_again(storage, TOPIC, 1, {H10: 1, H12: 4})  # rows have moved to another hour
    result = publish()
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 1, (2, H10): 4}
    kinds = {change.hour: (change.kind, change.added, change.removed) for change in result.changes}
    assert kinds == {H10: ("reload", 1, 3), H11: ("reload", 0, 2)}
    assert [(waiting.hour, waiting.rows) for waiting in result.waiting] == [(H12, 4)]
    publish(H12)
    assert offsets(table_of(catalog)) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_of_editions_that_nobody_has_published_the_newest_counts(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H10: 3})
    read_again(storage, TOPIC, 1, {H10: 2})
    read_again(storage, TOPIC, 1, {H10: 1})
    result = publish(H10)
    assert result.publication is not None
    assert result.publication.loads.editions == {"1": 3}
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 1}
    assert not publish().published


def test_rows_of_an_edition_are_taken_out_of_files_that_hold_several_loads(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    for rows in (3, 4, 5):
        load(storage, TOPIC, {H10: rows})
    publish(H10)
    compact_as_others_do(storage, table_of(catalog), TOPIC, H10)
    read_again(storage, TOPIC, 2, {H10: 1})
    publish()
    table = table_of(catalog)
    assert rows_by_load_and_hour(table) == {(1, H10): 3, (2, H10): 1, (3, H10): 5}
    assert any("/compacted/" in task.file.file_path for task in table.scan().plan_files())


def test_proven_publishes_what_is_complete_and_names_the_rest(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H9: 1, H10: 1, H11: 1, H12: 1, UNFILED: 1})
    verdicts = {H9: "complete", H10: "complete", H11: "incomplete", H12: "unknown"}
    result = publish(verdicts=verdicts, proven=True)
    assert [change.hour for change in result.changes] == [H9, H10]
    said = {hour.hour: hour.verdict.verdict for hour in result.waiting if hour.verdict is not None}
    assert said == {H11: "incomplete", H12: "unknown", UNFILED: "unknown"}
    assert table_of(catalog).properties["millrace.complete-from"] == H9
    assert table_of(catalog).properties["millrace.complete-until"] == H11


def test_an_hour_before_2000_that_a_version_before_has_filed_holds_the_complete_hours_nowhere(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {"1970-01-21T18": 1, H10: 1, H12: 1})
    everything = {"1970-01-21T18": "complete", H10: "complete", H11: "complete", H12: "complete"}
    result = publish(verdicts=everything, proven=True)
    assert [change.hour for change in result.changes] == ["1970-01-21T18", H10, H11, H12]
    assert table_of(catalog).properties["millrace.complete-from"] == H10
    assert result.publication is not None
    state = TableState.from_publication(
        dataclasses.replace(result.publication, complete_from="1970-01-21T18")
    )
    assert state.complete_from is None, "a table that a version before has published goes on from now"
    state.settled()
    assert state.complete_from == number_of(H10)


def test_unproven_after_lets_through_what_is_unknown_and_never_what_is_incomplete(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H10: 1, H11: 1, H12: 1, UNFILED: 2})
    at = 1431856800 + 2 * 3600 + 60  # 2015-05-17T12:01
    verdicts = {H10: "incomplete"}
    result = publish(verdicts=verdicts, unproven_after_s=60.0, clock=lambda: at)
    assert [change.hour for change in result.changes] == [H11, UNFILED]
    assert [waiting.hour for waiting in result.waiting] == [H10, H12]
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H11): 1, (1, UNFILED): 2}


def test_late_rows_ask_again_and_may_take_completeness_back(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H9: 1, H10: 1, H11: 1})
    everything = {H9: "complete", H10: "complete", H11: "complete"}
    assert publish(verdicts=everything, proven=True).publication.complete_until == H12  # type: ignore[union-attr]
    load(storage, TOPIC, {H10: 1})
    after = publish(verdicts={H10: "incomplete"}).publication
    assert after is not None
    assert (after.complete_from, after.complete_until, after.incomplete) == (H9, H10, [[H10, H10]])
    [change] = publish(verdicts=everything, proven=True).changes
    assert (change.kind, change.hour, change.added) == ("verdict", H10, 0)
    assert table_of(catalog).properties["millrace.complete-until"] == H12


def test_an_empty_hour_is_published_when_it_is_named_or_lies_behind_complete_ones(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H9: 1, H12: 1})
    every = dict.fromkeys((H9, H10, H11, H12), "complete")
    result = publish(verdicts=every, proven=True)
    assert [(change.hour, change.last) for change in result.changes] == [(H9, ""), (H10, H11), (H12, "")]
    assert [change.added for change in result.changes] == [1, 0, 1]
    named = publish("2015-05-17T13")
    assert [(change.hour, change.added) for change in named.changes] == [("2015-05-17T13", 0)]
    load(storage, TOPIC, {"2015-05-17T13": 2})
    assert [change.kind for change in publish().changes] == ["late"]


def test_new_columns_come_with_the_first_rows_that_have_them(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H10: 1})
    publish(H10)
    more = {**AVRO, "fields": [*AVRO["fields"], {"name": "referrer", "type": "string"}]}
    record = pin(storage, TOPIC, more)
    publish(H11)
    assert "referrer" not in table_of(catalog).schema().column_names
    load(storage, TOPIC, {H10: 1})
    publish()
    table = table_of(catalog)
    assert table.schema().as_struct() == record.schema.as_struct()
    assert table.scan().to_arrow().num_rows == 2
    assert table.properties["millrace.schema"] == "2"


def test_a_first_publication_may_need_a_later_schema_than_the_first(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H10: 1})
    record = pin(storage, TOPIC, {**AVRO, "fields": [{"name": "more", "type": "long"}, *AVRO["fields"]]})
    load(storage, TOPIC, {H10: 1})
    publish(H10)
    assert table_of(catalog).schema().as_struct() == record.schema.as_struct()
    assert table_of(catalog).scan().to_arrow().num_rows == 2


def test_columns_with_fields_inside_have_the_ids_of_the_files(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "b", "type": "string"}]}
    fields = [{"name": "a", "type": {"type": "array", "items": inner}}, *AVRO["fields"]]
    record = pin(storage, TOPIC, {**AVRO, "fields": fields})
    load(storage, TOPIC, {H10: 2})
    publish(H10)
    assert table_of(catalog).schema().as_struct() == record.schema.as_struct()
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 2}


def test_a_dry_run_says_the_same_and_writes_nothing(
    storage: Storage, catalog: Catalog, publish: Publish, tmp_path: Path
) -> None:
    load(storage, TOPIC, {H10: 1, H11: 1})
    before = sorted(path for path in tmp_path.rglob("*") if "catalog" not in path.name)
    dry = publish(H10, dry_run=True)
    assert before == sorted(path for path in tmp_path.rglob("*") if "catalog" not in path.name)
    assert not catalog.table_exists(table_identifier(TOPIC))
    assert dry.changes == publish(H10).changes
    assert not dry.published


def test_the_table_of_hours_has_a_row_for_each_change(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H10: 3, UNFILED: 1})
    publish(H10, UNFILED, verdicts={H10: "complete"})
    load(storage, TOPIC, {H10: 2})
    result = publish(verdicts={})
    rows = catalog.load_table(hours_identifier(TOPIC)).scan().to_arrow().to_pylist()
    by_hour = sorted((row["publication"], row["kind"], row["verdict"], row["added"]) for row in rows)
    assert by_hour == [(1, "first", "complete", 3), (1, "first", "unknown", 1), (2, "late", "unknown", 2)]
    [newest] = [row for row in rows if row["publication"] == 2]
    assert newest["hour"].isoformat() == "2015-05-17T10:00:00+00:00"
    assert newest["snapshot_id"] == result.snapshot_id
    assert result.publication is not None
    assert newest["sha256"] == result.publication.sha256
    assert newest["path"] == result.path
    assert newest["loads"] == [2]


def test_old_snapshots_go_with_the_commit_and_the_history_stays_short(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    for _ in range(35):
        load(storage, TOPIC, {H10: 1})
        publish(H10)
    table = table_of(catalog)
    assert len(table.snapshots()) == 30
    assert rows_by_load_and_hour(table) == {(number, H10): 1 for number in range(1, 36)}
    assert int(table.properties["millrace.publication"]) == 35


def test_a_missing_or_cut_file_is_refused_before_the_table_names_it(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    manifest = load(storage, TOPIC, {H10: 1})
    storage.delete(f"{TOPIC}/{manifest.files[0].path}")
    with pytest.raises(MillraceError, match="is missing: restore it"):
        publish(H10)
    assert not catalog.table_exists(table_identifier(TOPIC))


def test_topics_whose_names_differ_in_a_dot_do_not_share_a_table(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    for topic in ("a.b", "a-b"):
        load(storage, topic, {H10: 1})
    publish_in(storage, catalog, H10, topic="a.b")
    with pytest.raises(MillraceError, match=r"belongs to topic a\.b"):
        publish_in(storage, catalog, H10, topic="a-b")


def test_rows_that_are_loaded_while_the_auditor_is_asked_are_published_with_the_hour(
    storage: Storage, catalog: Catalog
) -> None:
    """The auditor has counted them, so the hour would be called complete without them."""
    load(storage, TOPIC, {H10: 1})

    def verdict_of(topic: str, hour: str) -> HourVerdict:
        load(storage, topic, {H10: 2})
        return HourVerdict(verdict="complete")

    at = Context(storage=storage, catalog=catalog)
    request = requests.Publish(topics=[TOPIC], warehouse=storage.root, proven=True)
    [change] = publish_topic(at, request, TOPIC, Counted(storage, verdict_of)).changes
    assert (change.kind, change.added, change.verdict.verdict) == ("first", 3, "complete")
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 1, (2, H10): 2}


def test_late_rows_that_are_loaded_while_the_auditor_is_asked_are_published_with_the_others(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    load(storage, TOPIC, {H10: 1})
    publish(H10)
    load(storage, TOPIC, {H10: 1})

    def verdict_of(topic: str, hour: str) -> HourVerdict:
        load(storage, topic, {H10: 2})
        return HourVerdict(verdict="complete")

    at = Context(storage=storage, catalog=catalog)
    request = requests.Publish(topics=[TOPIC], warehouse=storage.root)
    [change] = publish_topic(at, request, TOPIC, Counted(storage, verdict_of)).changes
    assert (change.kind, change.added, change.verdict.verdict) == ("late", 3, "complete")


def test_a_load_that_was_made_anew_behind_the_table_is_refused(
    storage: Storage, catalog: Catalog, publish: Publish
) -> None:
    """Its rows that the published one had not would never be: the next load follows it without a hole."""
    load(storage, TOPIC, {H10: 1})
    publish(H10)
    storage.delete(load_path(TOPIC, 1))
    storage.delete(ledger_path(load_path(TOPIC, 1)))
    load(storage, TOPIC, {H10: 2})
    load(storage, TOPIC, {H10: 1})
    with pytest.raises(MillraceError, match="recreated: restore the published one from a copy"):
        publish()


def test_many_loads_that_all_wait_are_read_once(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_warehouse.publish.publisher.CATCH_UP", 3)
    for _ in range(3):
        load(storage, TOPIC, {H11: 1})
    first = publish()
    assert first.published
    assert not first.changes
    assert [(waiting.hour, waiting.rows) for waiting in first.waiting] == [(H11, 3)]
    assert table_of(catalog).properties["millrace.through"] == "3"
    assert not publish().published
    assert [change.added for change in publish(H11).changes] == [3]
    assert [row[:3] for row in hours_of(catalog)] == [(2, "first", 3)]
