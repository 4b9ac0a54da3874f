"""Requests as a client's own library writes them, asked of one broker's handlers.

kio's classes and its encoder stand for the client: nothing of Millrace's own messages takes part.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import os
import struct
import typing
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from millrace.errors import TopicAlreadyExists, UnknownTopicOrPartition
from millrace.wire.codec import is_flexible
from millrace.wire.messages import ApiKey
from millrace.zookeeper.topic_state import TopicState
from millrace_broker.coordination.new_partitions import new_topic
from millrace_broker.groups import Groups
from millrace_broker.handlers import Handlers, Services, all_apis
from millrace_broker.handlers.table import Api
from millrace_broker.partitions.broker import Broker
from millrace_broker.security.login import Login
from millrace_broker.security.rights import ANONYMOUS, Access
from millrace_broker.server.request import Request
from millrace_mirror.handlers import apis as mirror_apis
from millrace_mirror.states import MirrorStates
from tests.unit.broker.running import FakeCluster, Running

Values = Mapping[str, Any]
KAFKAS = range(10_000)
"""Kafka's own APIs; the others' answers are bytes here."""
_EMPTY: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "bool": False}


class ChangingCluster(FakeCluster):
    """Registries in memory that take the changes which ZooKeeper would."""

    def __init__(self, *topics: TopicState) -> None:
        super().__init__(*topics)
        self.deletions: list[str] = []
        """Topics that were asked to be deleted, there or not: each costs ZooKeeper several requests."""

    def create_topic(
        self, name: str, partitions: int, settings: Mapping[str, str], **placed: Any
    ) -> TopicState:
        if name in self.topics:
            raise TopicAlreadyExists(f"topic {name} exists already")
        brokers = self.brokers if placed["assigned"] or placed["replicas"] > 1 else {1: self.brokers[1]}
        topic = new_topic(name, partitions, settings, brokers, self.load, **placed)
        self.topics = {**self.topics, name: topic}
        return self.topics[name]

    def topic_names(self) -> frozenset[str]:
        return frozenset(self.topics)

    def delete_topic(self, name: str) -> None:
        self.deletions.append(name)
        if name not in self.topics:
            raise UnknownTopicOrPartition(f"no topic {name}")
        self.topics = {key: topic for key, topic in self.topics.items() if key != name}

    def change_topic(self, name: str, change: Any) -> TopicState:
        if name not in self.topics:
            raise UnknownTopicOrPartition(f"no topic {name}")
        self.topics = {**self.topics, name: change(self.topics[name])}
        return self.topics[name]


EVERYTHING = Access(None, ANONYMOUS, "127.0.0.1")


class AskingClient:
    """A connection that only counts its answers."""

    closed = spare = False
    working = 0
    listener_name = "default"
    login: Login | None = None
    lane: Hashable = None
    last_target: object | None = None
    may_share = True
    is_free = False

    def __init__(self, access: Access = EVERYTHING, address: str = "127.0.0.1:1") -> None:
        self.access, self.address = access, address
        self.answers = 0
        self.errors: Counter[tuple[int, int]] = Counter()

    def keep_place(self, request: Request) -> None:
        raise AssertionError("no lane is served here")

    def reply(self, answers: bytes) -> None:
        raise AssertionError("no lane is served here")

    def answered(self, size: int) -> None:
        self.answers += 1

    def logged_in(self, principal: str) -> None:
        raise AssertionError("nobody logs in here")

    def copies(self) -> None: ...

    def mute(self, seconds: float) -> None:
        raise AssertionError("nobody has a quota here")

    def end(self) -> None:
        raise AssertionError("nobody logs in here")

    def abort(self, reason: str) -> None:
        self.closed = True


def handlers_of(broker: Broker, apis: list[Api[Any]] | None = None) -> Handlers:
    """Without groups: nothing may be asked of them but how many there are."""
    groups = typing.cast(Groups, SimpleNamespace(size=0))
    return Handlers(Services(broker, groups), apis or every_api())


def every_api() -> list[Api[Any]]:
    """The kernel's and the mirror's."""
    return all_apis(mirror_apis(MirrorStates()))


def request_body(api_key: int, version: int, values: Values) -> bytes:
    """A request with these fields; those not named are zero or empty."""
    out = io.BytesIO()
    schema = load_request_schema(api_key, version)
    entity_writer(schema)(out, _entity(schema, values))
    return out.getvalue()


def ask(
    running: Running,
    api_key: int,
    version: int,
    body: bytes | Values,
    access: Access = EVERYTHING,
    handlers: Handlers | None = None,
) -> Any:
    """kio's response entity to a request; AssertionError when the answer is none or has bytes left over."""
    entity = ask_or_close(running, api_key, version, body, access, handlers)
    assert entity is not None, "the connection was closed"
    return entity


def ask_or_close(
    running: Running,
    api_key: int,
    version: int,
    body: bytes | Values,
    access: Access = EVERYTHING,
    handlers: Handlers | None = None,
) -> Any:
    """As `ask`; None where the connection is closed instead of an answer."""
    client = AskingClient(access)
    if not isinstance(body, bytes):
        body = request_body(api_key, version, body)
    flexible = is_flexible(api_key, version)
    frame = struct.pack(">hhih", api_key, version, 7, -1) + (b"\0" if flexible else b"") + body
    request = (handlers or handlers_of(running.broker)).handle(client, memoryview(bytearray(frame)))
    running.broker.end_of_turn()
    done = lambda: client.closed or request.parts is not None  # noqa: E731
    running.until(f"an answer to API {api_key} v{version}", done)
    if client.closed:
        assert client.answers == 0
        return None
    assert client.answers == 1
    answer = _joined(request)
    assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 7)
    answer = answer[9 if flexible and api_key != ApiKey.API_VERSIONS else 8 :]
    if api_key not in KAFKAS:
        return answer
    entity, size = entity_reader(load_response_schema(api_key, version))(answer, 0)
    assert size == len(answer), "bytes are left over"
    return entity


def error_codes(entity: object) -> Iterator[int]:
    """Every error code in a response, in order."""
    for field in dataclasses.fields(typing.cast(Any, entity)):
        value = getattr(entity, field.name)
        if field.name == "error_code":
            yield int(value)
        for item in value if isinstance(value, tuple) else ():
            if dataclasses.is_dataclass(item):
                yield from error_codes(item)


def _joined(request: Request) -> bytes:
    pieces = []
    for part in request.parts or ():
        if isinstance(part, bytes):
            pieces.append(part)
        else:
            pieces.append(os.pread(part.file.fileno(), part.length, part.position))
    return b"".join(pieces)


def _entity(schema: Any, values: Values) -> Any:
    fields = {field.name: field for field in dataclasses.fields(schema)}
    return schema(**{name: _value(field, values.get(name, ...)) for name, field in fields.items()})


def _value(field: Any, value: Any) -> Any:
    parts = [field.type, *typing.get_args(field.type)]
    many = next((part for part in parts if typing.get_origin(part) is tuple), None)
    if value is ...:
        if field.default is not dataclasses.MISSING:
            return field.default
        if many is not None:
            return ()
        return None if type(None) in parts else _zero(field)
    if many is not None and value is not None:
        (inner, _) = typing.get_args(many)
        return tuple(_entity(inner, item) if isinstance(item, Mapping) else item for item in value)
    kind = str(field.metadata.get("kafka_type"))
    return datetime.timedelta(milliseconds=value) if kind.startswith("timedelta") else value


def _zero(field: Any) -> Any:
    kind = str(field.metadata.get("kafka_type"))
    return datetime.timedelta(0) if kind.startswith("timedelta") else _EMPTY.get(kind, 0)
