"""Publishing into an object store, through a REST catalog whose answers are lost, late or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from millrace.errors import ConfigError
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.storage import Storage
from tests.kill_rounds import kill_rounds
from tests.live_rounds import live_rounds
from tests.loaded import AVRO, compact_as_others_do, load, offsets, pin, read_again, rows_by_load_and_hour
from tests.peers.seaweedfs import SeaweedFS
from tests.support import ROUNDS
from tests.unit.warehouse.publish import publishing
from tests.unit.warehouse.publish.beside import BRANCH, commit_on_branch
from tests.unit.warehouse.publish.publishing import H10, H11, H12
from tests.unit.warehouse.record_headers import FORMATS, check_table_gets_sender_columns

TOPIC = "page_view"
"""The server takes no capital letters."""
publish_in = partial(publishing.publish_in, topic=TOPIC)
table_of = partial(publishing.table_of, topic=TOPIC)
hours_of = partial(publishing.hours_of, topic=TOPIC)


@dataclass(frozen=True)
class Lake:
    """A warehouse in the store, and the catalog that the test alone uses."""

    storage: Storage
    catalog: Catalog


def describe_catalog(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe the server's catalog as `lake`, in the environment."""
    settings = seaweedfs.catalog_properties()
    settings["oauth2-server-uri"] = f"{settings['uri']}/v1/oauth/tokens"
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper().replace('-', '_')}", value)


@pytest.fixture
def lake(
    seaweedfs: SeaweedFS, storage: Storage, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lake]:
    # The server keeps one namespace of that name for all tests: each has tables of its own.
    monkeypatch.setattr("millrace_warehouse.publish.catalog.NAMESPACE", f"m{warehouse[-8:]}")
    describe_catalog(seaweedfs, monkeypatch)
    with connect(storage, "lake") as catalog:
        yield Lake(storage, catalog)


def test_an_object_store_has_no_catalog_of_its_own(storage: Storage) -> None:
    with pytest.raises(ConfigError, match="name one with --catalog"):
        connect(storage)


def test_late_rows_editions_and_new_columns_reach_the_table(lake: Lake) -> None:
    load(lake.storage, TOPIC, {H10: 3, H11: 2})
    load(lake.storage, TOPIC, {H10: 2})
    publish_in(lake.storage, lake.catalog, H10, H11, verdicts={H10: "complete", H11: "complete"})
    compact_as_others_do(lake.storage, table_of(lake.catalog), TOPIC, H10)
    read_again(lake.storage, TOPIC, 1, {H10: 1, H12: 4})
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "b", "type": "string"}]}
    fields = [{"name": "a", "type": inner}, *AVRO["fields"], {"name": "c", "type": "long"}]
    more = {**AVRO, "fields": fields}
    record = pin(lake.storage, TOPIC, more)
    load(lake.storage, TOPIC, {H11: 1})
    publish_in(lake.storage, lake.catalog, H12)
    table = table_of(lake.catalog)
    assert rows_by_load_and_hour(table) == {(1, H10): 1, (2, H10): 2, (1, H12): 4, (3, H11): 1}
    assert table.schema().as_struct() == record.schema.as_struct()
    assert sum(added - removed for _, _, added, removed in hours_of(lake.catalog)) == 8


def test_a_first_schema_with_records_inside_keeps_its_ids(lake: Lake) -> None:
    """The server numbers the fields of a new table in another order than our files."""
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "b", "type": "string"}]}
    record = pin(lake.storage, TOPIC, {**AVRO, "fields": [{"name": "a", "type": inner}, *AVRO["fields"]]})
    load(lake.storage, TOPIC, {H10: 3})
    publish_in(lake.storage, lake.catalog, H10)
    assert table_of(lake.catalog).schema().as_struct() == record.schema.as_struct()
    assert rows_by_load_and_hour(table_of(lake.catalog)) == {(1, H10): 3}


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_without_the_columns_of_record_headers_gets_them(lake: Lake, format: str) -> None:
    check_table_gets_sender_columns(lake.storage, lake.catalog, TOPIC, format)


def test_old_snapshots_are_removed_by_the_server(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_warehouse.publish.committer.SNAPSHOTS", 3)
    for _ in range(5):
        load(lake.storage, TOPIC, {H10: 1})
        publish_in(lake.storage, lake.catalog, H10)
    assert len(table_of(lake.catalog).snapshots()) == 3
    assert offsets(table_of(lake.catalog)) == list(range(5))


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("error", [ConnectionError("reset"), CommitFailedException("409")])
def test_whatever_a_commit_answers_each_row_is_published_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, lands: bool, error: Exception
) -> None:
    load(lake.storage, TOPIC, {H10: 3})
    publish_in(lake.storage, lake.catalog, H10)
    load(lake.storage, TOPIC, {H10: 2})
    real, failed = lake.catalog.commit_table, list[bool]()

    def commit_table(*arguments: Any) -> Any:
        if failed:
            return real(*arguments)
        failed.append(True)
        if lands:
            real(*arguments)
        raise error

    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    assert publish_in(lake.storage, lake.catalog).published
    assert offsets(table_of(lake.catalog)) == list(range(5))
    assert hours_of(lake.catalog) == [(1, "first", 3, 0), (2, "late", 2, 0)]


def test_a_commit_refused_for_another_branch_keeps_its_decision(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(lake.storage, TOPIC, {H10: 3})
    publish_in(lake.storage, lake.catalog, H10)
    load(lake.storage, TOPIC, {H10: 2})
    real, steps, beside, tries = lake.catalog.commit_table, list[str](), [True] * 2, list[str]()

    def commit_table(table: Table, requirements: Any, updates: Any) -> Any:
        if table.name()[1] == TOPIC and any(getattr(each, "ref_name", "") == "main" for each in updates):
            tries.append("main")
            if beside and beside.pop():
                commit_on_branch(lake.catalog, TOPIC)
        return real(table, requirements, updates)

    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    assert publish_in(lake.storage, lake.catalog, progress=steps.append).published
    assert len(tries) == 3
    assert steps.count("hours judged") == 1
    assert offsets(table_of(lake.catalog)) == list(range(5))
    assert table_of(lake.catalog).scan().use_ref(BRANCH).to_arrow().num_rows == 3


def test_of_two_that_publish_at_once_one_does(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    load(lake.storage, TOPIC, {H10: 3})
    publish_in(lake.storage, lake.catalog, H10)
    load(lake.storage, TOPIC, {H10: 2})
    real, met = lake.catalog.commit_table, list[bool]()

    def commit_table(*arguments: Any) -> Any:
        if not met:
            met.append(True)
            with connect(lake.storage, "lake") as other:
                publish_in(lake.storage, other)
        return real(*arguments)

    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    assert not publish_in(lake.storage, lake.catalog).published
    assert offsets(table_of(lake.catalog)) == list(range(5))


@pytest.mark.soak
@pytest.mark.parametrize("rounds", [kill_rounds, live_rounds])
def test_each_row_is_there_once_whoever_is_killed(
    seaweedfs: SeaweedFS,
    storage: Storage,
    warehouse: str,
    monkeypatch: pytest.MonkeyPatch,
    rounds: Callable[[str, str, int], str],
) -> None:
    describe_catalog(seaweedfs, monkeypatch)
    try:
        rounds(warehouse, "lake", ROUNDS)
    finally:
        with connect(storage, "lake") as catalog:  # which all tests of the server share
            catalog.drop_table(table_identifier(TOPIC))
            catalog.drop_table(hours_identifier(TOPIC))
