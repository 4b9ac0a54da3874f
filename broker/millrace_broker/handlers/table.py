"""The table of APIs, and the common way from the bytes of a request to the bytes of its answer.

The table decodes a request, checks its client's rights, runs the API's handler, encodes the answer, counts
the errors in it, and turns raised errors into answers. An API or a version that is not offered has no
response that its client could read: the connection is closed, as in Kafka, and the log gives the reason. No
sockets are used here.

A right is looked up here, before the handler runs. An API that lists names which the request did not name
(`lists`) shows its client only the names that `Call.only` returns. Produce, Fetch and Metadata also check
rights in their own ways: for runs of requests, for requests that waited, and for cached answers.

A handler runs on the loop, so it must never wait: it must not ask ZooKeeper (of `Cluster` it reads snapshots
only), it may call only the `LoopSide` of a log, and it must not hash passwords. Such work goes to a thread by
`thread=`, `Call.answer_from`, `Groups` or `LoginThread`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from millrace.errors import MAX_TEXT_CHARACTERS, BrokerError, ErrorCode
from millrace.wire.codec import decode_request, encode, encode_error, is_flexible
from millrace.wire.fields import fields_of, items_in, request_of, response_of
from millrace.wire.framing import RequestFramer, client_id, parse_header, skip_tagged_fields
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import MIN_ITEM_LIMIT, RequestTooLarge, TooManyItems
from millrace_broker.coordination.acls import AclStore
from millrace_broker.coordination.quotas import QuotaStore
from millrace_broker.coordination.users import Users
from millrace_broker.groups import Groups
from millrace_broker.handlers.item_bound import ItemBound
from millrace_broker.mailbox import outcome
from millrace_broker.partitions.broker import Broker
from millrace_broker.security import rights
from millrace_broker.security.journal import Requester
from millrace_broker.security.login import LoginThread
from millrace_broker.security.quotas import Kind
from millrace_broker.security.rights import (
    NOTHING_REFUSED,
    UNAUTHENTICATED,
    Need,
    Operation,
    Refused,
    Resource,
    ResourceType,
)
from millrace_broker.server.request import NOTHING, REQUEST_BYTES, Client, Request, throttle_ms

logger = logging.getLogger("millrace.handlers.table")
_COPYING = frozenset({ApiKey.REPLICA_FETCH, ApiKey.REPLICA_ACK})
MAX_LOGGED_CHARACTERS = 100
"""Longest logged part of a client's name, which the client chooses."""
M = TypeVar("M")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
Needs: TypeAlias = Callable[[M], Iterable[Need]]
"""Returns the rights that a decoded request needs, and depends on nothing else."""
EncodedResponse: TypeAlias = tuple[bytes, list[int]]
"""The body of a response, and the errors in it."""
InThread: TypeAlias = Callable[[Broker, Callable[[], EncodedResponse]], Future[EncodedResponse]]
"""A method of the broker that runs a function in a thread."""


class Services(NamedTuple):
    """The services that handlers use."""

    broker: Broker
    groups: Groups
    acls: AclStore | None = None
    """Access rules; None: every client may do everything."""
    users: Users | None = None
    """The users; None: no client must log in."""
    login_thread: LoginThread | None = None
    """The thread that checks slow logins; None: all logins are checked on the loop."""
    quotas: QuotaStore | None = None
    """Quotas of the users; None: no limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Generic[A]):
    """One API: the versions it serves, the rights that a request needs, and the function that serves a
    request.

    `serves` makes the APIs that work with messages. Other APIs read and write the bytes themselves.
    """

    key: ApiKey
    versions: range = range(0)
    """Versions that are listed to clients."""
    private_versions: range = range(0)
    """Versions that are served but not listed to clients."""
    decode: Callable[[Request], A]
    """Decodes the bytes of a request; raises BrokerError when they are malformed."""
    resolve: Callable[[Services, A], A] | None = None
    """Replaces ids by names; rights are looked up by name."""
    needs: Needs[A]
    """Rights without which the handler does not run. An API with `open_to_all` is served even
    before a login."""
    by_item: Collection[ResourceType] = ()
    """Types of resources that the handler refuses one by one, in its answer. A refused resource of any other
    type refuses the whole request."""
    handle: Callable[[Services, Request, A, Refused], None]
    """Answers the request, at once or later, or raises BrokerError."""
    refusal: Callable[[int, ErrorCode, str, object], bytes | None]
    """Returns the body of a response, at a version, with only the code and, if there is a field for it, the
    reason. If the items of a request are refused one by one, the response names each. Returns None where no
    response of that version can state the code."""
    serve_run: Callable[[Services, Client, RequestFramer], Request | None] | None = None
    """Serves the next requests in a client's bytes as one. Returns None when they are of another kind."""

    def fail(self, request: Request, error: BaseException) -> None:
        """Answer with the error. Close the connection if no answer can state it."""
        if isinstance(error, RequestTooLarge):
            request.failed(error.code)
            close(request, str(error))
        elif isinstance(error, BrokerError):
            logger.debug("refused %s: %s", named(request), error)
            self.refuse(
                request, error.code, str(error), error.request if isinstance(error, TooManyItems) else None
            )
        else:
            logger.error("%s at %s failed", named(request), request.client.address, exc_info=error)
            self.refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR)

    def refuse(self, request: Request, code: ErrorCode, reason: str = "", asked: object = None) -> None:
        body = self.refusal(request.api_version, code, reason, asked)
        if body is None:  # Kafka closes the connection, too
            request.failed(code)
            close(request, f"refused with {code.name}: {reason}" if reason else "it failed")
        else:
            send(request, body, [code])


