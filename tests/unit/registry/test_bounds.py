"""Cost of a request beside a subject of many versions, and for how long a schema is remembered."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from millrace_registry import references
from millrace_registry import store as rows_of
from millrace_registry.app import create_app
from millrace_registry.avro_schema import AvroSchema
from millrace_registry.compatibility import Level, incompatibilities
from millrace_registry.service import LEVEL, Candidate, check, register
from millrace_registry.store import RecentSchemas, Store, Transaction

MANY = 300


def record(number: int) -> str:
    fields = [{"name": f"f{number}", "type": "int", "default": 0}]
    return json.dumps({"type": "record", "name": "R", "fields": fields}, separators=(",", ":"))


@pytest.fixture
def filled(store: Store) -> Store:
    """A subject `s` of many versions: version n holds the schema of id n."""
    with store.write() as rows:
        for number in range(1, MANY + 1):
            rows.add_version("s", rows.add_schema(f"{number:064x}", record(number)))
    return store


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The id of every schema that is read from the database."""
    ids: list[int] = []
    schema = rows_of._schema

    def counted(row: Any) -> rows_of.StoredSchema:
        ids.append(row.schema_id)
        return schema(row)

    monkeypatch.setattr(rows_of, "_schema", counted)
    return ids


Send = Callable[..., Any]


def sender(store: Store, runner: asyncio.Runner) -> Send:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(create_app(store)), base_url="http://registry")

    def send(method: str, path: str, body: Any = None) -> Any:
        response = runner.run(http.request(method, path, json=body))
        return response.json() if response.status_code == 200 else response.status_code

    return send


@pytest.fixture
def ask() -> Iterator[Callable[[Store], Send]]:
    with asyncio.Runner() as runner:
        yield lambda store: sender(store, runner)


def test_a_request_reads_only_the_versions_that_it_answers(
    filled: Store, ask: Callable[[Store], Send], read: list[int]
) -> None:
    send = ask(filled)
    for path, ids in (
        ("/subjects/s/versions/7", [7]),
        ("/subjects/s/versions/latest", [MANY]),
        ("/subjects/s/versions?offset=10&limit=2", []),
        ("/subjects/s/versions", []),
        ("/schemas?offset=10&limit=2", [11, 12]),
        ("/schemas?latestOnly=true", [MANY]),
        ("/schemas/ids/9", [9]),
        ("/subjects?limit=1", []),
    ):
        read.clear()
        assert send("GET", path) != 404
        assert read == ids, path
    assert send("GET", "/subjects/s/versions?offset=10&limit=2") == [11, 12]
    read.clear()
    send("POST", "/compatibility/subjects/s/versions", {"schema": record(0)})
    assert set(read) == {MANY}
    read.clear()
    assert send("POST", "/subjects/s/versions", {"schema": record(0)})["version"] == MANY + 1
    assert set(read) == {MANY}


def test_nothing_of_the_old_versions_is_read_again_while_the_write_lock_is_held(
    filled: Store, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled.write() as rows:
        LEVEL.write(rows, "s", Level.FULL_TRANSITIVE, force=False)
    under_lock: list[list[int]] = []
    write = filled.write

    @contextmanager
    def watched() -> Iterator[Transaction]:
        with write() as rows:
            read.clear()
            yield rows
            under_lock.append(list(read))

    monkeypatch.setattr(filled, "write", watched)
    assert register(filled, "s", Candidate(record(0))).version == MANY + 1
    assert under_lock == [[]]


def test_a_comparison_with_all_versions_holds_only_some_of_them_in_memory(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    compare = incompatibilities

    def compare_and_count(new: AvroSchema, old: AvroSchema, version: int, level: Level) -> list[str]:
        if version == 1:  # the last one
            held.append(sum(type(one) is AvroSchema for one in gc.get_objects()))
        return compare(new, old, version, level)

    monkeypatch.setattr(references, "incompatibilities", compare_and_count)
    monkeypatch.setattr(references, "MAX_COMPARED_CHARACTERS", 20 * len(record(MANY)))
    with filled.write() as rows:
        LEVEL.write(rows, "s", Level.FULL_TRANSITIVE, force=False)
    with filled.read() as rows:
        assert check(rows, "s", Candidate(record(MANY + 1))) == []
    (most,) = held
    assert most < 50


def test_a_subject_of_many_versions_is_deleted_with_a_few_statements(
    filled: Store, ask: Callable[[Store], Send], monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []

    def counted(*arguments: Any) -> None:
        statements.append(arguments[2])

    send = ask(filled)
    sa.event.listen(sa.Engine, "before_cursor_execute", counted)
    try:
        for path in ("/subjects/s", "/subjects/s?permanent=true"):
            statements.clear()
            assert send("DELETE", path) == list(range(1, MANY + 1))
            assert 0 < len(statements) < 20, statements
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", counted)


def test_a_schema_is_remembered_until_it_is_deleted_permanently_also_by_another_process(
    filled: Store, database_url: str, ask: Callable[[Store], Send], read: list[int]
) -> None:
    now = 1000.0
    other = Store.open(database_url)
    for opened in (filled, other):
        opened.recent = RecentSchemas(lambda: now)
    here, there = ask(filled), ask(other)
    now += 1
    assert here("GET", "/schemas/ids/3") == there("GET", "/schemas/ids/3")
    read.clear()
    assert json.loads(here("GET", "/schemas/ids/3")["schema"])["fields"][0]["name"] == "f3"
    assert json.loads(there("GET", "/schemas/ids/3")["schema"])["fields"][0]["name"] == "f3"
    assert read == []
    now += 2
    here("GET", "/schemas/ids/4")
    assert read == [4]
    here("GET", "/schemas/ids/3")
    assert read == [4], "one look at the database renews what is remembered"

    here("DELETE", "/subjects/s/versions/3")
    now += 0.1
    assert here("GET", "/schemas/ids/3") != 404
    here("DELETE", "/subjects/s/versions/3?permanent=true")
    assert here("GET", "/schemas/ids/3") == 404, "here at once"
    now += 1.1
    assert there("GET", "/schemas/ids/3") == 404, "in another process after a second"
    assert there("GET", "/schemas/ids/4") != 404
    now += 2
    assert there("GET", "/schemas/ids/3") == 404
    other.close()


def test_only_so_much_text_is_remembered(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of, "MAX_RECENT_CHARACTERS", 10 * len(record(1)))
    with filled.read() as rows:
        for schema_id in range(1, 40):
            schema = rows.schema(schema_id)
            assert schema is not None
            filled.recent.add(schema, 0, filled.recent.clock())
            assert filled.recent.get(schema_id) == schema
            assert sum(filled.recent.get(other) is not None for other in range(1, 40)) <= 12


def test_what_was_read_before_a_deletion_is_not_remembered_after_it(filled: Store) -> None:
    began = filled.recent.clock()
    with filled.read() as rows:
        schema, deletions = rows.schema(3), rows.deletions()
        assert schema is not None
    with filled.write() as rows:
        rows.delete_versions("s", 3, permanent=True)
    filled.recent.add(schema, deletions, began)
    assert filled.recent.get(3) is None
