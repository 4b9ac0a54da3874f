"""Out of one registry and into another: every id, number, deleted version and level, or nothing changes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import httpx
import pytest

from millrace.errors import MillraceError
from millrace_registry import transfer
from millrace_registry.client import SchemaRefused, SchemaRegistryClient
from tests.conftest import Start
from tests.support import WAIT_S, run_millrace


class Registry:
    """A registry of its own, asked as others ask it."""

    def __init__(self, start: Start, folder: Path) -> None:
        process = start("registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}.db")
        self.url = f"http://{process.ready()}"

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        response = httpx.request(method, self.url + path, json=body, timeout=WAIT_S)
        return response.json() if response.is_success else response.json()["error_code"]

    def register(self, subject: str, schema: Any, **fields: Any) -> int:
        body = {"schema": json.dumps(schema), **fields}
        answer: dict[str, int] = self("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        return answer["id"]

    def held(self) -> Any:
        """All that another registry should have in common."""
        versions = self("GET", "/schemas?deleted=true")
        subjects = self("GET", "/subjects?deleted=true")
        config = {subject: self("GET", f"/config/{quote(subject, safe='')}") for subject in subjects}
        return versions, config, {s: self("GET", f"/mode/{quote(s, safe='')}") for s in subjects}


def record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{i}", "type": kind, "default": 0} for i, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def fill(registry: Registry) -> None:
    """Ids in another order than references, versions deleted and registered again, levels, old schemas."""
    registry("PUT", "/mode/old", {"mode": "IMPORT"})
    registry.register("old", record("Old", "string"), id=900, version=7)
    registry("DELETE", "/mode/old")
    registry.register("z/a", record("A", "int"))
    registry.register("z/a", record("A", "int", "int"))
    for number in (1, 2):
        assert registry("DELETE", f"/subjects/z%2Fa/versions/{number}") == number
    registry.register("z/a", record("A", "int"))
    registry("PUT", "/config/z%2Fa", {"compatibility": "FULL"})
    user = {"type": "array", "items": "A"}
    registry.register("b", user, references=[{"name": "A", "subject": "z/a", "version": 3}])
    registry.register("c" * 400, record("C"), metadata={"properties": {"owner": "x"}})
    registry.register("gone", record("Gone"))
    registry("DELETE", "/subjects/gone")


@pytest.mark.slow
def test_another_registry_has_everything_under_the_same_ids(start: Start, tmp_path: Path) -> None:
    source, by_url, by_folder = (Registry(start, tmp_path / name) for name in ("source", "url", "folder"))
    fill(source)
    folder = str(tmp_path / "export")
    done = run_millrace("schemas", "export", folder, "--registry", source.url)
    assert (done.returncode, done.stdout) == (0, f"7 versions are in {folder}\n"), done.stderr
    for target, origin in ((by_url, source.url), (by_folder, folder)):
        done = run_millrace("schemas", "import", origin, "--registry", target.url)
        assert (done.returncode, done.stdout) == (0, "7 versions imported\n"), done.stderr
        assert "had the level BACKWARD there" in done.stderr
        assert target.held() == source.held()
        assert target("GET", "/schemas/ids/900") == source("GET", "/schemas/ids/900")
        assert target("GET", "/subjects/z%2Fa/versions") == [3]
        assert target.register("new", record("New")) > 900
    again = run_millrace("schemas", "import", folder, "--registry", by_url.url, "--json")
    assert {row["state"] for row in json.loads(again.stdout)} == {"unchanged"}
    done = run_millrace("schemas", "export", folder, "--registry", source.url)
    assert done.returncode == 1
    assert f"{folder} is not empty: give a new folder" in done.stderr


def ends_at(client: SchemaRegistryClient, step: int) -> Callable[..., Any]:
    """Return an `ask` that is interrupted after `step` changes: after that nothing is even tidied up."""
    changes = itertools.count()

    def ask(path: str, body: Any = None, **options: Any) -> Any:
        if (body is not None or "method" in options) and next(changes) >= step:
            raise KeyboardInterrupt
        return SchemaRegistryClient.ask(client, path, body, **options)

    return ask


def test_an_import_that_ended_halfway_is_run_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = (Registry(start, tmp_path / name) for name in ("source", "target"))
    fill(source)
    with SchemaRegistryClient(source.url) as client:
        contents = transfer.read_registry(client)
    for step in itertools.count():
        with SchemaRegistryClient(target.url) as client, monkeypatch.context() as patched:
            patched.setattr(client, "ask", ends_at(client, step))
            try:
                transfer.write_registry(contents, client)
                break
            except KeyboardInterrupt:
                continue
    assert step > 5
    assert target.held() == source.held()


def test_nothing_is_imported_when_an_id_or_a_version_means_something_else_there(
    start: Start, tmp_path: Path
) -> None:
    source, target = (Registry(start, tmp_path / name) for name in ("source", "target"))
    fill(source)
    with SchemaRegistryClient(source.url) as client:
        contents = transfer.read_registry(client)
    target("PUT", "/mode/mine", {"mode": "IMPORT"})
    target.register("mine", record("Other"), id=900, version=9)
    before = target.held()
    with SchemaRegistryClient(target.url) as client:
        with pytest.raises(SchemaRefused, match="nothing was imported: id 900 is another schema there"):
            transfer.write_registry(contents, client)
        other = dataclasses.replace(contents.versions[0], subject="mine", version=9, id=7)
        with pytest.raises(SchemaRefused, match="subject mine version 9 has id 900 there, 7 here"):
            transfer.write_registry(dataclasses.replace(contents, versions=[other]), client)
    assert target.held() == before


def test_nothing_is_imported_when_a_schema_has_another_id_there(start: Start, tmp_path: Path) -> None:
    """Also not what comes before it: such an import could never be finished."""
    target = Registry(start, tmp_path / "target")
    target.register("theirs", record("A", "int"))
    used = [{"name": "A", "subject": "theirs", "version": 1}]
    target.register("users", {"type": "array", "items": "A"}, references=used)
    before = target.held()
    first = transfer.Version(subject="a", version=1, id=8, schema='"int"')
    same = dataclasses.replace(first, subject="b", id=9, schema=json.dumps(record("A", "int"), indent=1))
    user = dataclasses.replace(same, schema='{"type": "array", "items": "A"}', references=used)
    for version, there in ((same, 1), (user, 2)):
        with (
            SchemaRegistryClient(target.url) as client,
            pytest.raises(SchemaRefused, match=f"of subject b version 1 has id {there} there, 9 here"),
        ):
            transfer.write_registry(transfer.Contents([first, version], {}, ""), client)
    assert target.held() == before


def test_what_is_no_avro_is_left_out_and_named(start: Start, tmp_path: Path) -> None:
    target = Registry(start, tmp_path / "target")
    versions = [
        transfer.Version(subject="j", version=1, id=5, schema="{}", schema_type="JSON"),
        transfer.Version(subject="a", version=1, id=6, schema='"int"'),
    ]
    with SchemaRegistryClient(target.url) as client:
        done = transfer.write_registry(transfer.Contents(versions, {}, "BACKWARD"), client)
    assert [(each.subject, each.state) for each in done] == [("j", "left out"), ("a", "imported")]
    assert target("GET", "/subjects") == ["a"]


def test_what_millrace_cannot_read_is_left_out_and_named(start: Start, tmp_path: Path) -> None:
    """Java's Avro takes names with any letters; what refers to such a schema is left out with it."""
    target = Registry(start, tmp_path / "target")
    field = {"name": "größe", "type": "int"}
    flawed = json.dumps({"type": "record", "name": "U", "fields": [field]})
    sound = json.dumps({"type": "record", "name": "S", "fields": []})
    user = [{"name": "U", "subject": "u", "version": 1}]
    versions = [
        transfer.Version(subject="a", version=1, id=5, schema='"int"'),
        transfer.Version(subject="u", version=1, id=6, schema=flawed),
        transfer.Version(subject="v", version=1, id=7, schema='"U"', references=user),
        transfer.Version(subject="w", version=1, id=8, schema=sound),
        transfer.Version(
            subject="x",
            version=1,
            id=9,
            schema='"S"',
            references=[{"name": "S", "subject": "w", "version": 1}],
        ),
    ]
    contents = transfer.Contents(versions, {}, "BACKWARD")
    with SchemaRegistryClient(target.url) as client:
        done = [transfer.write_registry(contents, client) for _ in range(2)]
    states = [{each.subject: each.state for each in results} for results in done]
    assert states[0] == {"a": "imported", "u": "left out", "v": "left out", "w": "imported", "x": "imported"}
    assert states[1] == {
        "a": "unchanged",
        "u": "left out",
        "v": "left out",
        "w": "unchanged",
        "x": "unchanged",
    }
    unreadable, refers = (each.reason for each in done[0] if each.reason)
    assert unreadable.startswith("Millrace's registry does not take it: U: ")
    assert refers == "it refers to subject u version 1, which is left out"
    assert target("GET", "/subjects") == ["a", "w", "x"]