class Call(Generic[M]):
    """A decoded request with the services that serve it, and the way to its answer."""

    __slots__ = (
        *("_api", "_lists", "acls", "broker", "groups", "login_thread"),
        *("quotas", "received", "refused", "request", "users"),
    )

    def __init__(
        self, api: Api[M], services: Services, received: Request, request: M, refused: Refused, lists: bool
    ) -> None:
        self.broker, self.groups, self.acls, self.users, self.login_thread, self.quotas = services
        self.received, self.request = received, request
        self.refused = refused
        """Refused resources that the request names, of the types that the API answers `by_item`."""
        self._api, self._lists = api, lists

    @property
    def is_large(self) -> bool:
        """True if the request has so many items that a thread must serve it, and not the loop."""
        return items_in(self.request, MIN_ITEM_LIMIT) > MIN_ITEM_LIMIT

    def check(self, resource: Resource) -> None:
        """Raise an error if the client may not use a resource that the API answers `by_item`."""
        if resource in self.refused:
            raise rights.refusal(resource)

    def only(
        self, operation: Operation, type_: ResourceType, names: Iterable[str], instead: Resource | None = None
    ) -> Collection[str]:
        """Return the names to which the client has this right, or all names if it has the right to `instead`.

        On the loop.
        """
        self._lists = False
        access = self.received.client.access
        other = None if instead is None else Need(operation, instead)
        if access.everything or (other is not None and access.allows(other)):
            return frozenset(names)
        return frozenset(name for name in names if access.allows(Need(operation, Resource(type_, name))))

    def answer(self, response: object) -> None:
        """Send the response. A thread encodes a large response, so that the loop is not delayed."""
        try:
            if self._lists:
                raise RuntimeError("the handler has not checked which names its client may see")
            if items_in(response, MIN_ITEM_LIMIT) > MIN_ITEM_LIMIT:
                self.answer_from(Broker.in_look_up_thread, lambda: response)
                return
            answer = self._encode(response)
        except Exception as error:
            self._api.fail(self.received, error)
        else:
            send(self.received, *answer)

    def answer_from(self, thread: InThread, work: Callable[[], object]) -> None:
        """Send the response that `work` makes in a thread.

        If the client has disconnected by then, no response is made: clients that come and go must not pile up
        work. The thread's time counts towards the user's quota, as the loop's time does.
        """
        self.broker.mailbox.begin(self._answer_from(thread, work))

    async def _answer_from(self, thread: InThread, work: Callable[[], object]) -> None:
        client, used_s = self.received.client, list[float]()
        client.working += 1

        def timed() -> EncodedResponse:
            began = time.thread_time()
            try:
                return (b"", []) if client.closed else self._encode(work())
            finally:
                used_s.append(time.thread_time() - began)

        failure: Exception | None = None
        try:
            answer = await outcome(thread(self.broker, timed))
        except Exception as error:
            failure = error
        client.working -= 1
        if client.closed:
            return
        throttle_ms(client, Kind.LOOP, sum(used_s))
        if failure is None:
            send(self.received, *answer)
        else:
            self._api.fail(self.received, failure)

    def refuse(self, code: ErrorCode) -> None:
        self._api.refuse(self.received, code)

    def _encode(self, response: object) -> EncodedResponse:
        return encode(response, self.received.api_key, self.received.api_version), list(error_codes(response))


