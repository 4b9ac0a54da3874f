"""The table of APIs, and the one way from the bytes of a request to the bytes of its answer.

Decodes, lets the API's handler work, encodes, counts the errors that the answer carries, and turns what was
raised into an answer. An API or a version that is not offered has no response that its client could read: the
connection is closed, as Kafka does it, and the log says why. Knows no sockets.
"""

from __future__ import annotations

import functools
import logging
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from millrace.broker.broker import Broker
from millrace.errors import BrokerError, ErrorCode
from millrace.server.request import NOTHING, Client, Request
from millrace.wire.codec import RequestTooLarge, decode, encode, encode_error, is_flexible
from millrace.wire.fields import fields_of
from millrace.wire.framing import RequestFramer, client_id, parse_header, skip_tagged_fields
from millrace.wire.messages import ApiKey

log = logging.getLogger(__name__)
M = TypeVar("M")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: the versions it serves, and what serves a request of it.

    `message_api` makes those that work with messages; the others read and write the bytes themselves.
    """

    key: ApiKey
    versions: range
    """The versions that clients are told of."""
    private_versions: range = range(0)
    """Versions that are served, too, and that no client is told of."""
    serve: Callable[[Broker, Request], None]
    """Answers the request, at once or later, or raises BrokerError."""
    serve_run: Callable[[Broker, Client, RequestFramer], Request | None] | None = None
    """Serves many requests that come next in a client's bytes as one; None when they are not of that kind."""


class Answer(NamedTuple):
    """The body of a response, and the error codes it carries."""

    body: bytes
    errors: Sequence[int] = ()


InThread: TypeAlias = Callable[[Broker, Callable[[], Answer], Callable[[Future[Answer]], None]], None]
"""One of the broker's: runs the first function in a thread, then the second on the loop with its outcome."""


class Call(Generic[M]):
    """A decoded request, and the way its answer takes."""

    __slots__ = ("_received", "broker", "request")

    def __init__(self, broker: Broker, received: Request, request: M) -> None:
        self.broker, self.request = broker, request
        self._received = received

    @property
    def version(self) -> int:
        return self._received.api_version

    @property
    def client(self) -> Client:
        return self._received.client

    @property
    def client_id(self) -> str:
        return self._received.client_id

    def answer(self, response: object) -> None:
        """Send the response, on the loop."""
        try:
            answer = self._encode(response)
        except Exception as error:
            _answer_failure(self._received, error)
        else:
            send(self._received, answer)

    def answer_from(self, thread: InThread, work: Callable[[], object]) -> None:
        """Send the response that `work` makes in a thread."""
        answer_from_thread(self.broker, thread, self._received, lambda: self._encode(work()))

    def refuse(self, code: ErrorCode) -> None:
        """Send a response that says only `code`."""
        _send_error(self._received, code)

    def when_client_goes(self, abandon: Callable[[], None]) -> None:
        """Have `abandon` called if the client goes away before it is answered."""
        self._received.abandon = abandon

    def _encode(self, response: object) -> Answer:
        body = encode(response, self._received.api_key, self._received.api_version)
        return Answer(body, list(error_codes(response)))


def message_api(
    key: ApiKey,
    versions: range,
    request: type[M],
    handle: Callable[[Call[M]], object | None],
    *,
    thread: InThread | None = None,
) -> Api:
    """An API that `handle` serves: it gets the decoded request and returns the response.

    With `thread` it runs in a thread of the broker. Otherwise it may return None and bring the response
    later, by `Call.answer` or `Call.answer_from`.
    """

    def serve(broker: Broker, received: Request) -> None:
        call = Call(broker, received, decode(request, key, received.api_version, received.body))
        if thread is not None:
            call.answer_from(thread, lambda: handle(call))
        elif (response := handle(call)) is not None:
            call.answer(response)

    return Api(key=key, versions=versions, serve=serve)


