"""Commits that fail, commits that land and say they failed, and others who commit in between."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.publish.catalog import CatalogError, connect
from millrace_warehouse.storage.interface import Storage
from tests.loaded import compact_as_others_do, load, offsets, rows_by_load_and_hour
from tests.unit.warehouse.publish.publishing import H10, H11, TOPIC, Publish, hours_of, publish_in, table_of

FAULTS: dict[str, tuple[bool, Exception]] = {
    "before": (False, ConnectionError("refused")),
    "after": (True, ConnectionError("reset by peer")),
    "after, as a conflict": (True, CommitFailedException("409 for a commit that landed")),
    "403 after": (True, ForbiddenError("403 of a proxy")),
    "500": (False, CommitStateUnknownException("500")),
    "502 after": (True, CommitStateUnknownException("502")),
    "503": (False, RESTError("503 SlowDown")),
    "504 after": (True, CommitStateUnknownException("504")),
    "the answer is cut": (True, ValueError("Invalid JSON: EOF while parsing")),
    "sequence number": (False, ValueError("Cannot add snapshot with sequence number 3 older than 4")),
}


def faulty(monkeypatch: pytest.MonkeyPatch, catalog: Catalog, faults: Iterator[str | None]) -> None:
    """Let commits of topics' tables meet one fault after the other; None, and the end, is none."""
    real = catalog.commit_table

    def commit_table(table: Table, requirements: Any, updates: Any) -> Any:
        fault = next(faults, None)
        if fault is None:
            return real(table, requirements, updates)
        lands, error = FAULTS[fault]
        if lands:
            real(table, requirements, updates)
        raise error

    monkeypatch.setattr(catalog, "commit_table", commit_table)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_commit_answers_each_row_is_published_once(
    storage: Storage,
    catalog: Catalog,
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    times: int,
) -> None:
    load(storage, TOPIC, {H10: 3})
    publish(H10)
    load(storage, TOPIC, {H10: 2, H11: 1})
    faulty(monkeypatch, catalog, iter([fault] * times))
    result = publish(H11)
    assert result.published
    assert offsets(table_of(catalog)) == list(range(6))
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 3, (2, H10): 2, (2, H11): 1}
    assert hours_of(catalog) == [(1, "first", 3, 0), (2, "first", 1, 0), (2, "late", 2, 0)]
    assert table_of(catalog).properties["millrace.publication"] == "2"
    assert result.path == table_of(catalog).properties["millrace.publication.path"]
    assert not publish(H11).published


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_publication_meets_the_same(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    load(storage, TOPIC, {H10: 3})
    faulty(monkeypatch, catalog, iter([fault]))
    assert publish(H10).published
    assert offsets(table_of(catalog)) == [0, 1, 2]
    assert hours_of(catalog) == [(1, "first", 3, 0)]


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("request_", ["create_namespace", "create_table"])
@pytest.mark.parametrize("error", [ConnectionError("reset by peer"), TableAlreadyExistsError("409")])
def test_a_table_is_made_whatever_the_first_requests_for_it_are_answered(
    storage: Storage,
    catalog: Catalog,
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
    request_: str,
    lands: bool,
    error: Exception,
) -> None:
    real, failed = getattr(catalog, request_), list[bool]()

    def once(*arguments: Any, **settings: Any) -> Any:
        if failed:
            return real(*arguments, **settings)
        failed.append(True)
        if lands:
            real(*arguments, **settings)
        raise error

    monkeypatch.setattr(catalog, request_, once)
    load(storage, TOPIC, {H10: 3})
    assert publish(H10).published
    assert failed
    assert offsets(table_of(catalog)) == [0, 1, 2]


@pytest.mark.parametrize("fault", ["after, as a conflict", "before"])
def test_a_table_that_asks_for_no_retries_is_not_broken_by_a_false_conflict(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """By itself pyiceberg would then delete the manifests of the snapshot that is live."""
    load(storage, TOPIC, {H10: 3})
    publish(H10)
    with table_of(catalog).transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "0"})
    load(storage, TOPIC, {H10: 2})
    faulty(monkeypatch, catalog, iter([fault]))
    assert publish().published
    assert offsets(table_of(catalog)) == [0, 1, 2, 3, 4]
    assert table_of(catalog).properties["commit.retry.num-retries"] == "0"