def serves(
    versions: range,
    request: type[M],
    response: type[R],
    *,
    needs: Needs[M],
    by_item: Collection[ResourceType] = (),
    lists: bool = False,
    thread: InThread | None = None,
    private: bool = False,
    key: ApiKey | None = None,
) -> Callable[[Callable[[Call[M]], R | None]], Api[M]]:
    """Make an API of a function from the decoded request to the response.

    The messages determine the API; `key` selects it if they belong to several. With `thread` the function
    runs in a thread of the broker. Otherwise it may return None and send the response later, by `Call.answer`
    or `Call.answer_from`. A `private` API is not listed to clients. An API with `lists`, which names
    resources that the request did not name, is answered only after it has used `Call.only`.
    """

    key = _api_of(request, response, key)

    def declare(work: Callable[[Call[M]], R | None]) -> Api[M]:
        def handle(services: Services, received: Request, message: M, refused: Refused) -> None:
            call = Call(api, services, received, message, refused, lists)
            if thread is not None:
                call.answer_from(thread, lambda: work(call))
            elif (answer := work(call)) is not None:
                call.answer(answer)

        shown, hidden = (range(0), versions) if private else (versions, range(0))
        api = Api(
            key=key,
            versions=shown,
            private_versions=hidden,
            decode=lambda received: decode_request(
                request, key, received.api_version, received.body, received.item_limit
            ),
            needs=needs,
            by_item=by_item,
            handle=handle,
            refusal=partial(encode_error, response, key),
        )
        return api

    return declare


def _api_of(request: type, response: type, key: ApiKey | None) -> ApiKey:
    """Return the API that has both this request class and this response class.

    If several have both, `key` must name one of them. Raise TypeError if none fits."""
    keys = set(request_of(request)) & set(response_of(response))
    if key is not None:
        keys &= {key}
    if len(keys) != 1:
        raise TypeError(f"{request} and {response} share no API, or several: declare or name the one")
    return ApiKey(keys.pop())


def in_thread(
    versions: range,
    request: type[M],
    response: type[R],
    *,
    needs: Needs[M],
    by_item: Collection[ResourceType] = (),
    key: ApiKey | None = None,
) -> Callable[[Callable[[Call[M]], R | None]], Api[M]]:
    """Make an API as `serves` does, in the thread for work that waits for ZooKeeper or takes long."""
    thread = Broker.in_zookeeper_thread
    return serves(versions, request, response, needs=needs, by_item=by_item, thread=thread, key=key)


class Handlers:
    """Takes frames, passes requests to their API, and answers a request that no API takes with an error."""

    def __init__(self, services: Services, apis: Sequence[Api[Any]]) -> None:
        self._services = services
        self._bound = ItemBound(services.broker, services.groups)
        self._apis = {
            (int(api.key), version): api for api in apis for version in (*api.versions, *api.private_versions)
        }
        self._serve_run = [api.serve_run for api in apis if api.serve_run is not None]

    def serve_next(self, client: Client, framer: RequestFramer) -> Request | None:
        """Serve the next frame in a client's bytes, or a run of frames.

        Return None when no frame is whole.
        """
        for serve_run in () if client.spare else self._serve_run:
            request = serve_run(self._services, client, framer)
            if request is not None:
                return request
        frame = framer.next_frame()
        return None if frame is None else self.handle(client, frame)

    def handle(self, client: Client, frame: memoryview) -> Request:
        """Serve one frame. The returned request has its answer now or gets it later."""
        api_key, version, correlation_id, body = parse_header(frame)
        api = self._apis.get((api_key, version))
        if api is None:
            request = Request(client, api_key, version, correlation_id, NOTHING, frame)
            request.failed(ErrorCode.UNSUPPORTED_VERSION)
            close(request, "ApiVersions does not offer it")
            return request
        request = Request(client, api_key, version, correlation_id, frame[body:], frame)
        if client.access is UNAUTHENTICATED and (reason := _too_early(client, api)):
            close(request, reason)
            return request
        if client.spare and not (api.key in _COPYING or api.needs is rights.open_to_all):
            close(request, "there are too many connections, so this one is for brokers (max_connections)")
            return request
        if len(frame) > MIN_ITEM_LIMIT:  # a shorter one cannot have more items
            request.item_limit = self._bound.item_limit()
        if api_key >= 2:  # Produce (0) and Fetch (1) need not know the client's name
            request.client_id = client_id(frame)
        if is_flexible(api_key, version):
            request.body = frame[skip_tagged_fields(frame, body) :]
        try:
            asked = api.decode(request)
            if api.resolve is not None:
                asked = api.resolve(self._services, asked)
            refused = NOTHING_REFUSED if client.access.unchecked else _refused(api, request, asked)
            api.handle(self._services, request, asked, refused)
        except Exception as error:
            api.fail(request, error)
        if request.parts is None and api.key != ApiKey.PRODUCE:  # its batches are written in this turn
            request.kept = max(0, len(frame) - REQUEST_BYTES)
        # While the request waits for its answer it must not keep the received bytes.
        request.frame = request.body = NOTHING
        return request


