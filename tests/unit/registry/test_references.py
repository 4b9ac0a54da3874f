"""References between schemas: what they cost, how far they may lead, and what holds no lock meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from millrace_registry import avro_schema, compatibility, references
from millrace_registry.avro_schema import AvroSchema
from millrace_registry.errors import InvalidSchema, RegistryError
from millrace_registry.service import (
    MODE,
    Candidate,
    Mode,
    check,
    delete,
    find_schema,
    look_up,
    register,
    resolve,
)
from millrace_registry.store import Reference, Store, Transaction


def record(name: str, *types: str, **attributes: object) -> Candidate:
    """A record with a field of each of the named records, which are the subjects' first versions."""
    fields = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(types)]
    text = json.dumps({"type": "record", "name": name, "fields": fields, **attributes})
    return Candidate(text, tuple(Reference(kind, kind, 1) for kind in types))


def register_diamond(store: Store, depth: int) -> None:
    """Two records for each level, each of both records of the level below: 2**depth paths lead down."""
    for level in range(depth):
        below = (f"A{level - 1}", f"B{level - 1}") if level else ()
        for side in "AB":
            register(store, f"{side}{level}", record(f"{side}{level}", *below))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of every schema that is parsed, in order."""
    texts: list[str] = []
    load = avro_schema._load

    def counted(text: str) -> object:
        texts.append(text)
        return load(text)

    monkeypatch.setattr(avro_schema, "_load", counted)
    return texts


def test_a_schema_that_many_paths_lead_to_is_parsed_once_for_a_request(
    store: Store, parsed: list[str]
) -> None:
    depth = 12
    register_diamond(store, depth)
    top = record("Top", f"A{depth - 1}", f"B{depth - 1}")
    once = 2 * depth + 1

    parsed.clear()
    version = register(store, "Top", top)
    assert len(parsed) == once, "neither again under the lock nor once for each path"
    parsed.clear()
    assert register(store, "Top", top) == version
    assert len(parsed) == once
    parsed.clear()
    with store.read() as rows:
        look_up(rows, "Top", top)
    assert len(parsed) == once
    parsed.clear()
    with store.read() as rows:
        alone = resolve(rows, version.schema)
    assert len(parsed) == once
    assert {json.loads(text)["name"] for text in parsed} >= {"A0", "B0", "Top"}
    assert alone.count('"name":"A0"') == 1
    parsed.clear()
    with store.read() as rows:
        assert check(rows, "Top", top) == []
    # The candidate and the registered version, which is the same text but not known to be.
    assert len(parsed) == once + 1


def test_nothing_is_parsed_or_compared_while_the_write_lock_is_held(
    store: Store, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = compatibility.unreadable

    def watched_compare(reader: AvroSchema, writer: AvroSchema) -> list[str]:
        parsed.append("a comparison")
        return compare(reader, writer)

    monkeypatch.setattr(compatibility, "unreadable", watched_compare)
    register_diamond(store, 3)
    register(store, "Top", record("Top", "A2", "B2"))
    under_lock: list[int] = []
    write = store.write

    @contextmanager
    def watched() -> Iterator[Transaction]:
        with write() as rows:
            before = len(parsed)
            yield rows
            under_lock.append(len(parsed) - before)

    monkeypatch.setattr(store, "write", watched)
    assert register(store, "Top", record("Top", "A2", "B2", doc="the second version")).version == 2
    assert under_lock == [0]


def test_a_reference_that_was_forgotten_before_the_lock_was_taken_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(store, "A", record("A"))
    write = store.write

    @contextmanager
    def late() -> Iterator[Transaction]:
        monkeypatch.setattr(store, "write", write)
        with write() as rows:
            delete(rows, "A")
            delete(rows, "A", permanent=True)
        with write() as rows:
            yield rows

    monkeypatch.setattr(store, "write", late)
    with pytest.raises(InvalidSchema, match="is not registered"):
        register(store, "Top", record("Top", "A"))
    with store.read() as rows:
        assert rows.subjects(deleted=None) == []


def test_references_lead_only_so_deep(store: Store) -> None:
    register(store, "R0", record("R0"))
    for level in range(1, references.MAX_REFERENCE_DEPTH + 1):
        register(store, f"R{level}", record(f"R{level}", f"R{level - 1}"))
    last = references.MAX_REFERENCE_DEPTH
    with pytest.raises(InvalidSchema, match="through more than 32 schemas"):
        register(store, "Top", record("Top", f"R{last}"))
    with store.read() as rows:
        assert resolve(rows, find_schema(rows, 1 + last)).count('"R0"') == 1


def test_a_schema_refers_only_to_so_many_others_of_so_much_text(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"R{number}" for number in range(8)]
    for name in names:
        register(store, name, record(name, doc="x" * 100))
    register(store, "Half", record("Half", *names[:4]))
    monkeypatch.setattr(references, "MAX_REFERENCES", 7)
    with pytest.raises(InvalidSchema, match="has 8 references: give at most 7"):
        register(store, "Top", record("Top", *names))
    with pytest.raises(InvalidSchema, match=r"refers to 8 schemas of .* refer to at most 7"):
        register(store, "Top", record("Top", "Half", *names[4:7]))
    register(store, "Top", record("Top", "Half", *names[4:6]))
    monkeypatch.setattr(references, "MAX_REFERENCED_CHARACTERS", 300)
    with pytest.raises(InvalidSchema, match="at most 7 schemas of 300"):
        register(store, "Other", record("Other", *names[:3]))


def test_types_that_are_nested_too_deep_only_together_are_refused(store: Store) -> None:
    half: object = "int"
    for _ in range(40):
        half = {"type": "array", "items": half}
    fields = [{"name": "f", "type": half}]
    register(store, "Half", Candidate(json.dumps({"type": "record", "name": "Half", "fields": fields})))
    whole: object = "Half"
    for _ in range(40):
        whole = {"type": "array", "items": whole}
    with pytest.raises(InvalidSchema, match="nested deeper than 64"):
        register(store, "Whole", Candidate(json.dumps(whole), (Reference("Half", "Half", 1),)))


MONEY, OTHER_MONEY = record("Money"), record("Money", doc="another")


def forget(store: Store, *subjects: str) -> None:
    with store.write() as rows:
        for subject in subjects:
            delete(rows, subject)
            delete(rows, subject, permanent=True)


def referring(version: int) -> Candidate:
    return replace(record("Order", "Money"), references=(Reference("Money", "money", version),))


def imported(store: Store, subject: str, candidate: Candidate, schema_id: int, version: int) -> int:
    with store.write() as rows:
        MODE.write(rows, subject, Mode.IMPORT, force=True)
    return register(store, subject, replace(candidate, schema_id=schema_id, version=version)).schema.id


def test_an_id_keeps_its_meaning_when_what_it_refers_to_is_deleted_and_made_anew(store: Store) -> None:
    register(store, "money", MONEY)
    first = register(store, "orders", referring(1)).schema
    forget(store, "orders", "money")
    assert register(store, "money", OTHER_MONEY).version == 2
    with pytest.raises(InvalidSchema, match="'money' version 1 is not registered"):
        register(store, "orders", referring(1))
    second = register(store, "orders", referring(2)).schema
    assert (second.id > first.id, second.guid != first.guid) == (True, True)


def test_an_import_gives_a_version_that_schemas_refer_to_only_to_the_schema_that_had_it(store: Store) -> None:
    register(store, "money", MONEY)
    first = register(store, "orders", referring(1)).schema
    for _ in range(2):
        forget(store, "orders", "money")
        with pytest.raises(RegistryError, match="refer to version 1 of subject money as another schema"):
            imported(store, "money", OTHER_MONEY, 9, 1)
        assert imported(store, "money", MONEY, 1, 1) == 1
        assert imported(store, "orders", referring(1), first.id, 1) == first.id
    with store.read() as rows:
        assert "another" not in resolve(rows, find_schema(rows, first.id))


def test_a_database_that_does_not_say_what_a_deleted_version_was_never_gives_its_number(
    store: Store, database_url: str
) -> None:
    register(store, "money", MONEY)
    register(store, "orders", referring(1))
    forget(store, "orders", "money")
    with store.write() as rows:
        rows.connection.exec_driver_sql("DROP TABLE forgotten_versions")
    store.close()
    again = Store.open(database_url)
    with pytest.raises(RegistryError, match="refer to version 1 of subject money as another schema"):
        imported(again, "money", MONEY, 1, 1)
    with again.write() as rows:
        MODE.reset(rows, "money")
    assert register(again, "money", OTHER_MONEY).version == 2
    again.close()