class Handlers:
    """Takes frames, hands requests to their API, answers with an error what no API takes."""

    def __init__(self, broker: Broker, apis: Iterable[Api]) -> None:
        self._broker = broker
        apis = list(apis)
        self._serve = {
            (int(api.key), version): api.serve
            for api in apis
            for version in (*api.versions, *api.private_versions)
        }
        self._serve_run = [api.serve_run for api in apis if api.serve_run is not None]

    def serve_next(self, client: Client, framer: RequestFramer) -> Request | None:
        """Serve what comes next in a client's bytes, one frame or a run of them; None: no frame is whole."""
        for serve_run in self._serve_run:
            request = serve_run(self._broker, client, framer)
            if request is not None:
                return request
        frame = framer.next_frame()
        return None if frame is None else self.handle(client, frame)

    def handle(self, client: Client, frame: memoryview) -> Request:
        """Serve one frame; the request that is returned has its answer now or gets it later."""
        api_key, version, correlation_id, body = parse_header(frame)
        serve = self._serve.get((api_key, version))
        if serve is None:
            request = Request(client, api_key, version, correlation_id, NOTHING)
            request.failed(ErrorCode.UNSUPPORTED_VERSION)
            client.abort(f"it asks for API {api_key} v{version}, which ApiVersions does not offer")
            return request
        request = Request(client, api_key, version, correlation_id, frame[body:])
        request.frame = frame
        # Produce (0) and Fetch (1) are served without tagged fields, and without knowing the client's name.
        if api_key >= 2:
            request.client_id = client_id(frame)
            if is_flexible(api_key, version):
                request.body = frame[skip_tagged_fields(frame, body) :]
        try:
            serve(self._broker, request)
        except Exception as error:
            _answer_failure(request, error)
        # While it waits for its answer it must not keep the received bytes.
        request.frame = request.body = NOTHING
        return request


def answer_from_thread(
    broker: Broker, thread: InThread, request: Request, work: Callable[[], Answer]
) -> None:
    """Answer with what `work` makes in a thread, or with the error it raises.

    For a client that has gone by then it is not done: clients that come and go must not pile up work.
    """

    def done(future: Future[Answer]) -> None:
        if request.client.closed:
            return
        error = future.exception()
        if error is None:
            send(request, future.result())
        else:
            _answer_failure(request, error)

    thread(broker, lambda: Answer(b"") if request.client.closed else work(), done)


def outcome_of(work: Callable[[], T], what: str) -> tuple[ErrorCode, str | None, T | None]:
    """Do `work` for one item of a request; NONE and the result, or the code and the reason of what it raised.

    `what` names the work in the log.
    """
    try:
        return ErrorCode.NONE, None, work()
    except BrokerError as error:
        return error.code, str(error), None
    except Exception as error:
        log.exception("%s failed", what)
        return ErrorCode.UNKNOWN_SERVER_ERROR, str(error), None


def error_codes(message: object) -> Iterator[int]:
    """Every error in a response: its own, and those of the items of its lists."""
    codes, lists = _error_fields(typing.cast(Hashable, type(message)))
    yield from filter(None, (getattr(message, name) for name in codes))
    for name in lists:
        for item in getattr(message, name):
            yield from error_codes(item)


@functools.cache
def _error_fields(message: Hashable) -> tuple[Sequence[str], Sequence[str]]:
    """The names of a message class's field for an error, and of its lists whose items have one somewhere."""
    fields = fields_of(typing.cast(type, message))
    items = {name: field.item for name, field in fields.items() if isinstance(field.item, type)}
    lists = [name for name, item in items.items() if any(_error_fields(typing.cast(Hashable, item)))]
    return [name for name in fields if name == "error_code"], lists


def _answer_failure(request: Request, error: BaseException) -> None:
    name = f"API {request.api_key} v{request.api_version}"
    if isinstance(error, RequestTooLarge):
        request.failed(error.code)
        request.client.abort(str(error))  # lists without an entry would say that all went well
    elif isinstance(error, BrokerError):
        log.debug("refused %s of %s: %s", name, request.client.address, error)
        _send_error(request, error.code)
    else:
        log.error("%s of %s failed", name, request.client.address, exc_info=error)
        _send_error(request, ErrorCode.UNKNOWN_SERVER_ERROR)


def _send_error(request: Request, code: ErrorCode) -> None:
    send(request, Answer(encode_error(request.api_key, request.api_version, code), (code,)))


def send(request: Request, answer: Answer) -> None:
    """Answer the request and count the errors; on the loop."""
    for code in answer.errors:
        request.failed(code)
    request.answer([answer.body], header=response_header(request))


def response_header(request: Request) -> bytes:
    """What follows the correlation id in a response: the end of no tagged fields, in flexible versions."""
    return b"\0" if is_flexible(request.api_key, request.api_version) else b""