RULES = {"domainRules": [{"name": "encrypt", "kind": "TRANSFORM", "type": "ENCRYPT", "tags": ["PII"]}]}
TOLD: list[dict[str, Any]] = [
    {"schema": '"int"', "ruleSet": RULES},
    {"schema": '"long"', "metadata": {"tags": {"User.name": ["PII"]}, "properties": {"owner": "x"}}},
    {"schema": '"bytes"', "references": [{"name": "x", "subject": "a", "version": 1}]},
    {"schema": '"string"', "metadata": {"tags": None, "properties": {"owner": "x"}}, "ruleSet": None},
]
"""Answers of Confluent's registry for four versions of the subject `a`."""


def confluent(request: httpx.Request) -> httpx.Response:
    """A registry of Confluent's that holds TOLD."""
    match request.url.path:
        case "/schemas":
            versions = [{"subject": "a", "version": i, "id": i, **more} for i, more in enumerate(TOLD, 1)]
            return httpx.Response(200, json=versions[int(request.url.params["offset"]) :])
        case "/subjects/a/versions":
            return httpx.Response(200, json=[1, 2, 3, 4])
        case "/config":
            return httpx.Response(200, json={"compatibilityLevel": "BACKWARD"})
    return httpx.Response(404, json={"error_code": 40408})


