"""Applying a folder: all schemas and levels or none, by one transaction, with commit and author."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from millrace.errors import MillraceError
from millrace_registry import directory as folder
from millrace_registry.app import create_app
from millrace_registry.client import SchemaRefused, SchemaRegistryClient
from millrace_registry.store import Store, Transaction
from millrace_registry.subjects import Subjects
from tests.brokers import free_port
from tests.support import wait_until


def record(name: str, *fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "fields": list(fields)}


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
B_OR_0 = {**B, "default": 0}


def write(directory: Path, levels: dict[str, str] | None = None, **schemas: Any) -> None:
    directory.mkdir(exist_ok=True)
    for name, schema in schemas.items():
        (directory / f"{name}.avsc").write_text(json.dumps(schema))
    if levels is not None:
        (directory / "levels.json").write_text(json.dumps(levels))


@pytest.fixture
def client(store: Store) -> Iterator[SchemaRegistryClient]:
    port = free_port()
    config = uvicorn.Config(
        create_app(store), "127.0.0.1", port, log_level="error", lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until("the registry", lambda: server.started)
    with SchemaRegistryClient(f"http://127.0.0.1:{port}") as client:
        yield client
    server.should_exit = True
    thread.join()


def held(store: Store) -> tuple[list[str], list[str | None]]:
    with store.read() as rows:
        names = ["A", "B"]
        return rows.subjects(deleted=None), [rows.setting(name, "compatibility") for name in names]


def test_a_folder_is_registered_with_its_levels_its_commit_and_its_author(
    client: SchemaRegistryClient, store: Store, tmp_path: Path
) -> None:
    directory = tmp_path / "schemas"
    write(directory, {"A": "FULL"}, A=record("A", A), B=record("B", A))
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    changes = folder.apply(directory, client, plain=True)
    assert [(c.subject, c.state, c.version, c.level) for c in changes] == [
        ("A", "new", 1, "FULL"),
        ("B", "new", 1, None),
    ]
    assert held(store) == (["A", "B"], ["FULL", None])
    commit = subprocess.check_output(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], text=True).strip()
    with store.read() as rows:
        first = rows.origins("A")[1]
    assert (first.commit, first.author) == (commit, "Ada <ada@example.org>")
    assert first.time > 1_700_000_000_000
    # A repetition changes nothing; what is not committed is said.
    assert [c.state for c in folder.apply(directory, client, plain=True)] == ["unchanged"] * 2
    write(directory, A=record("A", A, B_OR_0))
    folder.apply(directory, client, plain=True)
    with store.read() as rows:
        origins = rows.origins("A")
        assert (origins[1], origins[2].commit) == (first, f"{commit}-dirty")
        assert rows.origins("B").keys() == {1}


def test_nothing_is_there_when_the_last_of_them_cannot_be_written(
    client: SchemaRegistryClient, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"A": "NONE", "B": "NONE"}, A=record("A", A), B=record("B", A))
    add = Transaction.add_version

    def fail_at_b(rows: Transaction, subject: str, *arguments: Any) -> Any:
        if subject == "B":
            raise RuntimeError("the machine fails here")
        return add(rows, subject, *arguments)

    with monkeypatch.context() as patched, SchemaRegistryClient(client.url, timeout_s=1) as impatient:
        patched.setattr(Transaction, "add_version", fail_at_b)
        with pytest.raises(MillraceError):
            folder.apply(tmp_path, impatient, plain=True)
    assert held(store) == ([], [None, None])
    folder.apply(tmp_path, client, plain=True)
    assert held(store) == (["A", "B"], ["NONE", "NONE"])


def test_what_another_writer_made_incompatible_meanwhile_is_refused_whole(
    client: SchemaRegistryClient, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, A=record("A", A), B=record("B", A))

    def and_then(directory: Path) -> tuple[str, str]:
        client.register("B", record("B", {"name": "a", "type": "string"}))
        return "", "me"

    monkeypatch.setattr(folder, "commit_and_author", and_then)
    with pytest.raises(SchemaRefused, match='incompatible with an earlier schema for subject "B"'):
        folder.apply(tmp_path, client, plain=True)
    assert held(store) == (["B"], [None, None])


def test_a_schema_is_planned_and_applied_by_the_level_that_it_gets(
    client: SchemaRegistryClient, store: Store, tmp_path: Path
) -> None:
    write(tmp_path, A=record("A", A))
    folder.apply(tmp_path, client, plain=True)
    write(tmp_path, A=record("A", A, B))
    (change,) = folder.plan(tmp_path, client, plain=True)
    assert (change.state, change.fields) == ("incompatible", ("+ b: int",))
    write(tmp_path, {"A": "FORWARD"})
    (change,) = folder.plan(tmp_path, client, plain=True)
    assert (change.state, change.level, change.reasons) == ("new version", "FORWARD", ())
    folder.apply(tmp_path, client, plain=True)
    write(tmp_path, {"A": "FULL_TRANSITIVE"}, A=record("A", B))
    (change,) = folder.plan(tmp_path, client, plain=True)
    assert change.state == "incompatible"
    assert all(any(f"version {n}" in reason for reason in change.reasons) for n in (1, 2))
    with pytest.raises(SchemaRefused, match="nothing was registered"):
        folder.apply(tmp_path, client, plain=True)
    assert held(store)[1] == ["FORWARD", None]


def test_another_registry_gets_levels_and_schemas_one_by_one(
    client: SchemaRegistryClient, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "is_millrace", lambda: False)
    write(tmp_path, {"A": "FULL"}, A=record("A", A), B=record("B", A))
    changes = folder.apply(tmp_path, client, plain=True, subjects=Subjects.parse(["B=topic-value"]))
    assert [(change.subject, change.id) for change in changes] == [("A", 1), ("B-value", 2)]
    assert held(store) == (["A", "B-value"], ["FULL", None])


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"A": "SIDEWAYS"}', "with one of"), ("[]", "write"), ("{", "write"), ('{"X": "FULL"}', "names X")],
)
def test_levels_that_mean_nothing_are_refused_before_anything_is_asked(
    tmp_path: Path, text: str, says: str
) -> None:
    write(tmp_path, A=record("A", A))
    (tmp_path / "levels.json").write_text(text)
    with pytest.raises(MillraceError, match=says):
        folder.check(tmp_path, plain=True)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"schemas": 1},
        {"schemas": [{"schema": '"int"'}]},
        {"schemas": [], "levels": [1]},
        {"schemas": [{"subject": "s", "schema": '"int"'}] * 2},
        {"schemas": [{"subject": f"s{n}", "schema": '"int"'} for n in range(2001)]},
        {"schemas": [], "author": "x" * 201},
        {"schemas": [{"subject": " ", "schema": '"int"'}]},
        {"schemas": [{"subject": "s", "schema": "{"}]},
        {"schemas": [], "levels": {"s": "SIDEWAYS"}},
    ],
)
def test_a_body_that_is_no_application_is_refused_and_changes_nothing(
    client: SchemaRegistryClient, store: Store, body: Any
) -> None:
    with pytest.raises(MillraceError):
        client.ask("/apply", body)
    assert held(store) == ([], [None, None])


def test_topics_that_share_a_subject_are_applied_and_a_subject_in_two_spellings_is_refused(
    client: SchemaRegistryClient, store: Store, tmp_path: Path
) -> None:
    directory = tmp_path / "schemas"
    write(directory, orders=record("Order", A), orders_eu=record("Order", A))
    applied = folder.apply(directory, client, plain=True, subjects=Subjects.parse(["record"]))
    assert [(change.subject, change.version) for change in applied] == [("shop.Order", 1)] * 2
    twice = [{"subject": name, "schema": json.dumps(record("A", A))} for name in ("A", ":.:A")]
    with pytest.raises(MillraceError, match="each subject once"):
        client.ask("/apply", {"schemas": twice, "levels": {}})
    with pytest.raises(MillraceError, match="each subject once"):
        client.ask("/apply", {"schemas": [], "levels": {"A": "FULL", ":.:A": "NONE"}})


def test_a_file_that_was_put_back_to_an_older_version_is_noted(
    client: SchemaRegistryClient, tmp_path: Path
) -> None:
    directory = tmp_path / "schemas"
    for schema in (record("A", A), record("A", A, B_OR_0)):
        write(directory, A=schema)
        (change,) = folder.apply(directory, client, plain=True)
        assert change.notes == ()
    write(directory, A=record("A", A))
    for work in (folder.plan, folder.apply):
        (change,) = work(directory, client, plain=True)
        assert (change.state, change.version) == ("unchanged", 1)
        assert "version 2 stays the latest" in change.notes[0]


def test_topics_of_one_subject_whose_schemas_or_levels_differ_are_refused(
    client: SchemaRegistryClient, store: Store, tmp_path: Path
) -> None:
    directory, by_record = tmp_path / "schemas", Subjects.parse(["record"])
    write(directory, orders=record("Order", A), orders_eu=record("Order", A, B))
    planned = folder.plan(directory, client, plain=True, subjects=by_record)
    assert [change.state for change in planned] == ["new", "invalid"]
    with pytest.raises(SchemaRefused, match=r"orders\.avsc are of one subject, shop\.Order, and"):
        folder.apply(directory, client, plain=True, subjects=by_record)
    assert held(store)[0] == []
    write(directory, {"orders": "NONE", "orders_eu": "FULL"}, orders_eu=record("Order", A))
    with pytest.raises(SchemaRefused, match="their schemas or levels differ"):
        folder.apply(directory, client, plain=True, subjects=by_record)


def test_more_than_the_registry_takes_at_once_is_planned_and_applied_in_slices(
    client: SchemaRegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, half = tmp_path / "schemas", "x" * 900_000
    names, asked = [*"ABCDEFG"], list[str]()
    ask = client.ask

    def noted(path: str, *more: Any, **by: Any) -> Any:
        asked.append(path)
        return ask(path, *more, **by)

    monkeypatch.setattr(client, "ask", noted)
    write(directory, **{name: {**record(name, A), "doc": half} for name in names})
    for work in (folder.plan, folder.apply, folder.apply):  # the third time nothing is sent
        assert [change.subject for change in work(directory, client, plain=True)] == names
        assert asked.count("/apply") == (0 if work is folder.plan else 3)
    assert [client.versions(name) for name in names] == [[1]] * 7


def test_more_schemas_and_levels_than_the_registry_takes_at_once_are_applied_in_slices(
    client: SchemaRegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("directory", "requests"):
        monkeypatch.setattr(f"millrace_registry.{module}.MAX_APPLIED", 5)
    directory, names = tmp_path / "schemas", [*"ABCDEFG"]
    write(directory, **{name: record(name, A) for name in names})
    (directory / folder.LEVELS).write_text(json.dumps(dict.fromkeys(names, "FULL")))
    applied = folder.apply(directory, client, plain=True)
    assert [(change.subject, change.version, change.level) for change in applied] == [
        (name, 1, "FULL") for name in names
    ]
    assert {client.level(name) for name in names} == {("FULL", True)}
