"""Bodies that are too large, too slow or of too many values are refused; large ones wait for their turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel

from millrace.service import bodies
from millrace.service.bodies import SMALL_BODY_BYTES, LargeBodies, WholeBodies
from millrace.service.json_values import MOST_VALUES, has_too_many_values

MANY = MOST_VALUES + 2


@pytest.mark.parametrize(
    ("text", "too_many"),
    [
        (b"[" + b"[]," * MANY + b"[]]", True),
        (b"[" * MANY, True),
        (b'{"a":' * MANY, True),
        (b'{"schema": "\\"a\\\\\\"", "x": [' + b"1," * MANY + b"1]}", True),
        (b'["\\\\",' + b"1," * MANY + b"1]", True),
        (b'"",' * MANY, True),
        (json.dumps({"schema": json.dumps([{"name": "f", "type": "int"}] * MANY)}).encode(), False),
        (json.dumps(["\\", '"', '\\"', "[" * MANY]).encode(), False),
        (b"9" * 3_000_000, False),
        (b"", False),
    ],
)
def test_values_outside_of_strings_are_counted(text: bytes, too_many: bool) -> None:
    assert has_too_many_values(text) is too_many


class Reason(BaseModel):
    """Body of a request."""

    reason: str


def application() -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.post("/")(_say)
    app.add_middleware(WholeBodies, most=100)
    return app


def _say(said: Reason) -> str:
    return said.reason


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://service")


async def trickle() -> AsyncIterator[bytes]:
    for _ in range(1000):
        yield b" "
        await asyncio.sleep(0.05)


def test_a_body_that_trickles_or_is_too_large_is_refused_and_its_connection_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.3)

    async def ask(content: Any) -> httpx.Response:
        async with client_of(application()) as client:
            return await client.post("/", content=content, headers={"content-type": "application/json"})

    assert asyncio.run(ask(b'{"reason": "well"}')).json() == "well"
    for content, status in ((trickle(), 408), (b" " * 101, 413)):
        answer = asyncio.run(ask(content))
        assert (answer.status_code, answer.headers["connection"]) == (status, "close")


def test_large_bodies_of_a_client_are_taken_one_after_the_other() -> None:
    taken: list[str] = []
    at_once = most_at_once = 0
    large = LargeBodies()
    app = FastAPI(openapi_url=None)

    @app.post("/{name}")
    async def take(name: str, request: Request) -> str:
        nonlocal at_once, most_at_once
        request.state.who = name
        async with large.read(request, 1 << 20, bytes.decode) as body:
            at_once += name == "a"
            most_at_once = max(most_at_once, at_once)
            if name == "a" and len(body) > SMALL_BODY_BYTES:
                await asyncio.sleep(0.2)
            taken.append(name if len(body) > SMALL_BODY_BYTES else f"{name} small")
            at_once -= name == "a"
        return name

    async def ask() -> None:
        async with client_of(app) as client:
            content = b"x" * (SMALL_BODY_BYTES + 1)
            await asyncio.gather(*(client.post(f"/{name}", content=content) for name in "aaab"))
            assert most_at_once == 1
            assert taken.index("b") < 3, "another client does not wait for them"
            taken.clear()
            await asyncio.gather(*(client.post("/a", content=sent) for sent in (content, content, b"small")))
            assert taken.index("a small") < 2, "a small body waits for nobody"

    asyncio.run(ask())
