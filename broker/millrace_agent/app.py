"""The agent over HTTP.

    POST /v1/topics/{topic}/events   one event or a list of them, in JSON (application/json); or an array of
                                     them in Avro (application/avro) with ?schema_id=ID of the registry
    POST /v1/topics/{topic}/messages one message or a list of them, in JSON (application/json)
    GET  /v1/topics/{topic}/schema   the schema of such an array [?schema_id=ID]
    GET  /healthz                    503 with the reasons while events do not reach the brokers
    GET  /metrics                    for Prometheus

With a list of tokens, a client must show a token with the route's role; without a token /healthz shows no
reasons.

200 {"accepted": n}: all the events or messages of the request are on this machine's disk. With any other
answer none of them was taken: {"error": "one sentence"} with 4xx for a request that is wrong, 503 for a
request to send again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from millrace_agent.values import read_values

MAX_BODY_BYTES = 4 << 20
MAX_REQUESTS = 64
"""Most concurrent requests with events; it bounds the bodies in memory. A further request is answered with
503."""
DECODERS = 2
"""Threads that decode events: decoding takes the memory of at most this many requests at once."""


ROLES: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/topics/{topic}/events"): "write",
    ("POST", "/v1/topics/{topic}/messages"): "write",
    ("GET", "/v1/topics/{topic}/schema"): "write",
    ("GET", "/healthz"): "",
    ("GET", "/metrics"): "metrics",
}
"""Method and path -> the role that the client needs for the topic in the path; empty: open to
every client."""


Decode = Callable[[bytes], list[Event]]
"""Reading of a request's body. It raises MillraceError for a body that is refused."""


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

    async def take(request: Request, decode: Decode) -> dict[str, int]:
        if requests.locked():
            raise _Busy(f"{MAX_REQUESTS} requests are being taken: send it again later")
        async with requests:
            with spool.arriving():
                body = await read_body(request, MAX_BODY_BYTES)
                events = await asyncio.get_running_loop().run_in_executor(decoders, decode, body)
                # Even if the client hangs up meanwhile, the events are taken.
                await asyncio.shield(asyncio.wrap_future(spool.take(events)))
        taken.events += len(events)
        return {"accepted": len(events)}

    @app.post("/v1/topics/{topic}/events")
    async def events(topic: str, request: Request, schema_id: int | None = None) -> dict[str, int]:
        """Take the events of a request: all of them, or none."""
        return await take(request, _decoder_of_events(intake, topic, _media_type(request), schema_id))

    @app.post("/v1/topics/{topic}/messages")
    async def messages(topic: str, request: Request) -> dict[str, int]:
        """Take the messages of a request: all of them, or none."""
        return await take(request, _decoder_of_messages(intake, topic, _media_type(request)))

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


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _decoder_of_events(intake: Intake, topic: str, media_type: str, schema_id: int | None) -> Decode:
    if media_type == "application/json":
        return partial(intake.from_json, topic)
    if media_type != "application/avro":
        raise _WrongType("send application/json or application/avro as Content-Type")
    if schema_id is None:
        raise Refused(
            "an event in Avro needs ?schema_id=ID: the registry's id of the schema it is written with"
        )
    return partial(intake.from_avro, topic, schema_id)


def _decoder_of_messages(intake: Intake, topic: str, media_type: str) -> Decode:
    if media_type != "application/json":
        raise _WrongType("send application/json as Content-Type")

    def decode(body: bytes) -> list[Event]:
        intake.check_topic(topic)
        return read_values(topic, body)

    return decode


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
