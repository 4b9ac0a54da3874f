"""The registry's rows: ids and numbers never given twice, writers that take turns, clear refusals."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_registry.errors import RegistryError
from millrace_registry.service import Candidate, delete, find_schema, register
from millrace_registry.store import LARGEST, Store
from tests.support import WAIT_S


def candidate(number: int) -> Candidate:
    return Candidate(json.dumps({"type": "fixed", "name": "F", "size": number}))


def test_what_was_written_is_there_after_a_restart(store: Store, database_url: str) -> None:
    with store.write() as rows:
        schema = rows.add_schema("f", '"int"')
        rows.add_version("s", schema)
        rows.set("s", "mode", "READONLY")
    store.close()
    again = Store.open(database_url)
    with again.read() as rows:
        assert rows.schema(1) == schema
        assert [v.version for v in rows.versions(subject="s")] == [1]
        assert rows.setting("s", "mode") == "READONLY"
    again.close()


def test_a_database_from_before_schemas_had_properties_is_opened(store: Store, database_url: str) -> None:
    register(store, "s", candidate(1))
    with store.write() as rows:
        rows.connection.exec_driver_sql("DROP TABLE schema_properties")
    store.close()
    again = Store.open(database_url)
    assert register(again, "s", candidate(1)).schema.id == 1
    assert register(again, "t", replace(candidate(1), properties={"owner": "x"})).schema.id == 2
    again.close()


def test_a_transaction_that_fails_leaves_nothing(store: Store) -> None:
    def fail() -> None:
        with store.write() as rows:
            rows.add_version("s", rows.add_schema("f", '"int"'))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with store.read() as rows:
        assert rows.schema(1) is None
        assert rows.subjects(deleted=None) == []


def test_an_id_is_not_given_again_whatever_is_deleted(store: Store) -> None:
    first = register(store, "s", candidate(1)).schema.id
    with store.write() as rows:
        delete(rows, "s")
        delete(rows, "s", permanent=True)
    second = register(store, "s", candidate(2)).schema.id
    assert second > first
    assert register(store, "t", candidate(1)).schema.id == first, "the old schema still means the old id"


def test_a_version_number_is_not_given_again_while_the_subject_is_known(store: Store) -> None:
    register(store, "s", candidate(1))
    with store.write() as rows:
        delete(rows, "s", 1)
        delete(rows, "s", 1, permanent=True)
    assert register(store, "s", candidate(2)).version == 2


def test_no_id_and_no_version_is_given_above_the_largest(store: Store) -> None:
    with store.write() as rows:
        largest = rows.add_schema("f", '"int"', schema_id=LARGEST)
        rows.add_version("s", largest, LARGEST)
    with pytest.raises(RegistryError, match=r"id 2147483647 is taken, the largest: import .* new registry"):
        register(store, "t", candidate(1))
    with pytest.raises(RegistryError, match="subject 's' has version 2147483647"), store.write() as rows:
        rows.add_version("s", largest)
    with store.read() as rows:
        assert rows.subjects() == ["s"]


def test_many_clients_registering_one_schema_at_once_get_one_id_and_one_version(store: Store) -> None:
    start = threading.Barrier(8)

    def attempt(_: int) -> tuple[int, int]:
        start.wait(WAIT_S)
        version = register(store, "s", candidate(1))
        return version.schema.id, version.version

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(attempt, range(8))) == {(1, 1)}


def test_many_clients_registering_different_schemas_at_once_get_different_ids_without_gaps(
    store: Store,
) -> None:
    start = threading.Barrier(8)

    def attempt(number: int) -> tuple[int, str]:
        start.wait(WAIT_S)
        return register(store, f"subject-{number}", candidate(number)).schema.id, candidate(number).text

    with ThreadPoolExecutor(8) as pool:
        given = dict(pool.map(attempt, range(1, 9)))
    assert sorted(given) == list(range(1, 9))
    with store.read() as rows:
        for schema_id, text in given.items():
            assert json.loads(find_schema(rows, schema_id).text) == json.loads(text)


def test_two_incompatible_schemas_at_once_do_not_both_get_in(store: Store) -> None:
    start = threading.Barrier(2)

    def attempt(number: int) -> bool:
        start.wait(WAIT_S)
        try:
            register(store, "s", candidate(number))
        except Exception:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(attempt, (1, 2))) == [False, True]
    with store.read() as rows:
        assert [version.version for version in rows.versions("s")] == [1]


def test_eight_registries_open_a_new_file_at_the_same_moment_again_and_again(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def opened(url: str) -> Store:
        together.wait(WAIT_S)
        return Store.open(url)

    with ThreadPoolExecutor(8) as pool:
        for round_number in range(30):
            for store in pool.map(opened, [f"sqlite:///{tmp_path}/{round_number}.db"] * 8):
                store.close()


def test_two_registries_opening_an_empty_database_at_once_both_succeed(database_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: Store.open(database_url), range(4)))
    for number, store in enumerate(stores):
        assert register(store, f"s{number}", candidate(1)).schema.id == 1
        store.close()


def test_subjects_are_found_by_prefix_taken_literally(store: Store) -> None:
    with store.write() as rows:
        schema = rows.add_schema("f", '"int"')
        for name in ("a_b", "A_b", "aXb", "a%", "b", "é_b"):
            rows.add_version(name, schema)
    with store.read() as rows:
        assert rows.subjects(prefix="a_") == ["a_b"]
        assert rows.subjects(prefix="a%") == ["a%"]
        assert rows.subjects(prefix="é_") == ["é_b"]
        assert rows.subjects() == ["A_b", "a%", "aXb", "a_b", "b", "é_b"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "write sqlite:"),
        ("mysql://x/y", "'mysql' is not supported"),
        ("sqlite://", "name a file"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite:////no/such/folder/x.db", "unable to open"),
        ("postgresql://user:secret@127.0.0.1:1/x", r"postgresql://\*\*\*@127"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_clear_line(url: str, says: str) -> None:
    with pytest.raises(MillraceError, match=says) as error:
        Store.open(url)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


def test_a_file_that_is_no_database_is_one_clear_line_and_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but long enough to look at" * 100)
    with pytest.raises(MillraceError, match="not a database"):
        Store.open(f"sqlite:///{file}")
    assert file.read_text().startswith("not a database")


def test_sqlite_commits_reach_the_disk_before_they_are_acknowledged(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/registry.db")
    with store.read() as rows:
        pragmas = [
            rows.connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert pragmas == ["wal", 2, 1], "write-ahead log, synchronous FULL, foreign keys on"
    store.close()