def test_a_catalog_that_fails_for_good_is_named_and_loses_nothing(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(storage, TOPIC, {H10: 3})
    monkeypatch.setattr("millrace_warehouse.races.TRIES", 3)
    with monkeypatch.context() as patch:
        faulty(patch, catalog, iter(["503"] * 10))
        with pytest.raises(MillraceError, match="3 tries failed, the last one because RESTError: 503"):
            publish(H10)
    assert publish(H10).published
    assert offsets(table_of(catalog)) == [0, 1, 2]


def test_a_catalog_that_goes_away_behind_a_commit_leaves_it_open_whether_it_was_made(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(storage, TOPIC, {H10: 3})
    publish()
    monkeypatch.setattr("millrace_warehouse.publish.catalog.TRIES", 1)

    def gone(*_: Any) -> Any:
        raise ConnectionError("refused")

    with monkeypatch.context() as patch:
        faulty(patch, catalog, iter(["after"]))
        real = catalog.commit_table

        def last_commit(*arguments: Any) -> Any:
            patch.setattr(catalog, "load_table", gone)
            return real(*arguments)

        patch.setattr(catalog, "commit_table", last_commit)
        # SQLite's commit looks the table up itself.
        with pytest.raises(CatalogError, match=r"whether millrace\.PageView took a commit is not known"):
            publish(H10)
    again = publish(H10)
    assert offsets(table_of(catalog)) == [0, 1, 2]
    assert hours_of(catalog) == [(1, "first", 3, 0)]
    assert again.publication is not None


def between(
    monkeypatch: pytest.MonkeyPatch, catalog: Catalog, what: Callable[[], object], times: int = 1
) -> None:
    """Let somebody else do something just before a commit, so often."""
    real, left = catalog.commit_table, [times]

    def commit_table(table: Table, requirements: Any, updates: Any) -> Any:
        if left[0]:
            left[0] -= 1
            what()
        return real(table, requirements, updates)

    monkeypatch.setattr(catalog, "commit_table", commit_table)


def test_of_two_that_publish_the_same_one_does_and_the_other_finds_nothing_left(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(storage, TOPIC, {H10: 3})
    publish(H10)
    load(storage, TOPIC, {H10: 2})
    with connect(storage) as other:
        between(monkeypatch, catalog, lambda: publish_in(storage, other, H10))
        result = publish(H10)
    assert not result.published
    assert offsets(table_of(catalog)) == [0, 1, 2, 3, 4]
    assert hours_of(catalog) == [(1, "first", 3, 0), (2, "late", 2, 0)]


def test_of_two_first_publications_of_a_topic_both_hours_are_there(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(storage, TOPIC, {H10: 3, H11: 2})
    with connect(storage) as other:
        between(monkeypatch, catalog, lambda: publish_in(storage, other, H10))
        assert publish(H11).published
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 3, (1, H11): 2}
    assert [row[0] for row in hours_of(catalog)] == [1, 2]


def test_a_compaction_by_others_in_between_is_not_undone(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(storage, TOPIC, {H10: 3})
    load(storage, TOPIC, {H10: 3})
    publish(H10)
    load(storage, TOPIC, {H10: 2})
    with connect(storage) as other:
        between(monkeypatch, catalog, lambda: compact_as_others_do(storage, table_of(other), TOPIC, H10))
        assert publish().published
    assert rows_by_load_and_hour(table_of(catalog)) == {(1, H10): 3, (2, H10): 3, (3, H10): 2}
    assert len(list(table_of(catalog).scan().plan_files())) == 2


def test_a_property_set_by_others_in_between_stays(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(storage, TOPIC, {H10: 3})
    publish()
    publish(H10)
    load(storage, TOPIC, {H10: 2})

    with connect(storage) as other:

        def own() -> None:
            with table_of(other).transaction() as transaction:
                transaction.set_properties({"owner": "somebody"})

        between(monkeypatch, catalog, own)
        assert publish().published
    assert table_of(catalog).properties["owner"] == "somebody"
    assert offsets(table_of(catalog)) == [0, 1, 2, 3, 4]


def test_a_late_first_attempt_is_refused_by_the_second_that_has_landed(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that a proxy held back arrives when its own repetition has been published."""
    load(storage, TOPIC, {H10: 3})
    publish(H10)
    load(storage, TOPIC, {H10: 2})
    real, held = catalog.commit_table, list[tuple[Any, ...]]()

    def commit_table(*arguments: Any) -> Any:
        if not held:
            held.append(arguments)
            raise ConnectionError("no answer in time")
        return real(*arguments)

    monkeypatch.setattr(catalog, "commit_table", commit_table)
    assert publish().published
    with pytest.raises(CommitFailedException):
        real(*held[0])
    assert offsets(table_of(catalog)) == [0, 1, 2, 3, 4]


def test_a_full_disk_ends_the_run_in_one_sentence_and_the_table_is_as_before(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(storage, TOPIC, {H10: 3})
    publish(H10)
    load(storage, TOPIC, {H10: 2})
    real = os.fsync
    room = [0]

    def fsync(descriptor: int) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        real(descriptor)

    for files in range(3):
        with monkeypatch.context() as patch:
            # Each file that is stored syncs itself and every folder above.
            room[0] = files * len(Path(storage.uri("x").removeprefix("file://")).parents)
            patch.setattr(os, "fsync", fsync)
            with pytest.raises(MillraceError, match="make room on the disk"):
                publish()
        assert offsets(table_of(catalog)) == [0, 1, 2]
    publish()
    assert offsets(table_of(catalog)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("error", [BadRequestError("type"), ForbiddenError("rights")])
def test_a_commit_that_is_refused_three_times_is_given_up_and_another_run_makes_it(
    storage: Storage, catalog: Catalog, publish: Publish, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    load(storage, TOPIC, {H10: 3})
    tries = list[bool]()

    def refuse(*_: Any) -> None:
        tries.append(True)
        raise error

    with monkeypatch.context() as refusing:
        refusing.setattr(catalog, "commit_table", refuse)
        with pytest.raises(CatalogError, match=f"refuses .*{error}"):
            publish(H10)
    assert len(tries) == 3
    publish(H10)
    assert offsets(table_of(catalog)) == list(range(3))
