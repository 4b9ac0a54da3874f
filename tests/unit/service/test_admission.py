"""Admission to a web application: users with the route's role for the path's names, no foreign page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers

from millrace.service.access import AccessList, add_entry
from millrace.service.admission import admit, check_roles, from_another_site

ROLES = {("POST", "/v1/topics/{topic}"): "write", ("GET", "/healthz"): ""}


def role_of(method: str, path: str) -> str | None:
    return ROLES.get((method, path))


def application(access: AccessList | None) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.post("/v1/topics/{topic}")
    def write(topic: str) -> str:
        return topic

    @app.get("/healthz")
    def healthz() -> str:
        return "well"

    admit(app, role_of, access, limited_by="topic")
    return app


def ask(app: FastAPI, method: str, path: str, **headers: str) -> int:
    async def answer() -> httpx.Response:
        transport: Any = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://agent:8083") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(answer()).status_code


def test_a_role_counts_for_what_the_path_names(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    web = f"Bearer {add_entry(file, 'web', ['write:web-*'])}"
    every = f"Bearer {add_entry(file, 'every', ['write'])}"
    other = f"Bearer {add_entry(file, 'other', ['metrics'])}"
    app = application(AccessList(str(file)))
    assert ask(app, "POST", "/v1/topics/web-clicks", authorization=web) == 200
    assert ask(app, "POST", "/v1/topics/orders", authorization=web) == 403
    assert ask(app, "POST", "/v1/topics/orders", authorization=every) == 200
    assert ask(app, "POST", "/v1/topics/orders", authorization=other) == 403
    assert ask(app, "POST", "/v1/topics/orders") == 401
    assert ask(app, "POST", "/v1/topics/web-clicks/more", authorization=every) == 403
    for shown in ({}, {"authorization": "Bearer guess"}, {"authorization": other}):
        assert ask(app, "GET", "/healthz", **shown) == 200


def test_an_application_with_a_route_without_a_role_is_refused() -> None:
    app = application(None)

    @app.get("/v1/secrets")
    def secrets() -> None: ...

    with pytest.raises(RuntimeError, match="route /v1/secrets has no role"):
        check_roles(app, role_of)


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"origin": "http://agent:8083"}, False),
        ({"origin": "http://evil.example"}, True),
        ({"origin": "http://agent:8084"}, True),
        ({"origin": "null"}, True),
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        # Behind a proxy that names another host the browser's own word counts.
        ({"sec-fetch-site": "same-origin", "origin": "https://front.example"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://agent:8083"}, True),
    ],
)
def test_what_a_browser_sends_for_another_sites_page_is_refused(
    headers: dict[str, str], foreign: bool
) -> None:
    assert from_another_site("POST", Headers({"host": "agent:8083", **headers})) is foreign
    assert not from_another_site("GET", Headers({"host": "agent:8083", **headers}))
    app = application(None)
    assert (ask(app, "POST", "/v1/topics/t", **headers) == 403) is foreign
    assert ask(app, "GET", "/healthz", **headers) == 200
