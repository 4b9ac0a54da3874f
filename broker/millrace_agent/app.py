"""The agent over HTTP.

    POST /v1/topics/{topic}/events   one event or a list of them, in JSON (application/json); or an array of
                                     them in Avro (application/avro) with ?schema_id=ID of the registry
    GET  /v1/topics/{topic}/schema   the schema of such an array [?schema_id=ID]
    GET  /healthz                    503 with the reasons while events do not reach the brokers
    GET  /metrics                    for Prometheus

With a list of tokens, a client must show a token with the route's role; without a token /healthz shows no
reasons.

200 {"accepted": n}: all the events of the request are on this machine's disk. With any other answer none of
the events was taken: {"error": "one sentence"} with 4xx for a request that is wrong, 503 for a request to
send again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect

from millrace import __version__
from millrace.errors import MillraceError
from millrace.service.access import AccessList
from millrace.service.admission import admit, who_asks
from millrace.service.bodies import BodyRefused, read_body
from millrace.service.json_answer import JsonAnswer
from millrace_agent.intake import Intake, Refused, Unknown
from millrace_agent.numbers import AgentNumbers, Taken
from millrace_agent.spool import Event, Spool

MAX_BODY_BYTES = 4 << 20
MAX_REQUESTS = 64
"""Most concurrent requests with events; it bounds the bodies in memory. A further request is answered with
503."""
DECODERS = 2
"""Threads that decode events: decoding takes the memory of at most this many requests at once."""


ROLES: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/topics/{topic}/events"): "write",
    ("GET", "/v1/topics/{topic}/schema"): "write",
    ("GET", "/healthz"): "",
    ("GET", "/metrics"): "metrics",
}
"""Method and path -> the role that the client needs for the topic in the path; empty: open to
every client."""


class _Busy(MillraceError):
    pass


class _WrongType(Refused):
    pass


_STATUS: Mapping[type[Exception], int] = {_WrongType: 415, Unknown: 404, Refused: 400}
"""Status of each error; all other errors are temporary: 503."""


def build_app(
    intake: Intake,
    spool: Spool,
    taken: Taken,
    numbers: AgentNumbers,
    problems: Callable[[], list[str]],
    access: AccessList | None = None,
) -> FastAPI:
    """Return the application in front of a spool.

    With `access` it answers only clients with the route's role.
    """
    app = FastAPI(
        title="Millrace agent",
        version=__version__,
        openapi_url="/openapi.json" if access is None else None,
        default_response_class=JsonAnswer,
    )
    decoders = ThreadPoolExecutor(DECODERS, "intake")
    requests = asyncio.Semaphore(MAX_REQUESTS)

    async def take(request: Request, topic: str, schema_id: int | None) -> int:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "application/json":
            decode: Callable[[bytes], list[Event]] = lambda body: intake.from_json(topic, body)  # noqa: E731
        elif media_type != "application/avro":
            raise _WrongType("send application/json or application/avro as Content-Type")
        elif schema_id is None:
            raise Refused(
                "an event in Avro needs ?schema_id=ID: the registry's id of the schema it is written with"
            )
        else:
            number = schema_id
            decode = lambda body: intake.from_avro(topic, number, body)  # noqa: E731
        with spool.arriving():
            body = await read_body(request, MAX_BODY_BYTES)
            events = await asyncio.get_running_loop().run_in_executor(decoders, decode, body)
            # Even if the client hangs up meanwhile, the events are taken.
            await asyncio.shield(asyncio.wrap_future(spool.take(events)))
        return len(events)

    @app.post("/v1/topics/{topic}/events")
    async def events(topic: str, request: Request, schema_id: int | None = None) -> dict[str, int]:
        """Take the events of a request: all of them, or none."""
        if requests.locked():
            raise _Busy(f"{MAX_REQUESTS} requests are being taken: send it again later")
        async with requests:
            accepted = await take(request, topic, schema_id)
        taken.events += accepted
        return {"accepted": accepted}

    @app.get("/v1/topics/{topic}/schema")
    def schema(topic: str, schema_id: int | None = None) -> dict[str, Any]:
        """Return the schema of a request in Avro, and the id to send it with."""
        number, batch = intake.batch_schema(topic, schema_id)
        return {"schema_id": number, "schema": batch}

    @app.get("/healthz")
    def healthz(request: Request) -> Response:
        found = problems()
        details = {"problems": found} if access is None or who_asks(request) else {}
        return JsonAnswer({"healthy": not found, **details}, status_code=503 if found else 200)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(numbers.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    _log_errors_in_one_line(app, taken)
    admit(app, lambda method, path: ROLES.get((method, path)), access, limited_by="topic")
    return app


def _log_errors_in_one_line(app: FastAPI, taken: Taken) -> None:
    def answer(status: int, text: str) -> JsonAnswer:
        if status == 503:
            taken.put_off += 1
        else:
            taken.refused += 1
        headers = {"Retry-After": "1"} if status == 503 else {}
        # Otherwise the rest of a body that was not read to its end would be mistaken for the next request.
        if status in (408, 413, 415):
            headers["Connection"] = "close"
        return JsonAnswer({"error": text}, status_code=status, headers=headers)

    @app.exception_handler(MillraceError)
    async def _refuse(_: Request, error: MillraceError) -> JsonAnswer:
        status = error.status if isinstance(error, BodyRefused) else _STATUS.get(type(error), 503)
        return answer(status, str(error))

    @app.exception_handler(RequestValidationError)
    async def _refuse_query(_: Request, error: RequestValidationError) -> JsonAnswer:
        return answer(400, "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()))

    @app.exception_handler(ClientDisconnect)
    async def _gone(_: Request, error: ClientDisconnect) -> JsonAnswer:
        return answer(400, "the client has disconnected")
