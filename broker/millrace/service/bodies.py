"""Request bodies: read whole, in limited time; a client's large bodies one after the other, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.errors import MillraceError
from millrace.service.admission import who_asks
from millrace.service.json_answer import JsonAnswer

T = TypeVar("T")
BODY_TIMEOUT_S = 30.0
"""Time limit of a body. A later body is refused, and its connection closed."""
SMALL_BODY_BYTES = 64 << 10
"""Largest body that is decoded at once, on the event loop."""
READERS = 2
"""Threads that decode large bodies."""


class BodyRefused(MillraceError):
    """A body that is too large or too slow; the rest of it is not read, so its connection must be closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: Request, most: int) -> bytes:
    """Return a body of at most `most` bytes. Raise BodyRefused for a larger or a late one."""
    body = bytearray()
    await _read(request.stream(), body, most, most)
    return bytes(body)


async def _read(parts: AsyncIterator[bytes], body: bytearray, enough: int, most: int) -> bool:
    """Read until the end or until more than `enough` bytes have arrived. Return True at the end."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in parts:
                body += part
                if len(body) > most:
                    raise BodyRefused(
                        413, f"the request's body is larger than {most} bytes: send less at once"
                    )
                if len(body) > enough:
                    return False
    except TimeoutError:
        raise BodyRefused(
            408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s: send it again"
        ) from None
    return True


class LargeBodies:
    """Reads large bodies: one at a time from each client, READERS at once from all clients."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(READERS, "bodies")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def read(self, request: Request, most: int, decode: Callable[[bytes], T]) -> AsyncIterator[T]:
        """Yield a decoded body. The client's next large body waits until the request is answered."""
        parts, body = request.stream(), bytearray()
        if await _read(parts, body, SMALL_BODY_BYTES, most):
            yield decode(bytes(body))
            return
        turn = self._turns.setdefault(_client(request), asyncio.Lock())
        async with turn:
            await _read(parts, body, most, most)
            yield await asyncio.get_running_loop().run_in_executor(self._readers, decode, bytes(body))


class WholeBodies:
    """Middleware that reads the body of a POST before the application does.

    A refusal is {"error": "one line"}.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        try:
            body = await read_body(Request(scope, receive), self._most)
        except BodyRefused as error:
            return await _refusal_of(error)(scope, receive, send)
        except ClientDisconnect:
            return None
        parts: list[Message] = [{"type": "http.request", "body": body}]

        async def receive_whole() -> Message:
            return parts.pop() if parts else await receive()

        return await self._app(scope, receive_whole, send)


def _refusal_of(error: BodyRefused) -> JsonAnswer:
    """Return the answer to a refused body.

    The answer closes the connection: the rest of the body must not be read as a request.
    """
    return JsonAnswer({"error": str(error)}, status_code=error.status, headers={"Connection": "close"})


def _client(request: Request) -> str:
    """Return the client's name by its token, or its address when the request needed no token."""
    host: Any = request.client.host if request.client is not None else ""
    return who_asks(request) or str(host)
