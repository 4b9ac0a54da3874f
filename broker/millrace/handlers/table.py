"""Which handler serves which API and version: the one place where an API joins the broker.

A request whose header can be read is always answered, if only with an error: a client whose connection is
closed on it would come back at once, for ever. Turns refusals into responses.
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
from millrace.wire.framing import client_id, parse_header, skip_tagged_fields

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


class Handlers:
    """Takes frames, hands requests to their API, answers with an error what no API takes."""

    def __init__(self, broker: Broker, apis: Iterable[Api]) -> None:
        self._broker = broker
        self._handle = {(api.key, version): api.handle for api in apis for version in api.versions}

    def handle(self, client: Client, frame: memoryview) -> Request:
        """Serve one frame; the request that is returned has its answer now or gets it later."""
        api_key, version, correlation_id, body = parse_header(frame)
        handle = self._handle.get((api_key, version))
        if handle is None:
            return self._refuse_version(Request(client, api_key, version, correlation_id, frame[body:]))
        request = Request(client, api_key, version, correlation_id, frame[body:])
        request.frame = frame
        # Produce (0) and Fetch (1) are served without tagged fields, and without knowing the client's name.
        if api_key >= 2:
            request.client_id = client_id(frame)
            if is_flexible(api_key, version):
                request.body = frame[skip_tagged_fields(frame, body) :]
        # The one place to check what a client may do: by client.principal, from client.address, before this.
        try:
            handle(self._broker, request)
        except Exception as error:
            _answer_failure(request, error)
        # While it waits for its answer it must not keep the received bytes.
        request.frame = request.body = NOTHING
        return request

    def _refuse_version(self, request: Request) -> Request:
        log.debug("unknown API %s v%s of %s", request.api_key, request.api_version, request.client.address)
        _answer_error(request, ErrorCode.UNSUPPORTED_VERSION)
        return request


def answer_from_thread(broker: Broker, request: Request, work: Callable[[], bytes]) -> None:
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

    broker.in_background(lambda: b"" if request.client.closed else work(), done)


def _answer_failure(request: Request, error: BaseException) -> None:
    name = f"API {request.api_key} v{request.api_version}"
    if isinstance(error, BrokerError):
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
