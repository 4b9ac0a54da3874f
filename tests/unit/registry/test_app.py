"""The registry's answers: every path, every status and every error code that a client compares."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, MutableMapping
from typing import Any
from uuid import UUID

import httpx
import pytest

from millrace import __version__
from millrace_registry import limits, requests
from millrace_registry.app import create_app
from millrace_registry.errors import ErrorCode
from millrace_registry.store import Store
from tests.support import REPOSITORY

V1: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "b", "type": "int", "default": 0}]}
V3 = {**V1, "fields": [*V2["fields"], {"name": "c", "type": "int", "default": 0}]}
BROKEN = {**V1, "fields": [{"name": "a", "type": "string"}]}


class Client:
    """Asks the application itself, no socket between, and shows an answer as body or (status, code)."""

    def __init__(self, store: Store, runner: asyncio.Runner) -> None:
        transport = httpx.ASGITransport(create_app(store), raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://registry")
        self._runner = runner

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """The answer as it is."""
        content = json.dumps(body) if body is not None and not isinstance(body, str) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._runner.run(self._http.request(method, path, content=content, headers=named))

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The body of a 200, else (status, error code)."""
        response = self.send(method, path, body, **headers)
        assert response.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
        answer = response.json()
        if response.status_code == 200:
            return answer
        assert set(answer) == {"error_code", "message"}
        assert "\n" not in answer["message"]
        return response.status_code, answer["error_code"]

    def text(self, method: str, path: str) -> Any:
        """The schema in an answer, parsed."""
        return json.loads(self(method, path)["schema"])

    def register(self, subject: str, schema: Any, **fields: Any) -> Any:
        """Register; the id, or (status, error code)."""
        answer = self("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema), **fields})
        return answer["id"] if isinstance(answer, dict) else answer


@pytest.fixture
def ask(store: Store) -> Iterator[Client]:
    with asyncio.Runner() as runner:
        yield Client(store, runner)


def test_a_schema_is_registered_once_and_found_by_id_subject_and_version(ask: Client) -> None:
    assert ask.register("s", V1) == 1
    assert ask.register("s", V1) == 1
    assert ask.register("t", V1) == 1
    assert ask.register("s", V2) == 2
    text = json.dumps(V2, separators=(",", ":"))
    assert ask("GET", "/subjects") == ["s", "t"]
    assert ask("GET", "/subjects/s/versions") == [1, 2]
    version = ask("GET", "/subjects/s/versions/2")
    guid = version.pop("guid")
    assert str(UUID(guid)) == guid
    assert version == {"subject": "s", "version": 2, "id": 2, "schemaType": "AVRO", "schema": text}
    version["guid"] = guid
    assert ask("GET", "/subjects/s/versions/latest") == version
    assert ask("GET", "/subjects/s/versions/-1") == version
    assert ask("GET", "/subjects/s/versions/2/schema") == V2
    assert ask("GET", "/schemas/ids/2") == {"schema": text, "schemaType": "AVRO", "guid": guid}
    assert ask("GET", f"/schemas/guids/{guid}") == ask("GET", "/schemas/ids/2")
    answer = {"id": 2, "version": 2, "guid": guid}
    assert ask("POST", "/subjects/s/versions", {"schema": json.dumps(V2)}) == answer
    assert ask("GET", "/schemas/ids/2/schema") == V2
    assert ask("GET", "/schemas/ids/1/subjects") == ["s", "t"]
    assert ask("GET", "/schemas/ids/1/versions") == [
        {"subject": "s", "version": 1},
        {"subject": "t", "version": 1},
    ]
    assert ask("GET", "/schemas/types") == ["AVRO"]
    assert ask("POST", "/subjects/s", {"schema": json.dumps(V2)}) == version
    assert [s["id"] for s in ask("GET", "/schemas")] == [1, 2, 1]
    assert [s["id"] for s in ask("GET", "/schemas?latestOnly=true&subjectPrefix=s")] == [2]


def test_pages_and_prefixes_narrow_a_list(ask: Client) -> None:
    for subject in ("a1", "a2", "b1"):
        ask.register(subject, V1)
    assert ask("GET", "/subjects?offset=1&limit=1") == ["a2"]
    huge = "9" * 300
    assert ask("GET", f"/subjects?offset={huge}") == []
    assert ask("GET", f"/schemas?limit=1&offset={huge}") == []
    assert ask("GET", f"/subjects?limit={huge}") == ["a1", "a2", "b1"]
    assert ask("GET", "/subjects?offset=0&limit=-1") == ["a1", "a2", "b1"]
    assert ask("GET", "/subjects?limit=0") == ["a1", "a2", "b1"]
    assert ask("GET", "/subjects?subjectPrefix=a") == ["a1", "a2"]
    assert ask("GET", "/subjects?subjectPrefix=:*:") == ["a1", "a2", "b1"]


def test_one_slash_at_the_end_of_a_path_means_nothing(ask: Client) -> None:
    assert ask("GET", "/config/") == {"compatibilityLevel": "BACKWARD"}
    assert ask("PUT", "/config/s/", {"compatibility": "FULL"}) == {"compatibility": "FULL"}
    assert ask("POST", "/compatibility/subjects/s/versions/", {"schema": json.dumps(V1)})["is_compatible"]
    assert ask("GET", "/config//") == (404, 404)
    assert ask("GET", "/") == {}


@pytest.mark.parametrize("text", ['"string"', '{"type":"string"}', '  {"type" : "string"}\n'])
def test_a_primitive_schema_is_returned_as_its_bare_name(ask: Client, text: str) -> None:
    assert ask("POST", "/subjects/s/versions", {"schema": text})["id"] == 1
    assert ask("GET", "/schemas/ids/1")["schema"] == '"string"'
    assert ask.send("GET", "/schemas/ids/1/schema").text == '"string"'


def test_the_same_schema_written_otherwise_is_the_same_schema(ask: Client) -> None:
    ask.register("s", V1)
    other = '{"fields" : [ {"type":{"type":"int"},"name":"a"} ], "name":"R", "type":"record"}'
    assert ask("POST", "/subjects/s?normalize=False&deleted=False", {"schema": other})["version"] == 1
    assert ask("POST", "/subjects/s/versions?normalize=true", {"schema": other})["id"] == 1


def test_fields_of_newer_clients_do_not_hinder_a_registration(ask: Client) -> None:
    extra: dict[str, Any] = {
        "schemaType": "AVRO",
        "references": None,
        "metadata": None,
        "ruleSet": None,
        "schemaTagsToAdd": [],
        "propagateSchemaTags": False,
        "id": -1,
        "version": 0,
        "from the future": 1,
    }
    assert ask.register("s", V1, **extra) == 1
    assert ask.register("s", V1, ruleSet={"migrationRules": None, "domainRules": []}) == 1
    assert ask.register("s", V1, metadata={"tags": None, "properties": None, "sensitive": []}) == 1


def test_of_two_who_ask_for_the_next_version_one_gets_it(ask: Client) -> None:
    assert ask.register("s", V1, version=2) == (422, 42201)
    assert ask("GET", "/subjects") == []
    assert ask.register("s", V1, version=1) == 1
    assert ask.register("s", V2, version=2) == 2
    assert ask.register("s", V3, version=2) == (422, 42201)
    assert ask.register("s", V2, version=7) == 2  # it is there: nothing is asked for
    assert ask("GET", "/subjects/s/versions") == [1, 2]
    assert ask.register("s", V3, version=3) == 3


@pytest.mark.parametrize("subject", ["a/b", "a%2Fb", "a b", "ünï", "a.b-value", "?#", "%", "..", "versions"])
def test_a_subject_may_have_any_printable_name(ask: Client, subject: str) -> None:
    from urllib.parse import quote

    path = quote(subject, safe="")
    assert ask.register(path.replace("..", "%2E%2E"), V1) == 1
    assert ask("GET", "/subjects") == [subject]
    assert ask("GET", f"/subjects/{path.replace('..', '%2E%2E')}/versions/1")["subject"] == subject


def test_the_default_context_is_the_registry_itself(ask: Client) -> None:
    assert ask.register(":.:s", V1) == 1
    assert ask("GET", "/subjects") == ["s"]
    assert ask("GET", "/contexts") == ["."]
    assert ask.register(":.other:s", V1) == (422, 42208)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One registry with V1 under `s` for all refusals: none of them may change it."""
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('refusing')}/registry.db")
    with asyncio.Runner() as runner:
        client = Client(store, runner)
        assert client.register("s", V1) == 1
        yield client
    store.close()


MISSING = (404, 40401)
HALF_A_PAIR = {"name": "A", "subject": "\ud800", "version": 1}
NUL = {"name": "A", "subject": "\0", "version": 1}
LARGE = {"name": "A", "subject": "s", "version": 2**31}


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/subjects/none/versions", None, MISSING),
        ("GET", "/subjects/none/versions/1", None, MISSING),
        ("GET", "/subjects/none/versions/latest", None, MISSING),
        ("GET", "/subjects/none/versions/1/schema", None, MISSING),
        ("GET", "/subjects/none/versions/1/referencedby", None, MISSING),
        ("DELETE", "/subjects/none", None, MISSING),
        ("DELETE", "/subjects/none?permanent=true", None, MISSING),
        ("DELETE", "/subjects/none/versions/1", None, MISSING),
        ("POST", "/subjects/none", {"schema": '"int"'}, MISSING),
        ("DELETE", "/config/none", None, MISSING),
        ("DELETE", "/mode/none", None, MISSING),
        ("GET", "/subjects/s/versions/2", None, (404, 40402)),
        ("GET", "/subjects/s/versions/2/schema", None, (404, 40402)),
        ("GET", "/subjects/s/versions/2147483647", None, (404, 40402)),
        ("DELETE", "/subjects/s/versions/2", None, (404, 40402)),
        ("POST", "/compatibility/subjects/s/versions/2", {"schema": '"int"'}, (404, 40402)),
        ("POST", "/compatibility/subjects/none/versions/1", {"schema": '"int"'}, (404, 40402)),
        ("GET", "/schemas/ids/2", None, (404, 40403)),
        ("GET", "/schemas/ids/0", None, (404, 40403)),
        ("GET", "/schemas/ids/-1", None, (404, 40403)),
        ("GET", "/schemas/ids/99999999999", None, (404, 40403)),
        ("GET", "/schemas/ids/x", None, (404, 40403)),
        ("GET", "/schemas/guids/x", None, (404, 40403)),
        ("GET", "/schemas/guids/00000000-0000-0000-0000-000000000000", None, (404, 40403)),
        ("GET", "/subjects/none/metadata", None, MISSING),
        ("GET", "/subjects/s/metadata?key=a&value=b", None, (404, 40403)),
        ("GET", "/subjects/s/metadata?key=a", None, (400, 400)),
        ("GET", "/schemas/ids/2/schema", None, (404, 40403)),
        ("GET", "/schemas/ids/2/subjects", None, (404, 40403)),
        ("GET", "/schemas/ids/2/versions", None, (404, 40403)),
        ("POST", "/subjects/s", {"schema": '"int"'}, (404, 40403)),
        ("DELETE", "/subjects/s?permanent=true", None, (404, 40405)),
        ("DELETE", "/subjects/s/versions/1?permanent=true", None, (404, 40407)),
        ("GET", "/config/s", None, (404, 40408)),
        ("GET", "/mode/s", None, (404, 40409)),
        ("POST", "/subjects/s/versions", {"schema": json.dumps(BROKEN)}, (409, 40901)),
        ("POST", "/subjects/s/versions", {"schema": "{"}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": '{"type":"no"}'}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": ""}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": None}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": {"type": "int"}}, (422, 42201)),
        ("POST", "/subjects/s/versions", {}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": "{}", "schemaType": "JSON"}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": "x", "schemaType": "PROTOBUF"}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "references": [{"name": "x"}]}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "references": 7}, (422, 42201)),
        ("POST", "/subjects/s", {"schema": "{"}, (422, 42201)),
        ("POST", "/compatibility/subjects/s/versions", {"schema": "{"}, (422, 42201)),
        ("GET", "/subjects/s/versions/0", None, (422, 42202)),
        ("GET", "/subjects/s/versions/-2", None, (422, 42202)),
        ("GET", "/subjects/s/versions/x", None, (422, 42202)),
        ("GET", "/subjects/s/versions/2147483648", None, (422, 42202)),
        ("DELETE", "/subjects/s/versions/x", None, (422, 42202)),
        ("POST", "/compatibility/subjects/s/versions/x", {"schema": '"int"'}, (422, 42202)),
        ("PUT", "/config", {"compatibility": "SIDEWAYS"}, (422, 42203)),
        ("PUT", "/config", {"compatibility": 7}, (422, 42203)),
        ("PUT", "/config", {"compatibility": "NONE", "alias": "t"}, (422, 422)),
        ("PUT", "/config", {"normalize": False}, (422, 422)),
        ("PUT", "/config/s", {"defaultRuleSet": {}}, (422, 422)),
        ("PUT", "/config/s", {"validateFields": True}, (422, 422)),
        ("PUT", "/mode", {"mode": "READONLY", "from": "the future"}, (422, 422)),
        ("PUT", "/config/s", {"compatibility": None}, (422, 42203)),
        ("PUT", "/mode", {"mode": "WRITEONLY"}, (422, 42204)),
        ("PUT", "/mode/s", {}, (422, 42204)),
        ("PUT", "/mode/s", {"mode": "IMPORT"}, (422, 42205)),
        ("PUT", "/mode", {"mode": "IMPORT"}, (422, 42205)),
        ("POST", "/subjects/s/versions", {"schema": json.dumps(V2), "id": 7}, (422, 42205)),
        ("POST", "/subjects/%20/versions", {"schema": '"int"'}, (422, 42208)),
        ("POST", "/subjects/a%00b/versions", {"schema": '"int"'}, (422, 42208)),
        ("PUT", "/config/a%0Ab", {"compatibility": "NONE"}, (422, 42208)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "ruleSet": {"domainRules": [{}]}}, (422, 42210)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "metadata": {"tags": {"a": ["b"]}}}, (422, 422)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "schemaTagsToAdd": [{}]}, (422, 422)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "metadata": [7]}, (400, 400)),
        (
            "POST",
            "/subjects/s/versions",
            {"schema": '"int"', "metadata": {"properties": {"a": 1}}},
            (400, 400),
        ),
        ("GET", "/subjects?subjectPrefix=%00", None, (422, 422)),
        ("GET", "/schemas?subjectPrefix=a%00", None, (422, 422)),
        ("GET", "/schemas/ids/1/versions?subject=%00", None, (422, 422)),
        ("GET", "/subjects?%00=1", None, (422, 422)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "references": [HALF_A_PAIR]}, (422, 422)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "references": [NUL]}, (422, 422)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "references": [LARGE]}, (422, 42201)),
        ("POST", "/subjects/s", {"schema": '"int"', "references": [NUL]}, (422, 422)),
        ("POST", "/compatibility/subjects/s/versions", {"schema": '"int"', "references": [NUL]}, (422, 422)),
        ("POST", "/subjects/s/versions", {"schema": "\0"}, (422, 422)),
        ("PUT", "/config", {"compatibility": "\ud800"}, (422, 422)),
        ("PUT", "/mode", {"mode": "READONLY", "\0": []}, (422, 422)),
        ("POST", "/subjects/s/versions", "[" * 990 + "]" * 990, (400, 400)),
        ("POST", "/subjects/s/versions", "{", (400, 400)),
        ("POST", "/subjects/s/versions", "[]", (400, 400)),
        ("POST", "/subjects/s/versions", "", (400, 400)),
        ("POST", "/subjects/s/versions", {"schema": '"int"', "id": "x"}, (400, 400)),
        ("GET", "/subjects?limit=many", None, (400, 400)),
        ("GET", "/nothing/here", None, (404, 404)),
        ("PATCH", "/subjects", None, (405, 405)),
    ],
)
def test_every_refusal_has_its_status_and_code(
    refusing: Client, method: str, path: str, body: Any, expected: tuple[int, int]
) -> None:
    assert refusing(method, path, body) == expected
    (only,) = refusing("GET", "/schemas")
    assert (only["subject"], only["version"], only["id"], json.loads(only["schema"])) == ("s", 1, 1, V1)
    assert refusing("GET", "/config") == {"compatibilityLevel": "BACKWARD"}


def test_a_schema_or_a_body_that_is_too_large_is_refused(ask: Client) -> None:
    assert ask.register("s", {**V1, "doc": "x" * limits.MAX_SCHEMA_BYTES}) == (422, 42209)
    assert ask.register("s", V1, padding="x" * limits.MAX_BODY_BYTES) == (413, 413)
    largest = {**V1, "doc": "x" * (limits.MAX_SCHEMA_BYTES - 1000)}
    assert ask.register("s", largest) == 1
    assert ask("POST", "/subjects/s", {"schema": json.dumps(largest)})["id"] == 1


@pytest.mark.parametrize("path", ["/subjects/s", "/compatibility/subjects/s/versions/latest", "/config"])
def test_a_body_that_asks_is_smaller_than_one_that_registers(ask: Client, path: str) -> None:
    body = {"schema": json.dumps(V1), "ignored": "x" * limits.MAX_QUESTION_BYTES}
    assert ask("PUT" if path == "/config" else "POST", path, body) == (413, 413)


def test_many_values_for_their_bytes_are_refused_before_they_are_read(ask: Client) -> None:
    many: list[Any] = [[]] * 250_000
    assert ask.register("s", V1, ignored=many) == (413, 413)
    assert ask("POST", "/subjects/s", {"schema": json.dumps(V1), "ignored": many}) == (413, 413)
    schema = "[" + "[]," * 250_000 + "[]]"
    assert ask("POST", "/subjects/s/versions", {"schema": schema}) == (422, 42201)


def test_a_body_in_another_media_type_is_refused_and_every_listed_one_is_read(ask: Client) -> None:
    body = {"schema": json.dumps(V1)}
    path = "/subjects/s/versions"
    assert ask("POST", path, body, content_type="text/plain") == (415, 415)
    for kind in (*requests.MEDIA_TYPES, "application/octet-stream", "application/json; charset=utf-8"):
        assert ask("POST", path, body, content_type=kind)["id"] == 1


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("*/*", "application/vnd.schemaregistry.v1+json"),
        ("application/json", "application/json"),
        ("application/vnd.schemaregistry+json, application/json", "application/vnd.schemaregistry+json"),
        (
            "application/vnd.schemaregistry.v1+json, application/json",
            "application/vnd.schemaregistry.v1+json",
        ),
    ],
)
def test_an_answer_comes_in_a_media_type_that_the_client_takes(
    ask: Client, accept: str, answered: str
) -> None:
    for path in ("/subjects", "/schemas/ids/7", "/nothing"):
        assert ask.send("GET", path, accept=accept).headers["content-type"] == answered


def test_a_deleted_version_is_hidden_but_its_id_still_reads_data(ask: Client) -> None:
    for schema in (V1, V2):
        ask.register("s", schema)
    assert ask("DELETE", "/subjects/s/versions/latest") == 2
    assert ask("DELETE", "/subjects/s/versions/2") == (404, 40406)
    assert ask("GET", "/subjects/s/versions") == [1]
    assert ask("GET", "/subjects/s/versions?deleted=true") == [1, 2]
    assert ask("GET", "/subjects/s/versions?deletedOnly=true") == [2]
    assert ask("GET", "/subjects/s/versions?deleted=False&deleted_only=True") == [2]
    assert ask("GET", "/subjects/s/versions/2") == (404, 40402)
    assert ask("GET", "/subjects/s/versions/2?deleted=true")["deleted"] is True
    assert ask("GET", "/schemas/ids/2")["schema"]
    assert ask("GET", "/schemas/ids/2/subjects") == []
    assert ask("GET", "/schemas/ids/2/subjects?deleted=true") == ["s"]
    assert ask("POST", "/subjects/s", {"schema": json.dumps(V2)}) == (404, 40403)
    assert ask("POST", "/subjects/s?deleted=true", {"schema": json.dumps(V2)})["version"] == 2
    assert ask.register("s", V2) == 2
    assert ask("GET", "/subjects/s/versions") == [1, 3]
    assert ask("POST", "/subjects/s?deleted=true", {"schema": json.dumps(V2)})["version"] == 3


def test_a_subject_is_deleted_in_two_steps_and_only_then_are_its_ids_gone(ask: Client) -> None:
    for schema in (V1, V2):
        ask.register("s", schema)
    ask("PUT", "/config/s", {"compatibility": "FULL"})
    assert ask("DELETE", "/subjects/s") == [1, 2]
    assert ask("GET", "/subjects") == []
    assert ask("GET", "/subjects?deleted=true") == ["s"]
    assert ask("GET", "/subjects?deletedOnly=true") == ["s"]
    assert ask("GET", "/subjects/s/versions") == (404, 40401)
    assert ask("DELETE", "/subjects/s") == (404, 40404)
    assert ask("GET", "/config/s") == {"compatibilityLevel": "FULL"}, "kept until it is deleted permanently"
    assert ask("DELETE", "/subjects/s?permanent=true") == [1, 2]
    assert ask("GET", "/config/s") == (404, 40408)
    assert ask("GET", "/subjects?deleted=true") == []
    assert ask("GET", "/schemas/ids/1") == (404, 40403)
    assert ask.register("s", V3) == 3
    assert ask.register("other", V1) == 1


def test_a_version_is_deleted_permanently_only_after_it_was_deleted(ask: Client) -> None:
    ask.register("s", V1)
    assert ask("DELETE", "/subjects/s/versions/1") == 1
    assert ask("DELETE", "/subjects/s/versions/1?permanent=true") == 1
    assert ask("GET", "/subjects/s/versions?deleted=true") == (404, 40401)


def test_compatibility_is_checked_against_a_version_or_by_the_level(ask: Client) -> None:
    ask.register("s", V1)
    ask("PUT", "/config/s", {"compatibility": "NONE"})
    ask.register("s", BROKEN)
    good, bad = {"schema": json.dumps(V2)}, {"schema": json.dumps(BROKEN)}
    path = "/compatibility/subjects/s/versions"
    assert ask("POST", f"{path}/1", bad) == {"is_compatible": True}, "level NONE"
    ask("PUT", "/config/s", {"compatibility": "BACKWARD"})
    assert ask("POST", f"{path}/1", good) == {"is_compatible": True}
    assert ask("POST", f"{path}/1", bad) == {"is_compatible": False}
    assert ask("POST", f"{path}/latest", bad) == {"is_compatible": True}
    assert ask("POST", path, good) == {"is_compatible": False}
    assert ask("POST", f"{path}?verbose=true", good) == {
        "is_compatible": False,
        "messages": ["the new schema cannot read version 2: a: int cannot read string"],
    }
    assert ask("POST", path, bad) == {"is_compatible": True}
    ask("PUT", "/config/s", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert ask("POST", f"{path}?verbose=True&normalize=False", bad) == {
        "is_compatible": False,
        "messages": ["the new schema cannot read version 1: a: string cannot read int"],
    }
    assert ask("POST", "/compatibility/subjects/none/versions", good) == {"is_compatible": True}
    assert ask("POST", "/compatibility/subjects/none/versions/latest", good) == {"is_compatible": True}


def test_a_refusal_for_incompatibility_says_why(ask: Client) -> None:
    ask.register("s", V1)
    answer = ask.send("POST", "/subjects/s/versions", {"schema": json.dumps(BROKEN)})
    message = answer.json()["message"]
    assert message == (
        'Schema being registered is incompatible with an earlier schema for subject "s", details:'
        " the new schema cannot read version 1: a: string cannot read int (level BACKWARD)"
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "/subjects/s/versions", {"schema": "{"}, "Invalid schema: the schema is not JSON: "),
        ("POST", "/subjects/s/versions", {"schema": ""}, "Empty schema"),
        (
            "PUT",
            "/config",
            {"compatibility": "X"},
            "Invalid compatibility level. Valid values are NONE, BACK",
        ),
        (
            "PUT",
            "/mode",
            {"mode": "X"},
            "Invalid mode. Valid values are READWRITE, READONLY, IMPORT, not 'X'",
        ),
        ("GET", "/subjects/none/versions", None, "Subject 'none' not found."),
        ("GET", "/subjects/s/versions/7", None, "Version 7 not found."),
        ("GET", "/subjects/s/versions/x", None, "The specified version 'x' is not a valid version id"),
        ("GET", "/schemas/ids/7", None, "Schema 7 not found"),
        ("POST", "/subjects/s", {"schema": '"int"'}, "Schema not found"),
        ("GET", "/config/s", None, "Subject 's' does not have subject-level compatibility configured"),
        ("DELETE", "/subjects/s?permanent=true", None, "Subject 's' was not deleted first before being perm"),
    ],
)
def test_a_message_begins_with_the_words_that_people_search_logs_for(
    refusing: Client, method: str, path: str, body: Any, words: str
) -> None:
    assert refusing.send(method, path, body).json()["message"].startswith(words)


def test_what_a_registry_says_of_itself_has_the_shape_that_clients_read(ask: Client) -> None:
    clusters = {"kafka-cluster": "", "schema-registry-cluster": "millrace"}
    assert ask("GET", "/v1/metadata/id") == {"scope": {"path": [], "clusters": clusters}, "id": ""}
    assert ask("GET", "/v1/metadata/version") == {"version": __version__, "commitId": ""}


def test_the_guid_of_a_schema_is_the_same_everywhere_and_gone_with_its_last_version(ask: Client) -> None:
    ask.register("a", V2)
    ask.register("s", V1)
    guid = ask("GET", "/schemas/ids/2")["guid"]
    assert ask.text("GET", f"/schemas/guids/{guid}") == V1
    assert ask.text("GET", f"/schemas/guids/{guid.replace('-', '').upper()}") == V1
    ask("DELETE", "/subjects/s")
    assert ask.text("GET", f"/schemas/guids/{guid}") == V1, "as by its id"
    ask("DELETE", "/subjects/s?permanent=true")
    assert ask("GET", f"/schemas/guids/{guid}") == (404, 40403)
    ask.register("t", V3)
    assert ask.register("u", V1) == 2
    assert ask("GET", "/schemas/ids/2")["guid"] == guid


def test_a_version_is_chosen_by_what_its_schema_was_registered_with(ask: Client) -> None:
    def metadata(**properties: str) -> dict[str, Any]:
        return {"metadata": {"properties": properties}}

    one, two = metadata(major="1", owner="x"), metadata(major="2")
    assert ask.register("s", V1, **one) == 1
    assert ask.register("s", V2) == 2
    assert ask.register("s", V2, **two) == 3, "a schema with other properties is another one"
    assert ask.register("s", V2, **two) == 3
    assert ask.register("s", V1) == 1, "a schema without any is the one that is there"
    assert ask("POST", "/subjects/s", {"schema": json.dumps(V1)})["id"] == 1
    assert ask("POST", "/subjects/s", {"schema": json.dumps(V2), **two})["version"] == 3
    assert ask("POST", "/subjects/s", {"schema": json.dumps(V1), **two}) == (404, 40403)
    found = ask("GET", "/subjects/s/metadata?deleted=False&key=major&value=1")
    assert (found["version"], found["metadata"]) == (1, {"properties": {"major": "1", "owner": "x"}})
    assert ask("GET", "/subjects/s/metadata?key=major&value=1&key=owner&value=x")["version"] == 1
    assert ask("GET", "/subjects/s/metadata?key=major&value=1&key=owner&value=y") == (404, 40403)
    assert ask("GET", "/subjects/s/metadata?key=major&value=2")["version"] == 3
    assert ask("GET", "/subjects/s/metadata")["version"] == 3
    assert ask("GET", "/schemas/ids/3")["metadata"] == two["metadata"]
    assert len({ask("GET", f"/schemas/ids/{i}")["guid"] for i in (1, 2, 3)}) == 3
    ask("DELETE", "/subjects/s/versions/3")
    assert ask("GET", "/subjects/s/metadata?key=major&value=2") == (404, 40403)
    assert ask("GET", "/subjects/s/metadata?key=major&value=2&deleted=true")["version"] == 3
    assert ask.register("t", V1, metadata={"properties": {"a": "x" * requests.MAX_METADATA_BYTES}}) == (
        422,
        42209,
    )


def test_levels_are_set_for_all_and_for_one_and_reset(ask: Client) -> None:
    assert ask("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert ask("PUT", "/config", {"compatibility": "full"}) == {"compatibility": "FULL"}
    assert ask("GET", "/config/s?defaultToGlobal=true") == {"compatibilityLevel": "FULL"}
    assert ask("PUT", "/config/s", {"compatibilityLevel": "NONE"}) == {"compatibility": "NONE"}
    assert ask("GET", "/config/s") == {"compatibilityLevel": "NONE"}
    assert ask("DELETE", "/config/s") == {"compatibilityLevel": "NONE"}
    assert ask("GET", "/config/s") == (404, 40408)
    assert ask("DELETE", "/config") == {"compatibilityLevel": "FULL"}
    assert ask("GET", "/config") == {"compatibilityLevel": "BACKWARD"}


def test_an_update_of_no_setting_changes_none(ask: Client) -> None:
    ask("PUT", "/config", {"compatibility": "FULL"})
    for nothing in ({}, {"normalize": True}, {"alias": None}):
        assert ask("PUT", "/config", nothing) == {}
        assert ask("PUT", "/config/s", nothing) == {}
    assert ask("GET", "/config") == {"compatibilityLevel": "FULL"}
    assert ask("GET", "/config/s") == (404, 40408)


def test_a_subject_keeps_its_level_and_mode_while_it_is_deleted(ask: Client) -> None:
    ask.register("s", V1)
    ask("PUT", "/config/s", {"compatibility": "FULL"})
    ask("PUT", "/mode/s", {"mode": "READWRITE"})
    ask("DELETE", "/subjects/s")
    ask.register("s", V1)
    assert ask("GET", "/config/s") == {"compatibilityLevel": "FULL"}
    assert ask("GET", "/mode/s") == {"mode": "READWRITE"}


def test_what_is_read_only_keeps_its_level_too(ask: Client) -> None:
    forbidden = (422, 42205)
    ask.register("s", V1)
    ask("PUT", "/config/s", {"compatibility": "FULL"})
    ask("PUT", "/mode/s", {"mode": "READONLY"})
    assert ask("PUT", "/config/s", {"compatibility": "NONE"}) == forbidden
    assert ask("DELETE", "/config/s") == forbidden
    assert ask("PUT", "/config/t", {"compatibility": "NONE"}) == {"compatibility": "NONE"}
    ask("PUT", "/mode", {"mode": "READONLY"})
    ask("PUT", "/mode/t", {"mode": "READWRITE"})
    for path in ("/config", "/config/s", "/config/u"):
        assert ask("PUT", path, {"compatibility": "NONE"}) == forbidden
        assert ask("DELETE", path) == forbidden
    assert ask("PUT", "/config/t", {"compatibility": "FULL"}) == {"compatibility": "FULL"}
    assert ask("GET", "/config/s") == {"compatibilityLevel": "FULL"}
    assert ask("DELETE", "/mode") == {"mode": "READONLY"}
    assert ask("DELETE", "/mode/s") == {"mode": "READONLY"}
    assert ask("DELETE", "/config/s") == {"compatibilityLevel": "FULL"}


def test_modes_are_set_for_all_and_for_one_and_reset(ask: Client) -> None:
    ask.register("s", V1)
    assert ask("GET", "/mode") == {"mode": "READWRITE"}
    assert ask("PUT", "/mode", {"mode": "readonly"}) == {"mode": "READONLY"}
    assert ask.register("s", V2) == (422, 42205)
    assert ask.register("s", V1) == 1, "what is there already can still be asked for"
    assert ask("DELETE", "/subjects/s") == (422, 42205)
    assert ask("GET", "/mode/s?defaultToGlobal=true") == {"mode": "READONLY"}
    assert ask("PUT", "/mode/s", {"mode": "READWRITE"}) == {"mode": "READWRITE"}
    assert ask.register("s", V2) == 2
    assert ask("DELETE", "/mode/s") == {"mode": "READWRITE"}
    assert ask("DELETE", "/mode") == {"mode": "READONLY"}
    assert ask("GET", "/mode") == {"mode": "READWRITE"}


def test_import_keeps_the_ids_of_another_registry(ask: Client) -> None:
    assert ask("PUT", "/mode/s", {"mode": "IMPORT"}) == {"mode": "IMPORT"}
    assert ask.register("s", V1) == (422, 42205)
    assert ask.register("s", BROKEN, id=100, version=7) == 100
    assert ask.register("s", V1, id=50, version=3) == 50, "no compatibility is asked for, no order either"
    assert ask.register("s", V1, id=50, version=3) == 50
    assert ask.register("s", V1, id=51) == (422, 42207)
    assert ask.register("s", V2, id=50) == (422, 42205)
    assert ask.register("s", V2, id=60, version=3) == (422, 42205)
    assert ask("GET", "/subjects/s/versions") == [3, 7]
    assert ask.register("other", V3) == 101
    ask("PUT", "/mode/s", {"mode": "READWRITE"})
    ask("PUT", "/config/s", {"compatibility": "NONE"})
    assert ask.register("s", V2) == 102
    assert ask("GET", "/subjects/s/versions") == [3, 7, 8]
    assert ask("PUT", "/mode/s?force=true", {"mode": "IMPORT"}) == {"mode": "IMPORT"}


@pytest.mark.parametrize(
    ("flawed", "readable"),
    [
        ({**V1, "fields": [{"name": "a", "type": "int", "default": "no number"}]}, True),
        ({**V1, "fields": [{"name": "a", "type": ["null", "string"], "default": 7}]}, False),
        ({**V1, "fields": [*V1["fields"], {"name": "b", "type": []}]}, True),
        ({"type": "map", "values": []}, False),
        ([], True),
    ],
)
def test_a_schema_of_an_old_library_is_imported_but_not_registered_anew(
    ask: Client, flawed: Any, readable: bool
) -> None:
    assert ask.register("s", flawed) == (422, 42201)
    ask("PUT", "/mode/s", {"mode": "IMPORT"})
    assert ask.register("s", flawed, id=7, version=3) == 7
    ask("PUT", "/mode/s", {"mode": "READWRITE"})
    assert ask.text("GET", "/schemas/ids/7") == flawed
    assert ask.text("GET", "/schemas/ids/7?format=resolved") == flawed
    body = {"schema": json.dumps(flawed)}
    assert ask("POST", "/subjects/s", body)["version"] == 3
    assert ask.register("s", flawed) == 7, "its producers go on"
    assert ask.register("t", flawed) == (422, 42201)
    path = "/compatibility/subjects/s/versions"
    assert ask("POST", path, body) == (422, 42201)
    assert ask("POST", path, {"schema": json.dumps(V1)}) == {"is_compatible": readable}


HEADER = {"type": "record", "name": "n.H", "fields": [{"name": "k", "type": "int"}]}
USER = {"type": "record", "name": "n.U", "fields": [{"name": "h", "type": "H"}, {"name": "i", "type": "n.H"}]}


def test_a_schema_may_refer_to_types_of_another_subject(ask: Client) -> None:
    ask.register("h", HEADER)
    reference = [{"name": "n.H", "subject": "h", "version": 1}]
    assert ask.register("u", USER) == (422, 42201)
    assert ask.register("u", USER, references=reference) == 2
    assert ask.register("u", USER, references=reference) == 2
    found = ask("GET", "/schemas/ids/2")
    assert found["references"] == reference
    assert '"k"' not in found["schema"]
    alone = ask("GET", "/schemas/ids/2?format=resolved")
    assert "references" not in alone
    assert json.loads(alone["schema"])["fields"][0]["type"]["fields"] == HEADER["fields"]
    assert ask("GET", "/subjects/u/versions/1?format=resolved")["schema"] == alone["schema"]
    assert ask("GET", "/subjects/h/versions/1/referencedby") == [2]
    assert ask("GET", "/subjects/u/versions/1/referencedby") == []
    assert ask("DELETE", "/subjects/h") == (422, 42206)
    assert ask("DELETE", "/subjects/h/versions/1") == (422, 42206)
    for missing in ({"version": 2}, {"subject": "x"}, {"name": "n.X"}):
        assert ask.register("v", USER, references=[{**reference[0], **missing}]) == (422, 42201)
    assert ask("DELETE", "/subjects/u") == [1]
    assert ask("DELETE", "/subjects/h") == [1]
    assert ask("DELETE", "/subjects/h?permanent=true") == (422, 42206), "u's id must stay readable"
    assert ask("DELETE", "/subjects/u?permanent=true") == [1]
    assert ask("DELETE", "/subjects/h?permanent=true") == [1]


def test_a_change_in_a_referenced_type_counts_for_compatibility(ask: Client) -> None:
    ask.register("h", HEADER)
    ask("PUT", "/config/h", {"compatibility": "NONE"})
    ask.register("h", {**HEADER, "fields": [{"name": "k", "type": "string"}]})
    one = [{"name": "n.H", "subject": "h", "version": 1}]
    two = [{"name": "n.H", "subject": "h", "version": 2}]
    first = ask.register("u", USER, references=one)
    assert ask.register("u", USER, references=two) == (409, 40901)
    assert ask.register("w", USER, references=two) not in (first, (409, 40901))


def test_the_page_of_the_registry_names_every_code_with_its_status() -> None:
    page = (REPOSITORY / "docs" / "registry.md").read_text()
    rows = re.findall(
        r"^\| ([\d, ]+) \| ([\d, ]+|the same) \|", page.partition("## Error codes")[2], re.MULTILINE
    )
    pairs = [
        (int(code), int(status if codes != "the same" else code))
        for status, codes in rows
        for code in (status if codes == "the same" else codes).split(", ")
    ]
    assert sorted(pairs) == sorted((int(code), int(str(code)[:3])) for code in ErrorCode)


def test_health_says_ok_and_a_broken_database_says_50001(ask: Client, store: Store) -> None:
    assert ask("GET", "/healthz") == {"status": "ok"}
    assert ask("GET", "/") == {}
    ask.register("s", V1)
    with store.write() as rows:
        for table in (
            "forgotten_versions",
            "schema_references",
            "schema_properties",
            "subject_versions",
            "schemas",
            "subjects",
            "settings",
        ):
            rows.connection.exec_driver_sql(f"DROP TABLE {table}")
    for method, path, body in (
        ("GET", "/healthz", None),
        ("GET", "/subjects", None),
        ("POST", "/subjects/s/versions", {"schema": json.dumps(V2)}),
    ):
        assert ask(method, path, body) == (500, 50001)
        assert (
            ask.send(method, path, body).json()["message"]
            == "the registry's database failed; its log says why"
        )


def test_a_client_that_goes_away_is_no_failure(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    begin = {"type": "http.request", "body": b"{", "more_body": True}
    messages: Iterator[dict[str, Any]] = iter([begin, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: MutableMapping[str, Any]) -> None:
        assert message["type"].startswith("http.response")

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/subjects/s",
        "raw_path": b"/subjects/s",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    asyncio.run(create_app(store)(scope, receive, send))
    assert next(messages, None) is None, "it was read to its end"
    assert caplog.records == []
