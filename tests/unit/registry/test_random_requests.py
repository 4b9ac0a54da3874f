"""Random requests on every path, on SQLite and on PostgreSQL: none makes the registry fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace_registry.app import create_app
from millrace_registry.compatibility import Level
from millrace_registry.service import Mode
from millrace_registry.store import Store

RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
SCHEMAS = [RECORD, {**RECORD, "fields": []}, "int", {"type": "fixed", "name": "F", "size": 4}, ["null", "R"]]
SUBJECTS = ["s", "t", "a/b", "ü"]

BAD = ["", "\0", "a\0b", "\ud800", "".join(map(chr, range(0x20000, 0x20000 + 900))), "x" * 3000]
NUMBERS = [-1, 0, 1, 2, 2**31 - 1, 2**31, 2**63, 10**30]

texts = st.sampled_from(BAD) | st.sampled_from(SUBJECTS) | st.text(st.characters(exclude_categories=()))
numbers = st.sampled_from([1, 2]) | st.sampled_from(NUMBERS)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
schemas = st.sampled_from(SCHEMAS).map(json.dumps)
reference = st.fixed_dictionaries({"name": st.just("R") | texts, "subject": texts, "version": numbers})
fields = {
    "references": st.lists(reference, max_size=2) | values,
    "id": numbers | values,
    "version": numbers | values,
    "schemaType": st.just("AVRO") | values,
    "ruleSet": values,
    "compatibility": st.sampled_from([str(level) for level in Level]) | values,
    "mode": st.sampled_from([str(mode) for mode in Mode]) | values,
}
application = st.fixed_dictionaries(
    {
        "schemas": values
        | st.lists(st.fixed_dictionaries({"subject": texts, "schema": schemas | texts}), max_size=3),
        "levels": values | st.dictionaries(texts, st.sampled_from(list(map(str, Level))) | texts, max_size=2),
        "commit": texts | values,
        "author": texts | values,
    }
)
bodies = st.one_of(
    application.map(json.dumps),
    st.fixed_dictionaries({"schema": schemas, "references": st.lists(reference, max_size=2)}).map(json.dumps),
    st.fixed_dictionaries({"schema": schemas | values.map(json.dumps) | texts}, optional=fields).map(
        json.dumps
    ),
    values.map(json.dumps),
    st.binary(max_size=20),
)
segments = st.one_of(
    st.sampled_from([*SUBJECTS, "latest", "-1", "1", "2", "99999999999"]).map(
        lambda text: quote(text, safe="")
    ),
    texts.map(lambda text: quote(text.encode("utf-8", "surrogatepass"), safe="")),
    st.binary(max_size=6).map(lambda value: quote(value, safe="")),
)
NAMES = ["subjectPrefix", "subject", "deleted", "deletedOnly", "latestOnly", "permanent", "force", "verbose"]
NAMES += ["format", "offset", "limit", "defaultToGlobal", "prefix", "old", "new"]
queries = st.dictionaries(
    st.sampled_from(NAMES) | segments,
    st.sampled_from(["true", "false", "resolved", "0", "1", "-1", "9" * 30]) | segments,
    max_size=3,
).map(lambda query: "&".join(f"{name}={value}" for name, value in query.items()))


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    return sorted((m, r.path) for r in app.routes if isinstance(r, APIRoute) for m in r.methods)


@pytest.fixture
def app(store: Store) -> FastAPI:
    return create_app(store)


@pytest.fixture
def send(app: FastAPI) -> Iterator[Any]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    http = httpx.AsyncClient(transport=transport, base_url="http://registry")
    with asyncio.Runner() as runner:
        yield lambda method, url, body: runner.run(http.request(method, url, content=body))


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_request_makes_the_registry_fail(app: FastAPI, send: Any, data: st.DataObject) -> None:
    for method, path in routes_of(app):
        while "{" in path:
            head, _, rest = path.partition("{")
            path = head + data.draw(segments) + rest.partition("}")[2]
        body = data.draw(bodies) if method in ("POST", "PUT") else None
        response = send(method, f"{path}?{data.draw(queries)}", body)
        assert response.status_code < 500, response.text
        if response.status_code != 200:
            assert set(response.json()) == {"error_code", "message"}