def test_what_would_lose_its_rules_or_tags_is_left_out_and_named(start: Start, tmp_path: Path) -> None:
    """A field that a rule encrypts would else be written in clear by whoever takes its schema from here."""
    source_client = partial(httpx.Client, transport=httpx.MockTransport(confluent))
    with mock.patch("httpx.Client", source_client):
        source = SchemaRegistryClient("http://source")
    with source:
        transfer.write_folder(transfer.read_registry(source), tmp_path / "export")
    target = Registry(start, tmp_path / "target")
    with SchemaRegistryClient(target.url) as client:
        done = transfer.write_registry(transfer.read_folder(tmp_path / "export"), client)
    assert [(each.state, each.reason) for each in done] == [
        ("left out", "its ruleSet.domainRules would have no effect there"),
        ("left out", "its metadata.tags would have no effect there"),
        ("left out", "it refers to subject a version 1, which is left out"),
        ("imported", ""),
    ]
    assert target("GET", "/subjects/a/versions") == [4]


def test_a_folder_that_is_no_whole_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="is not a complete export"):
        transfer.read_folder(tmp_path / "none")
    contents = transfer.Contents([transfer.Version(subject="a", version=1, id=6, schema='"int"')], {}, "FULL")
    transfer.write_folder(contents, tmp_path / "whole")
    assert transfer.read_folder(tmp_path / "whole") == contents
    (tmp_path / "whole" / "a.json").unlink()
    with pytest.raises(MillraceError, match="it has 0 of 1 subjects"):
        transfer.read_folder(tmp_path / "whole")