def _too_early(client: Client, api: Api[Any]) -> str | None:
    """Return the reason for which a request cannot be served before a login; None if it can."""
    if api.needs is not rights.open_to_all:
        return "it has not logged in"
    if client.login is None or not client.login.may_ask():
        return "it sends too many requests before its login"
    return None


def _refused(api: Api[A], request: Request, asked: A) -> Refused:
    """Return the resources that the client may not use. Raise an error if that refuses the whole request."""
    access = request.client.access
    needs = list(api.needs(asked))
    refused = access.refused(needs)
    write_down(request, needs, refused)
    for resource in refused:
        if resource.type not in api.by_item:
            raise rights.refusal(resource)
    return refused


def write_down(request: Request, needs: Sequence[Need], refused: Refused) -> None:
    """Log the refused needs, and the allowed needs that change something. From any thread."""
    journal = request.client.access.journal
    if journal is None:
        return
    kept: dict[tuple[bool, Operation], list[str]] = {}
    for need in needs:
        if (no := need.resource in refused) or need.operation in rights.CHANGES:
            kept.setdefault((no, need.operation), []).append(rights.text_of(need.resource))
    for (no, operation), resources in kept.items():
        write = journal.refused if no else journal.allowed
        write(requester(request), operation.name, resources)


def requester(request: Request) -> Requester:
    client = request.client
    api = ApiKey(request.api_key).name
    name = request.client_id or client_id(request.frame)
    return Requester(client.access.principal, client.address, client.listener_name, api, name)


def named(request: Request) -> str:
    """Return a request's API, version, client and principal, for the log."""
    key, client = request.api_key, request.client
    api = ApiKey(key).name if key in set(ApiKey) else f"API {key}"
    name = (request.client_id or client_id(request.frame))[:MAX_LOGGED_CHARACTERS]
    return f"{api} v{request.api_version} of client {name!r}, principal {client.access.principal!r}"


def close(request: Request, reason: str) -> None:
    """Close the connection of a request that has no answer, and log the reason."""
    request.client.abort(f"{named(request)}: {reason}")


def send(request: Request, body: bytes, errors: Iterable[int] = ()) -> None:
    """Answer the request and count the errors; on the loop."""
    for code in errors:
        request.failed(code)
    # A flexible response header ends with an empty list of tagged fields.
    header = b"\0" if is_flexible(request.api_key, request.api_version) else b""
    request.answer([body], header=header)


def outcome_of(work: Callable[[], T], what: str) -> tuple[ErrorCode, str | None, T | None]:
    """Do `work` for one item of a request. Return ErrorCode.NONE and the result, or the code and the reason
    of the error.

    `what` names the work in the log.
    """
    try:
        return ErrorCode.NONE, None, work()
    except BrokerError as error:
        return error.code, str(error), None
    except Exception as error:
        logger.exception("%s failed", what)
        return ErrorCode.UNKNOWN_SERVER_ERROR, str(error)[:MAX_TEXT_CHARACTERS], None


def error_codes(message: Any, cls: type | None = None) -> Iterator[int]:
    """Yield every error code in a response: its own, and the codes of the items of its lists."""
    own, lists = _error_fields(cast(Hashable, cls or type(message)))
    if own and message.error_code:
        yield message.error_code
    for name, item in lists:
        for value in getattr(message, name):
            yield from error_codes(value, item)


@cache
def _error_fields(message: Any) -> tuple[bool, Sequence[tuple[str, type]]]:
    """Return True if a message class has an error field, and its lists whose items have one at any depth."""
    items = [(name, field.item) for name, field in fields_of(message).items() if isinstance(field.item, type)]
    lists = [(name, item) for name, item in items if any(_error_fields(cast(Hashable, item)))]
    return "error_code" in fields_of(message), lists
