"""Which handler serves which API and version: the one place where an API joins the broker.

Turns refusals into responses. An API or a version that is not offered has no response that its client could
read: the connection is closed, as Kafka does it, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from millrace.broker.broker import Broker
from millrace.errors import BrokerError, ErrorCode
from millrace.server.request import NOTHING, Client, Request
from millrace.wire.codec import encode_error, is_flexible
from millrace.wire.framing import RequestFramer, client_id, parse_header, skip_tagged_fields
from millrace.wire.item_count import RequestTooLarge

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: the versions it serves, those it tells clients about, and what it does.

    `handle` answers the request, at once or later, or raises BrokerError.
    """

    key: int
    versions: frozenset[int]
    advertised: tuple[int, int] | None
    """Lowest and highest version clients are told; None keeps the API private."""
    handle: Callable[[Broker, Request], None]
    serve_run: Callable[[Broker, Client, RequestFramer], Request | None] | None = None
    """Serves many requests that come next in a client's bytes as one; None when they are not of that kind."""


class Handlers:
    """Takes frames, hands requests to their API, answers with an error what no API takes."""

    def __init__(self, broker: Broker, apis: Iterable[Api]) -> None:
        self._broker = broker
        apis = list(apis)
        self._handle = {(api.key, version): api.handle for api in apis for version in api.versions}
        self._serve_run = [api.serve_run for api in apis if api.serve_run is not None]

    def serve_next(self, client: Client, framer: RequestFramer) -> Request | None:
        """Serve what comes next in a client's bytes, one frame or a run of them; None: no frame is whole.

        What a client may do is to be checked in two places: for a run by its API, for a frame in `handle`.
        """
        for serve_run in self._serve_run:
            request = serve_run(self._broker, client, framer)
            if request is not None:
                return request
        frame = framer.next_frame()
        return None if frame is None else self.handle(client, frame)

    def handle(self, client: Client, frame: memoryview) -> Request:
        """Serve one frame; the request that is returned has its answer now or gets it later."""
        api_key, version, correlation_id, body = parse_header(frame)
        handle = self._handle.get((api_key, version))
        if handle is None:
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
        # To check what a client may do: by client.principal, from client.address, before this.
        try:
            handle(self._broker, request)
        except Exception as error:
            _answer_failure(request, error)
        # While it waits for its answer it must not keep the received bytes.
        request.frame = request.body = NOTHING
        return request


InThread = Callable[[Callable[[], bytes], Callable[[Future[bytes]], None]], None]
"""One of the broker's: runs the first function in a thread, then the second on the loop with its outcome."""


def answer_from_thread(in_thread: InThread, request: Request, work: Callable[[], bytes]) -> None:
    """Answer with the body that `work` makes in a thread, or with the error it raises.

    For a client that has gone by then it is not done: clients that come and go must not pile up work.
    """

    def done(future: Future[bytes]) -> None:
        if request.client.closed:
            return
        error = future.exception()
        if error is None:
            request.answer([future.result()])
        else:
            _answer_failure(request, error)

    in_thread(lambda: b"" if request.client.closed else work(), done)


def _answer_failure(request: Request, error: BaseException) -> None:
    name = f"API {request.api_key} v{request.api_version}"
    if isinstance(error, RequestTooLarge):
        request.failed(error.code)
        request.client.abort(str(error))  # lists without an entry would say that all went well
    elif isinstance(error, BrokerError):
        log.debug("refused %s of %s: %s", name, request.client.address, error)
        _answer_error(request, error.code)
    else:
        log.error("%s of %s failed", name, request.client.address, exc_info=error)
        _answer_error(request, ErrorCode.UNKNOWN_SERVER_ERROR)


def _answer_error(request: Request, code: ErrorCode) -> None:
    request.failed(code)
    body = encode_error(request.api_key, request.api_version, code)
    request.answer([body], header=response_header(request))


def response_header(request: Request) -> bytes:
    """What follows the correlation id in a response: the end of no tagged fields, in flexible versions."""
    return b"\0" if is_flexible(request.api_key, request.api_version) else b""
