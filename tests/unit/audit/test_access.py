"""Access to the auditor: every route has a role, and nothing is answered without it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text

from millrace.service.access import AccessList, add_entry
from millrace.service.admission import check_roles
from millrace_audit.auditor.service.access import ROLES, role_of
from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from tests.unit.audit.story import OPTIONS
from tests.unit.audit.test_app import Client, Worker

OPEN = {"/", "/favicon.ico", "/v1/health"}
VALUES = {"{topic}": "t", "{instance}": "5"}
BODY = {"reason": "it is gone", "who": "mallory", "service": "s"}


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "access.toml"
    return {role: add_entry(file, f"the-{role}", [role]) for role in ("read", "metrics", "accept", "other")}


@pytest.fixture
def auditor(tmp_path: Path, tokens: dict[str, str]) -> Iterator[Client]:
    store = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    access = AccessList(str(tmp_path / "access.toml"))
    yield Client(build_app(store, OPTIONS, Worker(AuditNumbers(store, OPTIONS)), access=access))
    store.close()


def ask(auditor: Client, method: str, path: str, token: str | None = None) -> Any:
    for name, value in VALUES.items():
        path = path.replace(name, value)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    params = {"from": "2015-05-17T10:00:00Z", "to": "2015-05-17T11:00:00Z"}
    options: dict[str, Any] = {"json": BODY} if method == "POST" else {"params": params}
    return auditor.ask(method, path, headers=headers, **options)


def test_health_tells_a_stranger_no_reason_and_no_error_of_the_database(
    tmp_path: Path, tokens: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    store = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    worker = Worker(AuditNumbers(store, OPTIONS), trouble="cannot use the database: no such table: beats")
    client = Client(build_app(store, OPTIONS, worker, access=AccessList(str(tmp_path / "access.toml"))))
    assert client.get("/v1/health").json() == {"healthy": False, "role": "active"}
    known = ask(client, "GET", "/v1/health", tokens["read"]).json()
    assert known["trouble"].startswith("cannot use the database: no such table: beats; dc1 has sent no")
    with store.writing() as session:
        session.execute(text("DROP TABLE tiers"))
    for token in (None, tokens["read"]):
        answer = ask(client, "GET", "/v1/health", token)
        assert answer.status_code == 503
        assert answer.json() == {"error": "the auditor's database failed; its log says why"}
    assert "no such table: tiers" in caplog.text
    store.close()


@pytest.mark.parametrize(("method", "path"), ROLES)
def test_a_route_is_answered_for_its_own_role_only(
    auditor: Client, tokens: dict[str, str], method: str, path: str
) -> None:
    role = ROLES.get((method, path), "read")
    assert (role == "") is (path in OPEN)
    answers = {name: ask(auditor, method, path, token).status_code for name, token in tokens.items()}
    stranger = ask(auditor, method, path)
    if not role:
        assert 401 not in (stranger.status_code, *answers.values())
        return
    assert stranger.status_code == ask(auditor, method, path, "guess").status_code == 401
    assert stranger.headers["www-authenticate"].startswith("Basic")
    assert answers.pop(role) not in (401, 403, 404, 405)
    assert set(answers.values()) == {403}


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc", "/console/../v1/topics", "/v1/nothing"])
def test_what_is_no_route_is_nobodys(auditor: Client, tokens: dict[str, str], path: str) -> None:
    assert ask(auditor, "GET", path).status_code == 401
    assert ask(auditor, "PUT", "/v1/accept", tokens["accept"]).status_code == 403


def test_who_accepts_is_who_has_shown_the_token(
    auditor: Client, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def accept(*_: object, who: str, **__: object) -> tuple[None, list[int]]:
        said.append(who)
        return None, []

    monkeypatch.setattr("millrace_audit.auditor.service.decisions.accept", accept)
    token = base64.b64encode(f"the-accept:{tokens['accept']}".encode()).decode()
    answer = auditor.post("/v1/accept", json=BODY, headers={"authorization": f"Basic {token}"})
    assert (answer.status_code, said) == (200, ["the-accept"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/json", "origin": "http://evil.example"},
        {"content-type": "application/json", "sec-fetch-site": "cross-site"},
    ],
)
def test_a_foreign_page_accepts_nothing_with_a_browsers_own_token(
    auditor: Client, tokens: dict[str, str], headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "millrace_audit.auditor.service.decisions.accept", lambda *_: pytest.fail("it was accepted")
    )
    shown = {**headers, "authorization": f"Bearer {tokens['accept']}"}
    answer = auditor.post("/v1/accept", content=json.dumps(BODY).encode(), headers=shown)
    assert answer.status_code in (400, 403)


def test_a_route_without_a_role_does_not_start() -> None:
    app = FastAPI(openapi_url=None)

    @app.get("/v1/secrets")
    def secrets() -> None: ...

    with pytest.raises(RuntimeError, match="route /v1/secrets has no role"):
        check_roles(app, role_of)
