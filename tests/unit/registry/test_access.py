"""Token and role of a request: every route has a role, and nothing happens without the role."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from millrace.service.access import AccessList, add_entry
from millrace_registry.access import Role, check_roles
from millrace_registry.app import create_app
from millrace_registry.errors import ErrorCode
from millrace_registry.store import Store

OPEN = {("GET", "/"), ("POST", "/"), ("GET", "/healthz"), ("GET", "/favicon.ico")}
REGISTRATION = {("POST", "/subjects/{subject}/versions")}
BODY = {"schema": '"int"', "compatibility": "NONE", "mode": "READONLY"}


class TestClient:
    """Asks an application itself, no socket between."""

    __test__ = False

    def __init__(self, app: Any) -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://registry")
        self._runner = asyncio.Runner()

    def __enter__(self) -> TestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._http.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


def routes(app: Any) -> set[tuple[str, str]]:
    return {(m, route.path) for route in app.routes if isinstance(route, APIRoute) for m in route.methods}


def expected(method: str, path: str) -> Role | None:
    if (method, path) in OPEN:
        return None
    if (method, path) in REGISTRATION:
        return Role.REGISTER
    # The page and the numbers, too.
    return Role.ADMIN if method in ("PUT", "DELETE") else Role.READ


def filled(path: str) -> str:
    values = {"subject": "a%2Fb", "version": "1", "schema_id": "1", "guid": "0" * 32}
    return re.sub(r"{(\w+)}", lambda match: values[match[1]], path)


@pytest.fixture
def access_file(tmp_path: Path) -> Path:
    return tmp_path / "access.toml"


def header(file: Path, name: str, *roles: str) -> dict[str, str]:
    """Return the header that a new client of the file sends."""
    return {"authorization": f"Bearer {add_entry(file, name, roles)}"}


def test_every_route_asks_for_one_role_and_a_refused_request_changes_nothing(
    store: Store, access_file: Path
) -> None:
    with TestClient(create_app(store)) as open_to_all:
        made = open_to_all.post("/subjects/a%2Fb/versions", json={"schema": '"long"'}).json()
    eve = header(access_file, "eve", "metrics")
    app = create_app(store, AccessList(str(access_file)))
    with TestClient(app) as client:
        for method, path in sorted(routes(app)):
            role = expected(method, path)
            if role is None:
                assert client.request(method, path).status_code == 200, path
                continue
            answer = client.request(method, filled(path), headers=eve, json=BODY)
            assert (answer.status_code, answer.json()["error_code"]) == (403, ErrorCode.FORBIDDEN)
            what = "subject 'a/b'" if "{subject}" in path else "all subjects"
            assert f"User:eve lacks the role {role} for {what}:" in answer.json()["message"], (method, path)
    with TestClient(create_app(store)) as open_to_all:
        assert open_to_all.get("/subjects/a%2Fb/versions/latest").json()["id"] == made["id"]
        assert open_to_all.get("/mode").json() == {"mode": "READWRITE"}


def test_nothing_of_a_body_is_read_for_a_request_that_is_refused(store: Store, access_file: Path) -> None:
    eve = header(access_file, "eve", "metrics")
    with TestClient(create_app(store, AccessList(str(access_file)))) as client:
        asked = {**eve, "content-type": "text/x"}
        assert client.post("/subjects/s/versions", content=b"no JSON", headers=asked).status_code == 403


def test_a_browser_changes_nothing_for_a_page_of_another_site(store: Store) -> None:
    with TestClient(create_app(store)) as client:
        for shown in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}):
            # Without a Content-Type a browser asks nobody first.
            answer = client.post("/subjects/s/versions", content=b'{"schema": "\\"int\\""}', headers=shown)
            assert (answer.status_code, answer.json()["error_code"]) == (403, ErrorCode.FORBIDDEN)
            assert client.request("DELETE", "/subjects/s", headers=shown).status_code == 403
        assert client.get("/subjects", headers={"sec-fetch-site": "cross-site"}).json() == []
        own = {"origin": "http://registry", "sec-fetch-site": "same-origin"}
        assert client.post("/subjects/s/versions", json={"schema": '"int"'}, headers=own).status_code == 200


@pytest.mark.parametrize(("role", "status"), [("read:s", 200), ("read:t", 403), ("register", 403), ("", 401)])
def test_roles_are_given_by_token_and_subject(
    store: Store, access_file: Path, role: str, status: int
) -> None:
    bob = header(access_file, "bob", role or "read")
    with TestClient(create_app(store)) as open_to_all:
        open_to_all.post("/subjects/s/versions", json={"schema": json.dumps("int")})
    with TestClient(create_app(store, AccessList(str(access_file)))) as client:
        answer = client.get("/subjects/s/versions", headers=bob if role else {})
        assert answer.status_code == status


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/subjects/web-x", {}),
        ("/subjects/web-x/versions", {}),
        ("/compatibility/subjects/web-x/versions", {}),
        ("/compatibility/subjects/web-x/versions/1", {}),
        ("/apply", {"subject": "web-x"}),
    ],
)
@pytest.mark.parametrize("subject", ["hr-payroll", "hr-nothing"])
def test_a_schema_refers_only_to_what_its_sender_may_read(
    store: Store, access_file: Path, path: str, body: dict[str, str], subject: str
) -> None:
    hidden = {"type": "record", "name": "Payroll", "fields": [{"name": "salary", "type": "long"}]}
    with TestClient(create_app(store)) as open_to_all:
        open_to_all.post("/subjects/hr-payroll/versions", json={"schema": json.dumps(hidden)})
        open_to_all.post("/subjects/web-x/versions", json={"schema": '"int"'})
    web = header(access_file, "web", "read:web-*", "register:web-*", "admin:web-*")
    with TestClient(create_app(store, AccessList(str(access_file)))) as client:
        for name in ("Payroll", "?"):
            reference = {"name": name, "subject": subject, "version": 1}
            referring = {"schema": '"Payroll"', "references": [reference]}
            sent = {"schemas": [{**referring, **body}]} if body else referring
            answer = client.post(path, json=sent, headers=web)
            assert (answer.status_code, answer.json()["error_code"]) == (403, ErrorCode.FORBIDDEN)
            assert "salary" not in answer.text
            assert "Payroll" not in answer.text
        assert client.get("/subjects/web-x/versions", headers=web).json() == [1]


def test_a_schema_refers_to_what_its_sender_may_read(store: Store, access_file: Path) -> None:
    with TestClient(create_app(store)) as open_to_all:
        part = {"schema": json.dumps({"type": "fixed", "name": "F", "size": 1})}
        open_to_all.post("/subjects/web-part/versions", json=part)
    web = header(access_file, "web", "read:web-*", "register:web-*")
    referring = {"schema": '"F"', "references": [{"name": "F", "subject": "web-part", "version": 1}]}
    with TestClient(create_app(store, AccessList(str(access_file)))) as client:
        assert client.post("/subjects/web-x/versions", json=referring, headers=web).status_code == 200


def test_a_route_without_a_role_does_not_start() -> None:
    app = FastAPI(openapi_url=None)
    check_roles(app)

    @app.get("/secrets")
    def secrets() -> None: ...

    with pytest.raises(RuntimeError, match="route /secrets has no role"):
        check_roles(app)
